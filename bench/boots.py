"""What one boot costs, end to end, in an all-in-one with 24 simulated hosts in two cells: statements, messages, time.

    python bench/boots.py            the figures of docs/performance.md (about a minute)
    python bench/boots.py --smoke    the same paths in a few seconds, figures not to be quoted
    python bench/boots.py --hosts 100 --full N    other fleets, or N instances on every host beforehand

Statements are cursor executions without BEGIN and COMMIT (an executemany counts once, its rows are given beside it). A call is one
message and so is a cast; with answers counted, every call is two. What runs on the clock - heartbeats, stats, polls, sweeps - is
measured alone on an idle deployment, given per second, and taken out of the figures per boot; agents send no stats meanwhile.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import requests
from rich.console import Console

from api.opts import ApiSettings
from bench._script import EVERY, describe_percentiles, parser_of, print_table
from cli.standalone.all_in_one import AllInOne, DeploymentTimes, SimulatedHost, StateFolder
from cli.standalone.bootstrap import Commands, bootstrap_databases
from cli.standalone.discovery import discover_until
from db.api.servers import mappings
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from rpc.counting import MessageCounter, MessageKind
from service.periodic import wait_until

IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
CLOCK = {"report_state", "update_resource_stats", "holdings"}
"""Messages that agents send on the clock, whether anything is built or not."""
SETTLE_S = 2.5
"""Seconds in which agents tell of what was just built."""

STATS = ("compute_nodes", "services")
"""Tables that only heartbeats and stats touch."""

Clock = dict[tuple[str, str], float]
"""Executions per second of (database, statement) when nobody asks for anything."""


class Bench:
    """One deployment and what is counted on it."""

    def __init__(
        self,
        path: Path,
        hosts: int,
        pace: DeploymentTimes,
        *,
        cells: Sequence[str] = ("cell1", "cell2"),
        used: int = 2,
        before: Callable[[StateFolder], object] = lambda _: None,
    ) -> None:
        """``used``: so many of the cells, the first, have ``hosts`` in turns. ``before``: called when there are databases."""
        self.messages = MessageCounter()
        self.statements = StatementCounter()
        self.folder = StateFolder(path)
        self.commands = Commands(self.folder, None)
        bootstrap_databases(self.folder, cells, self.commands)
        self.commands.run("flavor", "create", "tiny", "--id", "tiny", "--vcpus", "1", "--ram", "64", "--disk", "0")
        plan = [
            SimulatedHost(
                name=f"{cells[n % used]}-h{n}",
                cell=cells[n % used],
                vcpus=2000,
                memory_mb=1 << 21,
                disk_gb=1000,
                spawn_delay=(0.0, 0.0),
            )
            for n in range(hosts)
        ]
        before(self.folder)
        self.region = AllInOne(self.folder, plan, api=ApiSettings(port=0, threads=16), pace=pace, observer=self.messages)
        self.region.start()
        discover_until(self.folder, self.region, {host.name for host in plan}, self.commands, threading.Event())
        self.region.serve_api()
        self.local = threading.local()
        assert wait_until(self._can_boot, 60.0)

    def _can_boot(self) -> bool:
        uuid = self.boot_servers("probe")
        wait_until(lambda: self.get_status(uuid) != "BUILD", 30.0)
        return self.get_status(uuid) == "ACTIVE"

    def thread_session(self) -> requests.Session:
        if not hasattr(self.local, "session"):
            self.local.session = requests.Session()
            self.local.session.trust_env = False
        session: requests.Session = self.local.session
        return session

    def boot_servers(self, name: str, count: int = 1) -> str:
        server: Any = {"name": name, "flavorRef": "tiny", "imageRef": IMAGE, "min_count": count, "max_count": count}
        answer = self.thread_session().post(f"{self.region.api_endpoint}/servers", json={"server": server})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["server"]["id"])

    def get_status(self, uuid: str) -> str:
        return str(self.thread_session().get(f"{self.region.api_endpoint}/servers/{uuid}").json()["server"]["status"])

    def server_times(self, name: str) -> list[tuple[float, float]]:
        """When each server whose name begins so was accepted and when it became ACTIVE, of those that are."""
        database = Database(self.folder.database_url("api"), name="bench")
        query = mappings.ServerQuery(name=f"^{name}", phases=("active",), limit=100_000)
        active_servers = database.read(mappings.list_, query)
        database.dispose_connections()
        return [(s.created_at, s.launched_at) for s in active_servers if s.launched_at is not None]

    def wait(self, name: str, count: int) -> None:
        assert wait_until(lambda: len(self.server_times(name)) >= count, 300.0, pause=0.1), (
            f"{len(self.server_times(name))} of {count}"
        )


@contextmanager
def running_deployment(hosts: int, full: int, pace: DeploymentTimes) -> Iterator[Bench]:
    """A running deployment with ``full`` instances on every host."""
    with tempfile.TemporaryDirectory(prefix="superconductor-bench-") as name:
        bench = Bench(Path(name), hosts, pace)
        try:
            for number in range(full):
                bench.boot_servers(f"fill{number}-", hosts)
            bench.wait("fill", full * hosts)
            yield bench
        finally:
            bench.region.stop()


def measure_idle(bench: Bench, seconds: float) -> tuple[Clock, dict[str, float]]:
    """Statements by (database, text) and messages by method, per second, when nobody asks for anything."""
    time.sleep(SETTLE_S)
    with bench.statements:
        bench.statements.reset_counts()
        bench.messages.reset_counts()
        time.sleep(seconds)  # what is counted meanwhile runs by the clock
        statements = {key: count.executions / seconds for key, count in bench.statements.count_by_statement().items()}
    messages: Counter[str] = Counter()
    for (_, method, _), number in bench.messages.counts_by_method().items():
        messages[method] += number
    return statements, {method: number / seconds for method, number in messages.items()}


def measure_cost(bench: Bench, console: Console, name: str, posts: int, count: int, clock: Clock, verbose: bool) -> None:
    """Count what ``posts`` POSTs of ``count`` servers cause, one after the other, until all are ACTIVE.

    What an idle deployment runs in the same time is taken off, statement by statement; heartbeats and stats are left out by name.
    """
    time.sleep(SETTLE_S)
    with bench.statements:
        bench.statements.reset_counts()
        bench.messages.reset_counts()
        began = time.monotonic()
        for post in range(posts):
            bench.boot_servers(f"{name}{post}-", count)
            bench.wait(f"{name}{post}-", count)  # through a database name of its own, "bench", which is left out
        taken = time.monotonic() - began
        statement_counts = bench.statements.count_by_statement()
    boots = posts * count
    per_database: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for (database, text), seen in sorted(statement_counts.items()):
        extra = seen.executions - clock.get((database, text), 0.0) * taken
        if database == "bench" or any(table in text for table in STATS) or extra < 0.2 * posts:
            continue
        per_database[database] += round(extra)
        rows[database] += seen.rows
        if verbose:
            line = " ".join(text.split())[:120]
            console.print(f"{extra / boots:8.2f}  {database}: {line}", highlight=False, soft_wrap=True)
    messages = {key: n for key, n in bench.messages.counts_by_method().items() if key[1] not in CLOCK}
    title = f"{posts} x {count} server(s); accept to ACTIVE: {describe_latency(bench.server_times(name))}"
    per_boot = {database: (executed / boots, rows[database] / boots) for database, executed in sorted(per_database.items())}
    per_boot[EVERY] = per_database.total() / boots, rows.total() / boots
    figures = [(database, f"{executed:.2f}", f"{sent:.2f}") for database, (executed, sent) in per_boot.items()]
    print_table(console, title, ("database", "statements per boot", "rows per boot"), figures)
    answers = sum(n for (_, _, kind), n in messages.items() if kind is MessageKind.CALL)
    sent = sum(messages.values())
    message_rate = f"{sent / boots:.2f} messages per boot ({(sent + answers) / boots:.2f} with answers)"
    console.print(f"{message_rate}; {sent / posts:.0f} per POST: {_by_method(messages)}")


def describe_latency(servers: list[tuple[float, float]]) -> str:
    return describe_percentiles([active - accepted for accepted, active in servers])


def _by_method(messages: dict[tuple[str, str, MessageKind], int]) -> str:
    return ", ".join(f"{topic}.{method} {number}" for (topic, method, _), number in sorted(messages.items()))


def measure_rates(bench: Bench, console: Console, singles: int, crowd: int) -> None:
    """Boots per second from the first accept to the last ACTIVE, and this process's CPU ms per boot, clients included."""

    def boot_and_poll(n: int) -> None:
        uuid = bench.boot_servers(f"closed-{n}-")
        while bench.get_status(uuid) == "BUILD":
            time.sleep(0.05)  # as clients do that wait for a server

    cpu = time.process_time()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: bench.boot_servers(f"open-{n}-"), range(singles)))
    bench.wait("open-", singles)
    used = (time.process_time() - cpu) / singles * 1000
    print_rate(console, f"{singles} single boots from 8 clients that do not wait", bench.server_times("open-"), used)
    cpu = time.process_time()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(boot_and_poll, range(singles)))
    used = (time.process_time() - cpu) / singles * 1000
    bench.wait("closed-", singles)
    print_rate(
        console,
        f"{singles} single boots from 8 clients that poll 20 times a second until ACTIVE",
        bench.server_times("closed-"),
        used,
    )
    for _ in range(3):
        cpu = time.process_time()
        name = f"crowd{time.monotonic_ns()}"
        bench.boot_servers(name, crowd)
        bench.wait(name, crowd)
        used = (time.process_time() - cpu) / crowd * 1000
        print_rate(console, f"one multi-create of {crowd}", bench.server_times(name), used)


