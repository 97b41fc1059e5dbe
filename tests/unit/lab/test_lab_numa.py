"""Replays with NUMA nodes, racks and groups at once, checked without the scheduler."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lab.demand import demand_of
from lab.figures import PolicyOutcome
from lab.fleet import FleetHost, read_fleet
from lab.replay import Checkpoint, Running, TraceReplay
from lab.trace import Arrival, open_trace
from scheduler.framework.settings import SPREADING_WEIGHERS, SchedulerSettings
from tests.support.lab_check import violations
from tests.support.traces import HEADER, write_lines

HUAWEI = "flavor_vcpus,flavor_ram,numa,strategy,group,domain"
ROOM = (*SPREADING_WEIGHERS, "LeftoverWeigher", "AffinityRoomWeigher")


def huawei(folder: Path, seed: int) -> tuple[Path, Path, Path]:
    """A trace, a fleet that becomes full, and racks."""
    chance = random.Random(seed)
    hosts = [chance.choice(("8,16,16,32", "24,16,24,16", "24,48,0,0")) for _ in range(40)]
    lines = []
    for _ in range(400):
        strategy = chance.choice(("", "", "affinity", "anti-affinity", "fault_domain"))
        group, domain = (chance.randrange(12) if strategy else "", chance.randrange(3) if strategy == "fault_domain" else "")
        size = chance.choice((2, 4, 4, 8))
        lines.append(f"{size},{size * chance.choice((1, 2, 4))},{chance.choice((1, 1, 2))},{strategy},{group},{domain}")
    return (
        write_lines(folder / "trace.csv", HUAWEI, lines),
        write_lines(folder / "fleet.csv", "CPU1,RAM1,CPU2,RAM2", hosts),
        write_lines(folder / "racks.csv", "host_id,rack_id", [f"host-{n},{n % 7}" for n in range(40)]),
    )


def replayed(
    trace: Path, fleet: Path, racks: Path | None, weighers: tuple[str, ...], ignored: tuple[str, ...] = ()
) -> tuple[PolicyOutcome, list[FleetHost], tuple[Running, ...], dict[str, Arrival]]:
    opened, hosts = open_trace(trace, ignored), read_fleet(fleet, ignored, racks)
    settings = SchedulerSettings(enabled_weighers=weighers)
    made = TraceReplay(opened, hosts, demand_of(opened, hosts), settings, 3, Checkpoint())
    outcome = made.run(lambda checkpoint: None, lambda servers: None)
    return outcome, hosts, made.make_checkpoint().running, {each.name: each for each in open_trace(trace).list_arrivals()}


@pytest.mark.parametrize("weighers", [SPREADING_WEIGHERS, ROOM])
@pytest.mark.parametrize("seed", [1, 2])
def test_nodes_racks_and_groups_are_honoured_at_once(tmp_path: Path, weighers: tuple[str, ...], seed: int) -> None:
    outcome, hosts, running, asked = replayed(*huawei(tmp_path, seed), weighers)
    assert list(violations(hosts, running, asked)) == []
    assert "NUMATopologyFilter" in {each.filter for each in outcome.reasons}
    assert len(running) == 400 - outcome.rejected


def test_the_check_finds_what_is_placed_without_nodes(tmp_path: Path) -> None:
    trace, fleet, racks = huawei(tmp_path, 1)
    _, _, running, asked = replayed(trace, fleet, racks, SPREADING_WEIGHERS, ("numa",))
    assert any("nodes and is on ()" in each for each in violations(read_fleet(fleet, (), racks), running, asked))


def test_what_ends_gives_its_nodes_back(tmp_path: Path) -> None:
    trace = write_lines(
        tmp_path / "trace.csv",
        f"{HEADER},numa_nodes",
        ["a,0,4,8,8,2", "b,1,,4,4,", "c,5,8,4,4,", "d,6,,4,4,", "e,7,,2,2,", "f,9,,2,2,2"],
    )
    fleet = write_lines(tmp_path / "fleet.csv", "vcpus,memory_mb,numa_nodes", ["8,8,2"])
    outcome, hosts, running, asked = replayed(trace, fleet, None, SPREADING_WEIGHERS)
    assert [each.name for each in running] == ["d"]
    assert list(violations(hosts, running, asked)) == []
    assert {each.filter: each.servers for each in outcome.reasons} == {"RamFilter": 2, "NUMATopologyFilter": 1}
