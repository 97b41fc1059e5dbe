"""Drivers made to give up on a server that accepts what it is sent and does not answer."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from db.sql import url as urls


def keep_time(engine: sa.Engine, url: sa.URL) -> None:
    """Make every connection of ``engine`` fail, and close, where an answer takes longer than the URL's ``read_timeout`` allows.

    Without it a frozen server, or a network that stopped forwarding, holds whoever asked: TCP itself has nothing to complain of
    while it has sent all there was to send. Drivers that are not known here keep their own time.
    """
    if url.drivername == "postgresql+psycopg":
        _keep_psycopg(engine, urls.read_timeout(url))
    elif url.drivername == "mysql+pymysql" and not urls.plain_driver(url):
        _keep_pymysql(engine, urls.read_timeout(url), urls.connect_timeout(url))


def _keep_psycopg(engine: sa.Engine, answer: float) -> None:
    from db.sql.psycopg_connection import TimedConnection  # the driver is an extra

    @sa.event.listens_for(engine, "do_connect")
    def connect_timed(dialect: object, record: object, args: list[Any], kwargs: dict[str, Any]) -> Any:
        connection = TimedConnection.connect(*args, **kwargs)
        connection.answer_timeout = answer
        return connection


def _keep_pymysql(engine: sa.Engine, answer: float, connecting: float) -> None:
    """It keeps the time by itself, but allows the server's first word as much of it as the answer to a statement."""
    from db.sql.pymysql_connection import QuietConnection  # the driver is an extra

    @sa.event.listens_for(engine, "do_connect")
    def connect_quiet(dialect: object, record: object, args: list[Any], kwargs: dict[str, Any]) -> Any:
        connection: Any = QuietConnection(*args, **{**kwargs, "read_timeout": min(connecting, answer)})
        connection._read_timeout = answer
        return connection
