"""What a transaction is run on, by the kind of its database, so that no query runs on a database of the other kind.

The kinds are for type checkers. At run time every transaction is a plain ``Connection``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, event
from typing_extensions import TypeVar

__all__ = ["ApiTransaction", "CellTransaction", "Connection", "Tx_co", "at_commit"]


class ApiTransaction(Connection):
    """A transaction on the API database."""


class CellTransaction(Connection):
    """A transaction on a cell's database."""


Tx_co = TypeVar("Tx_co", bound=Connection, default=Any, covariant=True)
"""The transactions of a database. By default a database runs functions for both kinds; only tools and tests do so."""


def at_commit(tx: Connection, call: Callable[[], object]) -> None:
    """Call this when the transaction commits: for what must not happen for one that is rolled back and run again."""
    event.listen(tx, "commit", lambda _: call())
