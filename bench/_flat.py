"""Regions of different sizes, what a boot cost in each, and whether the larger ones cost more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from db.cell import compute_nodes, services
from db.cell.services import Beat
from db.sql.engine import Database
from objects.compute_node import ComputeNode
from objects.process import AGENT_BINARY, About

BUILDERS = 10
"""Hosts with agents."""
BATCH = 50
INSERT_PAGE_SIZE = 500
MESSAGES = "messages"
REPEATED_POSTS_LIMIT = 12
"""POSTs after which what is larger than it should be is not taken for chance any more."""
GIVE_UP_AFTER_S = 300.0
"""Seconds after which what has not come never will."""

Polls = Set[tuple[str, str]]
"""(role, statement)"""


@dataclass(frozen=True)
class Size:
    """A region; its builders are in the first ``used`` cells, with ``instances`` on each."""

    hosts: int = BUILDERS
    instances: int = 1
    cells: int = 2
    used: int = 2

    def describe_region(self) -> str:
        where = "" if self.used == 2 else f", builds in {self.used}"
        return f"{self.hosts:,} hosts, {self.instances} on each, {self.cells} cells{where}"


SMALL = Size()
LARGE = Size(hosts=10_000, instances=50, cells=10)
SIZES = (SMALL, Size(hosts=10_000), Size(instances=50), Size(cells=10), LARGE)
SPREAD = Size(cells=10, used=10)


@dataclass(frozen=True)
class Cost:
    """Of one POST: statements by role, messages, and CPU ms."""

    counts: Mapping[str, float]
    cpu: float

    @property
    def statements_by_role(self) -> dict[str, float]:
        return {name: number for name, number in self.counts.items() if name != MESSAGES}

    @property
    def statement_count(self) -> float:
        return sum(self.statements_by_role.values())

    def excess_over(self, base: Cost, servers: int) -> dict[str, float]:
        """What is larger than in ``base`` by more than ``noise_limit`` says."""
        return {name: n for name, n in self.counts.items() if n > base.counts[name] + noise_limit(name, servers)}


def smallest_cost(costs: Sequence[Cost]) -> Cost:
    """Each of its counts the smallest."""
    counts = {name: min(cost.counts[name] for cost in costs) for name in costs[0].counts}
    return Cost(counts, min(cost.cpu for cost in costs))


def noise_limit(name: str, servers: int) -> int:
    """How much larger a smallest count may be for chance alone: the reports of ten hosts share few or many messages."""
    if servers == 1:
        return 0
    return 30 if name in ("conductor", "cells", MESSAGES) else 2


@dataclass(frozen=True)
class Measured:
    """The costs by servers in a POST, the polls that were left out, and how many there are per second."""

    costs: Mapping[int, Cost]
    polls: Polls
    polling: float


def add_ghost_hosts(urls: Mapping[str, str], count: int) -> None:
    """Cells, known by the URLs of their databases, have heard from ``count`` hosts, in turns. They have room for a few servers."""
    for number, (cell, url) in enumerate(urls.items()):
        names = [f"{cell}-ghost{n:05}" for n in range(number, count, len(urls))]
        nodes = [ComputeNode(host=name, node=name, vcpus=4, memory_mb=4096, disk_gb=10) for name in names]
        database = Database(url, name=cell)
        for start in range(0, len(nodes), INSERT_PAGE_SIZE):
            page = nodes[start : start + INSERT_PAGE_SIZE]
            database.write(services.record_heartbeats, [Beat(host=node.host, binary=AGENT_BINARY) for node in page])
            for node in page:  # else they would wait for 'host discover'
                database.write(
                    services.introduce_service,
                    Beat(host=node.host, binary=AGENT_BINARY),
                    About(release="bench"),
                    1.0,
                    identified=True,
                )
            database.write(compute_nodes.store_all, page, time.time())
        database.dispose_connections()


def wait_until_quiet(count: Callable[[], float], seconds: float, pause: float) -> None:
    """Return when ``count`` has stood still for so many seconds; it is asked for at every ``pause``."""
    seen, since, give_up = -1.0, time.monotonic(), time.monotonic() + GIVE_UP_AFTER_S
    while time.monotonic() - since < seconds:
        assert time.monotonic() < give_up, "it is never quiet: something runs by the clock that no poll was taken for"
        now = count()
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(pause)


def show_costs(title: str, measured_by_size: Mapping[Size, Measured], console: Console) -> None:
    table = Table(title=title)
    table.add_column("")
    for heading in ("one boot", "messages", "CPU", f"a batch of {BATCH}", "messages", "CPU", "polls per s"):
        table.add_column(heading, justify="right")
    for size, measured in measured_by_size.items():
        row = [size.describe_region()]
        for cost in measured.costs.values():
            parts = " + ".join(f"{number:g}" for number in cost.statements_by_role.values())
            row += [f"{cost.statement_count:g} ({parts})", f"{cost.counts[MESSAGES]:.3g}", f"{cost.cpu:.0f}"]
        table.add_row(*row, f"{measured.polling:.0f}")
    console.print(table)


def list_excesses(measured_by_size: Mapping[Size, Measured]) -> list[str]:
    """What costs more in a larger region than in the smallest."""
    base = measured_by_size[SMALL].costs
    return [
        f"{size.describe_region()}, {servers} server(s), {name}: {number:g}, not {base[servers].counts[name]:g}"
        for size, measured in measured_by_size.items()
        for servers, cost in measured.costs.items()
        for name, number in cost.excess_over(base[servers], servers).items()
    ]
