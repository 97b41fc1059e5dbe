"""How far this process has read the log of claims: one number per writer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from db.api.ledger import KEPT
from objects.inventory import Inventory

RECENT = 32
"""Writers asked at every look: those that wrote last."""
ROUND = 64
"""Further writers asked at each look in the background, in turn."""


class Cursor:
    """A number per writer, never one for all: transactions of different writers become visible in any order.

    Writers come and go with processes, so most of them will never write again. Every look asks those that wrote last and any that
    are new; the rest are asked in turn by the looks in the background. What is seen late costs a plan made anew, never a wrong
    claim. Of the rest no more are kept than the ledger keeps: who still writes has an id that is younger, or was heard of since.
    """

    def __init__(self, known: Iterable[Inventory] = ()) -> None:
        self.newest = 0
        self._last: dict[int, int] = {}  # the writer heard of last stands last
        self._turn = 0
        self.advance(known)

    def advance(self, rows: Iterable[Inventory]) -> None:
        """These rows have been read."""
        seen: dict[int, int] = {}
        for row in rows:
            seen[row.writer] = max(row.sequence, seen.get(row.writer, 0))
        for writer in sorted(seen):
            self.note(writer, seen[writer])

    def reach(self, newest: int) -> None:
        """All rows of writers up to ``newest`` have been read. That one may have none left: others have written since."""
        if newest > self.newest:
            self.note(newest, 0)

    def note(self, writer: int, sequence: int) -> None:
        """All that ``writer`` did up to ``sequence`` is known."""
        if writer > self.newest:
            for missing in range(max(self.newest + 1, writer - KEPT), writer):
                self._last[missing] = 0  # drew its id before, and has not been seen: it may have been slower to commit
            self.newest = writer
        self._last[writer] = max(sequence, self._last.pop(writer, 0))
        beyond = len(self._last) - 2 * KEPT
        if beyond > 0:
            for forgotten in list(itertools.islice(self._last, beyond)):
                del self._last[forgotten]

    def position(self) -> tuple[Mapping[int, int], int]:
        """What to ask the log for at every look: (numbers by writer, the newest writer known)."""
        recent = list(self._last.items())[-RECENT:]
        return dict(recent), self.newest

    def further(self) -> tuple[Mapping[int, int], int]:
        """What to ask in the background as well."""
        others = list(self._last.items())[:-RECENT]
        if self._turn >= len(others):
            self._turn = 0
        chosen = others[self._turn : self._turn + ROUND]
        self._turn += ROUND
        return dict(chosen), self.newest
