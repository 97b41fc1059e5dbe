"""Databases for tests: with their schema, in a folder of the test's own, or on a server where one answers.

Making a schema step by step takes longer than most tests. For SQLite a process of tests does it once per kind and copies the file.
On servers it keeps its databases for the tests that follow: in between all others are disconnected, the rows are deleted, and the
first ones put back. Tests of the steps themselves, and those that change a schema, use ``synced`` on ``url_on``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import socket
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import sqlalchemy as sa

from db.sql.engine import Database
from db.sql.sync import Kind, sync_schema
from db.sql.url import check_driver
from objects import errors
from tests.support.scratch import new_name
from tests.support.servers import MYSQL, POSTGRES, give_up, is_ruled_out, url_of_server

MARIADB = url_of_server(MYSQL)
POSTGRESQL = url_of_server(POSTGRES)
"""Administrative URLs of the servers that tests use."""

SERVERS = {"sqlite": "", "mariadb": MARIADB, "postgresql": POSTGRESQL}
"""For ``pytest.mark.parametrize("server", SERVERS)``."""

Scope = Literal["function", "module"]
"""Who shares what a fixture makes."""

_VARIABLES = {"mysql": MYSQL, "mariadb": MYSQL, "postgresql": POSTGRES}


def api_database(folder: Path, name: str = "api", max_pool_size: int = 5) -> Database:
    """A new API database ``name`` in ``folder``, with its schema."""
    return _copied(folder, name, "api", max_pool_size)


def cell_database(folder: Path, name: str = "cell1", max_pool_size: int = 5) -> Database:
    """A new cell database ``name`` in ``folder``, with its schema."""
    return _copied(folder, name, "cell", max_pool_size)


def _copied(folder: Path, name: str, kind: Kind, max_pool_size: int) -> Database:
    file = folder / f"{name}.db"
    if file.exists():
        return synced(sqlite_url(folder, name), kind, max_pool_size=max_pool_size)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_template_file(kind))
    return Database(sqlite_url(folder, name), max_pool_size=max_pool_size)


@functools.cache
def _template_file(kind: Kind) -> bytes:
    with tempfile.TemporaryDirectory(prefix="template-") as folder:
        sync_schema(sqlite_url(Path(folder), kind), kind)
        (file,) = Path(folder).iterdir()  # nothing is left in a write-ahead log once everybody has closed it
        return file.read_bytes()


def synced(url: str, kind: Kind, max_pool_size: int = 5) -> Database:
    """The database at ``url``, whatever its server, with the schema of ``kind`` applied."""
    sync_schema(url, kind)
    return Database(url, max_pool_size=max_pool_size)


@contextmanager
def database_on(server: str, folder: Path, kind: Kind) -> Iterator[Database]:
    """A new database with its schema on one of SERVERS; if that does not answer, the test skips, or fails if told to use it."""
    if server == "sqlite":
        database = _copied(folder, new_name(), kind, 5)
        try:
            yield database
        finally:
            database.dispose_connections()
        return
    url = pool(server, kind).take()
    database = Database(url, max_pool_size=5)
    try:
        yield database
    finally:
        database.dispose_connections()
        pool(server, kind).give_back(url)


def folder_of(request: pytest.FixtureRequest) -> Path:
    """A new folder for a fixture: that of the test, or one for all that share the fixture."""
    if request.scope == "function":
        folder: Path = request.getfixturevalue("tmp_path")
        return folder
    shared: Path = request.getfixturevalue("tmp_path_factory").mktemp("shared")
    return shared


def database_fixture(kind: Kind = "api", *, scope: Scope = "module", servers: Collection[str] = tuple(SERVERS)) -> object:
    """A fixture: a ``database_on`` each of these servers."""

    @pytest.fixture(scope=scope, params=servers)
    def database(request: pytest.FixtureRequest) -> Iterator[Database]:
        with database_on(request.param, folder_of(request), kind) as made:
            yield made

    return database


@contextmanager
def url_on(server: str, folder: Path) -> Iterator[str]:
    """The URL of a new, empty database on one of SERVERS; for SQLite of a file that does not exist yet."""
    if server == "sqlite":
        yield sqlite_url(folder, new_name())
    else:
        with scratch_url(SERVERS[server]) as url:
            yield url


class Pool:
    """The databases of one kind that this process has on one server; gone when it ends."""

    def __init__(self, server: str, kind: Kind) -> None:
        self._server = server
        self._kind = kind
        self._free: list[str] = []
        self._tables: Sequence[sa.Table] = ()
        self._first: list[tuple[sa.Table, list[dict[str, Any]]]] = []
        self._made = contextlib.ExitStack()
        atexit.register(self._made.close)

    def take(self) -> str:
        """A database without rows, but for the first ones."""
        if self._free:
            return self._free.pop()
        url = self._made.enter_context(scratch_url(SERVERS[self._server]))
        sync_schema(url, self._kind)
        if not self._tables:
            self._look(url)
        return url

    def give_back(self, url: str) -> None:
        engine = _lone(url)
        with engine.connect() as tx:
            _disconnect_others(tx)
        with engine.begin() as tx:
            for table in self._tables:
                tx.execute(sa.delete(table))
            for table, rows in self._first:
                tx.execute(sa.insert(table), rows)
        self._free.append(url)

    def _look(self, url: str) -> None:
        """What there is to delete, dependent rows first, and what a new database begins with."""
        found = sa.MetaData()
        with _lone(url).connect() as tx:
            found.reflect(tx)
            self._tables = tuple(reversed(found.sorted_tables))
            for table in found.sorted_tables:
                rows = [dict(row) for row in tx.execute(sa.select(table)).mappings()]
                self._first += [(table, rows)] if rows else []


@functools.cache
def pool(server: str, kind: Kind) -> Pool:
    """Where this process keeps its databases of that kind on that server."""
    return Pool(server, kind)


def sqlite_url(folder: Path, name: str) -> str:
    return f"sqlite:///{folder / name}.db"


@contextmanager
def scratch_url(server: str) -> Iterator[str]:
    """A new database on the server with this administrative URL, empty, dropped afterwards.

    If nothing answers, the test skips (fails where it was told to use that server).
    """
    url = sa.make_url(server)
    _check(url)
    name = new_name()
    administration = _administration(url)
    try:
        _execute(administration, f"CREATE DATABASE {name}")
    except sa.exc.OperationalError as error:
        give_up(_VARIABLES[url.get_backend_name()], f"{_place(url)} cannot be used: {error.orig}")
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        _drop(administration, name)


@contextmanager
def named_databases(server: str, names: Sequence[str]) -> Iterator[str]:
    """New, empty databases on one of SERVERS, dropped afterwards: their URL, in which ``{name}`` stands for each of ``names``."""
    url = sa.make_url(SERVERS[server])
    _check(url)
    prefix, administration = new_name(), _administration(url)
    try:
        for name in names:
            _execute(administration, f"CREATE DATABASE {prefix}_{name}")
        yield url.set(database=f"{prefix}_NAME").render_as_string(hide_password=False).replace("_NAME", "_{name}")
    finally:
        for name in names:
            _drop(administration, f"{prefix}_{name}")


def _check(url: sa.URL) -> None:
    """End the test if the server is not one that it can use."""
    variable = _VARIABLES[url.get_backend_name()]
    if is_ruled_out(variable):
        pytest.skip(f"this run has no {url.get_backend_name()}")
    if not _answers(url.host or "", url.port or 0):
        give_up(variable, f"no {_place(url)} answers")
    skip_without_driver(url.render_as_string(hide_password=False))


def _place(url: sa.URL) -> str:
    return f"{url.get_backend_name()} on {url.host}:{url.port}"


def _administration(url: sa.URL) -> sa.Engine:
    return sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)


def _lone(url: str) -> sa.Engine:
    return sa.create_engine(url, poolclass=sa.NullPool)


def _disconnect_others(tx: sa.Connection) -> None:
    """Threads that a test left behind must not write into the database of the next one."""
    if tx.dialect.name == "postgresql":
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        tx.execute(sa.text(f"SELECT pg_terminate_backend(pid) {others}"))
        return
    others = "FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"
    for number in tx.execute(sa.text(f"SELECT id {others}")).scalars().all():
        tx.execute(sa.text(f"KILL {int(number)}"))


def _drop(administration: sa.Engine, name: str) -> None:
    force = " WITH (FORCE)" if administration.dialect.name == "postgresql" else ""
    _execute(administration, f"DROP DATABASE IF EXISTS {name}{force}")


def skip_without_driver(url: str) -> None:
    """The drivers of servers are extras of the distribution."""
    try:
        check_driver(sa.make_url(url))
    except errors.Misconfigured as error:
        pytest.skip(str(error))


def _execute(engine: sa.Engine, statement: str) -> None:
    with engine.connect() as connection:
        connection.execute(sa.text(statement))


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def closed_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
