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

MARIADB = "mysql+pymysql://root@127.0.0.1:3306/mysql"
POSTGRESQL = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
"""Administrative URLs of the servers that tests use where they answer."""


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


def sqlite_url(folder: Path, name: str) -> str:
    return f"sqlite:///{folder / name}.db"


@contextmanager
def scratch_url(server: str) -> Iterator[str]:
    """A new, empty database on the server with this administrative URL, dropped afterwards; skips the test if nothing answers."""
    url = sa.make_url(server)
    if not _answers(url.host or "", url.port or 0):
        pytest.skip(f"no {url.get_backend_name()} answers on {url.host}:{url.port}")
    name = f"superconductor_{uuid.uuid4().hex[:12]}"
    administration = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    try:
        with administration.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        try:
            yield url.set(database=name).render_as_string(hide_password=False)
        finally:
            with administration.connect() as connection:
                force = " WITH (FORCE)" if url.get_backend_name() == "postgresql" else ""
                connection.execute(sa.text(f"DROP DATABASE {name}{force}"))
    except sa.exc.OperationalError as error:
        pytest.skip(f"{url.get_backend_name()} on {url.host}:{url.port} cannot be used: {error.orig}")
    finally:
        administration.dispose()


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
