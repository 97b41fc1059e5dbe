"""Compare the queue of an API database that may have been restored with all cells, before anything is leased from it.

What a cell's rows show to have been handed over is adopted: nobody builds it a second time, and nobody buries it while it runs.
Every step may be repeated, by several processes at once (``docs/decisions/0031-a-restored-database.md``).
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence

from cells import shelved
from cells.addresses_in_use import claim_in_use
from cells.cell import Cell
from cells.fan_out import Answered, fan_out
from cells.instance_mapping import adopt_rows, map_instances
from cells.registry import CellRegistry
from cells.thaw import Thaw
from db.api.claims.claims import Ledger
from db.api.rows import incarnation
from db.api.rows.incarnation import Incarnation, Known
from db.audit import cell_rows, queue, servers
from db.cell import incarnation_mark, row_repair, staging, strays
from db.cell.incarnation_mark import KnownMark
from db.cell.row_repair import Read
from db.sql.engine import ApiDatabase
from images.store import FolderStore
from objects import errors
from objects.base import Object
from objects.instance import State
from objects.verdict import Fate

LOG = logging.getLogger(__name__)

PAGE_SIZE = 500
"""Requests compared with one read in each cell."""

_NO_STORE = "servers that were shelved after the backup are left to 'superconductor verify --repair': %s"


class ComparisonBlocked(errors.SuperconductorError):
    """The comparison needs cells that do not answer."""


class Compared(Object, frozen=True, kw_only=True):
    """What a comparison has found. ``adopted``: servers, by the name of their cell. ``refused``: what a person has to decide.

    ``frozen``: operations that cannot be decided yet.
    """

    adopted: Mapping[str, int]
    refused: tuple[str, ...] = ()
    frozen: int = 0


class Marks(Object, frozen=True, kw_only=True):
    """What the cells remember. ``silent``: why a cell did not answer, by its name."""

    seen: dict[str, KnownMark | None]
    silent: dict[str, str]


# -- recognising -----------------------------------------------------------------------------------------------------------------


def step_marks(cells: Iterable[Cell], now: Incarnation, marks_by_cell: Mapping[str, int]) -> set[str]:
    """Raise the mark in the cells that remember what they have confirmed, all at the same time; returns the uuids of those.

    What the others remember is to be asked: one of the databases may have been restored, or a cell does not answer.
    """
    mark = KnownMark(incarnation=now.uuid, mark=now.mark)
    begun = {
        cell.uuid: cell.begin_write(incarnation_mark.step_mark, mark, marks_by_cell[cell.uuid])
        for cell in cells
        if cell.uuid in marks_by_cell
    }
    stepped = set()
    for cell_uuid, collect in begun.items():
        with contextlib.suppress(errors.CellUnavailable):
            if collect():
                stepped.add(cell_uuid)
    return stepped


def marks_of(registry: CellRegistry, cells: Iterable[Cell]) -> Marks:
    """Ask these cells what they remember, all at the same time."""
    seen: dict[str, KnownMark | None] = {}
    silent = registry.broken_by_name()
    for answer in fan_out(cells, incarnation_mark.read_mark):
        if isinstance(answer, Answered):
            seen[answer.cell.uuid] = answer.value
        else:
            silent[answer.cell.name] = answer.reason
    return Marks(seen=seen, silent=silent)


def all_cells(registry: CellRegistry) -> list[Cell]:
    """The cells that can be asked, cell0 too if there is one."""
    cells = list(registry.list_cells())
    with contextlib.suppress(errors.NotFound):
        cells.append(registry.cell0)
    return cells


def why_restored(now: Incarnation, known: Known | None, marks: Marks, names: Mapping[str, str]) -> str:
    """Why the API database is not the one that this process or its cells have known; empty if it is."""
    if now.moved:
        return "another server holds the API database than before"
    if known is not None and (now.uuid != known.uuid or now.mark < known.mark):
        return "the API database is older than this process has seen it"
    for cell_uuid, seen in marks.seen.items():
        name = names.get(cell_uuid, cell_uuid)
        if seen is not None and seen.incarnation != now.uuid:
            return f"cell '{name}' has known another API database"
        if seen is not None and seen.mark > now.mark:
            return f"cell '{name}' has known a later state of the API database"
    return ""


def handed_over(api_database: ApiDatabase, cells: Sequence[Cell]) -> tuple[list[str], list[str]]:
    """Requests that are queued although one of these cells has a row of them that was handed over, and the cells that answered.

    A hand-over ends the request in the transaction before which no such row is: so the API database has lost that transaction. It
    shows a restore that is younger than any mark. Cells are named by their uuids.
    """
    handed_over_uuids: set[str] = set()
    answered = {cell.uuid for cell in cells}
    after = ""
    while uuids := api_database.read(queue.requests_after, after, PAGE_SIZE):
        after = uuids[-1]
        for answer in fan_out(cells, strays.list_strays, uuids):
            if isinstance(answer, Answered):
                handed_over_uuids.update(stray.row.uuid for stray in answer.value)
            else:
                answered.discard(answer.cell.uuid)
    # those that were handed over while the cells were asked are queued no more
    queued = api_database.read(queue.list_requests, sorted(handed_over_uuids)) if handed_over_uuids else []
    return [request.uuid for request in queued], sorted(answered)


def restored_cells(now: Incarnation, marks_by_cell: Mapping[str, int], marks: Marks) -> list[str]:
    """Cells whose database has forgotten a mark that it had confirmed, by uuid."""
    restored = []
    for cell_uuid, seen in marks.seen.items():
        confirmed = marks_by_cell.get(cell_uuid)
        forgotten = seen is None or (seen.incarnation == now.uuid and confirmed is not None and seen.mark < confirmed)
        if confirmed is not None and forgotten:
            restored.append(cell_uuid)
    return restored


# -- the API database ------------------------------------------------------------------------------------------------------------


def compare_cells(
    registry: CellRegistry, ledger: Ledger, known: str, without: Collection[str] = (), images: FolderStore | None = None
) -> Compared:
    """Adopt what the cells show to have been handed over, and compare the open operations. Then let requests be leased again, in a
    new incarnation.

    Servers that were shelved after the backup are shelved again.

    ``known``: the incarnation that is being compared. ``without``: names of cells that an operator has left out. ``images``: see
    ``Thaw``. Raises ComparisonBlocked if another cell does not answer; nothing is leased until it does.
    """
    cells = [cell for cell in all_cells(registry) if cell.name not in without]
    marks = marks_of(registry, all_cells(registry))
    if absent := {name: why for name, why in marks.silent.items() if name not in without}:
        raise ComparisonBlocked("; ".join(absent.values()))
    adopted: dict[str, int] = {cell.name: 0 for cell in cells}
    refused: list[str] = []
    try:
        _adopt_queued(ledger, cells, adopted)
        for cell in cells:
            done = map_instances(registry, ledger, cell, without=without)
            adopted[cell.name] += done.mapped
            refused += done.refused
        if images is not None:
            _adopt_shelved(ledger, cells, images, adopted)
        refused += claim_in_use(ledger.database, cells)
        waiting = Thaw(ledger, registry, images).compare_all()[Fate.UNDECIDED]
        if images is not None:
            _shelve_again(ledger, cells, images)
        _begin_anew(ledger, cells, known, marks)
    except errors.CellUnavailable as error:
        raise ComparisonBlocked(str(error)) from error
    return Compared(adopted=adopted, refused=tuple(sorted(set(refused))), frozen=waiting)


def _adopt_queued(ledger: Ledger, cells: Sequence[Cell], adopted: dict[str, int]) -> None:
    """Servers that are queued here and were handed over, or deleted, after the backup."""
    after = ""
    while uuids := ledger.database.read(queue.requests_after, after, PAGE_SIZE):
        after = uuids[-1]
        for cell, adopted_uuids in adopt_found(ledger, cells, uuids).items():
            adopted[cell.name] += len(adopted_uuids)


def _adopt_shelved(ledger: Ledger, cells: Sequence[Cell], images: FolderStore, adopted: dict[str, int]) -> None:
    """Before the open operations are compared: the latest body of their servers may be one of these."""
    try:
        for cell in cells:
            adopted[cell.name] += shelved.adopt_shelved(ledger, cell, images)
    except errors.ServiceUnavailable as error:
        LOG.warning(_NO_STORE, error)


def _shelve_again(ledger: Ledger, cells: Sequence[Cell], images: FolderStore) -> None:
    """After the open operations were compared: a server that has one is not shelved again."""
    try:
        for cell in cells:
            shelved.shelve_again(ledger, cell, images, {cell.uuid: cell for cell in cells})
    except errors.ServiceUnavailable as error:
        LOG.warning(_NO_STORE, error)


def adopt_found(ledger: Ledger, cells: Iterable[Cell], uuids: Sequence[str]) -> dict[Cell, list[str]]:
    """Of these undecided servers, adopt those that a cell has a row of; returns them. Raises CellUnavailable.

    A STAGED row goes first: an order for it may be on its way, and its agent finds no row then. Of a server that two cells have,
    the one that lives is taken, and of two that live the later hand-over: the other is found by an audit.
    """
    best: dict[str, tuple[tuple[bool, int], Cell]] = {}
    for cell in cells:
        _remove_staged(cell, uuids)
        for stray in cell.read(strays.list_strays, uuids):
            rank = (not stray.is_leaving, stray.row.fence)
            if stray.row.uuid not in best or rank > best[stray.row.uuid][0]:
                best[stray.row.uuid] = rank, cell
    by_cell: dict[Cell, list[str]] = {}
    for body_uuid, (_, cell) in best.items():
        by_cell.setdefault(cell, []).append(body_uuid)
    return {cell: adopt_rows(ledger, cell, members) for cell, members in by_cell.items()}


def _remove_staged(cell: Cell, uuids: Sequence[str]) -> None:
    rows = cell.read(cell_rows.read_rows, uuids).rows
    if staged := [row.uuid for row in rows.values() if row.state is State.STAGED]:
        cell.write(staging.remove_staged, staged)


def _begin_anew(ledger: Ledger, cells: Sequence[Cell], known: str, marks: Marks) -> None:
    """The cells first: if this is interrupted, they know an incarnation that the API database does not, and all is repeated."""
    mark = max((seen.mark for seen in marks.seen.values() if seen is not None), default=0) + 1
    new_mark = KnownMark(incarnation=str(uuid.uuid4()), mark=mark)
    for cell in cells:
        cell.write(incarnation_mark.note_mark, new_mark, anew=True)
    ledger.database.write(incarnation.forget_confirmed_marks)
    if not ledger.database.write(incarnation.open_, known, new_mark.incarnation, mark):
        LOG.info("another process has already compared the API database with its cells")


# -- a cell's database -----------------------------------------------------------------------------------------------------------


def retell_rows(ledger: Ledger, cell: Cell) -> int:
    """A cell's database was restored: let it tell all its rows again that the API level knows in a later state; returns how many.

    Nothing is ended and no guest is touched: what its hosts hold beyond its rows, agents keep and report.
    """
    count, after = 0, ""
    while uuids := cell.read(cell_rows.rows_after, after, PAGE_SIZE):
        after = uuids[-1]
        rows = cell.read(cell_rows.read_rows, uuids).rows
        _, records = ledger.database.read(servers.read_records, uuids)
        behind = {
            uuid: Read(version=row.version, seen=records[uuid].seen)
            for uuid, row in rows.items()
            if uuid in records and records[uuid].cell_uuid == cell.uuid and records[uuid].seen > row.version
        }
        if behind:
            count += len(cell.write(row_repair.retell_rows, behind, cell.current_time()))
    return count
