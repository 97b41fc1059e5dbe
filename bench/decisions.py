"""Time of one scheduling decision, without SQL, over fleets of several sizes; and with it, on SQLite.

``python bench/decisions.py`` prints microseconds; ``--smoke`` takes the small fleets only, a few times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from objects.inventory import Standing
from objects.spec import RequestSpec
from scheduler.attempt import Attempt
from scheduler.cursor import Cursor
from scheduler.drivers.base import Driver
from scheduler.job import Job, Moment
from scheduler.table import HostTable
from tests.support import fleet


def big_table(hosts: int) -> HostTable:
    """Hosts of four sizes, some of them in use."""
    nodes = [fleet.node(f"host-{n:06}", vcpus=(16, 32, 64, 96)[n % 4], memory_mb=65536 * (1 + n % 4)) for n in range(hosts)]
    made = fleet.table(nodes)
    for n in range(0, hosts, 3):
        made.set_inventory(
            fleet.inventory(n + 1, nodes[n], fleet.CELLS[n % 2], 2, used_vcpus=n % 9, used_memory_mb=512 * (n % 50)), 0.0
        )
    return made


def decide(table: HostTable, driver: Driver, asked: RequestSpec, uuids: tuple[str, ...]) -> None:
    """Everything a decision costs but its statements: plan, confirm on unchanged rows, alternates, explanation."""
    job = Job(fleet.CONTEXT, asked, uuids)
    attempt = Attempt(table, driver, Cursor(), [job], Moment(time.monotonic(), time.time(), float("-inf"), False, {}))
    wanted = attempt.begin([], [Standing(needed=uuids)], [])
    attempt._locked.update(wanted)  # as if the rows had come back as they were
    attempt.finish()
    if not all(job.answer()):
        raise AssertionError("a decision found no host on a fleet that has room")


def per_call(seconds: float, call: object, *arguments: object) -> float:
    """Microseconds of one call, the best of runs that take ``seconds`` together."""
    if not callable(call):
        raise TypeError("call")
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        call(*arguments)
        best = min(best, time.perf_counter() - began)
    return best * 1e6


def batch(count: int) -> tuple[RequestSpec, tuple[str, ...]]:
    uuids = tuple(f"00000000-0000-0000-0000-{n:012}" for n in range(count))
    return fleet.spec(fleet.flavor(2, 2048, 10), fences=dict.fromkeys(uuids, 1), num_instances=count), uuids


def with_sql(hosts: int, boots: int) -> float:
    """Microseconds of one whole ``select_destinations`` on SQLite, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        site = fleet.Site.on_sqlite(Path(folder), [fleet.node(f"host-{n:06}", vcpus=1000) for n in range(hosts)])
        scheduler = site.scheduler()
        leased = [site.leased(fleet.spec(fleet.flavor(1, 64, 1))) for _ in range(boots)]
        began = time.perf_counter()
        for asked in leased:
            scheduler.select_destinations(fleet.CONTEXT, asked, list(asked.fences))
        return (time.perf_counter() - began) / boots * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small fleets, a few runs: does it still work?")
    smoke = parser.parse_args().smoke
    driver = fleet.driver()
    print(f"{'hosts':>8} {'single us':>10} {'batch of 100, us per instance':>30}")
    for hosts in (24, 1_000) if smoke else (24, 1_000, 10_000, 100_000):
        table = big_table(hosts)
        seconds = 0.05 if smoke else 2.0
        single = per_call(seconds, decide, table, driver, *batch(1))
        many = per_call(seconds, decide, table, driver, *batch(100)) / 100
        print(f"{hosts:>8} {single:>10.0f} {many:>30.1f}")
    print(f"{'hosts':>8} {'with SQL on SQLite, us':>30}")
    for hosts in (24,) if smoke else (24, 1_000):
        print(f"{hosts:>8} {with_sql(hosts, 50 if smoke else 500):>30.0f}")


if __name__ == "__main__":
    main()
