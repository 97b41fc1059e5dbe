"""How oslo.db's enginefacade is made to open a database, and what it must be kept from doing to SQLite."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy.pool import QueuePool

from db.sql import clock, galera, read_timeouts, retry, statements
from db.sql import url as urls
from objects import errors
from objects.base import Object

MAX_OVERFLOW = 20
"""Connections beyond the pool's size that may be open for a short time."""
POOL_TIMEOUT_S = 10.0
"""Seconds that a transaction waits for a connection of the pool."""

CONNECTION_LIFETIME_S = 3600
"""Seconds after which a connection to a server is not used again."""


class Opening(Object, frozen=True, kw_only=True):
    """How a database is opened. ``name`` is what statement counts call it; ``create`` matters to SQLite.

    ``query_only``: for reading, where it refuses to write.
    ``statement_timeout``: seconds that one statement may take on a server; None: as the URL says.
    ``outbox``: its transactions note what is to be told (``db/outbox.py``).
    """

    url: str
    name: str
    max_pool_size: int
    create: bool = False
    query_only: bool = False
    outbox: bool = False
    statement_timeout: float | None = None

    def __repr__(self) -> str:
        return f"Opening({self.name!r})"  # the URL may hold a password


class Facade:
    """A transaction manager of enginefacade's, which has no type, and the engines under it. Opens nothing before its first use."""

    def __init__(self, manager: Any) -> None:
        self.writer = manager.writer.connection
        self.reader = manager.reader.connection
        self._engines: list[sa.Engine] = []
        manager.append_on_engine_create(self._engines.append)

    def has_engine(self, engine: sa.Engine) -> bool:
        return engine in self._engines

    def dispose_connections(self) -> None:
        """Close the idle connections and forget those in use, which oslo.db's own way would take back and use again."""
        for engine in self._engines:
            engine.dispose()


def make_facade(opening: Opening, reading: clock.ClockReading) -> Facade:
    """How to begin transactions on a database. ``reading``: where its new connections note its clock."""
    url = urls.parse_url(opening.url)
    facade = enginefacade.transaction_context()
    if urls.file_of(url) is None:
        facade.configure(max_pool_size=opening.max_pool_size, max_overflow=MAX_OVERFLOW, pool_timeout=POOL_TIMEOUT_S)
    facade.configure(
        connection=urls.for_driver(url),
        connection_recycle_time=CONNECTION_LIFETIME_S,
        max_retries=0,  # a dead server raises at once; the caller decides when to retry
        thread_checkin=False,  # only for green threads
        logging_name=opening.name,
    )
    facade.append_on_engine_create(functools.partial(_tune_engine, url, opening, reading))
    # It logs each unknown error with a traceback. All errors are raised, so their callers log them.
    logging.getLogger("oslo_db.sqlalchemy.exc_filters").setLevel(logging.ERROR)
    return Facade(facade)


def _tune_engine(url: sa.URL, opening: Opening, reading: clock.ClockReading, engine: sa.Engine) -> None:
    engine.update_execution_options(compiled_cache=statements.SHARED)
    if opening.outbox:
        engine.update_execution_options(keeps_outbox=True)
    _keep_connections(engine, opening.max_pool_size)
    engine.hide_parameters = True  # parameters hold user data and URLs of cells; errors must not show them

    @sa.event.listens_for(engine, "connect")
    def settle_connection(driver_connection: Any, record: sa.pool.ConnectionPoolEntry) -> None:
        if url.get_backend_name() == "mysql":
            galera.settle_connection(driver_connection, record.info)
        urls.settle_connection(driver_connection, url, query_only=opening.query_only, statement_timeout=opening.statement_timeout)
        reading.take_reading(driver_connection, url.get_backend_name())
        driver_connection.rollback()

    _leave_read_only(engine)
    read_timeouts.keep_time(engine, url)
    file = urls.file_of(url)
    if file is not None:
        _look_for_file(engine, file, opening)
        _leave_begin_to_us(engine)


def _leave_read_only(engine: sa.Engine) -> None:
    """Count a connection as broken whose server takes no writes, or has left its cluster.

    It is closed, and with it all of the pool that are as old.

    The event that is meant for this is of no use, as oslo.db's own listener comes first and ends the chain.
    """
    breaks: Callable[..., bool] = engine.dialect.is_disconnect

    def is_disconnect(error: BaseException, connection: object, cursor: object) -> bool:
        return retry.is_of_no_use(error) or breaks(error, connection, cursor)

    engine.dialect.is_disconnect = is_disconnect  # type: ignore[assignment]  # the dialect calls whatever is assigned there


def _keep_connections(engine: sa.Engine, size: int) -> None:
    """Use the connection that was used last.

    It has the warmest cache, and the server has just given a sign of life on it. oslo.db's pools for servers take turns, and for
    SQLite it opens and closes a connection in every transaction. Closing the last one folds the log into the file with two forced
    writes to the disk: a pool that keeps them is ten times faster.
    """
    old = engine.pool
    engine.pool = QueuePool(
        old._creator,
        pool_size=size,
        max_overflow=MAX_OVERFLOW,
        timeout=POOL_TIMEOUT_S,
        use_lifo=True,
        recycle=-1 if engine.dialect.name == "sqlite" else CONNECTION_LIFETIME_S,
        pre_ping=engine.dialect.name != "sqlite",
        dialect=engine.dialect,
        _dispatch=old.dispatch,
    )
    old.dispose()


def _look_for_file(engine: sa.Engine, file: str, opening: Opening) -> None:
    """SQLite makes a missing file, which hides a mistyped name until the first missing table."""
    shown = urls.masked_url(opening.url)

    @sa.event.listens_for(engine, "do_connect")
    def refuse_missing(dialect: object, record: object, args: list[Any], kwargs: dict[str, Any]) -> None:
        if os.path.exists(file):
            return
        if not opening.create:
            text = f"Database {shown} does not exist; create it and apply the schema with 'superconductor db sync'"
            raise errors.DatabaseUnavailable(text)
        try:
            os.makedirs(os.path.dirname(file), exist_ok=True)
        except OSError as error:
            raise errors.DatabaseUnavailable(f"Database {shown} cannot be created: {error.strerror}") from error


def _leave_begin_to_us(engine: sa.Engine) -> None:
    """oslo.db would begin each transaction with a deferred BEGIN; with its mark of a transaction begun set, it does not."""

    @sa.event.listens_for(engine, "engine_connect")
    def mark_begun(tx: sa.Connection) -> None:
        tx.info["in_transaction"] = True
