"""Two conductors keep one cell: one of them follows its feed, and the other sees to it where that one does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cells.cell import Cell
from cells.registry import CellRegistry
from conductor.feed_follower import FeedFollower
from conductor.main import RESTS
from db.api import events
from db.api.claims import Ledger
from db.cell import feed
from db.sql.counting import StatementCounter
from tests.support.cell_databases import Cells


class Kept:
    """A cell with two keepers, and what is left to be applied of its feed."""

    def __init__(self, cells: Cells, registry: CellRegistry) -> None:
        self.cells = cells
        self.cell: Cell = next(cell for cell in registry.cells() if cell.name == "east")
        self.first, self.second = (
            FeedFollower(cells.api, Ledger(cells.api, name), registry, self.cell, 3600.0, map_hosts=True, rests=RESTS)
            for name in ("a", "b")
        )
        self._hosts = 0

    def happen(self) -> None:
        self._hosts += 1
        self.cells.report("east", f"host{self._hosts}")

    @property
    def left(self) -> int:
        return self.cell.read(feed.head) - self.cells.api.read(events.position, self.cell.uuid)

    def cost(self, keeper: FeedFollower, rounds: int) -> int:
        """Statements in the cell."""
        with StatementCounter(self.cell.database) as counter:
            for _ in range(rounds):
                assert not keeper.keep()
        return sum(count.executions for count in counter.totals().values())


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    cells = Cells(tmp_path)
    cells.add("east")
    with cells.registry() as registry:
        kept = Kept(cells, registry)
        kept.first.keep()
        kept.second.keep()
        kept.happen()
        kept.first.keep()
        assert kept.left == 0
        kept.second.keep()  # overtaken
        yield kept


def test_who_was_overtaken_leaves_the_feed_to_the_other(kept: Kept) -> None:
    assert kept.cost(kept.second, RESTS) == 0
    assert kept.cost(kept.second, 1) > 0, "it looks whether anything is left"
    assert kept.cost(kept.second, RESTS) == 0
    for _ in range(10):
        kept.happen()
        kept.first.keep()
        assert kept.left == 0, "the other follows as ever"


def test_what_nobody_applies_is_applied_by_who_rested(kept: Kept) -> None:
    for _ in range(2):
        kept.happen()
        rounds = 0
        while kept.left:
            kept.second.keep()
            rounds += 1
            assert rounds <= RESTS + 1
    kept.happen()
    kept.second.keep()
    assert kept.left == 0, "and then in every round"


def test_who_comes_back_is_second_now(kept: Kept) -> None:
    while kept.left == 0:
        kept.happen()
    for _ in range(RESTS + 1):
        kept.second.keep()
    assert kept.left == 0
    kept.happen()
    kept.second.keep()
    kept.first.keep()
    assert kept.cost(kept.first, RESTS) == 0
