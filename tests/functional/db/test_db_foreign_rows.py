"""A transaction waits for the rows it wants and for no others, and takes them in one order, on each server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from db.api.claims import claims, inventories
from db.api.claims.claiming import _STANDING
from db.api.queue import leases
from db.api.reconcile import events
from db.api.reconcile.events import FeedPosition
from db.api.rows.tables import allocations, instance_mappings
from db.api.rows.tables import group_slots as slots
from db.api.servers import mappings
from db.cell import feed, instances, staging
from db.cell.tables import instances as instance_rows
from db.sql import retry
from db.sql import url as urls
from db.sql.connection import ApiTransaction, CellTransaction
from db.sql.engine import Database
from objects import lifecycle
from objects.compute_node import ComputeNode
from objects.feed import EventKind, InstanceEvent, InstanceSummary
from objects.group import GroupPolicy
from objects.instance import Failure, FailureClass, State
from objects.selection import Selection
from tests.functional.db.test_db_instances import LIMITS, SPEC, new
from tests.support import fleet
from tests.support.conductor import NOW, Queue
from tests.support.databases import database_on
from tests.support.fleet import CELLS
from tests.support.transactions import run_threads


@pytest.fixture(params=["mariadb", "postgresql"])
def impatient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A server on which waiting for a row of somebody else is an error, soon."""
    monkeypatch.setattr(urls, "LOCK_TIMEOUT_S", 1)
    monkeypatch.setattr(retry, "CONFLICT_ATTEMPTS", 1)
    server: str = request.param
    return server


@pytest.fixture
def queue(impatient: str, tmp_path: Path) -> Iterator[Queue]:
    with database_on(impatient, tmp_path, "api") as database:
        yield Queue(database)


@pytest.fixture
def cell(impatient: str, tmp_path: Path) -> Iterator[Database]:
    with database_on(impatient, tmp_path, "cell") as database:
        yield database


def beside(database: Database, open_transaction: Callable[[Any], object], work: Callable[[], object]) -> None:
    """``work`` while another transaction is open in which ``open_transaction`` was run."""

    def hold(tx: Any) -> None:
        open_transaction(tx)
        assert _failures(work) == []
        raise _Done

    with pytest.raises(_Done):
        database.write(hold)


def _failures(work: Callable[[], object]) -> list[Exception]:
    """What ``work`` raises in a thread of its own."""

    def run(_: int) -> None:
        work()

    return run_threads(1, run)


class _Done(Exception):
    pass


class TestBesideAClaimInFlight:
    """A claim holds the rows of its batch's requests, and has written allocations, slots and usage."""

    @pytest.fixture
    def mine(self, queue: Queue) -> dict[str, int]:
        """Requests with claims, in a table so small that reading all of it looks cheaper than looking the keys up."""
        return queue.claimed(4, group=fleet.group(GroupPolicy.ANTI_AFFINITY), max_attempts=2)

    @pytest.fixture
    def foreign(self, queue: Queue) -> Callable[[Any], None]:
        fences = queue.leased(3)
        one, *_ = sorted(fences)

        def claim(tx: Any) -> None:
            tx.execute(_STANDING, {"uuids": sorted(fences)}).all()
            row = {"instance_uuid": one, "inventory_id": 0, "fence": 1, "vcpus": 1, "memory_mb": 1, "disk_gb": 1}
            tx.execute(sa.insert(allocations), row | {"selection": "[]", "writer": 1, "wseq": 1})
            tx.execute(sa.insert(slots), {"group_uuid": "g", "instance_uuid": one, "host": "h", "held": True})
            tx.execute(sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == one).values(updated_at=1.0))

        return claim

    def test_hand_over(self, queue: Queue, mine: dict[str, int], foreign: Callable[[Any], None]) -> None:
        beside(queue.database, foreign, lambda: queue.hand_over(mine))
        assert mine.keys().isdisjoint(queue.requests())

    def test_bury(self, queue: Queue, mine: dict[str, int], foreign: Callable[[Any], None]) -> None:
        beside(queue.database, foreign, lambda: queue.bury(mine))
        assert mine.keys().isdisjoint(queue.requests())
        assert (queue.site.claimed(), queue.site.slots(), queue.site.overfull()) == ({}, [], [])

    def test_bury_one(self, queue: Queue, mine: dict[str, int], foreign: Callable[[Any], None]) -> None:
        one = min(mine)
        beside(queue.database, foreign, lambda: queue.bury({one: mine[one]}))
        assert one not in queue.site.claimed()

    def test_delete(self, queue: Queue, mine: dict[str, int], foreign: Callable[[Any], None]) -> None:
        beside(queue.database, foreign, lambda: [queue.delete(uuid) for uuid in mine])
        assert (queue.site.claimed(), queue.site.slots(), queue.site.overfull()) == ({}, [], [])

    def test_refence_and_renew(self, queue: Queue, mine: dict[str, int], foreign: Callable[[Any], None]) -> None:
        def work() -> None:
            queue.database.write(leases.renew_leases, mine, 5.0)
            assert queue.database.write(leases.refence_requests, mine) == {uuid: fence + 1 for uuid, fence in mine.items()}

        beside(queue.database, foreign, work)

    def test_lease(self, queue: Queue, mine: dict[str, int], foreign: Callable[[Any], None]) -> None:
        """Nothing of what nobody holds is skipped, either."""
        specs = [queue.accept(3) for _ in range(3)]
        taken: dict[str, int] = {}
        beside(queue.database, foreign, lambda: taken.update(queue.lease(*(spec.batch_id for spec in specs))))
        assert len(taken) == 9

    def test_release_and_free_slots(self, queue: Queue, mine: dict[str, int], foreign: Callable[[Any], None]) -> None:
        def work() -> None:
            queue.database.write(claims.free_slots, list(mine))
            assert {slot.held for slot in queue.site.slots()} == {False}
            assert queue.ledger.write(claims.release_claims, list(mine)) == len(mine)

        beside(queue.database, foreign, work)
        assert (queue.site.slots(), queue.site.overfull()) == ([], [])

    def test_apply(self, queue: Queue, mine: dict[str, int], foreign: Callable[[CellTransaction], None]) -> None:
        queue.hand_over(mine, CELLS[0])
        page = [_event(EventKind.ENDED if n else EventKind.MOVED, uuid) for n, uuid in enumerate(mine)]
        beside(queue.database, foreign, lambda: _apply(queue, page))
        assert len(queue.site.claimed()) == 1

    def test_ended_in_cell0(self, queue: Queue, mine: dict[str, int], foreign: Callable[[ApiTransaction], None]) -> None:
        queue.bury(mine)
        beside(queue.database, foreign, lambda: queue.database.write(mappings.confirm_deletes, list(mine), NOW))


