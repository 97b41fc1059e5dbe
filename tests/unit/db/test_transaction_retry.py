"""Which errors are tried again, how often, and what the last one is."""

from __future__ import annotations

import sqlite3

import pytest
from oslo_db import exception as oslo_exception
from sqlalchemy import exc as sa_exception

from db.sql import retry
from db.sql.retry import ErrorKind


def sqlite_error(code: int, text: str = "an error") -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def server_error(number: int, text: str) -> sa_exception.OperationalError:
    """As PyMySQL raises it, inside what SQLAlchemy makes of it."""
    return sa_exception.OperationalError("UPDATE", {}, Exception(number, text))


class RefusedByPostgresql(Exception):
    """As psycopg raises errors: the state is an attribute."""

    def __init__(self, state: str) -> None:
        super().__init__("the server says no")
        self.sqlstate = state


class Failing:
    """A transaction that fails so many times before it succeeds."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error = error
        self.times = times
        self.runs = 0

    def __call__(self) -> str:
        self.runs += 1
        if self.runs <= self.times:
            raise self.error
        return "done"


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (oslo_exception.DBDeadlock(), ErrorKind.CONFLICT),
        (oslo_exception.DBConsistencyError(), ErrorKind.CONFLICT),
        (oslo_exception.RetryRequest(ValueError()), ErrorKind.CONFLICT),
        (sqlite_error(sqlite3.SQLITE_BUSY), ErrorKind.CONFLICT),
        (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), ErrorKind.CONFLICT),
        (sqlite_error(sqlite3.SQLITE_LOCKED), ErrorKind.CONFLICT),
        (sa_exception.OperationalError("UPDATE", {}, sqlite_error(sqlite3.SQLITE_BUSY)), ErrorKind.CONFLICT),
        (oslo_exception.DBConnectionError(), ErrorKind.LOST),
        (server_error(1040, "Too many connections"), ErrorKind.LOST),
        (server_error(1053, "Server shutdown in progress"), ErrorKind.LOST),
        (server_error(1047, "WSREP has not yet prepared node for application use"), ErrorKind.LOST),
        (server_error(1180, "Got error 6 'No such device or address' during COMMIT"), ErrorKind.LOST),
        (server_error(1317, "Query execution was interrupted"), ErrorKind.LOST),
        (server_error(1927, "Connection was killed"), ErrorKind.LOST),
        (server_error(1205, "Lock wait timeout exceeded"), ErrorKind.CONFLICT),
        (server_error(1213, "Deadlock found"), ErrorKind.CONFLICT),
        (server_error(1290, "The MariaDB server is running with the --read-only option so it cannot"), ErrorKind.READ_ONLY),
        (server_error(1290, "The MariaDB server is running with the --secure-file-priv option so it cannot"), ErrorKind.LASTING),
        (server_error(1792, "Cannot execute statement in a READ ONLY transaction"), ErrorKind.READ_ONLY),
        (server_error(1836, "Running in read-only mode"), ErrorKind.READ_ONLY),
        (oslo_exception.DBConnectionError(server_error(1290, "running with the --read-only option")), ErrorKind.READ_ONLY),
        (sa_exception.InternalError("UPDATE", {}, RefusedByPostgresql("25006")), ErrorKind.READ_ONLY),
        (oslo_exception.DBError(sa_exception.InternalError("UPDATE", {}, RefusedByPostgresql("25006"))), ErrorKind.READ_ONLY),
        (sa_exception.OperationalError("UPDATE", {}, RefusedByPostgresql("40001")), ErrorKind.CONFLICT),
        (sa_exception.OperationalError("UPDATE", {}, RefusedByPostgresql("40P01")), ErrorKind.CONFLICT),
        (sa_exception.OperationalError("UPDATE", {}, RefusedByPostgresql("53100")), ErrorKind.FULL),
        (server_error(1021, "Disk full (/tmp); waiting for someone to free some space... (errno: 28)"), ErrorKind.FULL),
        (server_error(1030, 'Got error 28 "No space left on device" from storage engine InnoDB'), ErrorKind.FULL),
        (server_error(1030, "Got error 135 from storage engine"), ErrorKind.LASTING),
        (server_error(1114, "The table 'instances' is full"), ErrorKind.FULL),
        (sqlite_error(sqlite3.SQLITE_FULL), ErrorKind.FULL),
        (sqlite_error(sqlite3.SQLITE_IOERR_WRITE), ErrorKind.FULL),
        (sqlite_error(sqlite3.SQLITE_IOERR_FSYNC), ErrorKind.LASTING),
        (sqlite_error(sqlite3.SQLITE_READONLY), ErrorKind.LASTING),
        (sa_exception.TimeoutError(), ErrorKind.LASTING),
        (sqlite_error(sqlite3.SQLITE_ERROR, "no such table: t"), ErrorKind.UNSYNCED),
        (sqlite_error(sqlite3.SQLITE_ERROR, "near SELEKT: syntax error"), ErrorKind.OTHER),
        (oslo_exception.DBDuplicateEntry(), ErrorKind.OTHER),
        (KeyError("row"), ErrorKind.OTHER),
    ],
)
def test_what_an_error_means(error: Exception, trouble: ErrorKind) -> None:
    assert retry.classify_error(error) is trouble


@pytest.mark.parametrize(
    ("error", "unsure"),
    [
        (oslo_exception.DBConnectionError(), True),
        (server_error(1053, "Server shutdown in progress"), True),
        (server_error(1180, "Got error 6 'No such device or address' during COMMIT"), True),
        (server_error(1213, "Deadlock found when trying to get lock"), False),
        (server_error(1213, "Deadlock found"), False),
        (server_error(1290, "running with the --read-only option"), False),
        (sqlite_error(sqlite3.SQLITE_FULL), False),
        (sqlite_error(sqlite3.SQLITE_IOERR_WRITE), False),
        (sqlite_error(sqlite3.SQLITE_IOERR_FSYNC), True),
        (KeyError("row"), False),
    ],
)
def test_what_an_error_of_a_commit_leaves_open(error: Exception, unsure: bool) -> None:
    assert retry.is_unsure(error) is unsure


def count_runs(error: Exception, first: Exception | None = None, *, spent: float = 0.0) -> int:
    """How often a transaction is run again that raises this error each time; its first failure is handed over."""
    transaction = Failing(error, times=1000)
    with pytest.raises(type(error)):
        retry.retry_transaction(transaction, first or error, spent=spent)
    return transaction.runs


def test_a_conflicting_transaction_is_retried_until_it_succeeds() -> None:
    transaction = Failing(oslo_exception.DBDeadlock(), times=2)

    assert retry.retry_transaction(transaction, oslo_exception.DBDeadlock()) == "done"
    assert transaction.runs == 3


def test_attempts_are_bounded_and_raise_the_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "CONFLICT_ATTEMPTS", 4)
    assert count_runs(oslo_exception.DBDeadlock()) == 3, "the first failure, handed over, was one of the four attempts"


def test_total_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "CONFLICT_TIMEOUT_S", 0.0)
    assert count_runs(oslo_exception.DBDeadlock()) == 0


def test_lost_connection_gets_fewer_attempts() -> None:
    assert count_runs(oslo_exception.DBConnectionError()) == retry.LOST_ATTEMPTS - 1


def test_another_kind_of_error_ends_the_attempts() -> None:
    assert count_runs(KeyError("row"), oslo_exception.DBDeadlock()) == 1


def test_a_server_that_blocked_once_is_not_awaited() -> None:
    assert count_runs(oslo_exception.DBConnectionError(), spent=retry.LOST_TIMEOUT_S) == 0
