"""Two transactions that are open at once, and readers that must not pass what the slower one is about to commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cells.bulkhead import BulkheadSettings
from cells.cell import Cell
from cells.feed import FeedReader
from conductor.apply import Applier
from db.api.claims import claims
from db.api.rows.tables import writers
from db.api.servers import mappings
from db.cell import feed, instances, staging
from db.sql import retry
from db.sql import url as urls
from db.sql.connection import ApiTransaction, CellTransaction
from db.sql.engine import Database
from objects import lifecycle
from objects.cell import CellMapping, CellState
from objects.feed import EventKind
from scheduler.claim.cursor import Cursor
from tests.functional.db.test_db_instances import SPEC, new
from tests.support import fleet
from tests.support.conductor import NOW, Queue
from tests.support.databases import database_on
from tests.support.fleet import CELLS
from tests.support.transactions import run_threads

REAL = pytest.mark.parametrize("server", ["mariadb", "postgresql"])


class _RolledBack(Exception):
    pass


class Open:
    """A transaction that has done its work and stays open until it is told how to end."""

    def __init__(self, database: Database, work: Callable[[Any], object]) -> None:
        self._done, self._end, self._commits = threading.Event(), threading.Event(), True
        self._thread = threading.Thread(target=self._run, args=(database, work))
        self._thread.start()
        assert self._done.wait(20)

    def _run(self, database: Database, work: Callable[[CellTransaction], object]) -> None:
        def body(tx: CellTransaction) -> None:
            work(tx)
            self._done.set()
            assert self._end.wait(60)
            if not self._commits:
                raise _RolledBack

        with suppress(_RolledBack):
            database.write(body)

    def end(self, *, commits: bool) -> None:
        self._commits = commits
        self._end.set()
        self._thread.join(20)


def event(key: str) -> feed.NewEvent:
    return feed.NewEvent(kind=EventKind.ACTIVE, key=key, version=1, payload="{}")


def append(database: Database, key: str) -> None:
    database.write(feed.append_events, [event(key)], NOW)


@pytest.fixture
def cell_on(tmp_path: Path) -> Iterator[Callable[[str], Cell]]:
    mapping = CellMapping(uuid=CELLS[0], name="east", database_url="", transport_url="", state=CellState.ENABLED)
    with ExitStack() as stack:
        yield lambda server: Cell(
            mapping, stack.enter_context(database_on(server, tmp_path, "cell")), None, BulkheadSettings(timeout=30.0)
        )


@REAL
class TestTheFeedOfACell:
    def test_numbers_become_visible_in_the_order_drawn(
        self, server: str, cell_on: Callable[[str], Cell], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While the first is open the second cannot even draw its number: it gives up rather than overtake."""
        monkeypatch.setattr(urls, "LOCK_TIMEOUT_S", 1)
        monkeypatch.setattr(retry, "CONFLICT_ATTEMPTS", 1)
        cell = cell_on(server)
        reader = FeedReader(cell)
        first = Open(cell.database, lambda tx: feed.append_events(tx, [event("slow")], NOW))
        [refused] = run_threads(1, lambda _: append(cell.database, "overtaking"))
        assert "stays busy" in str(refused)
        assert reader.read().events == ()
        first.end(commits=True)
        append(cell.database, "second")
        assert [(e.sequence, e.key) for e in reader.read().events] == [(1, "slow"), (2, "second")]

    @pytest.mark.parametrize("commits", [True, False])
    def test_readers_neither_miss_late_commits_nor_wait_forever(
        self, server: str, cell_on: Callable[[str], Cell], commits: bool, tmp_path: Path
    ) -> None:
        cell = cell_on(server)
        with database_on(server, tmp_path, "api") as api:
            queue = Queue(api)
            fences = queue.claimed(2)
            queue.hand_over(fences, CELLS[0])
            slow, quick = fences
            cell.database.write(staging.stage_instances, SPEC, [new(uuid) for uuid in fences], NOW)
            memory = FeedReader(cell)  # the scheduler's; the API level's keeps its place in a row
            applier = Applier(queue.ledger, cell)
            first = Open(cell.database, lambda tx: _end(tx, slow))
            second = threading.Thread(target=lambda: cell.database.write(_end, quick))
            second.start()
            for _ in range(5):
                assert memory.read().events == ()
                assert applier.apply_page() is False
            first.end(commits=commits)
            second.join(20)
            seen = [e.key for e in memory.read().events]
            applier.apply_page()
            ended = {uuid for uuid in fences if _state(api, uuid) == "deleted"}
            if commits:
                assert seen == [slow, quick]
                assert ended == {slow, quick}
                assert queue.site.claimed() == {}
            else:
                assert seen == [quick]
                assert ended == {quick}
                cell.database.write(_end, slow)  # what was rolled back left no gap to stumble over
                applier.apply_page()
                assert [e.key for e in memory.read().events] == [slow]
                assert _state(api, slow) == "deleted"

    def test_a_restart_comes_before_transactions_still_open(self, server: str, cell_on: Callable[[str], Cell]) -> None:
        cell = cell_on(server)
        append(cell.database, "old")
        reader = FeedReader(cell)
        first = Open(cell.database, lambda tx: feed.append_events(tx, [event("slow")], NOW))
        assert reader.restart_at_end() == 1
        first.end(commits=True)
        assert [e.key for e in reader.read().events] == ["slow"]


