"""Health of the cells, as this API process sees it: all are asked at once, within the time-out for one cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from cells.cell import Cell
from db import dead_letters, processes
from db.cell import feed, host_terms
from db.sql import ready
from db.sql.connection import CellTransaction
from objects import errors
from objects.base import Object
from objects.mask import mask_url
from objects.process import Process

T = TypeVar("T")


class Reached(Object, frozen=True, kw_only=True):
    """Whether a cell's database or bus answers. If not: the reason, and since when this process knows (seconds since the
    epoch).
    """

    reason: str | None = None
    since: float | None = None


class CellReport(Object, frozen=True, kw_only=True):
    """From a cell's database: its conductors, how far the API level has read its feed, and its dead letters.

    ``waiting_sizes``: hosts whose reported sizes wait for an operator, at most a page of them. ``refusal``: why it takes no writes,
    if it says so.
    """

    conductors: list[Process]
    lag: feed.Lag
    dead_letters: dict[str, int]
    waiting_sizes: list[str]
    refusal: str = ""


class CellAnswer(Object, frozen=True, kw_only=True):
    """The state of one cell; ``report`` is None if its database does not answer."""

    database: Reached
    bus: Reached
    report: CellReport | None


def of_cells(cells: Iterable[Cell], cursors: Mapping[str, int], timeout: float) -> dict[str, CellAnswer]:
    """The states by cell uuid. ``cursors``: how far each feed was applied. Takes about ``timeout`` seconds if a cell does not
    answer.
    """
    pending = []
    for cell in cells:
        patient = cell.with_timeout(timeout)
        pending.append((cell, patient.begin_read(_read_report, cursors.get(cell.uuid, 0)), patient.begin_check_bus()))
    return {cell.uuid: _collect_health(cell, rows, bus) for cell, rows, bus in pending}


def _collect_health(cell: Cell, rows: Callable[[], CellReport], bus: Callable[[], None]) -> CellAnswer:
    report, silent_database = _collect_answer(rows)
    if report is not None:
        silent_database = _read_only_reason(cell, report)
    _, silent_bus = _collect_answer(bus)
    return CellAnswer(
        database=Reached(reason=silent_database, since=cell.database_silent_since if silent_database else None),
        bus=Reached(reason=silent_bus, since=cell.bus_silent_since if silent_bus else None),
        report=report,
    )


def _read_only_reason(cell: Cell, report: CellReport) -> str | None:
    """Why the cell's database, which answers, takes no writes."""
    try:
        cell.database.check_writable(report.refusal)
    except errors.DatabaseUnavailable as error:
        return mask_url(str(error))
    return None


def _collect_answer(collect: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return collect(), None
    except errors.CellUnavailable as error:
        return None, str(error)


def _read_report(tx: CellTransaction, cursor: int) -> CellReport:
    conductors = processes.list_all(tx, "cell")
    letters = dead_letters.count_by_step(tx, "cell")
    waiting = sorted({size.host for size in host_terms.list_waiting(tx)})
    refusal = ready.why_read_only(tx)
    return CellReport(
        conductors=conductors, lag=feed.lag_after(tx, cursor), dead_letters=letters, waiting_sizes=waiting, refusal=refusal
    )
