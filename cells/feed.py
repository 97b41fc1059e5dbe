"""Read a cell's change feed page by page, with a cursor kept in memory."""

from __future__ import annotations

from cells.cell import Cell
from db.cell import feed
from objects.base import Object
from objects.feed import FeedEvent


class FeedBatch(Object, frozen=True, kw_only=True):
    """The next events, in order. ``behind``: some after the cursor are gone for good, so the reader must rebuild from state.

    ``head`` is the number of the cell's newest event: the reader has caught up where its cursor has reached it.
    """

    events: tuple[FeedEvent, ...]
    behind: bool
    head: int


class FeedReader:
    """One reader of one cell's feed. Not for several threads at once.

    A reader that starts anew, or fell behind, calls ``restart_at_end()``, then reads the state it wants, then goes on with
    ``read()``: what changes in between is read twice, and nothing is missed.
    """

    def __init__(self, cell: Cell, cursor: int = 0) -> None:
        self.cell = cell
        self._cursor = cursor

    @property
    def last_event(self) -> int:
        """The number of the last event read."""
        return self._cursor

    def read(self, limit: int = 1000) -> FeedBatch:
        """Up to ``limit`` events after the cursor, which moves behind them. Raises CellUnavailable.

        A reader that could not use what it got goes back by ``seek_event``. One that is behind gets no events and stays where it
        is, until it seeks or restarts. A feed that ends before the cursor was restored from a backup; that counts as behind too.
        """
        page = self.cell.read(feed.read, self._cursor, limit)
        if page.trimmed or page.head < self._cursor:
            return FeedBatch(events=(), behind=True, head=page.head)
        if page.count:
            self._cursor = page.last
        return FeedBatch(events=page.events, behind=False, head=page.head)

    def seek_event(self, cursor: int) -> None:
        """Go on after the event numbered ``cursor``."""
        self._cursor = cursor

    def restart_at_end(self) -> int:
        """Put the cursor at the end of the feed and return it: whoever reads the state after this misses no event."""
        self._cursor = self.cell.read(feed.read_head)
        return self._cursor
