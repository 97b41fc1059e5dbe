"""Compiled statements, shared by all databases of a process that are on servers of one kind.

SQLAlchemy compiles a statement once for each engine. A process has three engines for each database, and a database for each cell.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.util import LRUCache

STATEMENTS_LIMIT = 2000
"""How many compiled statements a process keeps. All roles together, on two kinds of servers, compile fewer than a thousand."""


class CompiledStatements:
    """What an engine takes as its ``compiled_cache``. Its keys begin with the dialect, of which each engine has its own."""

    def __init__(self) -> None:
        self._compiled: LRUCache[Hashable, Any] = LRUCache(STATEMENTS_LIMIT)

    def get(self, key: tuple[Any, ...]) -> Any:
        return self._compiled.get(_by_kind(key))

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._compiled[_by_kind(key)] = compiled


def _by_kind(key: tuple[Any, ...]) -> Hashable:
    """The key with what SQL depends on instead of the dialect: its class, the version of the server and how that quotes names."""
    dialect: Dialect = key[0]
    return type(dialect), dialect.server_version_info, dialect.identifier_preparer.initial_quote, key[1:]


SHARED = CompiledStatements()
