"""A connection to PostgreSQL that does not wait for ever. Imports its driver, which is an extra: import it only where needed."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen

T = TypeVar("T")


class TimedConnection(psycopg.Connection[Any]):
    """Closes itself, and raises OperationalError, where the answer to one call takes longer than ``answer_timeout`` seconds."""

    answer_timeout: float | None = None

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """The one place through which all waiting for the server goes. Whoever gives a ``timeout`` deals with it himself."""
        if timeout is not None or self.answer_timeout is None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.answer_timeout)
        except errors._WaitTimeout as error:  # it has no public name, and its public base class is too general
            self.pgconn.finish()  # a late answer would be taken for the answer to another statement
            raise psycopg.OperationalError(f"the server has not answered for {self.answer_timeout:g} s") from error
