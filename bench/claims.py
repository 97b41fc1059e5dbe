"""What durable claims cost: ``select_destinations`` with its transaction, on MariaDB, PostgreSQL or SQLite.

    python bench/claims.py rate        threads of one process, 10,000 hosts, 70 % full: claims per second, statements, group sizes
    python bench/claims.py batch       one request of 1,000 servers on 10,000 hosts
    python bench/claims.py contention  100,000 claims by 4 processes on 10,000 hosts, 95 % full: what others took, and the sums
    python bench/claims.py race        120 requests for 100 places on 20 hosts, 2 processes of 4 threads, ten times
    python bench/claims.py --smoke     all of them, small, on SQLite; figures not to be quoted

``--server mariadb|postgresql|sqlite`` (mariadb), ``--hosts N``, ``--claims N``, ``--threads N`` (of ``measure_rate``: 8),
``--spreads`` (without the packing of the defaults). The database is a new one on the server that tests use, with its usual
durability (``fsync`` at each commit), and is dropped at the end. Requests are leased beforehand; cells are not asked. On a machine
that others use too, CPU time per claim says more than claims per second.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from threading import Barrier
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from bench import _ledger
from bench._script import describe_percentiles, parser_of
from db.api.claims import claims
from db.sql.counting import StatementCounter
from objects import errors
from objects.spec import RequestSpec
from scheduler.framework.settings import SPREADING_WEIGHERS, SchedulerSettings
from scheduler.manager import SchedulerManager
from tests.support import fleet
from tests.support.fleet import CONTEXT, Site

SETTINGS = SchedulerSettings(warm_up=0.0, service_down_time=1e6)
"""No agent reports here."""
SPREADING = msgspec.structs.replace(SETTINGS, enabled_weighers=SPREADING_WEIGHERS)
THREADS = 8
HELD_CLAIMS = 32
"""Claims that a thread lets stand in a fleet that is almost full, before it gives back the oldest."""


class Size(NamedTuple):
    """Of one measurement."""

    server: str
    hosts: int
    claims: int
    batch: int
    processes: int
    runs: int
    threads: int = THREADS
    spreads: bool = False

    @property
    def scheduler_settings(self) -> SchedulerSettings:
        return SPREADING if self.spreads else SETTINGS


FULL = Size("mariadb", 10_000, 0, 1_000, 4, 10)
SMOKE = Size("sqlite", 200, 64, 20, 2, 1)


class ClaimOutcomes(NamedTuple):
    """What a thread, or a process, has seen: seconds of each answered call, how often others took a host, refusals, calls lost."""

    seconds: list[float]
    conflicts: int = 0
    refused: int = 0
    again: int = 0


def sum_outcomes(outcomes: Sequence[ClaimOutcomes]) -> ClaimOutcomes:
    seconds, conflicts, refused, again = zip(*outcomes, strict=True)
    return ClaimOutcomes(list(chain.from_iterable(seconds)), sum(conflicts), sum(refused), sum(again))


def claim_hosts(scheduler: SchedulerManager, spec: RequestSpec) -> list[str]:
    """The hosts, in request order."""
    return [answer[0].host for answer in scheduler.select_destinations(CONTEXT, spec, list(spec.fences))]


# -- rate ----------------------------------------------------------------------------------------------------------------------


def measure_rate(size: Size) -> None:
    """Claims per second of one process."""
    count = size.claims or 6_000
    with _ledger.database_on(size.server) as (url, server):
        site = Site(_ledger.open_database(url), _ledger.build_nodes(size.hosts))
        _ledger.fill_hosts(site.database, 0.7)
        scheduler = site.scheduler(size.scheduler_settings)
        warm = _ledger.lease_requests(site.database, min(count, 200))
        by_threads(scheduler, warm, size.threads)
        leased = _ledger.lease_requests(site.database, count)
        began, burnt = time.perf_counter(), time.process_time()
        seconds = by_threads(scheduler, leased, size.threads)
        took, burnt = time.perf_counter() - began, time.process_time() - burnt
        print(f"{server}, {size.hosts} hosts, {size.threads} threads: {count / took:.0f} claims/s, {describe_percentiles(seconds)}")
        print(f"  {burnt / count * 1e3:.2f} ms of this process's CPU per claim")
        counted = _ledger.lease_requests(site.database, max(1, count // 6))  # apart: counting takes time too
        with StatementCounter() as counter:
            by_threads(scheduler, counted, size.threads)
        executions = sum(figures.executions for figures in counter.totals_by_database().values())
        print(f"  {executions / len(counted):.2f} statements per claim")
        print(f"  {describe_groups(_ledger.group_sizes(site.database))}")
        check_claims(site)
        site.database.dispose_connections()


def by_threads(scheduler: SchedulerManager, leased: Sequence[RequestSpec], threads: int = THREADS) -> list[float]:
    """Seconds of each call."""

    def run(specs: Sequence[RequestSpec]) -> list[float]:
        seconds: list[float] = []
        for spec in specs:
            began = time.perf_counter()
            claim_hosts(scheduler, spec)
            seconds.append(time.perf_counter() - began)
        return seconds

    with ThreadPoolExecutor(threads) as pool:
        return [duration for durations in pool.map(run, [leased[n::threads] for n in range(threads)]) for duration in durations]


# -- batch ---------------------------------------------------------------------------------------------------------------------


def measure_batch(size: Size) -> None:
    """One request of many servers."""
    with _ledger.database_on(size.server) as (url, server):
        site = Site(_ledger.open_database(url), _ledger.build_nodes(size.hosts))
        _ledger.fill_hosts(site.database, 0.7)
        scheduler = site.scheduler(size.scheduler_settings)
        by_threads(scheduler, _ledger.lease_requests(site.database, 8))
        seconds: list[float] = []
        executions = 0
        for spec in _ledger.lease_requests(site.database, 5, size=size.batch):
            with StatementCounter() as counter:
                began = time.perf_counter()
                claim_hosts(scheduler, spec)
                seconds.append(time.perf_counter() - began)
            executions = sum(total.executions for total in counter.totals_by_database().values())
        best, middle = min(seconds), statistics.median(seconds)
        print(f"{server}, {size.hosts} hosts: {size.batch} servers in {best:.3f} s (median of 5: {middle:.3f} s)")
        print(f"  {executions} statements")
        check_claims(site)
        site.database.dispose_connections()


# -- contention ----------------------------------------------------------------------------------------------------------------


def measure_contention(size: Size) -> None:
    """Processes that know nothing of each other, in a fleet that is almost full."""
    count = size.claims or 100_000
    with _ledger.database_on(size.server) as (url, server):
        site = Site(_ledger.open_database(url), _ledger.build_nodes(size.hosts))
        _ledger.fill_hosts(site.database, 0.95 if size.hosts > 1000 else 0.7)
        site.database.dispose_connections()
        began = time.perf_counter()
        counts = [count // size.processes] * size.processes
        seconds, conflicts, refused, again = sum_outcomes(by_processes(claim_and_give_back, url, size, counts))
        took, claim_count = time.perf_counter() - began, len(seconds)
        print(
            f"{server}, {size.hosts} hosts, {size.processes} processes of {THREADS} threads: {claim_count} claims in {took:.0f} s"
        )
        print(f"  {describe_percentiles(seconds)}; given back meanwhile, {HELD_CLAIMS} left to each thread")
        print(f"  planned anew at commit because others took the room: {conflicts} ({conflicts / claim_count:.3%})")
        print(f"  calls that lost {again}, refused {refused}; {describe_groups(_ledger.group_sizes(site.database))}")
        check_claims(site)
        site.database.dispose_connections()


def claim_and_give_back(url: str, size: Size, count: int, together: Barrier) -> ClaimOutcomes:
    """One process: its threads claim, and end the oldest of what they have claimed."""
    site = Site(_ledger.open_database(url), _ledger.build_nodes(size.hosts))
    scheduler = site.scheduler(size.scheduler_settings)
    leased = _ledger.lease_requests(site.database, count)
    conductor = claims.Ledger(site.database, "conductor")

    def run(specs: Sequence[RequestSpec]) -> ClaimOutcomes:
        seconds: list[float] = []
        standing: deque[str] = deque()
        refused = again = 0
        for spec in specs:
            began = time.perf_counter()
            try:
                claim_hosts(scheduler, spec)
            except errors.NoValidHost:
                refused += 1
                continue
            except errors.Conflict:
                again += 1
                continue
            seconds.append(time.perf_counter() - began)
            standing.extend(spec.fences)
            if len(standing) >= 2 * HELD_CLAIMS:
                conductor.write(claims.release_claims, [standing.popleft() for _ in range(HELD_CLAIMS)])
        return ClaimOutcomes(seconds, 0, refused, again)

    together.wait()
    with ThreadPoolExecutor(THREADS) as pool:
        outcomes = list(pool.map(run, [leased[n::THREADS] for n in range(THREADS)]))
    site.database.dispose_connections()
    return sum_outcomes(outcomes)._replace(conflicts=scheduler.conflicts)


# -- race ----------------------------------------------------------------------------------------------------------------------


def measure_race(size: Size) -> None:
    """More requests than places."""
    placed: list[int] = []
    for _ in range(size.runs):
        with _ledger.database_on(size.server) as (url, server):
            site = Site(_ledger.open_database(url), [fleet.node(f"host-{n}", vcpus=5) for n in range(20)])
            outcomes = by_processes(claim_all, url, size._replace(hosts=20), [60, 60])
            refused = sum(outcome.refused for outcome in outcomes)
            placed.append(len(site.claimed()))
            reasons = Counter(decision.message for decision in site.decisions() if decision.message)
            if site.overfull():
                raise AssertionError(f"over-committed: {site.overfull()}")
            if set(Counter(site.claimed().values()).values()) != {5} or refused != 20 or reasons.total() != 20:
                raise AssertionError(f"{refused} refused, reasons {reasons}")
            site.database.dispose_connections()
    print(f"{server}: 120 requests for 100 places, 2 processes of 4 threads: placed {placed}, all others refused with a reason")


def claim_all(url: str, size: Size, count: int, together: Barrier) -> ClaimOutcomes:
    """One process: its threads claim whatever they get."""
    site = Site(_ledger.open_database(url), [fleet.node(f"host-{n}", vcpus=5) for n in range(size.hosts)])
    scheduler = site.scheduler(size.scheduler_settings)
    leased = _ledger.lease_requests(site.database, count, [fleet.flavor()])

    def run(specs: Sequence[RequestSpec]) -> int:
        refused = 0
        for spec in specs:
            try:
                claim_hosts(scheduler, spec)
            except errors.NoValidHost:
                refused += 1
        return refused

    together.wait()
    with ThreadPoolExecutor(4) as pool:
        refused = sum(pool.map(run, [leased[n::4] for n in range(4)]))
    site.database.dispose_connections()
    return ClaimOutcomes([], scheduler.conflicts, refused)


# -- all of them ---------------------------------------------------------------------------------------------------------------


def by_processes(
    work: Callable[[str, Size, int, Barrier], ClaimOutcomes], url: str, size: Size, counts: Sequence[int]
) -> list[ClaimOutcomes]:
    """``work`` in one process for each of ``counts``. They begin to claim at the same time."""
    spawning = multiprocessing.get_context("spawn")
    with spawning.Manager() as manager, spawning.Pool(len(counts)) as pool:
        together = manager.Barrier(len(counts))
        return pool.starmap(work, [(url, size, count, together) for count in counts], chunksize=1)


def check_claims(site: Site) -> None:
    """Raises AssertionError where usage is not the sum of the claims, or a host has more claims than room."""
    over = site.overfull()
    if over:
        raise AssertionError(f"over-committed: {over[:5]} and {len(over)} in all")
    rows = list(site.inventories().values())
    print(f"  over-committed: 0 of {len(rows)} hosts, usage is the sum of the claims; {_ledger.free_share(rows):.1%} of vCPUs left")


def describe_groups(sizes: Sequence[int]) -> str:
    return f"claims per transaction: mean {statistics.mean(sizes):.1f}, median {statistics.median(sizes):.0f}, most {max(sizes)}"


MEASUREMENTS: dict[str, Callable[[Size], None]] = {
    "rate": measure_rate,
    "batch": measure_batch,
    "contention": measure_contention,
    "race": measure_race,
}


def main() -> None:
    parser = parser_of(__doc__, "small fleets, few claims: does it still work?")
    parser.add_argument("what", nargs="*", choices=[*MEASUREMENTS, []], help="all of them, if none is named")
    parser.add_argument("--server", choices=("mariadb", "postgresql", "sqlite"))
    parser.add_argument("--hosts", type=int)
    parser.add_argument("--claims", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--spreads", action="store_true", help="without the packing of the defaults")
    options = parser.parse_args()
    size = SMOKE if options.smoke else FULL
    overrides = {
        name: getattr(options, name) for name in ("server", "hosts", "claims", "threads", "spreads") if getattr(options, name)
    }
    for name in options.what or MEASUREMENTS:
        MEASUREMENTS[name](size._replace(**overrides))


if __name__ == "__main__":
    main()
