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
    ghosts,
    larger,
    least,
    show,
    wait_until_quiet,
)
from bench._place import Client, CountingBacking, place, serve
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
ASKED = "SELECT schema_name, digest_text, count_star FROM performance_schema.events_statements_summary_by_digest"

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

    def schedulable(self) -> int:
        """Hosts that the scheduler may choose, as its metrics tell."""
        with urllib.request.urlopen(f"http://{ports.HOST}:{self._port}/metrics") as answer:
            text = answer.read().decode()
        return sum(int(float(n)) for n in re.findall(r'superconductor_cell_hosts\{[^}]*eligible="yes"\} (\S+)', text))

    def fill(self, count: int) -> None:
        self._post("fill", count)

    def idle(self, seconds: float) -> float:
        """Learn what runs when nobody asks for anything; how many statements that is in a second."""
        time.sleep(QUIET_S)
        before, cpu = self._statements(), self._cpu()
        time.sleep(seconds)  # what is counted meanwhile runs by the clock
        found = self._statements() - before
        self._idle_cpu = (self._cpu() - cpu) / seconds
        self.polls |= set(found)
        return found.total() / seconds

    def boot(self, name: str, servers: int) -> tuple[Cost, Counts]:
        """One POST of ``servers``."""
        before, sent, cpu, began = self._statements(), self._messages(), self._cpu(), time.monotonic()
        self._post(name, servers)
        used = self._cpu() - cpu - self._idle_cpu * (time.monotonic() - began)
        self._quiet()
        found = Counter({key: n for key, n in (self._statements() - before).items() if key not in self.polls})
        roles = Counter({"api": 0, "cells": 0})
        for (role, _), number in found.items():
            roles[role] += number
        return Cost({**roles, MESSAGES: self._messages() - sent}, used * 1000), found

    def _post(self, name: str, servers: int) -> None:
        self._client.post(name, servers)
        query = "SELECT COUNT(*) FROM api.instance_mappings WHERE name LIKE %s AND state = 'active'"
        assert wait_until(lambda: self._meter.ask(query, f"{name}%")[0][0] >= servers, GIVE_UP_AFTER_S), (
            f"{name}: not all are ACTIVE"
        )

    def _quiet(self) -> None:
        wait_until_quiet(lambda: sum(n for key, n in self._statements().items() if key not in self.polls), QUIET_S, pause=0.1)

    def _statements(self) -> Counts:
        found: Counts = Counter()
        for schema, text, number in self._meter.ask(ASKED):
            if schema is not None and str(text).startswith(WORK):
                found["api" if schema == "api" else "cells", str(text)] += int(number)
        return found

    def _messages(self) -> float:
        return sum(self._meter.counts().messages.values())

    def _cpu(self) -> float:
        return sum(self._meter.cpu().values())


@contextmanager
def region(size: Size) -> Iterator[Bench]:
    """Such a region, at work. Raises Unavailable."""
    agents = BUILDERS // size.used
    shape = Uneven(cells=size.cells, used=size.used, agents=agents, apis=1, supers=1, schedulers=1, conductors=1)
    with place(shape, backing=CountingBacking) as made:
        for file in made.folder.etc.glob("*.conf"):
            calm(file)
        urls = {cell: cell_url(made.folder.etc / f"{cell}.conf") for cell in shape.cell_names()}
        ghosts(urls, size.hosts - BUILDERS)
        meter = Meter(made)
        try:
            serve(made)
            bench = Bench(made, meter)
            assert wait_until(lambda: bench.schedulable() >= size.hosts, GIVE_UP_AFTER_S, pause=0.5), (
                f"{bench.schedulable()} hosts are up"
            )
            bench.fill(size.instances * BUILDERS)
            yield bench
        finally:
            meter.close()


def calm(file: Path) -> None:
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


def measure(size: Size, posts: Mapping[int, int], base: Measured | None, listing: Console | None) -> Measured:
    """``posts``: how many POSTs by servers in one. ``base``: what it should not cost more than."""
    costs: dict[int, Cost] = {}
    with region(size) as bench:
        bench.polls |= base.polls if base else set()
        polling = bench.idle(6.0)
        for servers, count in posts.items():
            found = [bench.boot(f"take{servers}-{post}-", servers) for post in range(count)]
            limit = base.costs[servers] if base and count > 1 else None
            while limit and len(found) < REPEATED_POSTS_LIMIT and least([cost for cost, _ in found]).excess(limit, servers):
                found.append(bench.boot(f"take{servers}-{len(found)}-", servers))
            costs[servers] = least([cost for cost, _ in found])
            if listing:
                tell(f"{size.name()}: {servers} server(s)", min(found, key=lambda each: each[0].statements)[1], listing)
        return Measured(costs, frozenset(bench.polls), polling)


def tell(title: str, found: Counts, console: Console) -> None:
    console.print(title)
    for (role, text), number in sorted(found.items()):
        console.print(f"{number:6}  {role}: {' '.join(text.split())[:120]}", highlight=False, soft_wrap=True, markup=False)


def on_servers(console: Console, *, smoke: bool, verbose: bool) -> str | int:
    """Measure and show everything; what an exit says."""
    usual = dict.fromkeys((SMALL, SIZES[-1], *SIZES, SPREAD))  # the largest next to the smallest: it says most
    sizes: Sequence[Size] = (SMALL, Size(hosts=200, instances=5, cells=3)) if smoke else tuple(usual)
    posts = {1: 1, BATCH: 1} if smoke else {1: 5, BATCH: 3}
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # through everything that stops the region
    found: dict[Size, Measured] = {}
    with needs_region(smoke=smoke):
        for size in sizes:
            found[size] = measure(size, posts, found.get(SMALL) if size != SPREAD else None, console if verbose else None)
            show(TITLE, {size: found[size]}, console)
    show(TITLE, found, console)
    found.pop(SPREAD, None)
    if (grown := larger(found)) and not smoke:
        return "A boot costs more in a larger region. " + "; ".join(grown)
    return 0
