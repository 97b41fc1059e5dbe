"""The log of claims: stamps, and readers that miss nothing."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

import db.api.rows.ledger
from db.api.claims import claims, inventories
from db.api.rows.tables import writers
from db.sql.connection import Connection
from db.sql.engine import Database, OutcomeUnknown
from objects.inventory import InventoryColumns
from scheduler.claim.cursor import Cursor
from tests.support import fleet
from tests.support.fleet import CELLS, CONTEXT, Site


@pytest.fixture
def site(database: Database) -> Site:
    return Site.anew(database, [fleet.node(f"h{n}") for n in range(6)])


def stamp_of(tx: Connection, stamp: claims.Stamp) -> claims.Stamp:
    return stamp


def test_numbers_rise_by_transaction_under_one_writer(database: Database) -> None:
    ledger = claims.Ledger(database, "a")
    stamps = [ledger.write(stamp_of) for _ in range(3)]
    assert len({stamp.writer for stamp in stamps}) == 1
    assert [stamp.sequence for stamp in stamps] == [1, 2, 3]
    assert claims.Ledger(database, "b").write(stamp_of).writer > stamps[0].writer


def test_a_writer_exists_only_after_its_first_transaction(database: Database) -> None:
    def fail(tx: Connection, stamp: claims.Stamp) -> None:
        raise LookupError

    ledger = claims.Ledger(database, "never")
    with pytest.raises(LookupError):
        ledger.write(fail)
    assert "never" not in database.read(lambda tx: list(tx.execute(sa.select(writers.c.name)).scalars()))


def test_a_failed_transaction_does_not_end_the_writer(database: Database) -> None:
    def fail(tx: Connection, stamp: claims.Stamp) -> None:
        raise LookupError

    ledger = claims.Ledger(database, "goes on")
    first = ledger.write(stamp_of)
    with pytest.raises(LookupError):
        ledger.write(fail)
    after = ledger.write(stamp_of)
    assert after.writer == first.writer
    assert after.sequence > first.sequence


def test_an_unknown_commit_outcome_changes_the_writer(database: Database) -> None:
    def lost(tx: Connection, stamp: claims.Stamp) -> None:
        raise OutcomeUnknown("the connection broke during the commit")

    ledger = claims.Ledger(database, "lost")
    first = ledger.write(stamp_of)
    with pytest.raises(OutcomeUnknown):
        ledger.write(lost)
    assert ledger.write(stamp_of).writer > first.writer


def test_a_reader_sees_every_change_once(site: Site) -> None:
    cursor = Cursor(site.database.read(claims.read_all))
    assert site.database.read(claims.changed_since, *cursor.recent_position()).rows == []
    [[selection, *_]] = site.boot(site.scheduler())
    changed = site.database.read(claims.changed_since, *cursor.recent_position()).rows
    assert [row.host for row in changed] == [selection.host]
    assert changed[0].used_vcpus == 1
    cursor.note_rows(changed)
    assert site.database.read(claims.changed_since, *cursor.recent_position()).rows == []
    uuids = list(site.claimed())
    site.ledger.write(claims.release_claims, uuids)  # by a writer known before
    assert [row.used_vcpus for row in site.database.read(claims.changed_since, *cursor.recent_position()).rows] == [0]


def by_id(page: InventoryColumns) -> dict[int, tuple[object, ...]]:
    return {row[0]: (*row, page.resources.get(row[0])) for row in zip(*page[:-1], strict=True)}


def test_page_by_page_it_is_the_same_ledger(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventories, "READ_PAGE_SIZE", 4)
    site.boot(site.scheduler(), count=5)
    first = site.database.read(claims.read_after, 0)
    second = site.database.read(claims.read_after, max(first.id))
    assert (len(first.id), len(second.id), site.database.read(claims.read_after, max(second.id)).id) == (4, 2, [])
    everything = site.database.read(claims.read_all)
    assert by_id(first) | by_id(second) == by_id(InventoryColumns.of_rows(everything))
    assert site.database.read(claims.last_positions) == dict(sorted((row.writer, row.sequence) for row in everything))


def test_changes_behind_a_page_come_from_the_log(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer then writes to a later page, too: the newest sequence number of the pages would skip the first change."""
    monkeypatch.setattr(inventories, "READ_PAGE_SIZE", 4)
    writer = claims.Ledger(site.database, "writer")
    cursor = Cursor()
    positions = site.database.read(claims.last_positions)
    first = site.database.read(claims.read_after, 0)
    nodes = {row.id: fleet.node(row.host, vcpus=3) for row in site.database.read(claims.read_all)}
    writer.write(claims.set_inventory, [nodes[min(first.id)]], CELLS[0])
    writer.write(claims.set_inventory, [nodes[max(nodes)]], CELLS[0])
    site.database.read(claims.read_after, max(first.id))
    for each, sequence in sorted(positions.items()):
        cursor.note_writer(each, sequence)
    assert min(first.id) in {row.id for row in site.database.read(claims.changed_since, *cursor.recent_position()).rows}


