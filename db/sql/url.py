"""Database URLs: what they may say, what they leave open, and what a connection made from one is told first."""

from __future__ import annotations

import math
import os
import sqlite3
from typing import Any

import sqlalchemy as sa

from objects import errors
from objects.mask import mask_url

CONNECT_TIMEOUT_S = 2
"""Seconds to wait for a server to accept a connection."""
ANSWER_TIMEOUT_S = 15
"""Seconds to wait for the answer to one statement; it must outlast LOCK_TIMEOUT_S. ``?read_timeout=`` in the URL changes it."""
SCHEMA_TIMEOUT_S = 3600
"""The same for the statements of a schema change."""
LOCK_TIMEOUT_S = 5
"""Seconds a statement waits for a row lock on a server before the transaction is run again."""
IDLE_TIMEOUT_S = 60
"""Seconds after which a server ends a transaction of a silent client, so that a machine that vanished holds no locks."""
BUSY_TIMEOUT_S = 5
"""Seconds that SQLite waits for another process's write to end before the transaction is run again."""

_DRIVERS = {"sqlite": "sqlite", "mysql": "mysql+pymysql", "mariadb": "mysql+pymysql", "postgresql": "postgresql+psycopg"}
_EXTRAS = {"mysql+pymysql": "mysql", "postgresql+psycopg": "postgres"}
_SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
_EXAMPLES = (
    "examples: sqlite:////var/lib/file.db, mysql+pymysql://user:password@host/name, postgresql+psycopg://user:password@host/name"
)


def parse_url(url: str) -> sa.URL:
    """Read a database URL, and complete it with the driver, character set and time-outs it leaves open.

    Raises Misconfigured, with the password masked.
    """
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise errors.Misconfigured(f"Database URL '{mask_url(url)}' cannot be read; {_EXAMPLES}") from None
    backend = parsed.get_backend_name()
    if backend not in _DRIVERS:
        raise errors.Misconfigured(f"Database URL '{masked_url(parsed)}' names no known kind of database; {_EXAMPLES}")
    if "+" not in parsed.drivername:
        parsed = parsed.set(drivername=_DRIVERS[backend])
    if backend == "mariadb":  # oslo.db knows the errors of this server only under its older name
        parsed = parsed.set(drivername=f"mysql+{parsed.get_driver_name()}")
    plain_driver(parsed)
    if backend != "sqlite":
        return parsed.update_query_dict({**_driver_options(parsed), **parsed.query})
    if parsed.database in (None, "", ":memory:") or str(parsed.database).startswith("file:"):
        raise errors.Misconfigured("SQLite needs a file that all threads and processes can open: sqlite:////path/to/file.db")
    synchronous_mode(parsed)
    return parsed


def with_schema_timeout(url: str) -> str:
    """The URL with time for a schema change, which may take long, where it does not say how much."""
    parsed = parse_url(url)
    options = sa.make_url(url).query
    long = {key: str(SCHEMA_TIMEOUT_S) for key in ("read_timeout", "write_timeout") if key in parsed.query and key not in options}
    return parsed.update_query_dict(long).render_as_string(hide_password=False) if long else url


def check_driver(url: sa.URL) -> None:
    """Raise Misconfigured, saying what to install, where the driver the URL asks for is missing."""
    try:
        url.get_dialect().import_dbapi()
    except (ImportError, sa.exc.NoSuchModuleError):
        extra = _EXTRAS.get(url.drivername)
        requirement = f"'superconductor-cloud[{extra}]'" if extra else f"the driver {url.get_driver_name() or url.drivername}"
        raise errors.Misconfigured(
            f"Database URL '{masked_url(url)}' needs a driver that is not installed: pip install {requirement}"
        ) from None


def masked_url(url: sa.URL | str) -> str:
    """The URL, fit to be shown."""
    return mask_url(sa.make_url(url).render_as_string(hide_password=True))


def file_of(url: sa.URL) -> str | None:
    """The real path of an SQLite file; None for a server."""
    return os.path.realpath(str(url.database)) if url.get_backend_name() == "sqlite" else None


def synchronous_mode(url: sa.URL) -> str:
    """How SQLite writes to the disk: ``?synchronous=FULL`` in the URL, or NORMAL.

    With a write-ahead log and NORMAL a commit is handed to the operating system, and forced to the disk only when the log is folded
    into the file. So a process that is killed at any moment loses nothing that it committed; only when the machine loses power or
    crashes may the last commits be missing, from the end, and the file stays consistent. FULL forces every commit to the disk.
    """
    value = str(url.query.get("synchronous", "NORMAL")).upper()
    if value not in _SYNCHRONOUS:
        raise errors.Misconfigured(f"Database URL: synchronous={value} is not one of {', '.join(_SYNCHRONOUS)}")
    return value


