"""Ask many cells the same question at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Concatenate, Generic, ParamSpec, TypeVar

import msgspec

from cells.cell import Cell
from db.sql.connection import CellTransaction
from objects import errors

P = ParamSpec("P")
T = TypeVar("T")


class Answered(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What one cell answered."""

    cell: Cell
    value: T


class Unanswered(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that did not answer, and why. Not the same as a cell that has nothing."""

    cell: Cell
    reason: str


def fan_out(
    cells: Iterable[Cell], fn: Callable[Concatenate[CellTransaction, P], T], *args: P.args, **kwargs: P.kwargs
) -> list[Answered[T] | Unanswered]:
    """``fn(tx, ...)`` as a read of every cell's database; one answer per cell, in their order.

    It takes as long as the slowest cell, and never longer than the cells' deadline. Errors other than CellUnavailable are raised.
    """
    started = [(cell, cell.begin_read(fn, *args, **kwargs)) for cell in cells]
    return [_collect_answer(cell, collect) for cell, collect in started]


def fan_out_within(
    timeout: float, cells: Iterable[Cell], fn: Callable[Concatenate[CellTransaction, P], T], *args: P.args, **kwargs: P.kwargs
) -> list[Answered[T] | Unanswered]:
    """The same for a caller who waits at most ``timeout`` seconds, whatever the cells' deadline."""
    started = [(cell, cell.with_timeout(timeout).begin_read(fn, *args, **kwargs)) for cell in cells]
    return [_collect_answer(cell, collect) for cell, collect in started]


def _collect_answer(cell: Cell, collect: Callable[[], T]) -> Answered[T] | Unanswered:
    try:
        return Answered(cell=cell, value=collect())
    except errors.CellUnavailable as error:
        return Unanswered(cell=cell, reason=str(error))
