"""A feed reader's cursor: pages, trimming, restarting, and a feed that went back in time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from cells.cell import Cell
from cells.feed import FeedReader
from db.cell import feed
from db.sql.connection import CellTransaction
from objects import errors
from objects.feed import EventKind
from tests.support.cell_databases import Cells
from tests.support.ground import GROUNDS, Ground


@pytest.fixture(params=GROUNDS)
def cell(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cell]:
    place = Ground(request.param, tmp_path, embedded=True)
    cells = Cells(tmp_path, place)
    mapping = cells.add("east")
    with cells.registry() as registry:
        yield registry.get(mapping.uuid)
    place.end(cells.api.dispose_connections, place.release)


def _happen(cell: Cell, *keys: str, at: float = 100.0) -> None:
    events = [feed.NewEvent(kind=EventKind.ACTIVE, key=key, version=1, payload="{}") for key in keys]
    cell.write(feed.append_events, events, at)


def _keys(reader: FeedReader, limit: int = 1000) -> list[str]:
    return [event.key for event in reader.read(limit).events]


def test_pages_follow_each_other_without_gap_or_repetition(cell: Cell) -> None:
    _happen(cell, "a", "b", "c")
    reader = FeedReader(cell)
    assert _keys(reader, 2) == ["a", "b"]
    _happen(cell, "d")
    assert _keys(reader, 2) == ["c", "d"]
    assert _keys(reader) == []
    assert reader.last_event == reader.read().head


def test_seek_reads_again_what_could_not_be_used(cell: Cell) -> None:
    _happen(cell, "a", "b")
    reader = FeedReader(cell)
    start = reader.last_event
    assert _keys(reader) == ["a", "b"]
    reader.seek_event(start)
    assert _keys(reader) == ["a", "b"]


def test_a_reader_behind_a_trimmed_feed_must_restart(cell: Cell) -> None:
    _happen(cell, "a", "b", at=100.0)
    slow, quick = FeedReader(cell), FeedReader(cell)
    assert _keys(quick) == ["a", "b"]
    _happen(cell, "c", at=200.0)
    cell.write(feed.trim_events, 150.0)
    for _ in range(2):
        batch = slow.read()
        assert batch.behind
        assert batch.events == ()
    assert slow.restart_at_end() == 3
    _happen(cell, "d", at=300.0)
    assert _keys(slow) == ["d"]
    assert _keys(quick) == ["c", "d"], "a reader that had read what was trimmed is not behind"


def test_a_restored_feed_counts_as_behind(cell: Cell) -> None:
    _happen(cell, "a")
    reader = FeedReader(cell, cursor=50)
    assert reader.read().behind
    assert reader.restart_at_end() == 1
    assert not reader.read().behind


def test_an_unreachable_cell_raises_and_moves_nothing(tmp_path: Path) -> None:
    cells = Cells(tmp_path)
    mapping = cells.add_unreachable("gone", f"sqlite:///{tmp_path}/gone.db")
    with cells.registry() as registry:
        reader = FeedReader(registry.get(mapping.uuid), cursor=7)
        with pytest.raises(errors.CellUnavailable):
            reader.read()
        assert reader.last_event == 7


def test_reading_makes_no_temporary_table(cell: Cell, request: pytest.FixtureRequest) -> None:
    """MariaDB puts one with texts on disk. Readers ask all the time, mostly for nothing."""

    def made(tx: CellTransaction) -> int:
        if tx.dialect.name not in ("mysql", "mariadb"):
            return 0
        return int(tx.execute(sa.text("SHOW SESSION STATUS LIKE 'Created_tmp_tables'")).one()[1])

    def read(tx: CellTransaction, after: int) -> int:
        before = made(tx)
        feed.read(tx, after, 100)
        return made(tx) - before

    def look(tx: CellTransaction) -> int:
        before = made(tx)
        return made(tx) - before

    cost_of_looking = cell.read(look)
    _happen(cell, "a", "b")
    assert [cell.read(read, after) for after in (0, 2)] == [cost_of_looking] * 2