def plain_driver(url: sa.URL) -> bool:
    """Whether ``?plain_driver=true`` asks for PyMySQL's own connections, without what ``pymysql_connection.py`` spares of them.

    Slower, and free of what a release of PyMySQL may change.
    """
    value = str(url.query.get("plain_driver", "false")).lower()
    if value not in ("true", "false"):
        raise errors.Misconfigured(f"Database URL: plain_driver={value} is neither true nor false")
    if value == "true" and url.drivername != "mysql+pymysql":
        raise errors.Misconfigured("Database URL: plain_driver is an option for mysql+pymysql only; leave it out")
    return value == "true"


def read_timeout(url: sa.URL) -> float:
    """Seconds that the answer to one statement may take, on a server."""
    return _seconds_option(url, "read_timeout", ANSWER_TIMEOUT_S)


def connect_timeout(url: sa.URL) -> float:
    """Seconds that a server may take to accept a connection."""
    return _seconds_option(url, "connect_timeout", CONNECT_TIMEOUT_S)


def _seconds_option(url: sa.URL, name: str, default: float) -> float:
    value = url.query.get(name, str(default))
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < math.inf:
        raise errors.Misconfigured(f"Database URL: {name}={value} is not a number of seconds above 0")
    return seconds


def for_driver(url: sa.URL) -> str:
    """The URL as SQLAlchemy takes it, password included, without what only we read."""
    ours = ["synchronous", "plain_driver"]
    if url.get_backend_name() == "postgresql":
        ours.append("read_timeout")  # libpq has no such option
    return url.difference_update_query(ours).render_as_string(hide_password=False)


AGGREGATE_BYTES = 2**20
"""Longest text that MariaDB may make of the values of a column in many rows. It is the server's default."""


def settle_connection(connection: Any, url: sa.URL, *, query_only: bool = False, statement_timeout: float | None = None) -> None:
    """Tell a new driver connection what it has to know. The driver's type differs by server, hence Any.

    ``statement_timeout``: seconds that a statement may take on a server, if less than the URL's ``read_timeout``.
    """
    if isinstance(connection, sqlite3.Connection):
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000}")  # first: the next one may meet another process
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous_mode(url)}")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute(f"PRAGMA query_only={'ON' if query_only else 'OFF'}")  # last: setting the journal mode writes
        return
    answer = min(
        read_timeout(url), statement_timeout or math.inf
    )  # the server ends what its client has given up, and releases the locks
    with connection.cursor() as cursor:
        if url.get_backend_name() == "postgresql":
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
            # Tables here are queues: a plan cached while a table was empty reads all of it when it is full.
            cursor.execute("SET plan_cache_mode = force_custom_plan")
            cursor.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'")
            cursor.execute(f"SET statement_timeout = '{answer * 1000:.0f}ms'")
            cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s'")
        else:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            more = f"SESSION idle_transaction_timeout = {IDLE_TIMEOUT_S}, SESSION max_statement_time = {answer:g}"
            more += f", SESSION group_concat_max_len = {AGGREGATE_BYTES}"
            cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_TIMEOUT_S} /*M! , {more} */")  # to MySQL a comment
    connection.commit()
    if query_only:
        _only_read(connection, url)


def _only_read(connection: Any, url: sa.URL) -> None:
    """Each statement is a transaction: begun and ended by the server, without a word about it, and refused if it writes.

    On READ COMMITTED each statement sees what is committed when it begins anyway, so those of a transaction have nothing in common.
    """
    postgresql = url.get_backend_name() == "postgresql"
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION {'CHARACTERISTICS AS ' if postgresql else ''}TRANSACTION READ ONLY")
    connection.commit()
    if postgresql:
        connection.autocommit = True
    else:
        connection.autocommit(True)


def _driver_options(url: sa.URL) -> dict[str, str]:
    if url.get_backend_name() == "postgresql":
        unheard = {"keepalives_idle": "5", "keepalives_interval": "5", "keepalives_count": "2"}
        times = {"connect_timeout": str(CONNECT_TIMEOUT_S), "read_timeout": str(ANSWER_TIMEOUT_S)}
        return {**times, "tcp_user_timeout": str(ANSWER_TIMEOUT_S * 1000), **unheard}
    options = {"charset": "utf8mb4"}
    if url.get_driver_name() == "pymysql":
        answer = str(ANSWER_TIMEOUT_S)
        options |= {"connect_timeout": str(CONNECT_TIMEOUT_S), "read_timeout": answer, "write_timeout": answer}
    return options
