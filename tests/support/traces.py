"""Small traces and fleets for the lab, as files."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from lab.demand import demand_of
from lab.figures import PolicyOutcome
from lab.fleet import read_fleet
from lab.replay import Checkpoint, TraceReplay
from lab.trace import open_trace
from scheduler.framework.settings import SchedulerSettings

HEADER = "id,start,end,vcpus,memory_mb"


def write_lines(path: Path, header: str, lines: Iterable[str]) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def made_trace(path: Path, servers: int, seed: int = 1) -> Path:
    """Servers of four sizes that come one a minute and stay for some hours."""
    chance = random.Random(seed)
    lines = []
    for number in range(servers):
        vcpus, memory_mb = chance.choice(((1, 2048), (2, 8192), (4, 8192), (8, 65536)))
        end = "" if chance.random() < 0.05 else str(number * 60 + round(chance.expovariate(1 / 20_000)) + 1)
        lines.append(f"server-{number},{number * 60},{end},{vcpus},{memory_mb}")
    return write_lines(path, HEADER, lines)


def made_fleet(path: Path, hosts: int) -> Path:
    return write_lines(path, "count,vcpus,memory_mb,cell", [f"{hosts - hosts // 3},32,131072,east", f"{hosts // 3},64,524288,west"])


def replayed(trace: Path, fleet: Path, settings: SchedulerSettings | None = None, seed: int = 0) -> PolicyOutcome:
    """The whole replay, in this process."""
    opened, hosts = open_trace(trace), read_fleet(fleet)
    demand = demand_of(opened, hosts)
    replay = TraceReplay(opened, hosts, demand, settings or SchedulerSettings(), seed, Checkpoint())
    return replay.run(lambda checkpoint: None, lambda servers: None)
