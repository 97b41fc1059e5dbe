"""What a region of many cells costs while it is idle, and how it boots: on RabbitMQ and MariaDB, many agents in each process.

    python bench/many_cells.py                            2, 10 and 100 cells of 100 hosts; 10,000 servers in the largest
    python bench/many_cells.py --cells 10 --servers 1000  other sizes; --cells may be repeated
    python bench/many_cells.py --smoke                    2 cells of 3 hosts, once; figures not to be quoted

The region is one of deploy.local with servers of its own (``--agents-per-process``). Heartbeats, sweeps and audits come as often as
they do by default. One broker and one database server hold all cells. Each size is idle first. In the last one, then:

- single boots by the clock, without and with a cell that is frozen: SIGSTOP to its conductor, and to the process of its agents if
  that has no other cell's. Latencies are those of servers in the other cells.
- ``--servers`` asked for in one moment in multi-creates of 100, while a super conductor's worker and a cell conductor are killed.

CPU time is of all processes and both servers. Statements are counted by the database server, for each database by its user, without
BEGIN, COMMIT, ROLLBACK and SET. Latencies are from accept to ACTIVE, as recorded by the API level.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
from rich.console import Console

from bench._counters import Memory, subtract_values
from bench._place import Bench, running_region
from bench._script import parser_of, take_quantile
from deploy.local.shape import AGENTS, CONDUCTORS, Shape
from objects.base import Object

BATCH = 100
"""Servers of a multi-create."""
CLIENT_THREADS = 8
SETTLE_S = 5.0
ACTIVE_TIMEOUT_S = 1800.0


class IdleCost(Object, frozen=True, kw_only=True):
    """Per second: statements of the API level and of the cells, CPU ms by role. ``memory``: by role. ``load``: of the machine."""

    cells: int
    hosts: int
    api_statements: float
    cell_statements: float
    cpu: dict[str, float]
    memory: dict[str, Memory]
    load: float

    @property
    def used_cores(self) -> float:
        return sum(self.cpu.values()) / 1000


class Latencies(Object, frozen=True, kw_only=True):
    """Of ``boots`` servers: per second from the first accept to the last ACTIVE, and ms from accept to ACTIVE.

    ``quartiles``: the p99 of each quarter of the servers, in the order in which they were accepted.
    ``cost``: statements of the API level and of the cells, and CPU ms of everything, for each server; 0 where it was not counted.
    """

    boots: int
    rate: float
    p50: float
    p99: float
    quartiles: tuple[float, ...]
    cost: tuple[float, float, float] = (0.0, 0.0, 0.0)


class ManyCells:
    """The measurements of one region."""

    def __init__(self, bench: Bench, console: Console) -> None:
        self._region, self._meter, self._client = bench
        self._console = console

    def print_line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def measure_idle(self, seconds: float) -> IdleCost:
        """Let what the start or a load has set off come to its end, then count."""
        time.sleep(SETTLE_S)
        before, cpu, begun = self._meter.count_statements(), self._meter.cpu_by_role(), time.monotonic()
        time.sleep(seconds)  # what is counted meanwhile runs by the clock
        cpu_after, after = self._meter.cpu_by_role(), self._meter.count_statements()
        taken = time.monotonic() - begun
        counted = {user: n / taken for user, n in subtract_values(after, before).items()}
        api = sum(n for user, n in counted.items() if user == "api")
        shape = self._region.notes.shape
        idle_cost = IdleCost(
            cells=shape.cells,
            hosts=shape.cells * shape.agents,
            api_statements=api,
            cell_statements=sum(counted.values()) - api,
            cpu={role: n * 1000 / taken for role, n in subtract_values(cpu_after, cpu).items()},
            memory=self._meter.memory_by_role(),
            load=os.getloadavg()[0],
        )
        self.print_line(
            f"{idle_cost.cells} cells, {idle_cost.hosts} hosts, idle: {idle_cost.used_cores:.3f} of a core (load of the "
            f"machine {idle_cost.load:.1f})"
        )
        self.print_line(
            f"  statements per second: {idle_cost.api_statements:.1f} of the API level, {idle_cost.cell_statements:.1f} of "
            "the cells"
        )
        for role, used in sorted(idle_cost.cpu.items(), key=lambda entry: -entry[1]):
            memory = idle_cost.memory[role]
            self.print_line(f"  {role:16} {used:8.1f} ms/s {memory.processes:4} processes {memory.pss:7.0f} MiB PSS")
        return idle_cost

    def run_paced(self, name: str, count: int, rate: float, frozen: str | None = None) -> Latencies:
        """Single boots by the clock; those that land in the cell ``frozen`` do not count."""
        with ThreadPoolExecutor(4 * CLIENT_THREADS) as pool, self._freeze_cell(frozen):
            begun = time.monotonic()
            for number in range(count):
                time.sleep(max(0.0, begun + number / rate - time.monotonic()))  # until its turn
                pool.submit(self._client.boot_servers, f"{name}{number}-")
            pool.shutdown()
            self._wait(name, count, frozen)
            latencies = self._read_latencies(name, frozen)
        self._wait(name, count, None)  # those of the frozen cell go on
        self.print_line(
            f"{count} single boots, {rate:g} per second{f', {frozen} frozen' if frozen else ''}: {_describe_latencies(latencies)}"
        )
        return latencies

    def run_flood(self, name: str, servers: int, batch: int) -> Latencies:
        """Multi-creates in one moment. A worker of a super conductor and a cell conductor are killed when a quarter is ACTIVE."""
        before, cpu = self._meter.count_statements(), self._meter.cpu_by_role()
        with ThreadPoolExecutor(CLIENT_THREADS) as pool:
            posts = [pool.submit(self._client.boot_servers, f"{name}{number}-", batch) for number in range(servers // batch)]
            for post in posts:
                post.result()
        self._wait(name, servers // 4, None)
        killed = [self._list_pids("super-conductor-1")[1], self._list_pids(CONDUCTORS)[1]]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        self._wait(name, servers, None)
        counted, used = subtract_values(self._meter.count_statements(), before), subtract_values(self._meter.cpu_by_role(), cpu)
        api, every, ms = counted.get("api", 0.0), sum(counted.values()), 1000 * sum(used.values())
        cost = of_api, of_cells, of_cpu = api / servers, (every - api) / servers, ms / servers
        latencies = msgspec.structs.replace(self._read_latencies(name, None), cost=cost)
        self.print_line(
            f"{servers} servers in one moment, a super conductor and a cell conductor killed: {_describe_latencies(latencies)}"
        )
        self.print_line(
            f"  each: {of_api:.1f} statements of the API level, {of_cells:.1f} of the cells; {of_cpu:.0f} CPU ms in all"
        )
        return latencies

    def _list_pids(self, member: str) -> list[int]:
        """The master first, then what it has forked, in order while none was killed."""
        return self._region.table.pids_by_member()[member]

    @contextlib.contextmanager
    def _freeze_cell(self, cell: str | None) -> Iterator[None]:
        if cell is None:
            yield
            return
        shape = self._region.notes.shape
        number = shape.cell_names().index(cell)
        pids = [self._list_pids(CONDUCTORS)[1 + number]]
        crowds = [{host.cell for host in crowd} for crowd in shape.list_crowds()]
        pids += [self._list_pids(AGENTS)[1 + n] for n, cells in enumerate(crowds) if cells == {cell}]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def _wait(self, name: str, count: int, but_for: str | None) -> None:
        """Until so many servers whose name begins so are ACTIVE or in the cell ``but_for``. Fails at once if one is in ERROR."""
        give_up = time.monotonic() + ACTIVE_TIMEOUT_S
        query = """SELECT SUM(m.state = 'active' OR c.name = %s), SUM(m.state = 'error')
            FROM api.instance_mappings m LEFT JOIN api.cell_mappings c ON c.uuid = m.cell_uuid WHERE m.name LIKE %s"""
        while True:
            ((done, failed),) = self._meter.query_rows(query, but_for or "", f"{name}%")
            assert not failed, f"{name}: {failed} are in ERROR, such as: {self._read_fault(name)}"
            if int(done or 0) >= count:
                return
            assert time.monotonic() < give_up, f"{name}: {done} of {count} after {ACTIVE_TIMEOUT_S:g} s"
            time.sleep(0.5)

    def _read_fault(self, name: str) -> str:
        """Of one server in ERROR."""
        query = """SELECT m.instance_uuid, c.name FROM api.instance_mappings m JOIN api.cell_mappings c ON c.uuid = m.cell_uuid
            WHERE m.name LIKE %s AND m.state = 'error' LIMIT 1"""
        ((uuid, cell),) = self._meter.query_rows(query, f"{name}%")
        faults = self._meter.query_rows(
            f"SELECT message FROM {cell}.instance_faults WHERE instance_uuid = %s ORDER BY id DESC", uuid
        )
        return f"{uuid} in {cell}: {faults}"

    def _read_latencies(self, name: str, but_for: str | None) -> Latencies:
        query = """SELECT m.created_at, m.launched_at FROM api.instance_mappings m
            LEFT JOIN api.cell_mappings c ON c.uuid = m.cell_uuid
            WHERE m.name LIKE %s AND m.state = 'active' AND COALESCE(c.name, '') <> %s ORDER BY m.created_at"""
        times = self._meter.query_rows(query, f"{name}%", but_for or "")
        waited = [1000 * (active - accepted) for accepted, active in times]
        size = max(1, len(waited) // 4)
        return Latencies(
            boots=len(waited),
            rate=len(waited) / (max(active for _, active in times) - min(accepted for accepted, _ in times)),
            p50=take_quantile(waited, 0.5),
            p99=take_quantile(waited, 0.99),
            quartiles=tuple(take_quantile(waited[start : start + size] or [0.0], 0.99) for start in range(0, 4 * size, size)),
        )


def _describe_latencies(latencies: Latencies) -> str:
    quartiles = ", ".join(f"{value:.0f}" for value in latencies.quartiles)
    return (
        f"{latencies.boots} ACTIVE, {latencies.rate:.0f} per second, accept to ACTIVE p50 {latencies.p50:.0f} ms, p99 "
        f"{latencies.p99:.0f} ms"
        f" (by quarter of submission {quartiles})"
    )


def measure_region(shape: Shape, console: Console, options: argparse.Namespace, *, loads: bool) -> list[object]:
    """Start a region, measure it, stop it."""
    begun, singles = time.monotonic(), options.singles
    with running_region(shape, smoke=options.smoke, messages=False, patience=1800.0) as bench:
        console.print(f"{shape.cells} cells serve after {time.monotonic() - begun:.0f} s", markup=False, highlight=False)
        cells = ManyCells(bench, console)
        measurements: list[object] = [cells.measure_idle(options.seconds)]
        if loads:
            measurements.append(cells.run_paced("warm", max(4, singles // 10), options.rate))
            measurements.append(cells.run_paced("all", singles, options.rate))
            measurements.append(cells.run_paced("frozen", singles, options.rate, frozen=shape.cell_names()[-1]))
            measurements.append(cells.run_flood("flood", options.servers, min(BATCH, max(1, options.servers // 8))))
        return measurements


def main() -> None:
    parser = parser_of(__doc__, "a moment; the figures mean nothing")
    parser.add_argument("--cells", type=int, action="append", metavar="N", help="may be repeated (default: 2, 10 and 100)")
    parser.add_argument("--hosts", type=int, default=100, metavar="N", help="in each cell (default: %(default)s)")
    parser.add_argument("--servers", type=int, default=10_000, metavar="N", help="asked for in one moment (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of idleness (default: %(default)g)")
    parser.add_argument("--rate", type=float, default=10.0, help="single boots per second (default: %(default)g)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured here")
    options = parser.parse_args()
    console = Console(width=200)
    sizes, hosts, options.singles = options.cells or [2, 10, 100], options.hosts, int(30 * options.rate)
    if options.smoke:
        sizes, hosts, options.seconds, options.servers, options.singles = [2], 3, 1.0, 16, 8
    measurements = []
    for cells in sizes:
        shape = Shape(cells=cells, agents=hosts, agents_per_process=max(hosts, hosts * cells // 10), conductors=1, apis=1)
        measurements.append(measure_region(shape, console, options, loads=cells == sizes[-1]))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(measurements)))


if __name__ == "__main__":
    main()
