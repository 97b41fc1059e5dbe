"""The only retry policy of transactions, and the only place that tells transient errors from lasting ones.

Waits are drawn at random between 0 and an exponentially growing bound ("full jitter": AWS Architecture Blog, "Exponential Backoff
And Jitter", 2015), so that transactions that met once do not meet again. Attempts and total time are bounded.
"""

from __future__ import annotations

import enum
import logging
import re
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from oslo_db import exception as oslo_exception
from sqlalchemy import exc as sa_exception

from service.retry import retry_failed

LOG = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
CONFLICT_ATTEMPTS = 12
CONFLICT_TIMEOUT_S = 12.0
"""Seconds after which a transaction that keeps conflicting with others is given up."""
LOST_ATTEMPTS = 3
LOST_TIMEOUT_S = 1.0
"""Seconds for a database that does not answer. It is short because the caller's sweep tries again."""

_POSTGRESQL_CONFLICTS = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock time-out
_MARIADB_CONFLICTS = (1020, 1205, 1213)  # record changed since last read, lock wait time-out, deadlock
_MARIADB_NOT_IN_CLUSTER = 1047  # this node of a Galera cluster has no quorum, or has not caught up
# Too many connections, shutting down, commit not replicated, too many of this user, interrupted, connection killed, too slow
_MARIADB_LOST = (1040, _MARIADB_NOT_IN_CLUSTER, 1053, 1180, 1203, 1317, 1927, 1969)
_MARIADB_TIMEOUT = 1969
_POSTGRESQL_TIMEOUT = "57014"
_MARIADB_READ_ONLY = (1792, 1836)  # in a read-only transaction, in read-only mode
_MARIADB_PREVENTED = 1290  # prevented by an option of the server, which the text names: --read-only is one of several
# Values that the server refuses; PyMySQL raises operational errors for them: row too large, expression, packet too large,
# collations, character set, result too large, wrong text, a trigger's refusal, number out of range, constraint.
_MARIADB_DATA = (1118, 1139, 1153, 1267, 1300, 1301, 1366, 1644, 1690, 4025)
_POSTGRESQL_LIMITS = "54"  # the class of values too large for an index or a row
_POSTGRESQL_READ_ONLY = "25006"  # also raised by standbys that have not been promoted
# SQLite reports a quota, a file size limit and a lack of shared memory as "disk I/O error".
_SQLITE_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
_MARIADB_FULL = (3, 1021, 1026, 1030, 1114)  # cannot write a file, disk full, cannot write, storage engine's error, table full
_NO_SPACE = re.compile(r"\b(?:errno|errcode|error)\W{0,3}28\b|no space left|is full|disk full", re.IGNORECASE)


class ErrorKind(enum.Enum):
    """What an error of the database means for its transaction."""

    CONFLICT = "meeting"  # a conflict with another transaction: run it again. The values are labels of a metric
    LOST = "lost"  # no connection, or the connection broke: retry a few times
    READ_ONLY = "read-only"  # the server takes no writes, perhaps after a fail-over: retry a few times, on new connections
    FULL = "full"  # there is no room to write; a retry would not help
    LASTING = "lasting"  # a retry would not help: wrong password, broken disk
    UNSYNCED = "unsynced"  # the schema is missing or old
    OTHER = "other"  # not an error of the database: a bug of ours, a broken constraint


def classify_error(error: BaseException) -> ErrorKind:
    """Tell what ``error``, raised by oslo.db, SQLAlchemy or a driver, means."""
    if isinstance(error, (oslo_exception.DBDeadlock, oslo_exception.DBConsistencyError, oslo_exception.RetryRequest)):
        return ErrorKind.CONFLICT
    driver_error = cause_of(error)
    if is_read_only(driver_error):
        return ErrorKind.READ_ONLY
    if isinstance(error, oslo_exception.DBConnectionError):
        return ErrorKind.LOST
    if isinstance(error, oslo_exception.DBNonExistentTable):
        return ErrorKind.UNSYNCED
    if isinstance(error, (oslo_exception.DBNonExistentDatabase, sa_exception.TimeoutError)):
        return ErrorKind.LASTING
    if isinstance(driver_error, sqlite3.Error):
        return _classify_sqlite(driver_error)
    wrapped = _wrapped_error(error)
    if isinstance(wrapped, sa_exception.DBAPIError):
        return _classify_server(wrapped, driver_error)
    return ErrorKind.OTHER


def cause_of(error: BaseException) -> BaseException:
    """The driver's own error inside ``error``: the only text of the three that holds neither SQL nor parameters."""
    inner = _wrapped_error(error)
    return getattr(inner, "orig", None) or inner


def is_read_only(driver_error: BaseException) -> bool:
    """Whether a server refused to write because it is a replica, or was told to take no writes.

    Such a connection is of no use any more: after a fail-over it would speak to the old server for as long as it is kept.
    """
    if getattr(driver_error, "sqlstate", None) == _POSTGRESQL_READ_ONLY:
        return True
    number = _error_number(driver_error)
    if number == _MARIADB_PREVENTED:
        return "read-only" in str(driver_error) or "read_only" in str(driver_error)
    return number in _MARIADB_READ_ONLY


def is_read_only_file(error: BaseException) -> bool:
    """Whether SQLite may not write its file."""
    driver_error = cause_of(error)
    return isinstance(driver_error, sqlite3.Error) and _sqlite_code(driver_error) & 0xFF == sqlite3.SQLITE_READONLY


