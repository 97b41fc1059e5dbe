"""Detect a restored database: nothing is leased until the queue has been compared with the cells."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from cells import comparison
from cells.cell import Cell
from cells.comparison import Marks
from cells.registry import CellRegistry
from conductor import restored_cell
from conductor.audit.places import Places
from db.api.claims.claims import Ledger
from db.api.reconcile import events
from db.api.rows import incarnation
from db.api.rows.incarnation import Incarnation, Known
from db.cell import incarnation_mark
from db.cell.incarnation_mark import KnownMark
from db.sql.engine import ApiDatabase
from images.store import FolderStore
from objects import errors
from objects.mask import mask_url
from service.pace import Pace
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

WAITS = "; its queue cannot be compared with all cells: "


class RestoreWatch:
    """Compares the API database's mark with the marks stored in the cells, every few seconds.

    ``known``: the incarnation that a lease must match. It is None before the first agreement, and while the databases disagree.
    """

    def __init__(
        self,
        api_database: ApiDatabase,
        ledger: Ledger,
        registry: CellRegistry,
        images: FolderStore | None = None,
        idle_interval: float | None = None,
    ) -> None:
        """``images``: see ``Thaw``. ``idle_interval``: seconds between two looks while there are no requests; None: as always."""
        self.pace = Pace(incarnation.MARK_INTERVAL_S, idle_interval)
        """Of the loop that calls ``watch_marks``. It looks often until the databases agree."""
        self._images = images
        self._database = api_database
        self._ledger = ledger
        self._registry = registry
        self._complaints = RateLimitedLog(LOG)
        self._last: Known | None = None
        """The latest mark on which the databases agreed; unlike ``known`` it is kept until a comparison."""
        self._answered_cells: set[str] = set()
        """UUIDs of cells that were asked about the queue since the API database was last unavailable."""
        self.known: Known | None = None
        self.reason = "the API database has not been compared with its cells yet"
        """Why nothing is leased; empty while requests are leased."""

    name = "restored databases"

    def watch_marks(self) -> None:
        """Check the marks, and compare if that is due.

        Raises DatabaseUnavailable. Then nothing is leased until the next check: the database may return in an older state.
        """
        try:
            self._check_marks()
        except errors.DatabaseUnavailable:
            self._answered_cells.clear()
            self.known, self.reason = None, "the API database was unavailable, and has not been compared with its cells since"
            raise
        if self.known is None:
            self.pace.hurry_for()

    def _check_marks(self) -> None:
        if self.known is None:
            self._registry.refresh_cells()
        now, has_raised = self._advance_incarnation()
        cells = {cell.uuid: cell for cell in comparison.all_cells(self._registry)}
        names = {uuid: cell.name for uuid, cell in cells.items()}
        confirmed_marks: Mapping[str, int] = {}
        stepped: Collection[str] = ()
        asked_cells: Mapping[str, Cell] = cells if self.known is None else {}
        if has_raised:
            confirmed_marks = self._database.read(incarnation.confirmed_marks)
            if self.known is not None and not now.comparing:
                stepped = comparison.step_marks(cells.values(), now, confirmed_marks)
                asked_cells = {uuid: cell for uuid, cell in cells.items() if uuid not in stepped}
        marks = comparison.marks_of(self._registry, asked_cells.values())
        why = now.reason if now.comparing else comparison.why_restored(now, self._last, marks, names) or self._why_queued(cells)
        if why:
            self._compare_queue(now, why)
        elif self._last is None and _no_cell_answers(cells, marks):
            self._hold_queue("no cell answers, so the API database may have been restored unnoticed")
        else:
            self._agree_with_marks(now, cells, marks, confirmed_marks, stepped)

    def _advance_incarnation(self) -> tuple[Incarnation, bool]:
        """Return the incarnation, and whether this process checks all cells: those that raise its mark do.

        The mark of a database that may be restored stays: its time tells how much is lost.
        """
        now, known = self._database.read(incarnation.read), self.known
        if now is not None and known is None:
            return now, True
        if now is not None and known is not None and (not now.due or now.moved or now.uuid != known.uuid or now.mark < known.mark):
            return now, False
        return self._database.write(incarnation.advance_mark), True

    def _why_queued(self, cells: Mapping[str, Cell]) -> str:
        """Ask each cell once about the queued requests: only this shows a loss after the latest mark. Empty: no loss found."""
        unasked = [cell for uuid, cell in cells.items() if uuid not in self._answered_cells]
        if not unasked:
            return ""
        queued, answered = comparison.handed_over(self._database, unasked)
        self._answered_cells.update(answered)
        return f"{len(queued)} queued requests are in their cells already" if queued else ""

    def _agree_with_marks(
        self,
        now: Incarnation,
        cells: Mapping[str, Cell],
        marks: Marks,
        confirmed_marks: Mapping[str, int],
        stepped: Collection[str],
    ) -> None:
        restored = comparison.restored_cells(now, confirmed_marks, marks)
        closed = {cell_uuid for cell_uuid in restored if not self._reconcile_cell(cells[cell_uuid])}
        behind = [uuid for uuid, seen in marks.seen.items() if (seen is None or seen.mark < now.mark) and uuid not in closed]
        current = [*stepped, *(uuid for uuid in behind if self._note_mark(cells[uuid], now))]
        if current:
            self._database.write(incarnation.confirm_marks, dict.fromkeys(current, now.mark))
        if self.reason and self._last is not None:
            LOG.warning("the API database agrees with its cells again: requests are leased")
        self._last = self.known = Known(uuid=now.uuid, mark=now.mark)
        self.reason = ""

    def _note_mark(self, cell: Cell, now: Incarnation) -> bool:
        try:
            return cell.write(incarnation_mark.note_mark, KnownMark(incarnation=now.uuid, mark=now.mark))
        except errors.CellUnavailable:
            return False

    def _hold_queue(self, reason: str) -> None:
        self.known, self.reason = None, reason
        self._complaints(reason, logging.WARNING, "nothing is leased: %s", reason)

    def _compare_queue(self, now: Incarnation, why: str) -> None:
        """Close the queue, compare it with every cell, and open it. It stays closed while a cell does not answer."""
        self._hold_queue(f"{why}: its queue is compared with the cells")
        if not now.comparing:
            self._database.write(incarnation.close, now.uuid, why)
        try:
            restored_cell.reconcile_all(self._registry, self._ledger)
            done = comparison.compare_cells(self._registry, self._ledger, now.uuid, images=self._images)
            restored_cell.hold_others(self._audit_places())
        except comparison.ComparisonBlocked as missing:
            waits = f"{why.partition(WAITS)[0]}{WAITS}{mask_url(str(missing))}"
            self._database.write(incarnation.store_reason, waits)
            self._hold_queue(f"{waits}. 'superconductor db restored --api --without CELL' goes on without a cell that is lost")
            return
        self._last = None
        adopted_text = ", ".join(f"{count} of {name}" for name, count in sorted(done.adopted.items()) if count)
        LOG.warning("the API database was compared with its cells; servers adopted: %s", adopted_text or "none")
        if done.frozen:
            LOG.warning("%d operations cannot be decided yet, and take no step: see 'superconductor verify'", done.frozen)
        for refused in done.refused:
            LOG.error("%s: delete the copy that is wrong", refused)
        self.reason = "the comparison has just been done"

    def _audit_places(self) -> Places:
        return Places(self._database, self._ledger, self._registry, overdue=0.0)

    def _reconcile_cell(self, cell: Cell) -> bool:
        """The cell's database was restored: bring its rows up to date, and have the feed read from the rows.

        Until that is done its mark does not rise, so nothing starts there.
        """
        text = "cell %s: its database was restored to an older state: its feed reports its rows again; see 'superconductor verify'"
        LOG.error(text, cell.name)
        try:
            count = restored_cell.reconcile_cell(self._ledger, cell)
            self._database.write(events.rebuild_from_rows, cell.uuid)
        except errors.CellUnavailable as error:
            LOG.warning("cell %s: its feed reports its rows again when the cell answers: %s", cell.name, error)
            return False
        restored_cell.hold_others(self._audit_places())
        LOG.warning("cell %s: %d rows were written to the feed again", cell.name, count)
        return True


def _no_cell_answers(cells: Mapping[str, Cell], marks: Marks) -> bool:
    """Whether there are cells besides cell0 and none of them answers."""
    builders = [uuid for uuid, cell in cells.items() if not cell.current_mapping.is_cell0]
    return (bool(builders) or bool(marks.silent)) and not any(uuid in marks.seen for uuid in builders)
