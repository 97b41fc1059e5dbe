"""Grounds that several rooms stand on together: SQLite files and embedded buses, or a real database server and a real RabbitMQ.

A ground gives the databases and buses of one test by name: ``api``, ``cell0``, ``cell1``... Whatever the ground, a database has its
schema and no rows, and nobody else uses the bus.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cli.all_in_one import StateFolder
from db.engine import Database
from db.sync import Kind
from tests.support.bus import FaultProxy, url_of
from tests.support.closing import LATER
from tests.support.databases import api_database, cell_database, pool, sqlite_url

GROUNDS = ("lite", "mariadb", "postgresql")
"""``lite``: SQLite and the embedded bus. The others: that server and RabbitMQ, a virtual host for each cell and the API level."""
USUAL = GROUNDS[:2]
"""Where tests run for which one real ground is enough."""
CHOSEN = tuple(os.environ.get("TEST_GROUNDS", "lite").split(","))
"""Where tests run whose point is the order of steps, which servers only slow down. TEST_GROUNDS=lite,mariadb,postgresql: on all."""


def on(fixture: str, *grounds: str) -> pytest.MarkDecorator:
    """Run a test with ``fixture`` on these grounds, and not on those that the fixture names."""
    return pytest.mark.parametrize(fixture, grounds, indirect=True)


class Ground:
    """URLs by name, made when first asked for."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.real = name != "lite"
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

    def bus(self, name: str) -> str:
        if name not in self._buses:
            kind = "rabbit" if self.real else "embedded"
            self._buses[name] = self._made.enter_context(contextmanager(url_of)(kind))
        return self._buses[name]

    def release(self) -> None:
        """The test is over."""
        self._made.close()

    def end(self, *ends: Callable[[], object]) -> None:
        """Run these in this order: now, or where that takes seconds while the next test is under way."""
        if self.real:
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
        make(self.path, name).dispose()
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
