"""Databases for tests: with their schema, in a folder of the test's own, or on a server where one answers."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from db.engine import Database
from db.sync import Kind, sync
from db.url import check_driver
from objects import errors

MARIADB = "mysql+pymysql://root@127.0.0.1:3306/mysql"
POSTGRESQL = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
"""Administrative URLs of the servers that tests use where they answer."""

SERVERS = {"sqlite": "", "mariadb": MARIADB, "postgresql": POSTGRESQL}
"""For ``pytest.mark.parametrize("server", SERVERS)``."""


def api_database(folder: Path, name: str = "api", max_pool_size: int = 5) -> Database:
    """A new API database ``name`` in ``folder``, with its schema."""
    return synced(sqlite_url(folder, name), "api", max_pool_size=max_pool_size)


def cell_database(folder: Path, name: str = "cell1", max_pool_size: int = 5) -> Database:
    """A new cell database ``name`` in ``folder``, with its schema."""
    return synced(sqlite_url(folder, name), "cell", max_pool_size=max_pool_size)


def synced(url: str, kind: Kind, max_pool_size: int = 5) -> Database:
    """The database at ``url``, whatever its server, with the schema of ``kind`` applied."""
    sync(url, kind)
    return Database(url, max_pool_size=max_pool_size)


@contextmanager
def database_on(server: str, folder: Path, kind: Kind) -> Iterator[Database]:
    """A new database with its schema on one of SERVERS; skips the test if that does not answer."""
    with url_on(server, folder) as url:
        database = synced(url, kind)
        try:
            yield database
        finally:
            database.dispose()


@contextmanager
def url_on(server: str, folder: Path) -> Iterator[str]:
    """The URL of a new, empty database on one of SERVERS; for SQLite of a file that does not exist yet."""
    if server == "sqlite":
        yield sqlite_url(folder, f"scratch_{uuid.uuid4().hex[:8]}")
    else:
        with scratch_url(SERVERS[server]) as url:
            yield url


def sqlite_url(folder: Path, name: str) -> str:
    return f"sqlite:///{folder / name}.db"


@contextmanager
def scratch_url(server: str) -> Iterator[str]:
    """A new, empty database on the server with this administrative URL, dropped afterwards; skips the test if nothing answers."""
    url = sa.make_url(server)
    where = f"{url.get_backend_name()} on {url.host}:{url.port}"
    if not _answers(url.host or "", url.port or 0):
        pytest.skip(f"no {where} answers")
    skip_without_driver(server)
    name = f"superconductor_{uuid.uuid4().hex[:12]}"
    administration = sa.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    try:
        _execute(administration, f"CREATE DATABASE {name}")
    except sa.exc.OperationalError as error:
        pytest.skip(f"{where} cannot be used: {error.orig}")
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        force = " WITH (FORCE)" if url.get_backend_name() == "postgresql" else ""
        _execute(administration, f"DROP DATABASE {name}{force}")


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
