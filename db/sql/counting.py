"""Count SQL statements, for benchmarks. Nothing is counted, and nothing costs anything, until a counter is started."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import sqlalchemy as sa

from db.sql.engine import Database
from objects.base import Object


class StatementCount(Object, frozen=True, kw_only=True):
    """``executions``: cursor executions, an executemany being one. ``rows``: the same with each of its parameter sets being one."""

    executions: int = 0
    rows: int = 0


class StatementCounter:
    """Counts the statements of some databases, or of all of this process, between ``start`` and ``stop`` (or in a ``with``).

    Cursor executions are counted, as the field does: BEGIN, COMMIT, ROLLBACK and what a new connection is told are not among them.
    """

    def __init__(self, *databases: Database) -> None:
        """``databases``: those that count; none given: every one. Counts are told by their names."""
        self._databases = databases
        self._lock = threading.Lock()
        self._executions: Counter[tuple[str, str]] = Counter()
        self._rows: Counter[tuple[str, str]] = Counter()

    def start(self) -> StatementCounter:
        sa.event.listen(sa.Engine, "after_cursor_execute", self._count_execution)
        return self

    def stop(self) -> None:
        sa.event.remove(sa.Engine, "after_cursor_execute", self._count_execution)

    def __enter__(self) -> StatementCounter:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def reset_counts(self) -> None:
        """Forget what was counted so far."""
        with self._lock:
            self._executions.clear()
            self._rows.clear()

    def totals_by_database(self) -> dict[str, StatementCount]:
        """Counts by the name of the database."""
        with self._lock:
            names = sorted({name for name, _ in self._executions})
            return {name: self._sum_counts(name) for name in names}

    def count_by_statement(self) -> dict[tuple[str, str], StatementCount]:
        """Counts by the name of the database and the text of the statement, most frequent first."""
        with self._lock:
            return {key: StatementCount(executions=n, rows=self._rows[key]) for key, n in self._executions.most_common()}

    def _sum_counts(self, name: str) -> StatementCount:
        keys = [key for key in self._executions if key[0] == name]
        return StatementCount(executions=sum(self._executions[k] for k in keys), rows=sum(self._rows[k] for k in keys))

    def _count_execution(
        self, tx: sa.Connection, cursor: object, statement: str, parameters: Sequence[Any], context: object, executemany: bool
    ) -> None:
        if self._databases and not any(database.has_engine(tx.engine) for database in self._databases):
            return
        key = (tx.engine.logging_name or "", statement)
        with self._lock:
            self._executions[key] += 1
            self._rows[key] += len(parameters) if executemany else 1
