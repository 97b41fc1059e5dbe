"""Grounds that several rooms stand on together: SQLite files and embedded buses, or a real database server and a real RabbitMQ.

A ground gives the databases and buses of one test by name: ``api``, ``cell0``, ``cell1``... Whatever the ground, a database has its
schema and no rows, and nobody else uses the bus.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from cli.standalone.all_in_one import StateFolder
from db.sql.engine import Database
from db.sql.sync import Kind
from tests.support.bus import FaultProxy, url_of
from tests.support.closing import LATER
from tests.support.databases import api_database, cell_database, pool, sqlite_url

GROUNDS = ("lite", "mariadb", "postgresql")
"""``lite``: SQLite and the embedded bus. The others: that server and RabbitMQ, a virtual host for each cell and the API level."""
USUAL = GROUNDS[:2]
"""Where tests run for which one real ground is enough."""
CHOSEN = tuple(os.environ.get("TEST_GROUNDS", "lite").split(","))
"""Where tests run whose point is the order of steps, which servers only slow down. TEST_GROUNDS=lite,mariadb,postgresql: on all."""

WORLDS = {"mariadb": 3, "postgresql": 2}
"""How many worlds there are on a server at once: each has 25 to 45 connections, of the 151 and 100 that there are by default."""


def on(fixture: str, *grounds: str) -> pytest.MarkDecorator:
    """Run a test with ``fixture`` on these grounds, and not on those that the fixture names."""
    return pytest.mark.parametrize(fixture, grounds, indirect=True)


class Ground:
    """URLs by name, made when first asked for. ``embedded``: the bus is, for what only the database can make go wrong."""

    def __init__(self, name: str, path: Path, *, embedded: bool = False) -> None:
        self.name = name
        self.path = path
        self.real = name != "lite"
        self._embedded = embedded or not self.real
        self._databases: dict[str, str] = {}
        self._buses: dict[str, str] = {}
        self._made = ExitStack()

    def database(self, name: str) -> str:
        """With its schema: the API level's for ``api``, a cell's for any other."""
        if name not in self._databases:
            self._databases[name] = self._make_database(name)
        return self._databases[name]

    def open(self, name: str, max_pool_size: int = 5) -> Database:
        """A new ``Database`` on that URL, which the caller disposes."""
        return Database(self.database(name), name=name, max_pool_size=max_pool_size)

    def wait_for_room(self) -> None:
        """Until the server has connections left for one more world, whichever process of the run the others are in."""
        if self.name in WORLDS:
            self._made.enter_context(place_among(self.name, WORLDS[self.name]))

    def bus(self, name: str) -> str:
        if name not in self._buses:
            kind = "embedded" if self._embedded else "rabbit"
            self._buses[name] = self._made.enter_context(contextmanager(url_of)(kind))
        return self._buses[name]

    def release(self) -> None:
        """The test is over."""
        self._made.close()

    def end(self, *ends: Callable[[], object]) -> None:
        """Run these in this order: now, or where that takes seconds while the next test is under way."""
        if not self._embedded:
            LATER.end(*ends)
            return
        with ExitStack() as stack:
            for end in reversed(ends):
                stack.callback(end)

    def _make_database(self, name: str) -> str:
        kind: Kind = "api" if name == "api" else "cell"
        if self.real:
            url = pool(self.name, kind).take()
            self._made.callback(pool(self.name, kind).give_back, url)
            return url
        make = api_database if kind == "api" else cell_database
        make(self.path, name).dispose_connections()
        return sqlite_url(self.path, name)


class GroundFolder(StateFolder):
    """A state folder whose databases and buses are those of a ground: in the folder are the guests, the log and the lock."""

    def __init__(self, place: Ground) -> None:
        super().__init__(place.path)
        self.ground = place

    def database_url(self, name: str) -> str:
        return self.ground.database(name)

    def bus_url(self, name: str) -> str:
        return self.ground.bus(name)


class ProxiedFolder(GroundFolder):
    """The same, where a proxy stands before some of the databases and buses, to make them fail.

    ``what``: their names: "bus api", "database cell2". ``database_options`` are added to the URLs of those databases.
    """

    def __init__(self, place: Ground, what: Sequence[str], database_options: str = "") -> None:
        super().__init__(place)
        self.proxies: dict[str, FaultProxy] = {}
        for each in what:
            kind, name = each.split()
            url = place.bus(name) if kind == "bus" else f"{place.database(name)}?{database_options}"
            self.proxies[each] = FaultProxy(url)

    def database_url(self, name: str) -> str:
        proxy = self.proxies.get(f"database {name}")
        return super().database_url(name) if proxy is None else proxy.url

    def bus_url(self, name: str) -> str:
        proxy = self.proxies.get(f"bus {name}")
        return super().bus_url(name) if proxy is None else proxy.url

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()


@contextmanager
def place_among(name: str, count: int) -> Iterator[None]:
    """Be one of so many that use something of this machine at once; who comes when all places are taken waits for one."""
    paths = [Path(tempfile.gettempdir()) / f"superconductor-tests-{name}-{number}" for number in range(count)]
    with ExitStack() as opened:
        files = [opened.enter_context(path.open("w")) for path in paths]
        while not any(map(_lock, files)):
            time.sleep(0.05)
        yield


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