def print_rate(console: Console, label: str, servers: list[tuple[float, float]], cpu: float) -> None:
    first, last = min(accepted for accepted, _ in servers), max(active for _, active in servers)
    rate = len(servers) / (last - first)
    console.print(f"{label}: {rate:.0f} boots/s to ACTIVE, {cpu:.1f} CPU ms per boot, accept to ACTIVE {describe_latency(servers)}")


def main() -> None:
    parser = parser_of(__doc__, "a few seconds; the figures mean nothing")
    parser.add_argument("--hosts", type=int, default=24)
    parser.add_argument("--full", type=int, default=0, help="instances to put on every host first")
    parser.add_argument("--verbose", action="store_true", help="list the statements")
    options = parser.parse_args()
    console = Console(width=160)
    with running_deployment(options.hosts, options.full, DeploymentTimes()) as bench:
        clock, beats = measure_idle(bench, 2.0 if options.smoke else 12.0)
        rate = ", ".join(f"{method} {number:.2f}" for method, number in sorted(beats.items()))
        console.print(f"idle, {options.hosts} hosts: {sum(clock.values()):.1f} statements/s; messages/s: {rate}")
        measure_rates(bench, console, *((16, 10) if options.smoke else (800, 100)))
    calm = DeploymentTimes(stats_interval=3600.0)  # stats would be counted with the boots
    with running_deployment(options.hosts, options.full, calm) as bench:
        clock, _ = measure_idle(bench, 2.0 if options.smoke else 12.0)
        measure_cost(bench, console, "one", 2 if options.smoke else 30, 1, clock, options.verbose)
        measure_cost(bench, console, "fifty", 1 if options.smoke else 4, 50, clock, options.verbose)


if __name__ == "__main__":
    main()