def _event(kind: EventKind, uuid: str, host: str = "h7") -> InstanceEvent:
    summary = InstanceSummary(state="building", host=host, node=host, updated_at=NOW, has_group=True)
    return InstanceEvent(kind=kind, key=uuid, version=9, summary=summary)


def _apply(queue: Queue, page: Sequence[InstanceEvent], nodes: Sequence[str] = ()) -> None:
    cursor = queue.database.write(events.lock_cursor, CELLS[0])
    position = FeedPosition(cell_uuid=CELLS[0], cursor=cursor, upto=cursor + 1)
    queue.ledger.write(events.apply_page, position, page, [fleet.node(host, vcpus=99) for host in nodes])


class TestHostsAreLockedInTheOrderOfTheirIds:
    """Whoever waits for one host holds none with a higher id: two that lock in this order never wait for each other in a ring."""

    def check(self, queue: Queue, ids: Sequence[int], work: Callable[[], object]) -> None:
        first, *rest = sorted(ids)
        failed: list[Exception] = []

        def hold_first_then_all(tx: ApiTransaction) -> threading.Thread:
            inventories.lock_rows(tx, [first])
            thread = threading.Thread(target=lambda: failed.extend(_failures(work)))
            thread.start()
            time.sleep(0.4)  # it waits for the first one now, and has a second in all
            assert failed == []
            assert len(inventories.lock_rows(tx, rest, only_free=True)) == len(rest)
            return thread

        queue.database.write(hold_first_then_all).join()
        assert failed == []

    def ids(self, queue: Queue) -> dict[str, int]:
        return {host: row.id for host, row in queue.site.inventories().items()}

    def test_capacities_of_hosts_whose_names_sort_in_reverse(self, queue: Queue) -> None:
        queue.ledger.write(claims.set_inventory, [fleet.node(f"{name}x") for name in "zyxwvu"], CELLS[0])
        ids = {host: key for host, key in self.ids(queue).items() if host.endswith("x")}
        changed = [fleet.node(host, vcpus=99) for host in ids]
        self.check(queue, list(ids.values()), lambda: claims.Ledger(queue.database, "t").write(_set, changed))

    def test_a_page_with_ends_and_moves(self, queue: Queue) -> None:
        """What ended is on the host with the highest id, what moved goes to the lowest."""
        ids = self.ids(queue)
        fences = queue.claimed(2)
        queue.hand_over(fences, CELLS[0])
        ended, moved = fences
        ordered = sorted(ids, key=lambda host: ids[host])
        lowest, between, highest = ordered[0], ordered[3], ordered[-1]
        _apply(queue, [_event(EventKind.MOVED, ended, highest), _event(EventKind.MOVED, moved, between)])
        page = [_later(EventKind.ENDED, ended, highest), _later(EventKind.MOVED, moved, lowest)]
        self.check(queue, [ids[lowest], ids[between], ids[highest]], lambda: _apply(queue, page))
        assert queue.site.claimed() == {moved: lowest}

    def test_a_page_with_an_end_and_a_report(self, queue: Queue) -> None:
        ids = self.ids(queue)
        fences = queue.claimed(1)
        queue.hand_over(fences, CELLS[0])
        [uuid] = fences
        ordered = sorted(ids, key=lambda host: ids[host])
        _apply(queue, [_event(EventKind.MOVED, uuid, ordered[-1])])
        page = [_later(EventKind.ENDED, uuid, ordered[-1])]
        self.check(queue, [ids[ordered[0]], ids[ordered[-1]]], lambda: _apply(queue, page, [ordered[0]]))


