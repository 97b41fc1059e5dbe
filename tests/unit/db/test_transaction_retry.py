"""Which errors are tried again, how often, and what the last one is."""

from __future__ import annotations

import sqlite3

import pytest
from oslo_db import exception as oslo_exception
from sqlalchemy import exc as sa_exception

from db import retry
from db.retry import Trouble


def sqlite_error(code: int, text: str = "an error") -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


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
        (oslo_exception.DBDeadlock(), Trouble.MEETING),
        (oslo_exception.DBConsistencyError(), Trouble.MEETING),
        (oslo_exception.RetryRequest(ValueError()), Trouble.MEETING),
        (sqlite_error(sqlite3.SQLITE_BUSY), Trouble.MEETING),
        (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), Trouble.MEETING),
        (sqlite_error(sqlite3.SQLITE_LOCKED), Trouble.MEETING),
        (sa_exception.OperationalError("UPDATE", {}, sqlite_error(sqlite3.SQLITE_BUSY)), Trouble.MEETING),
        (oslo_exception.DBConnectionError(), Trouble.LOST),
        (sqlite_error(sqlite3.SQLITE_FULL), Trouble.LASTING),
        (sa_exception.TimeoutError(), Trouble.LASTING),
        (sqlite_error(sqlite3.SQLITE_ERROR, "no such table: t"), Trouble.UNSYNCED),
        (sqlite_error(sqlite3.SQLITE_ERROR, "near SELEKT: syntax error"), Trouble.OTHER),
        (oslo_exception.DBDuplicateEntry(), Trouble.OTHER),
        (KeyError("row"), Trouble.OTHER),
    ],
)
def test_what_an_error_means(error: Exception, trouble: Trouble) -> None:
    assert retry.classify(error) is trouble


def test_transaction_that_met_another_is_run_again_until_it_succeeds() -> None:
    transaction = Failing(oslo_exception.DBDeadlock(), times=2)

    assert retry.again(transaction, oslo_exception.DBDeadlock()) == "done"
    assert transaction.runs == 3


def test_attempts_are_bounded_and_the_last_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "ATTEMPTS", 4)
    transaction = Failing(oslo_exception.DBDeadlock(), times=1000)

    with pytest.raises(oslo_exception.DBDeadlock):
        retry.again(transaction, oslo_exception.DBDeadlock())
    assert transaction.runs == 3, "the first failure, handed over, was one of the four attempts"


def test_total_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "TOTAL", 0.0)
    transaction = Failing(oslo_exception.DBDeadlock(), times=1000)

    with pytest.raises(oslo_exception.DBDeadlock):
        retry.again(transaction, oslo_exception.DBDeadlock())
    assert transaction.runs == 0


def test_lost_connection_gets_fewer_attempts() -> None:
    transaction = Failing(oslo_exception.DBConnectionError(), times=1000)

    with pytest.raises(oslo_exception.DBConnectionError):
        retry.again(transaction, oslo_exception.DBConnectionError())
    assert transaction.runs == retry.LOST_ATTEMPTS - 1


def test_error_of_another_kind_ends_the_attempts_at_once() -> None:
    transaction = Failing(KeyError("row"), times=1000)

    with pytest.raises(KeyError):
        retry.again(transaction, oslo_exception.DBDeadlock())
    assert transaction.runs == 1
