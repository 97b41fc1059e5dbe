"""What one boot costs does not grow with the region: statements and messages with few and many hosts, instances and cells.

    python bench/flat.py              10 and 10,000 hosts, 1 and 50 instances on a host, 2 and 10 cells (two minutes)
    python bench/flat.py --smoke      the smallest region and one that has more of everything, in seconds
    python bench/flat.py --verbose    the statements too

An all-in-one on SQLite files and the embedded bus. Ten hosts in two cells have agents and build, and have the instances; all others
are records in their cell's database, which the cell heard of once: they are mapped, up, pass every filter, and have so little room
that the weighers put the ten before them. So a batch of 50 is always built by ten hosts, and only what was not chosen differs. One
line shows the ten spread over ten cells: each cell that was chosen is told and written to on its own.

An executemany counts once, a call is two messages. Each boot is counted until all is quiet again, and the smallest of several
counts: how many events of a boot are found by one look at the feed, and how many reports share a message, is a matter of moments.
Heartbeats, stats and sweeps are off. Statements that the deployment runs while nobody asks for anything are polls: left out of all
boots by their text, and given per second.

Exits with 1 if a boot costs more in a larger region: more than ``noise_limit`` says.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from bench._script import parser_of, print_table
from bench.boots import CLOCK, Bench
from cli.standalone.all_in_one import DeploymentTimes, StateFolder
from db.cell import compute_nodes, services
from db.cell.services import Beat
from db.sql.engine import Database
from objects.compute_node import ComputeNode
from objects.process import AGENT_BINARY, About
from rpc.counting import MessageKind
from service.periodic import wait_until

BUILDERS = 10
"""Hosts with agents."""
BATCH = 50
INSERT_PAGE_SIZE = 500
MESSAGES = "messages"
REPEATED_POSTS_LIMIT = 12
"""POSTs after which what is larger than it should be is not taken for chance any more."""
GIVE_UP_AFTER_S = 300.0
"""Seconds after which what has not come never will."""
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

Statement = tuple[str, str]
"""(role, text)"""


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
SIZES = (SMALL, Size(hosts=10_000), Size(instances=50), Size(cells=10), Size(hosts=10_000, instances=50, cells=10))
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
    return 30 if name in ("conductor", MESSAGES) else 2


@dataclass(frozen=True)
class Measured:
    """The costs by servers in a POST, the polls that were left out, and how many there are per second."""

    costs: Mapping[int, Cost]
    polls: Set[Statement]
    polling: float


@dataclass(frozen=True)
class Plan:
    """How many POSTs by servers in one, how many seconds without any, and where statements are listed."""

    posts: Mapping[int, int]
    seconds: float
    listing: Console | None


def add_ghost_hosts(urls: Mapping[str, str], count: int) -> None:
    """Cells, known by the URLs of their databases, have heard from ``count`` hosts, in turns. They have room for a few servers."""
    for number, (cell, url) in enumerate(urls.items()):
        names = [f"{cell}-ghost{n:05}" for n in range(number, count, len(urls))]
        nodes = [ComputeNode(host=name, node=name, vcpus=4, memory_mb=4096, disk_gb=10) for name in names]
        database = Database(url, name=cell)
        for start in range(0, len(nodes), INSERT_PAGE_SIZE):
            page = nodes[start : start + INSERT_PAGE_SIZE]
            beats = [Beat(host=node.host, binary=AGENT_BINARY) for node in page]
            database.write(services.record_heartbeats, beats)
            for beat in beats:  # else they would wait for 'host discover'
                database.write(services.introduce_service, beat, About(release="bench"), 1.0, identified=True)
            database.write(compute_nodes.store_all, page, time.time())
        database.dispose_connections()


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


def count_statements(bench: Bench, polls: Set[Statement]) -> Counter[Statement]:
    """What was counted, without polls and what this benchmark asks itself."""
    counts: Counter[Statement] = Counter()
    for (database, text), count in bench.statements.count_by_statement().items():
        key = database.partition(" ")[0], text
        if key[0] in ROLES and key not in polls:
            counts[key] += count.executions
    return counts


def count_messages(bench: Bench) -> int:
    return sum(
        number * (2 if kind is MessageKind.CALL else 1)
        for (_, method, kind), number in bench.messages.counts_by_method().items()
        if method not in CLOCK
    )


def wait_for_quiet(bench: Bench, polls: Set[Statement]) -> None:
    """Return when nothing but polls has happened for a while."""
    seen, since, give_up = -1, time.monotonic(), time.monotonic() + GIVE_UP_AFTER_S
    while time.monotonic() - since < QUIET_S:
        assert time.monotonic() < give_up, "it is never quiet: something runs by the clock that no poll was taken for"
        now = count_statements(bench, polls).total() + count_messages(bench)
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.02)


def measure_idle(bench: Bench, seconds: float) -> tuple[Set[Statement], float]:
    """What runs when nobody asks for anything, and how often that is per second in all."""
    time.sleep(QUIET_S)
    bench.statements.reset_counts()
    time.sleep(seconds)  # what is counted meanwhile runs by the clock
    statement_counts = count_statements(bench, set())
    return set(statement_counts), statement_counts.total() / seconds


def measure_boot(bench: Bench, name: str, servers: int, polls: Set[Statement]) -> tuple[Cost, Counter[Statement]]:
    """One POST of ``servers``."""
    bench.statements.reset_counts()
    bench.messages.reset_counts()
    began = time.process_time()
    bench.boot_servers(name, servers)
    bench.wait(name, servers)
    cpu = (time.process_time() - began) * 1000
    wait_for_quiet(bench, polls)
    statement_counts = count_statements(bench, polls)
    counts: dict[str, float] = dict.fromkeys(ROLES, 0)
    for (role, _), number in statement_counts.items():
        counts[role] += number
    return Cost(counts | {MESSAGES: count_messages(bench)}, cpu), statement_counts


def smallest_boot(
    bench: Bench, servers: int, posts: int, polls: Set[Statement], base: Cost | None
) -> tuple[Cost, Counter[Statement]]:
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


def cost_row(size: Size, measured: Measured) -> list[str]:
    row = [size.describe_region()]
    for cost in measured.costs.values():
        parts = " + ".join(f"{number:g}" for number in cost.statements_by_role.values())
        row += [f"{cost.statement_count:g} ({parts})", f"{cost.counts[MESSAGES]:.3g}", f"{cost.cpu:.0f}"]
    return [*row, f"{measured.polling:.0f}"]


def list_excesses(measured_by_size: Mapping[Size, Measured]) -> list[str]:
    """What costs more in a larger region than in the smallest."""
    base = measured_by_size[SMALL].costs
    return [
        f"{size.describe_region()}, {servers} server(s), {name}: {number:g}, not {base[servers].counts[name]:g}"
        for size, measured in measured_by_size.items()
        for servers, cost in measured.costs.items()
        for name, number in cost.excess_over(base[servers], servers).items()
    ]


def main() -> None:
    parser = parser_of(__doc__, "the smallest region and one with more of everything")
    parser.add_argument("--verbose", action="store_true", help="list the statements")
    options = parser.parse_args()
    console = Console(width=160)
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
    headings = ("", "one boot", "messages", "CPU", f"a batch of {BATCH}", "messages", "CPU", "polls per s")
    print_table(console, TITLE, headings, [cost_row(size, measured) for size, measured in (measured_by_size | spread).items()])
    if (grown := list_excesses(measured_by_size)) and not options.smoke:  # one boot of each kind says little
        sys.exit("A boot costs more in a larger region. " + "; ".join(grown))


if __name__ == "__main__":
    main()
