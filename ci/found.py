"""Servers that were found: whether tests may use one, and what tests have left on it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa
from amqp import Connection  # type: ignore[import-untyped]  # the library ships no types
from amqp.exceptions import AMQPError  # type: ignore[import-untyped]  # the library ships no types

from db.sql.url import check_driver
from objects import errors
from objects.mask import mask_url
from tests.support import vhosts
from tests.support.scratch import new_name

ANSWER_TIMEOUT_S = 10
"""Seconds for a login."""


def why_not(url: str) -> str | None:
    """None if tests can log in with this administrative URL and make what they need; else the reason, in one line."""
    parts = urlsplit(url)
    if not _is_listening(parts.hostname or "", parts.port or 0):
        return f"nothing listens on {parts.hostname}:{parts.port}"
    try:
        (_try_broker if parts.scheme == "rabbit" else _try_database)(url)
    except (sa.exc.SQLAlchemyError, errors.Misconfigured, LookupError, AMQPError, OSError) as error:
        reason = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
        return f"{mask_url(url)} cannot be used: {reason.splitlines()[0][:200]}"
    return None


def remove_leftovers(url: str, is_ours: Callable[[str], bool]) -> list[str]:
    """Remove the databases or virtual hosts whose names are ours; their names."""
    if urlsplit(url).scheme == "rabbit":
        names = [name for name in vhosts.every() if is_ours(name)]
        vhosts.delete(names)
        return names
    engine = _admin_engine(url)
    listing = "SELECT datname FROM pg_database" if engine.dialect.name == "postgresql" else "SHOW DATABASES"
    force = " WITH (FORCE)" if engine.dialect.name == "postgresql" else ""
    with engine.connect() as connection:
        names = [name for name in connection.exec_driver_sql(listing).scalars() if is_ours(name)]
        for name in names:
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name}{force}")
    return names


def _is_listening(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=ANSWER_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _try_database(url: str) -> None:
    check_driver(sa.make_url(url))
    name = new_name()
    with _admin_engine(url).connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        connection.exec_driver_sql(f"DROP DATABASE {name}")


def _try_broker(url: str) -> None:
    """Log in; then make a virtual host, and log in there, which shows that the tool administers this very broker."""
    parts = urlsplit(url)
    user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    name = new_name()

    def log_in(vhost: str) -> None:
        with Connection(
            f"{parts.hostname}:{parts.port}", user, password, virtual_host=vhost, connect_timeout=ANSWER_TIMEOUT_S
        ) as connection:
            connection.connect()

    log_in("/")
    try:
        vhosts.create([name], user)
        log_in(name)
    finally:
        vhosts.delete([name])


def _admin_engine(url: str) -> sa.Engine:
    return sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
