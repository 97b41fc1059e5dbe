"""What ``bench/flat.py --servers`` measures: a region of processes on a RabbitMQ and a MariaDB of its own, and what these count.

One API, super conductor and scheduler, a conductor for each cell, ten agents. Statements are the server's (its performance schema
counts them by database and text): an executemany that is sent as several counts as several. A cell's are those of its conductor
and of the API level together.
Messages are those that the broker put into queues, so a call is two. CPU is that of all processes and both servers, until the
servers of the POST are ACTIVE, less what an idle region takes in the same time.
"""

from __future__ import annotations

import configparser
import re
import signal
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from bench._counters import Meter
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
    Size,
    add_ghost_hosts,
    list_excesses,
    show_costs,
    smallest_cost,
    wait_until_quiet,
)
from bench._place import Client, CountingBacking, prepared_region, start_processes
from bench._script import needs_region
from cli.standalone.demo.plan import HostPlan
from deploy import ports
from deploy.local.region import Region
from deploy.local.shape import Shape
from service.periodic import wait_until

TITLE = "SQL statements (API database + cells) as MariaDB counts them, messages as RabbitMQ counts them, CPU ms of all processes"
NEVER_S = "100000"
FEED_INTERVAL_S = 0.2
QUIET_S = 0.8
"""Seconds without a statement, other than polls, after which a boot has been brought to its end."""
CALM: Mapping[str, Mapping[str, str]] = {
    "DEFAULT": {"report_interval": NEVER_S, "service_down_time": NEVER_S},
    "conductor": {
        **dict.fromkeys(("sweep_interval", "resend_age", "reap_interval"), NEVER_S),
        "feed_interval": str(FEED_INTERVAL_S),
    },
    "compute": dict.fromkeys(("report_interval", "stats_interval", "stats_full_interval", "audit_interval"), NEVER_S),
}
"""What the files of a region are changed to, as far as they have these groups: nothing happens by the clock but polls."""
WORK = ("SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH")
"""How statements begin that are not the end or the beginning of a transaction, or a setting."""
STATEMENTS_QUERY = "SELECT schema_name, digest_text, count_star FROM performance_schema.events_statements_summary_by_digest"

Counts = Counter[tuple[str, str]]
"""Statements by (role, text)."""


class Uneven(Shape, frozen=True, kw_only=True):
    """The agents are in the first ``used`` cells."""

    used: int

    def list_hosts(self) -> tuple[HostPlan, ...]:
        used = self.cell_names()[: self.used]
        return tuple(host for host in super().list_hosts() if host.cell in used)


class Bench:
    """One region, and what is counted on it."""

    def __init__(self, region: Region, meter: Meter) -> None:
        self._meter = meter
        self._client = Client(region)
        self._port = region.notes.monitored_ports()["scheduler-1"]
        self.polls: set[tuple[str, str]] = set()
        self._idle_cpu = 0.0

    def count_schedulable(self) -> int:
        """Hosts that the scheduler may choose, as its metrics tell."""
        with urllib.request.urlopen(f"http://{ports.HOST}:{self._port}/metrics") as answer:
            text = answer.read().decode()
        return sum(int(float(n)) for n in re.findall(r'superconductor_cell_hosts\{[^}]*eligible="yes"\} (\S+)', text))

    def fill_hosts(self, count: int) -> None:
        self._post_and_wait("fill", count)

    def measure_idle(self, seconds: float) -> float:
        """Learn what runs when nobody asks for anything; how many statements that is in a second."""
        time.sleep(QUIET_S)
        before, cpu = self._count_statements(), self._cpu_seconds()
        time.sleep(seconds)  # what is counted meanwhile runs by the clock
        statement_counts = self._count_statements() - before
        self._idle_cpu = (self._cpu_seconds() - cpu) / seconds
        self.polls |= set(statement_counts)
        return statement_counts.total() / seconds

    def measure_boot(self, name: str, servers: int) -> tuple[Cost, Counts]:
        """One POST of ``servers``."""
        before, sent, cpu, began = self._count_statements(), self._count_messages(), self._cpu_seconds(), time.monotonic()
        self._post_and_wait(name, servers)
        used = self._cpu_seconds() - cpu - self._idle_cpu * (time.monotonic() - began)
        self._wait_for_quiet()
        statement_counts = Counter({key: n for key, n in (self._count_statements() - before).items() if key not in self.polls})
        roles = Counter({"api": 0, "cells": 0})
        for (role, _), number in statement_counts.items():
            roles[role] += number
        return Cost({**roles, MESSAGES: self._count_messages() - sent}, used * 1000), statement_counts

    def _post_and_wait(self, name: str, servers: int) -> None:
        self._client.boot_servers(name, servers)
        query = "SELECT COUNT(*) FROM api.instance_mappings WHERE name LIKE %s AND state = 'active'"
        assert wait_until(lambda: self._meter.query_rows(query, f"{name}%")[0][0] >= servers, GIVE_UP_AFTER_S), (
            f"{name}: not all are ACTIVE"
        )

    def _wait_for_quiet(self) -> None:
        wait_until_quiet(lambda: sum(n for key, n in self._count_statements().items() if key not in self.polls), QUIET_S, pause=0.1)

    def _count_statements(self) -> Counts:
        counts: Counts = Counter()
        for schema, text, number in self._meter.query_rows(STATEMENTS_QUERY):
            if schema is not None and str(text).startswith(WORK):
                counts["api" if schema == "api" else "cells", str(text)] += int(number)
        return counts

    def _count_messages(self) -> float:
        return sum(self._meter.read_counts().messages.values())

    def _cpu_seconds(self) -> float:
        return sum(self._meter.cpu_by_role().values())


