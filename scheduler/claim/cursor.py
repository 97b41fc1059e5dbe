"""How far this process has read the claims log: one sequence number per writer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from db.api.rows.ledger import WRITERS_KEPT
from objects.inventory import Inventory

RECENT_WRITERS = 32
"""Writers queried at every look: those that wrote last."""
WRITERS_PER_ROUND = 64
"""Further writers queried at each background look, in turn."""


class Cursor:
    """Keeps a sequence number per writer, because transactions of different writers become visible in any order.

    Every process is a new writer, so most writers will never write again. Every look queries the most recent writers and new ones.
    Background looks query the rest in turn. A claim that is seen late costs a new plan, but never causes a wrong claim.

    The cursor keeps ``2 * WRITERS_KEPT`` writers, twice as many as the ledger. An active writer has a younger id, or was seen
    since.
    """

    def __init__(self, known: Iterable[Inventory] = ()) -> None:
        self.newest = 0
        self._last: dict[int, int] = {}  # in the order in which the writers were last seen
        self._turn = 0
        self.note_rows(known)

    def note_rows(self, rows: Iterable[Inventory]) -> None:
        """Note that these rows have been read."""
        seen: dict[int, int] = {}
        for row in rows:
            seen[row.writer] = max(row.sequence, seen.get(row.writer, 0))
        for writer in sorted(seen):
            self.note_writer(writer, seen[writer])

    def note_newest(self, newest: int) -> None:
        """Note that all rows of writers up to ``newest`` have been read. A writer has no rows left if others overwrote them."""
        if newest > self.newest:
            self.note_writer(newest, 0)

    def note_writer(self, writer: int, sequence: int) -> None:
        """Note that everything ``writer`` did up to ``sequence`` has been read."""
        if writer > self.newest:
            for missing in range(max(self.newest + 1, writer - WRITERS_KEPT), writer):
                self._last[missing] = 0  # an earlier id that has not been seen: that writer may commit later
            self.newest = writer
        self._last[writer] = max(sequence, self._last.pop(writer, 0))
        beyond = len(self._last) - 2 * WRITERS_KEPT
        if beyond > 0:
            for forgotten in list(itertools.islice(self._last, beyond)):
                del self._last[forgotten]

    def recent_position(self) -> tuple[Mapping[int, int], int]:
        """What to query at every look: (sequence numbers of the recent writers, the newest writer known)."""
        recent = list(self._last.items())[-RECENT_WRITERS:]
        return dict(recent), self.newest

    def latest_sequences(self, count: int) -> dict[int, int]:
        """The last sequence numbers read of the writers that were seen last."""
        return dict(itertools.islice(reversed(self._last.items()), count))

    def next_position(self) -> tuple[Mapping[int, int], int]:
        """What a background look queries in addition, in the same form. Each returns the next ``WRITERS_PER_ROUND`` writers."""
        others = list(self._last.items())[:-RECENT_WRITERS]
        if self._turn >= len(others):
            self._turn = 0
        chosen = others[self._turn : self._turn + WRITERS_PER_ROUND]
        self._turn += WRITERS_PER_ROUND
        return dict(chosen), self.newest
