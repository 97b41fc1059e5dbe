"""Two conductors keep one cell: one of them follows its feed, and the other sees to it where that one does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from cells.cell import Cell
from cells.registry import CellRegistry
from conductor.context import ConductorContext
from conductor.feed_follower import FeedFollower, FeedSettings
from conductor.main import PAUSE_ROUNDS
from db.api.claims.claims import Ledger
from db.api.reconcile import events
from db.api.rows import incarnation
from db.api.rows.tables import feed_cursors
from db.cell import feed
from db.sql.counting import StatementCounter
from service.periodic import wait_until
from tests.support.cell_databases import Cells


class Kept:
    """A cell with two keepers, and what is left to be applied of its feed."""

    def __init__(self, cells: Cells, registry: CellRegistry) -> None:
        self.cells = cells
        self.cell: Cell = next(cell for cell in registry.list_cells() if cell.name == "east")
        self.first, self.second = (
            FeedFollower(
                ConductorContext(Ledger(cells.api, name), registry),
                self.cell,
                FeedSettings(settle_age=3600.0, map_hosts=True, pause_rounds=PAUSE_ROUNDS),
            )
            for name in ("a", "b")
        )
        self._registry = registry
        self._hosts = 0

    def happen(self) -> None:
        self._hosts += 1
        self.cells.report("east", f"host{self._hosts}")

    def rest(self) -> None:
        """Let the first one have done all there is, with the hosts that were mapped meanwhile."""
        self._registry.refresh_cells()
        assert not self.first.keep_up()
        assert not self.first.keep_up()
        assert self.left == 0

    @property
    def left(self) -> int:
        return self.cell.read(feed.read_head) - self.cells.api.read(events.read_cursor, self.cell.uuid)

    def idle_follower(self) -> FeedFollower:
        """One whose cell has been idle for a while. It was overtaken, and knows where the feed ends."""
        context = ConductorContext(Ledger(self.cells.api, "c"), self._registry)
        settings = FeedSettings(settle_age=3600.0, map_hosts=True, idle_epochs_age=3600.0, interval=0.001, idle_interval=60.0)
        found = FeedFollower(context, self.cell, settings)
        pace = found.pace
        found.keep_up()
        self.happen()
        self.first.keep_up()
        found.keep_up()
        for _ in range(3):
            found.keep_up()
            pace.wait_round()
        assert pace.is_idle
        return found

    def cost(self, keeper: FeedFollower, rounds: int) -> int:
        """Statements in the cell."""
        with StatementCounter(self.cell.database) as counter:
            for _ in range(rounds):
                assert not keeper.keep_up()
        return sum(count.executions for count in counter.totals_by_database().values())


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    cells = Cells(tmp_path)
    cells.add("east")
    with cells.registry() as registry:
        kept = Kept(cells, registry)
        kept.first.keep_up()
        kept.second.keep_up()
        kept.happen()
        kept.first.keep_up()
        assert kept.left == 0
        kept.second.keep_up()  # overtaken
        yield kept


def test_an_overtaken_keeper_leaves_the_feed(kept: Kept) -> None:
    assert kept.cost(kept.second, PAUSE_ROUNDS) == 0
    assert kept.cost(kept.second, 1) > 0, "it looks whether anything is left"
    assert kept.cost(kept.second, PAUSE_ROUNDS) == 0
    for _ in range(10):
        kept.happen()
        kept.first.keep_up()
        assert kept.left == 0, "the other follows as ever"


def test_what_nobody_applies_is_applied_by_who_rested(kept: Kept) -> None:
    for _ in range(2):
        kept.happen()
        rounds = 0
        while kept.left:
            kept.second.keep_up()
            rounds += 1
            assert rounds <= PAUSE_ROUNDS + 1
    kept.happen()
    kept.second.keep_up()
    assert kept.left == 0, "and then in every round"


def test_who_comes_back_is_second_now(kept: Kept) -> None:
    while kept.left == 0:
        kept.happen()
    for _ in range(PAUSE_ROUNDS + 1):
        kept.second.keep_up()
    assert kept.left == 0
    kept.happen()
    kept.second.keep_up()
    kept.first.keep_up()
    assert kept.cost(kept.first, PAUSE_ROUNDS) == 0


def test_in_an_idle_cell_an_overtaken_keeper_reads(kept: Kept) -> None:
    """Where the feed ends at the position that it knows, there is nothing to apply."""
    idle = kept.idle_follower()
    with StatementCounter(kept.cells.api) as counter:
        assert kept.cost(idle, 3) == 3
    assert counter.totals_by_database() == {}
    kept.happen()
    kept.first.keep_up()
    assert kept.left == 0
    assert not idle.keep_up(), "it reads where the other has got to"
    assert kept.cost(idle, 1) == 1
    kept.happen()
    idle.keep_up()
    assert kept.left == 0


def test_rows_are_read_again_even_without_events(kept: Kept) -> None:
    """The cell's database was restored to where it was: its feed ends where the follower has read to, so it shows nothing."""
    kept.rest()
    kept.cells.api.write(events.rebuild_from_rows, kept.cell.uuid)
    assert kept.left < 0
    assert wait_until(lambda: not (kept.first.keep_up() or kept.left), 90.0, 0.05)


def test_reading_continues_from_a_restored_position(kept: Kept) -> None:
    """The API database was restored: what was applied since is applied again, though nothing happens in the cell."""
    kept.rest()
    position = kept.cells.api.read(events.read_cursor, kept.cell.uuid)
    known = kept.cells.api.write(incarnation.advance_mark)
    kept.cells.api.write(lambda tx: tx.execute(sa.update(feed_cursors).values(sequence=position - 1)))
    kept.cells.api.write(incarnation.close, known.uuid, "restored")
    assert kept.cells.api.write(incarnation.open_, known.uuid, "anew", known.mark + 1)
    assert kept.left == 1
    assert wait_until(lambda: not (kept.first.keep_up() or kept.left), 90.0, 0.05)