def is_of_no_use(driver_error: BaseException) -> bool:
    """Whether the connection leads to a server that takes no writes, or to a node that has left its cluster."""
    return is_read_only(driver_error) or _error_number(driver_error) == _MARIADB_NOT_IN_CLUSTER


def is_out_of_time(error: BaseException) -> bool:
    """Whether a server, or SQLite, ended a statement because it took longer than the connection allows."""
    driver_error = cause_of(error)
    if isinstance(driver_error, sqlite3.Error):
        return _sqlite_code(driver_error) == sqlite3.SQLITE_INTERRUPT
    canceled = getattr(driver_error, "sqlstate", None) == _POSTGRESQL_TIMEOUT
    return canceled or _error_number(driver_error) == _MARIADB_TIMEOUT


def is_not_text(error: BaseException) -> bool:
    """Whether SQLite, which does not check them, gave bytes of a text column that are no UTF-8."""
    driver_error = cause_of(error)
    return isinstance(driver_error, sqlite3.OperationalError) and str(driver_error).startswith("Could not decode to UTF-8")


def is_unsure(error: BaseException) -> bool:
    """Whether ``error``, met by a commit, leaves open if the transaction happened.

    A connection that broke does; so does a disk that failed to keep what it was given: it may be found there later. A server that
    refuses, and a disk that does not take it, have rolled back.
    """
    driver_error = cause_of(error)
    if isinstance(driver_error, sqlite3.Error):
        code = _sqlite_code(driver_error)
        return code & 0xFF == sqlite3.SQLITE_IOERR and code not in _SQLITE_FULL
    return classify_error(error) is ErrorKind.LOST


def _error_number(driver_error: BaseException) -> int | None:
    """The number of an error of PyMySQL's; the drivers of other servers have texts as their first argument."""
    number = driver_error.args[0] if driver_error.args else None
    return number if isinstance(number, int) else None


def _wrapped_error(error: BaseException) -> BaseException:
    """SQLAlchemy's error inside one of oslo.db's."""
    return getattr(error, "inner_exception", None) or error


def _sqlite_code(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code


def _classify_sqlite(error: sqlite3.Error) -> ErrorKind:
    if _sqlite_code(error) in _SQLITE_FULL:
        return ErrorKind.FULL
    code = _sqlite_code(error) & 0xFF  # the low byte is the primary code
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return ErrorKind.CONFLICT
    lasting = (
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    )
    if code in lasting:
        return ErrorKind.LASTING
    if "no such table" in str(error) or "no such column" in str(error):
        return ErrorKind.UNSYNCED
    return ErrorKind.OTHER


def _classify_server(error: sa_exception.DBAPIError, driver_error: BaseException) -> ErrorKind:
    state = getattr(driver_error, "sqlstate", None)
    number = _error_number(driver_error)
    if state in _POSTGRESQL_CONFLICTS or number in _MARIADB_CONFLICTS:
        return ErrorKind.CONFLICT
    if state in ("42P01", "42703") or number in (1054, 1146):
        return ErrorKind.UNSYNCED
    if state == "53100" or (number in _MARIADB_FULL and _NO_SPACE.search(str(driver_error))):
        return ErrorKind.FULL
    if error.connection_invalidated or number in _MARIADB_LOST:
        return ErrorKind.LOST
    if not isinstance(error, sa_exception.OperationalError) or number in _MARIADB_DATA:
        return ErrorKind.OTHER
    if state is not None and state.startswith(_POSTGRESQL_LIMITS):
        return ErrorKind.OTHER
    if type(driver_error).__module__.startswith("psycopg"):
        # psycopg has no state for a connection that failed to open; 08: connection, 53: resources, 57: operator's intervention
        return ErrorKind.LOST if state is None or state[:2] in ("08", "53", "57") else ErrorKind.LASTING
    return ErrorKind.LASTING


def retry_transaction(transaction: Callable[[], T], first: Exception, spent: float = 0.0) -> T:
    """Go on after ``transaction`` failed with ``first`` for passing trouble: run it again, as often as the policy allows.

    ``spent`` is how many seconds that first run took: a server that let it wait for long must not be waited for once more.
    Raises the last error when the bounds are reached, and any error that is not passing at once.
    """
    return retry_failed(
        transaction,
        first,
        first_pause=FIRST_PAUSE_S,
        longest=LONGEST_PAUSE_S,
        retried=_is_passing,
        is_last=lambda error, tries, seconds: _is_last(error, tries, spent + seconds),
        failed=_log_retry,
    )


def is_passing(error: Exception) -> bool:
    """Whether running the whole transaction again may succeed."""
    return _is_passing(error)


def _is_passing(error: BaseException) -> bool:
    return classify_error(error) in (ErrorKind.CONFLICT, ErrorKind.LOST, ErrorKind.READ_ONLY)


def _is_last(error: BaseException, tries: int, seconds: float) -> bool:
    if classify_error(error) in (ErrorKind.LOST, ErrorKind.READ_ONLY):
        return tries >= LOST_ATTEMPTS or seconds >= LOST_TIMEOUT_S
    return tries >= CONFLICT_ATTEMPTS or seconds >= CONFLICT_TIMEOUT_S


def _log_retry(error: BaseException, tries: int) -> None:
    LOG.debug("transaction attempt %d failed and is retried: %s", tries, cause_of(error))