@contextmanager
def running_region(size: Size) -> Iterator[Bench]:
    """Such a region, at work. Raises Unavailable."""
    agents = BUILDERS // size.used
    shape = Uneven(cells=size.cells, used=size.used, agents=agents, apis=1, supers=1, schedulers=1, conductors=1)
    with prepared_region(shape, backing=CountingBacking) as target:
        for file in target.folder.etc.glob("*.conf"):
            silence_timers(file)
        urls = {cell: cell_url(target.folder.etc / f"{cell}.conf") for cell in shape.cell_names()}
        add_ghost_hosts(urls, size.hosts - BUILDERS)
        meter = Meter(target)
        try:
            start_processes(target)
            bench = Bench(target, meter)
            assert wait_until(lambda: bench.count_schedulable() >= size.hosts, GIVE_UP_AFTER_S, pause=0.5), (
                f"{bench.count_schedulable()} hosts are up"
            )
            bench.fill_hosts(size.instances * BUILDERS)
            yield bench
        finally:
            meter.close()


def silence_timers(file: Path) -> None:
    """Nothing by the clock, in the groups that this file has."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(file)
    for group, values in CALM.items():
        if (group == "DEFAULT" and parser.defaults()) or parser.has_section(group):
            parser[group].update(values)
    with file.open("w") as written:
        parser.write(written)


def cell_url(file: Path) -> str:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(file)
    return parser["cell_database"]["connection"]


def measure_size(size: Size, posts: Mapping[int, int], base: Measured | None, listing: Console | None) -> Measured:
    """``posts``: how many POSTs by servers in one. ``base``: what it should not cost more than."""
    costs: dict[int, Cost] = {}
    with running_region(size) as bench:
        bench.polls |= base.polls if base else set()
        polling = bench.measure_idle(6.0)
        for servers, count in posts.items():
            boots = [bench.measure_boot(f"take{servers}-{post}-", servers) for post in range(count)]
            limit = base.costs[servers] if base and count > 1 else None
            while (
                limit
                and len(boots) < REPEATED_POSTS_LIMIT
                and smallest_cost([cost for cost, _ in boots]).excess_over(limit, servers)
            ):
                boots.append(bench.measure_boot(f"take{servers}-{len(boots)}-", servers))
            costs[servers] = smallest_cost([cost for cost, _ in boots])
            if listing:
                show_statements(
                    f"{size.describe_region()}: {servers} server(s)",
                    min(boots, key=lambda cost_and_counts: cost_and_counts[0].statement_count)[1],
                    listing,
                )
        return Measured(costs, frozenset(bench.polls), polling)


def show_statements(title: str, counts: Counts, console: Console) -> None:
    console.print(title)
    for (role, text), number in sorted(counts.items()):
        console.print(f"{number:6}  {role}: {' '.join(text.split())[:120]}", highlight=False, soft_wrap=True, markup=False)


def on_servers(console: Console, *, smoke: bool, verbose: bool) -> str | int:
    """Measure and show everything; what an exit says."""
    usual = dict.fromkeys((SMALL, SIZES[-1], *SIZES, SPREAD))  # the largest next to the smallest: it says most
    sizes: Sequence[Size] = (SMALL, Size(hosts=200, instances=5, cells=3)) if smoke else tuple(usual)
    posts = {1: 1, BATCH: 1} if smoke else {1: 5, BATCH: 3}
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # through everything that stops the region
    measured_by_size: dict[Size, Measured] = {}
    with needs_region(smoke=smoke):
        for size in sizes:
            measured_by_size[size] = measure_size(
                size, posts, measured_by_size.get(SMALL) if size != SPREAD else None, console if verbose else None
            )
            show_costs(TITLE, {size: measured_by_size[size]}, console)
    show_costs(TITLE, measured_by_size, console)
    measured_by_size.pop(SPREAD, None)
    if (grown := list_excesses(measured_by_size)) and not smoke:
        return "A boot costs more in a larger region. " + "; ".join(grown)
    return 0
