"""How far the log of claims has been read."""

from __future__ import annotations

from db.api.rows.ledger import WRITERS_KEPT
from scheduler.claim.cursor import RECENT_WRITERS, WRITERS_PER_ROUND, Cursor
from tests.support import fleet


def test_it_starts_behind_what_was_read() -> None:
    rows = [
        fleet.inventory(n, fleet.node(f"h{n}"), fleet.CELLS[0], writer=w, sequence=s)
        for n, (w, s) in enumerate([(1, 5), (2, 3), (1, 9)])
    ]
    assert Cursor(rows).recent_position() == ({2: 3, 1: 9}, 2) or Cursor(rows).recent_position() == ({1: 9, 2: 3}, 2)


def test_a_late_committing_writer_is_queried_too() -> None:
    cursor = Cursor()
    cursor.note_writer(4, 10)
    numbers, newest = cursor.recent_position()
    assert numbers == {1: 0, 2: 0, 3: 0, 4: 10}
    assert newest == 4


def test_it_never_goes_back() -> None:
    cursor = Cursor()
    cursor.note_writer(1, 9)
    cursor.note_writer(1, 4)
    assert cursor.recent_position() == ({1: 9}, 1)


def test_looks_query_recent_writers_and_others_in_turn() -> None:
    writers = RECENT_WRITERS + WRITERS_PER_ROUND + 10
    cursor = Cursor()
    cursor.note_writer(writers, 1)
    cursor.note_writer(3, 7)
    recent, newest = cursor.recent_position()
    assert newest == writers
    assert len(recent) == RECENT_WRITERS
    assert {3, writers} <= recent.keys()
    turns = [cursor.next_position()[0] for _ in range(2)]
    assert [len(turn) for turn in turns] == [WRITERS_PER_ROUND, 10]
    assert len({*recent, *turns[0], *turns[1]}) == writers
    assert cursor.next_position()[0] == turns[0]


def test_a_writer_without_rows_is_queried_by_name() -> None:
    cursor = Cursor()
    cursor.note_newest(7)
    numbers, newest = cursor.recent_position()
    assert newest == 7
    assert numbers[7] == 0
    cursor.note_writer(7, 3)
    cursor.note_newest(7)
    assert cursor.recent_position() == ({**numbers, 7: 3}, 7)


def test_the_cursor_does_not_grow_with_past_writers() -> None:
    cursor = Cursor()
    for writer in range(1, 10 * WRITERS_KEPT, 7):
        cursor.note_writer(writer, writer)
    asked: set[int] = set()
    for _ in range(10 * WRITERS_KEPT // WRITERS_PER_ROUND):
        asked |= cursor.next_position()[0].keys() | cursor.recent_position()[0].keys()
    newest = cursor.newest
    assert asked >= set(range(newest - WRITERS_KEPT, newest + 1))
    assert len(asked) <= 2 * WRITERS_KEPT