def _set(tx: ApiTransaction, stamp: claims.Stamp, nodes: Sequence[ComputeNode]) -> None:
    claims.set_inventory(tx, stamp, nodes, CELLS[0])


def _later(kind: EventKind, uuid: str, host: str) -> InstanceEvent:
    event = _event(kind, uuid, host)
    return InstanceEvent(kind=kind, key=uuid, version=10, summary=event.summary)


class TestInACell:
    def test_reports_and_sweeps_beside_a_transition_of_others(self, cell: Database) -> None:
        cell.write(staging.stage_instances, SPEC, [new(f"u{n}") for n in range(6)], NOW)

        def foreign(tx: CellTransaction) -> None:
            instances.transition_rows(tx, ["u0", "u5"], lambda row: lifecycle.accept_order(row, "h1", 1, 1, "b"), NOW)
            instances.record_sent(tx, ["u0", "u5"], NOW)

        def work() -> None:
            mine = ["u1", "u2", "u3"]
            outcomes = cell.write(instances.transition_rows, mine, lambda row: lifecycle.accept_order(row, "h1", 1, 1, "b"), NOW)
            assert all(isinstance(outcome, lifecycle.Change) for outcome in outcomes.values())
            cell.write(instances.record_sent, mine, NOW)
            cell.write(instances.delete, mine, NOW)
            cell.write(staging.remove_staged, ["u4"])

        beside(cell, foreign, work)

    def test_a_wait_for_rows_sees_the_current_build(self, cell: Database) -> None:
        """PostgreSQL shows the row it waited for anew, but what was joined to it as it had been."""
        alternates = tuple(Selection(host=f"h{n}", node=f"h{n}", cell_uuid="c1", limits=LIMITS) for n in (2, 3, 4))
        row = msgspec.structs.replace(new("u1").instance, alternates=alternates, max_attempts=9)
        cell.write(staging.stage_instances, SPEC, [msgspec.structs.replace(new("u1"), instance=row)], NOW)
        cell.write(instances.transition_rows, ["u1"], lambda row: lifecycle.activate_row(row, 1, cell0=False), NOW)
        failure = Failure(kind=FailureClass.HOST, error="E", message="m", at=NOW)
        second = threading.Thread(target=lambda: cell.write(_next_host, failure))

        def first(tx: Any) -> None:
            _next_host(tx, failure)
            second.start()
            time.sleep(0.4)  # it waits for the row, which no server shows alike

        cell.write(first)
        second.join(20)
        now = cell.read(instances.get, "u1")
        assert now is not None
        assert (now.attempt, now.host, [attempt.host for attempt in now.history]) == (3, "h3", ["h1", "h2"])

    def test_a_delete_takes_the_feeds_head_last(self, cell: Database) -> None:
        """Of a row that is there and of one that is not: who inserts a tombstone may wait for another who does."""
        cell.write(staging.stage_instances, SPEC, [new("u1")], NOW)
        failed: list[Exception] = []

        def leave_tombstone(tx: CellTransaction) -> threading.Thread:
            row = {"uuid": "u2", "state": State.DELETED, "fence": 0, "created_at": NOW, "updated_at": NOW}
            tx.execute(sa.insert(instance_rows), row)
            thread = threading.Thread(target=lambda: failed.extend(run_threads(1, lambda _: delete_both())))
            thread.start()
            time.sleep(0.4)  # the same
            feed.append_events(tx, [feed.NewEvent(kind=EventKind.ENDED, key="u2", version=1, payload="{}")], NOW)
            return thread

        def delete_both() -> None:
            cell.write(instances.delete, ["u1", "u2"], NOW)

        cell.write(leave_tombstone).join()
        assert failed == []
        assert [event.key for event in cell.read(feed.read, 0, 10).events] == ["u2", "u1"]


def _next_host(tx: CellTransaction, failure: Failure) -> None:
    instances.transition_rows(tx, ["u1"], lambda row: lifecycle.host_dead(row, row.attempt, failure), NOW)
