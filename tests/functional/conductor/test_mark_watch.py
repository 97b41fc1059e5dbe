"""A cell's conductor sees in the mark of its database whether that may be older than the API level knows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conductor import mark_watch
from conductor.mark_watch import OLDER, UNCONFIRMED, MarkWatch
from db.cell import incarnation_mark
from db.cell.incarnation_mark import KnownMark
from db.sql.engine import CellDatabase
from tests.support.cell_site import Site
from tests.support.clock import Clock


@pytest.fixture
def database(tmp_path: Path) -> Iterator[CellDatabase]:
    site = Site(tmp_path)
    yield site.database
    site.close()


def note(database: CellDatabase, mark: int, incarnation: str = "one") -> None:
    """Write this mark, whatever was there before."""
    other = KnownMark(incarnation="none", mark=0)
    database.write(incarnation_mark.note_mark, other, anew=True)
    database.write(incarnation_mark.note_mark, KnownMark(incarnation=incarnation, mark=mark), anew=True)


def test_a_database_without_marks_is_open(database: CellDatabase) -> None:
    watch = MarkWatch(database)
    assert watch.read_mark() == ""
    note(database, 1)
    assert watch.read_mark() == ""


def test_a_mark_that_rises_confirms_the_database(database: CellDatabase) -> None:
    note(database, 7)
    watch = MarkWatch(database)
    assert [watch.read_mark(), watch.read_mark()] == [UNCONFIRMED, UNCONFIRMED]
    note(database, 8)
    assert [watch.read_mark(), watch.read_mark()] == ["", ""]


def test_a_lower_mark_closes_until_it_rises(database: CellDatabase) -> None:
    note(database, 7)
    watch = MarkWatch(database)
    watch.read_mark()
    note(database, 8)
    assert watch.read_mark() == ""
    note(database, 3)
    assert [watch.read_mark(), watch.read_mark()] == [OLDER, OLDER]
    note(database, 9)
    assert watch.read_mark() == ""


def test_another_incarnation_closes_until_its_next_mark(database: CellDatabase) -> None:
    """It may be a later one, or an earlier one that came back with a backup."""
    watch = MarkWatch(database)
    watch.read_mark()
    note(database, 7)
    assert watch.read_mark() == ""
    note(database, 9, "two")
    assert watch.read_mark() == OLDER
    note(database, 10, "two")
    assert watch.read_mark() == ""


@pytest.mark.parametrize("is_restored", [False, True], ids=["power cut", "restored"])
def test_only_a_sign_of_a_restore_waits_forever(database: CellDatabase, *, is_restored: bool) -> None:
    """After a power cut of a whole site the API database may be away for long."""
    clock = Clock()
    note(database, 7)
    watch = MarkWatch(database, clock)
    assert watch.read_mark() == UNCONFIRMED
    if is_restored:
        note(database, 5)
    clock.now += mark_watch.UNCONFIRMED_WAIT_S
    assert watch.read_mark() == (OLDER if is_restored else UNCONFIRMED)
    clock.now += 1.0
    assert watch.read_mark() == (OLDER if is_restored else "")
