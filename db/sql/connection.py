"""What a transaction is run on, by the kind of its database, so that no query runs on a database of the other kind.

The kinds are for type checkers. At run time every transaction is a plain ``Connection``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from typing_extensions import TypeVar

__all__ = ["ApiTransaction", "CellTransaction", "Connection", "Tx_co"]


class ApiTransaction(Connection):
    """A transaction on the API database."""


class CellTransaction(Connection):
    """A transaction on a cell's database."""


Tx_co = TypeVar("Tx_co", bound=Connection, default=Any, covariant=True)
"""The transactions of a database. By default a database runs functions for both kinds; only tools and tests do so."""