def test_a_reader_knows_the_newest_writer_despite_others(site: Site) -> None:
    """Otherwise it would look for rows of unknown writers for ever, which takes PostgreSQL a look at every row."""
    newest = claims.Ledger(site.database, "short").write(stamp_of).writer
    assert site.database.read(claims.changed_since, {}, 0).newest == newest


def test_a_reader_follows_writers_unknown_to_it(site: Site) -> None:
    cursor = Cursor(site.database.read(claims.read_all))
    for n in range(3):
        another = claims.Ledger(site.database, f"new {n}")
        another.write(claims.set_inventory, [fleet.node(f"new{n}")], CELLS[0])
        rows = site.database.read(claims.changed_since, *cursor.recent_position()).rows
        assert [row.host for row in rows] == [f"new{n}"]
        cursor.note_rows(rows)


def test_readers_keep_up_with_writers_that_never_pause(site: Site) -> None:
    """Each reader's copy equals the ledger in the end, though it read while four writers wrote."""
    stop = threading.Event()
    copies: list[dict[int, int]] = [{}, {}]

    def follow(copy: dict[int, int]) -> None:
        rows = site.database.read(claims.read_all)
        cursor = Cursor(rows)
        while True:
            last = stop.is_set()
            for row in rows:
                copy[row.id] = max(row.generation, copy.get(row.id, -1))
            rows = site.database.read(claims.changed_since, *cursor.recent_position()).rows
            cursor.note_rows(rows)
            if last and not rows:
                return

    def write() -> None:
        scheduler, ledger = site.scheduler(), claims.Ledger(site.database, "conductor")
        for _ in range(10):
            leased = site.leased(fleet.spec())
            scheduler.select_destinations(CONTEXT, leased, list(leased.fences))
            ledger.write(claims.release_claims, list(leased.fences))

    readers = [threading.Thread(target=follow, args=(copy,)) for copy in copies]
    writing = [threading.Thread(target=write) for _ in range(4)]
    for thread in (*readers, *writing):
        thread.start()
    for thread in writing:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    truth = {row.id: row.generation for row in site.inventories().values()}
    assert copies == [truth, truth]


def test_a_pen_renews_its_id_forgetting_the_oldest(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db.api.rows.ledger, "WRITER_LIFETIME_S", -1.0)
    monkeypatch.setattr(db.api.rows.ledger, "WRITERS_KEPT", 3)
    pen = claims.Ledger(database, "long-lived")
    stamps = [pen.write(stamp_of) for _ in range(6)]
    assert [stamp.sequence for stamp in stamps] == [1] * 6
    assert sorted({stamp.writer for stamp in stamps}) == [stamp.writer for stamp in stamps]
    kept = database.read(lambda tx: list(tx.execute(sa.select(writers.c.id).order_by(writers.c.id)).scalars()))
    assert kept == list(range(stamps[-1].writer - 2, stamps[-1].writer + 1))
