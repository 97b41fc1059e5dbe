"""How long one boot takes, stage by stage, while 1, 2, 4, 8 and 16 clients each wait for their server before they ask for the next.

    python bench/waiting.py             the region of bench/region.py, about a minute
    python bench/waiting.py --smoke     the same paths in a small region; figures not to be quoted

A client polls its server every 50 ms until it is ACTIVE. The stages come from times that the boot leaves in its rows, all by the
clock of one database server:

    decided     the request is accepted .. the scheduler begins its decision: doorbell, round, lease, call
    mapped      .. the hand-over: choice, claim, staging
    building    .. the agent is granted the build: order, local claim, accept
    launched    .. the guest runs: spawn, report
    applied     .. the API level has read that from the cell's feed; lists show it then

At the end clients that do not wait ask for as many servers at once, for the throughput.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from bench._counters import Meter, subtract_values
from bench._place import Client, prepared_region, start_processes
from bench._script import needs_region, parser_of
from deploy.local.shape import Shape
from service.periodic import wait_until

POLL_PAUSE_S = 0.05
BOOT_TIMEOUT_S = 60.0
STAGES = ("decided", "mapped", "building", "launched", "applied")
TIMES = """
SELECT created_at, (SELECT MIN(at) FROM api.decisions WHERE decisions.batch_id = m.batch_id), mapped_at, building_at, launched_at,
  updated_at
FROM api.instance_mappings AS m JOIN ({cells}) AS c ON c.uuid = m.instance_uuid WHERE m.name LIKE %s AND m.state = 'active'
"""
OF_CELL = "SELECT uuid, building_at FROM {cell}.instances"
ACTIVE = "SELECT COUNT(*) FROM api.instance_mappings WHERE name LIKE %s AND state = 'active'"

Stages = Mapping[str, Sequence[float]]
"""Milliseconds of each boot by stage; ``ACTIVE``: all of them but the last."""


class Waited(NamedTuple):
    """``cpu``: milliseconds of each boot by role, with the polls."""

    stages: Stages
    cpu: Mapping[str, float]


class Boots:
    """Boots in one region, and what their rows tell of them."""

    def __init__(self, meter: Meter, client: Client, cells: Iterable[str]) -> None:
        self._meter = meter
        self._client = client
        self._query = TIMES.format(cells=" UNION ALL ".join(OF_CELL.format(cell=cell) for cell in cells))

    def measure_waits(self, name: str, clients: int, count: int) -> Waited:
        """``count`` boots by so many clients, each of which waits for its server."""

        def boot_and_poll(number: int) -> None:
            uuid = self._client.boot_servers(f"{name}{number}-")
            while self._client.get_status(uuid) == "BUILD":
                time.sleep(POLL_PAUSE_S)  # as clients do that wait for a server

        cpu = self._meter.cpu_by_role()
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(boot_and_poll, range(count)))
        used = subtract_values(self._meter.cpu_by_role(), cpu)
        return Waited(self._stage_times(name, count), {role: 1000 * seconds / count for role, seconds in used.items()})

    def at_once(self, name: str, clients: int, count: int) -> float:
        """Boots per second to ACTIVE, if nobody waits."""
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(lambda number: self._client.boot_servers(f"{name}{number}-"), range(count)))
        rows = self._read_rows(name, count)
        return count / (max(row[4] for row in rows) - min(row[0] for row in rows))

    def _stage_times(self, name: str, count: int) -> Stages:
        times_by_stage: dict[str, list[float]] = {stage: [] for stage in (*STAGES, "ACTIVE")}
        for row in self._read_rows(name, count):
            for stage, before, after in zip(STAGES, row, row[1:], strict=False):
                times_by_stage[stage].append(1000 * (after - before))
            times_by_stage["ACTIVE"].append(1000 * (row[4] - row[0]))
        return times_by_stage

    def _read_rows(self, name: str, count: int) -> list[tuple[float, ...]]:
        assert wait_until(lambda: int(self._meter.query_rows(ACTIVE, f"{name}%")[0][0]) >= count, BOOT_TIMEOUT_S), "not ACTIVE"
        return [tuple(map(float, row)) for row in self._meter.query_rows(self._query, f"{name}%")]


def show_waits(console: Console, waits_by_clients: Mapping[int, Waited], rate: float) -> None:
    table = Table(title="From accept to ACTIVE, p50 / p99 ms", title_justify="left")
    for heading in ("clients", "ACTIVE", *STAGES):
        table.add_column(heading, justify="right")
    for clients, (stages, _) in waits_by_clients.items():
        table.add_row(str(clients), *(_describe_quantiles(stages[stage]) for stage in ("ACTIVE", *STAGES)))
    console.print(table)
    roles = list(next(iter(waits_by_clients.values())).cpu)
    table = Table(title="CPU ms of each boot, with the polls of its client", title_justify="left")
    for heading in ("clients", "all", *roles):
        table.add_column(heading, justify="right")
    for clients, (_, cpu) in waits_by_clients.items():
        table.add_row(str(clients), f"{sum(cpu.values()):.0f}", *(f"{cpu[role]:.1f}" for role in roles))
    console.print(table)
    console.print(f"At once, by clients that do not wait: {rate:.0f} boots per second", highlight=False)


def _describe_quantiles(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.0f} / {ordered[int(len(ordered) * 0.99)]:.0f}"


def main() -> None:
    parser = parser_of(__doc__, "a moment; the figures mean nothing")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--boots", type=int, default=200, help="of each number of clients; one client alone boots a fifth of that")
    options = parser.parse_args()
    console = Console(width=120)
    shape = Shape()
    if options.smoke:
        shape, options.clients, options.boots = Shape(apis=1, supers=1, schedulers=1, conductors=1, agents=2), [1, 2], 10
    with needs_region(smoke=options.smoke), prepared_region(shape) as region:
        meter = Meter(region, messages=False)
        try:
            start_processes(region)
            boots = Boots(meter, Client(region), shape.cell_names())
            boots.measure_waits("warm", 4, options.boots // 5)
            waits_by_clients = {
                n: boots.measure_waits(f"by{n}x", n, options.boots // (5 if n == 1 else 1)) for n in options.clients
            }
            show_waits(console, waits_by_clients, boots.at_once("once", max(options.clients), options.boots))
        finally:
            meter.close()


if __name__ == "__main__":
    main()
