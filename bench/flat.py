"""What one boot costs does not grow with the region: statements and messages with few and many hosts, instances and cells.

    python bench/flat.py              10 and 10,000 hosts, 1 and 50 instances on a host, 2 and 10 cells (two minutes)
    python bench/flat.py --servers    the same on RabbitMQ and MariaDB, with each role in processes of its own (ten minutes)
    python bench/flat.py --smoke      the smallest region and one that has more of everything, in seconds
    python bench/flat.py --verbose    the statements too

An all-in-one on SQLite files and the embedded bus. Ten hosts in two cells have agents and build, and have the instances; all others
are records in their cell's database, which the cell heard of once: they are mapped, up, pass every filter, and have so little room
that the weighers put the ten before them. So a batch of 50 is always built by ten hosts, and only what was not chosen differs. One
line shows the ten spread over ten cells: each cell that was chosen is told and written to on its own.

An executemany counts once, a call is two messages. Each boot is counted until all is quiet again, and the smallest of several
counts: how many events of a boot are found by one look at the feed, and how many reports share a message, is a matter of moments.
Heartbeats, stats and sweeps are off. Statements that the deployment runs while nobody asks for anything are polls: left out of all
boots by their text, and given per second. With --servers the servers count: bench/_flat_servers.py.

Exits with 1 if a boot costs more in a larger region: more than ``noise`` says.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from bench._flat import (
    BATCH,
    BUILDERS,
    GIVE_UP_AFTER_S,
    MESSAGES,
    REPEATED_POSTS_LIMIT,
    SIZES,
    SMALL,
    SPREAD,
    Cost,
    Measured,
    Polls,
    Size,
    add_ghost_hosts,
    list_excesses,
    show_costs,
    smallest_cost,
    wait_until_quiet,
)
from bench._flat_servers import on_servers
from bench._script import parser_of
from bench.boots import CLOCK, Bench
from cli.standalone.all_in_one import DeploymentTimes, StateFolder
from rpc.counting import MessageKind
from service.periodic import wait_until

NEVER_S = 1e6
FEED_INTERVAL_S = 0.12
QUIET_S = 2.5 * FEED_INTERVAL_S
"""Seconds without a statement or message, other than polls, after which a boot has been brought to its end."""
PACE = DeploymentTimes(
    sweep_interval=NEVER_S,
    resend_age=NEVER_S,
    report_interval=NEVER_S,
    stats_interval=NEVER_S,
    down_time=NEVER_S,
    feed_interval=FEED_INTERVAL_S,
)
TITLE = "SQL statements (API database + cells by the API level + by their conductors), messages, CPU ms"
ROLES = ("api", "cell", "conductor")
"""How databases are named: the API database, a cell's as the API level opens it, a cell's as its own conductor opens it."""


@dataclass(frozen=True)
class Plan:
    """How many POSTs by servers in one, how many seconds without any, and where statements are listed."""

    posts: Mapping[int, int]
    seconds: float
    listing: Console | None


@contextmanager
def running_region(size: Size) -> Iterator[Bench]:
    """Such a region, at work."""
    cells = [f"cell{n}" for n in range(1, size.cells + 1)]
    with tempfile.TemporaryDirectory(prefix="superconductor-bench-") as name:

        def add_others(folder: StateFolder) -> None:
            add_ghost_hosts({cell: folder.database_url(cell) for cell in cells}, size.hosts - BUILDERS)

        bench = Bench(Path(name), BUILDERS, PACE, cells=cells, used=size.used, before=add_others)
        try:
            assert wait_until(lambda: bench.region.count_schedulable() >= size.hosts, GIVE_UP_AFTER_S), (
                f"{bench.region.count_schedulable()} hosts are up"
            )
            bench.boot_servers("fill", size.instances * BUILDERS)
            bench.wait("fill", size.instances * BUILDERS)
            yield bench
        finally:
            bench.region.stop()


def count_statements(bench: Bench, polls: Polls) -> Counter[tuple[str, str]]:
    """What was counted by (role, statement), without polls and what this benchmark asks itself."""
    counts: Counter[tuple[str, str]] = Counter()
    for (database, text), count in bench.statements.count_by_statement().items():
        key = database.partition(" ")[0], text
        if key[0] in ROLES and key not in polls:
            counts[key] += count.executions
    return counts


def count_messages(bench: Bench) -> Counter[str]:
    counts: Counter[str] = Counter()
    for (_, method, kind), number in bench.messages.counts_by_method().items():
        if method not in CLOCK:
            counts[method] += number * (2 if kind is MessageKind.CALL else 1)
    return counts


def wait_for_quiet(bench: Bench, polls: Polls) -> None:
    """Return when nothing but polls has happened for a while."""
    wait_until_quiet(lambda: count_statements(bench, polls).total() + count_messages(bench).total(), QUIET_S, pause=0.02)


def measure_idle(bench: Bench, seconds: float) -> tuple[Polls, float]:
    """What runs when nobody asks for anything, and how often that is per second in all."""
    time.sleep(QUIET_S)
    bench.statements.reset_counts()
    time.sleep(seconds)  # what is counted meanwhile runs by the clock
    statement_counts = count_statements(bench, set())
    return set(statement_counts), statement_counts.total() / seconds


def measure_boot(bench: Bench, name: str, servers: int, polls: Polls) -> tuple[Cost, Counter[tuple[str, str]]]:
    """One POST of ``servers``."""
    bench.statements.reset_counts()
    bench.messages.reset_counts()
    began = time.process_time()
    bench.boot_servers(name, servers)
    bench.wait(name, servers)
    cpu = (time.process_time() - began) * 1000
    wait_for_quiet(bench, polls)
    statement_counts = count_statements(bench, polls)
    counts = dict.fromkeys(ROLES, 0)
    for (role, _), number in statement_counts.items():
        counts[role] += number
    counts[MESSAGES] = count_messages(bench).total()
    return Cost(counts, cpu), statement_counts


def smallest_boot(bench: Bench, servers: int, posts: int, polls: Polls, base: Cost | None) -> tuple[Cost, Counter[tuple[str, str]]]:
    """The smallest of ``posts`` POSTs, of more if these are above ``base``; and the statements of the one that had the fewest."""
    boots = [measure_boot(bench, f"take{servers}-{post}-", servers, polls) for post in range(posts)]
    while base and len(boots) < REPEATED_POSTS_LIMIT and smallest_cost([cost for cost, _ in boots]).excess_over(base, servers):
        boots.append(measure_boot(bench, f"take{servers}-{len(boots)}-", servers, polls))
    _, texts = min(boots, key=lambda cost_and_texts: cost_and_texts[0].statement_count)
    return smallest_cost([cost for cost, _ in boots]), texts


def measure_size(size: Size, plan: Plan, base: Measured | None) -> Measured:
    """``base``: what it should not cost more than."""
    costs: dict[int, Cost] = {}
    with running_region(size) as bench, bench.statements:
        polls, polling = measure_idle(bench, plan.seconds)
        polls |= base.polls if base else set()
        for servers, posts in plan.posts.items():
            costs[servers], texts = smallest_boot(bench, servers, posts, polls, base.costs[servers] if base else None)
            if plan.listing:
                plan.listing.print(f"{size.describe_region()}: {servers} server(s)")
                for (role, text), number in sorted(texts.items()):
                    plan.listing.print(f"{number:6}  {role}: {' '.join(text.split())[:120]}", highlight=False, soft_wrap=True)
    return Measured(costs, polls, polling)


def main() -> None:
    parser = parser_of(__doc__, "the smallest region and one with more of everything")
    parser.add_argument("--verbose", action="store_true", help="list the statements")
    parser.add_argument("--servers", action="store_true", help="on RabbitMQ and MariaDB")
    options = parser.parse_args()
    console = Console(width=160)
    if options.servers:
        sys.exit(on_servers(console, smoke=options.smoke, verbose=options.verbose))
    listing = console if options.verbose else None
    sizes: Sequence[Size] = SIZES
    first = later = Plan({1: 5, BATCH: 3}, 2.5, listing)
    if options.smoke:
        sizes = SMALL, Size(hosts=1_000, instances=50, cells=8)
        first, later = (Plan({1: 1, BATCH: 1}, seconds, listing) for seconds in (2.2, 0.4))  # the polls of the first are known
    measured_by_size = {SMALL: measure_size(SMALL, first, None)}
    for size in sizes[1:]:
        measured_by_size[size] = measure_size(size, later, measured_by_size[SMALL])
    spread = {} if options.smoke else {SPREAD: measure_size(SPREAD, later, None)}
    show_costs(TITLE, measured_by_size | spread, console)
    if (grown := list_excesses(measured_by_size)) and not options.smoke:  # one boot of each kind says little
        sys.exit("A boot costs more in a larger region. " + "; ".join(grown))


if __name__ == "__main__":
    main()