def _end(tx: CellTransaction, uuid: str) -> None:
    instances.transition_rows(tx, [uuid], lambda row: lifecycle.delete(row, NOW), NOW)


def _state(api: Database, uuid: str) -> str:
    found = api.read(mappings.get, uuid)
    assert found is not None
    return found.state


@REAL
class TestTheLedgerOfClaims:
    """Here every writer has numbers of its own, so nobody waits for anybody, and a cursor has a number for each."""

    def test_a_late_committing_writer_is_not_passed(self, server: str, tmp_path: Path) -> None:
        with database_on(server, tmp_path, "api") as database:
            site = fleet.Site.anew(database, [fleet.node(f"h{n}") for n in range(3)])
            cursor = Cursor(database.read(claims.read_all))

            def register_and_write(tx: ApiTransaction) -> None:
                key = tx.execute(sa.insert(writers), {"name": "slow", "started": NOW}).inserted_primary_key
                assert key is not None
                claims.set_inventory(tx, claims.Stamp(int(key[0]), 1), [fleet.node("h0", vcpus=5)], CELLS[0])

            first = Open(database, register_and_write)
            claims.Ledger(database, "young").write(claims.set_inventory, [fleet.node("h1", vcpus=7)], CELLS[1])
            rows = database.read(claims.changed_since, *cursor.recent_position()).rows
            assert [row.host for row in rows] == ["h1"]
            cursor.note_rows(rows)
            assert database.read(claims.changed_since, *cursor.recent_position()).rows == []
            first.end(commits=True)
            assert [row.host for row in database.read(claims.changed_since, *cursor.recent_position()).rows] == ["h0"]
            assert site.inventories()["h0"].cap_vcpus == 5.0

    def test_a_rolled_back_writer_holds_nobody_up(self, server: str, tmp_path: Path) -> None:
        with database_on(server, tmp_path, "api") as database:
            fleet.Site.anew(database, [fleet.node(f"h{n}") for n in range(3)])
            cursor = Cursor(database.read(claims.read_all))
            first = Open(database, lambda tx: tx.execute(sa.insert(writers), {"name": "never", "started": NOW}))
            young = claims.Ledger(database, "young")
            for number in range(3):
                young.write(claims.set_inventory, [fleet.node("h1", vcpus=30 + number)], CELLS[1])
                rows = database.read(claims.changed_since, *cursor.recent_position()).rows
                assert [row.cap_vcpus for row in rows] == [30.0 + number]
                cursor.note_rows(rows)
                if number == 1:
                    first.end(commits=False)
