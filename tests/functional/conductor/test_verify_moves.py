"""What an audit finds of servers that were moved, and of operations that do not end."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from conductor.audit import addresses, operations, permits, quota, rows, servers
from conductor.audit.shelved import SHELVED_SINCE
from db.api.operations import operations as api_operations
from db.api.operations import shelving, steps
from db.api.queue import builds
from db.api.rows.ledger import Stamp
from db.api.rows.tables import build_requests, instance_mappings
from db.api.rows.tables import operations as table
from db.api.servers import mappings
from db.audit import servers as audit_servers
from db.cell import tasks
from db.cell.tables import instances as instance_table
from db.cell.tasks import TaskFor
from db.sql.connection import ApiTransaction
from images.store import FolderStore
from objects.instance import State
from objects.network import PortRequest
from objects.operation import Operation, OperationArgs, OperationKind, OperationState, Outcome
from objects.task import Power, StoredContent, Task, TaskArgs, TaskKind, TaskState
from tests.support import auditing
from tests.support.auditing import Auditor
from tests.support.ground import USUAL
from tests.support.moved import Moved
from tests.support.pools import make_network, ports_of
from tests.support.world import world_fixture

CONTENT = StoredContent(size=1, hash_value="a" * 128)
"""What hosts say of the snapshots that they write."""


site = world_fixture(grounds=USUAL, scope="module", of=Moved)


consistent = auditing.consistent


def row(uuid: str) -> sa.Update:
    return sa.update(instance_table).where(instance_table.c.uuid == uuid)


def mapping(uuid: str | None) -> sa.Update:
    return sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == uuid)


def test_a_moved_server_gives_no_finding(site: Moved) -> None:
    [uuid] = site.active()
    operation = site.moved(uuid)
    assert site.auditor.kinds() == []
    assert (site.server(uuid).body_uuid, site.state(operation)[1]) == (operation.twin_uuid, Outcome.DONE)


@contextmanager
def stored(site: Moved, folder: Path, snapshot: str) -> Iterator[None]:
    """The auditor sees a store of images with this snapshot."""
    store = site.auditor.places.images = FolderStore(folder / "images")
    store.save_snapshot(snapshot, b"")
    try:
        yield
    finally:
        site.auditor.places.images = None


class TestShelved:
    def test_a_shelved_servers_only_finding_is_its_snapshot(self, site: Moved, tmp_path: Path) -> None:
        [uuid] = site.active()
        shelve = site.cloud.operate(uuid, OperationKind.SHELVE, timeout=1e9)
        site.tasked(uuid, Task(number=shelve.number, kind=TaskKind.SNAPSHOT, power=Power.HELD))
        site.finish()
        assert site.auditor.kinds() == [], "it may wait for as long as it likes"
        site.conductor.ledger.write(shelving.offload_servers, [shelve.uuid], site.cloud.api.current_time())
        site.end(uuid)
        body = site.server(uuid).body_uuid
        store = site.auditor.places.images = FolderStore(tmp_path / "images")
        try:
            assert site.auditor.kinds() == []
            assert "cannot be used" in site.auditor.places.unknown["images"]
            store.save_snapshot("another", b"")
            [finding] = site.auditor.findings()
            assert (finding.kind, finding.key) == (operations.UNSAVED, body)
            assert shelve.uuid in finding.what
            store.save_snapshot(shelve.uuid, b"")
            assert site.auditor.kinds() == []
        finally:
            site.auditor.places.images = None

    def test_a_restore_deletes_no_previously_shelved_server(self, site: Moved) -> None:
        """The API database is older than the shelve: for it the server is ACTIVE, and its row is deleted in its cell."""
        [uuid] = site.active()
        shelve = site.cloud.operate(uuid, OperationKind.SHELVE, timeout=1e9)
        site.tasked(uuid, Task(number=shelve.number, kind=TaskKind.SNAPSHOT, power=Power.HELD))
        site.finish()
        before = site.server(uuid)
        site.conductor.ledger.write(shelving.offload_servers, [shelve.uuid], site.cloud.api.current_time())
        site.end(uuid)
        site.api(sa.delete(table).where(table.c.uuid == shelve.uuid))
        site.api(sa.delete(instance_mappings).where(instance_mappings.c.server_uuid == uuid))
        shown = {"body_uuid": None, "deleted": False, "state": "active", "hidden": False, "deleted_at": None, "seen": 0}
        site.api(mapping(uuid).values(shown))
        site.auditor.repair()
        assert (servers.CELL_ONLY, uuid) in site.auditor.repair()
        assert (site.server(uuid).deleted, site.server(uuid).host) == (False, before.host)
        site.cloud.delete(uuid)
        assert site.auditor.repair() == []

    def test_a_restored_database_learns_of_a_shelved_server(self, site: Moved, tmp_path: Path) -> None:
        """From its tombstone in the cell and from its snapshot. It can be unshelved."""
        uuid, snapshot = shelved_after_the_backup(site)
        with stored(site, tmp_path, snapshot):
            assert (SHELVED_SINCE, uuid) in site.auditor.kinds()
            left = site.auditor.repair()
            assert not {uuid, site.server(uuid).body_uuid} & {key for _, key in left}
        assert (site.server(uuid).state, site.server(uuid).host, site.server(uuid).deleted) == ("shelved", None, False)
        unshelve = site.building(uuid, OperationKind.UNSHELVE)
        spec = site.cloud.api.read(mappings.specs_by_batch, [site.body(unshelve).batch_id])[site.body(unshelve).batch_id]
        assert spec.move is not None
        assert (spec.move.image_id, spec.move.image_hash) == (snapshot, CONTENT.hash_value)
        site.give_up(unshelve)
        site.cloud.delete(uuid)

    def test_a_shelved_server_without_mapping_is_adopted(self, site: Moved, tmp_path: Path) -> None:
        """It was booted after the backup too."""
        uuid, snapshot = shelved_after_the_backup(site)
        site.conductor.ledger.write(forget, uuid)
        with stored(site, tmp_path, snapshot):
            assert (SHELVED_SINCE, uuid) in site.auditor.kinds()
            left = site.auditor.repair()
            assert not {uuid, site.server(uuid).body_uuid} & {key for _, key in left}
        assert (site.server(uuid).state, site.server(uuid).host, site.server(uuid).deleted) == ("shelved", None, False)
        assert moves_of(site, uuid) == (snapshot, CONTENT.hash_value)
        site.cloud.delete(uuid)

    def test_a_moved_then_deleted_server_is_deleted_again(self, site: Moved) -> None:
        """What the restored database shows is the body that was held for the move: it was not shelved."""
        [uuid] = site.active()
        before = site.server(uuid)
        operation = site.moved(uuid)
        site.cloud.delete(uuid)
        site.end(operation.twin_uuid or "")
        site.api(sa.delete(table).where(table.c.server_uuid == uuid))
        site.api(sa.delete(instance_mappings).where(instance_mappings.c.server_uuid == uuid))
        shown = {"body_uuid": None, "deleted": False, "state": "active", "hidden": False, "deleted_at": None, "seen": 0}
        site.api(mapping(uuid).values(shown | {"host": before.host}))
        assert (servers.CELL_ONLY, uuid) in site.auditor.kinds()
        assert uuid not in {key for _, key in site.auditor.repair()}

    def test_a_moved_shelved_server_is_its_shelved_body(self, site: Moved, tmp_path: Path) -> None:
        [uuid] = site.active()
        before = site.server(uuid)
        moved_to = site.moved(uuid).twin_uuid or ""
        shelve = shelved(site, uuid)
        site.api(sa.delete(table).where(table.c.server_uuid == uuid))
        site.api(sa.delete(instance_mappings).where(instance_mappings.c.server_uuid == uuid))
        shown = {"body_uuid": None, "deleted": False, "state": "active", "hidden": False, "deleted_at": None, "seen": 0}
        site.api(mapping(uuid).values(shown | {"host": before.host}))
        with stored(site, tmp_path, shelve):
            assert (SHELVED_SINCE, moved_to) in site.auditor.kinds()
            site.auditor.repair()
            left = site.auditor.repair()
            assert not {uuid, moved_to, site.server(uuid).body_uuid} & {key for _, key in left}
        assert (site.server(uuid).state, site.server(uuid).deleted) == ("shelved", False)
        assert moves_of(site, uuid) == (shelve, CONTENT.hash_value)
        _, records = site.cloud.api.read(audit_servers.read_records, [uuid, moved_to])
        assert {uuid: record.deleted for uuid, record in records.items()} == {uuid: True, moved_to: True}
        site.cloud.delete(uuid)

    def test_a_moved_shelved_deleted_server_is_deleted_again(self, site: Moved, tmp_path: Path) -> None:
        [uuid] = site.active()
        moved_to = site.moved(uuid).twin_uuid or ""
        shelved(site, uuid)
        site.api(sa.delete(table).where(table.c.server_uuid == uuid))
        site.api(sa.delete(instance_mappings).where(instance_mappings.c.server_uuid == uuid))
        shown = {"body_uuid": None, "deleted": False, "state": "active", "hidden": False, "deleted_at": None, "seen": 0}
        site.api(mapping(uuid).values(shown))
        with stored(site, tmp_path, "another"):
            assert (servers.CELL_ONLY, uuid) in site.auditor.kinds()
            assert not {uuid, moved_to} & {key for _, key in site.auditor.repair()}

    def test_a_shelved_server_without_snapshot_was_deleted(self, site: Moved, tmp_path: Path) -> None:
        uuid, _ = shelved_after_the_backup(site)
        with stored(site, tmp_path, "another"):
            assert (servers.CELL_ONLY, uuid) in site.auditor.kinds()
            assert uuid not in {key for _, key in site.auditor.repair()}
        assert site.cloud.api.read(mappings.get, uuid) is None or site.server(uuid).deleted


def forget(tx: ApiTransaction, stamp: Stamp, uuid: str) -> None:
    builds.delete(tx, stamp, uuid, project_id=None, now=1.0)
    tx.execute(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid == uuid))


def shelved_after_the_backup(site: Moved) -> tuple[str, str]:
    """A server that is ACTIVE for the API database, and a tombstone in its cell; and its snapshot."""
    [uuid] = site.active()
    snapshot = shelved(site, uuid)
    site.api(sa.delete(table).where(table.c.uuid == snapshot))
    site.api(sa.delete(instance_mappings).where(instance_mappings.c.server_uuid == uuid))
    shown = {"body_uuid": None, "deleted": False, "state": "active", "hidden": False, "deleted_at": None, "seen": 0}
    site.api(mapping(uuid).values(shown | {"task_stored": None}))
    return uuid, snapshot


def shelved(site: Moved, uuid: str) -> str:
    """Shelve a server that has a host; returns the name of its snapshot."""
    body = site.server(uuid).body_uuid
    shelve = site.cloud.operate(uuid, OperationKind.SHELVE, timeout=1e9)
    task = Task(number=shelve.number, kind=TaskKind.SNAPSHOT, power=Power.HELD, args=TaskArgs(image_id=shelve.uuid))
    site.tasked(body, task, CONTENT)
    site.finish()
    site.conductor.ledger.write(shelving.offload_servers, [shelve.uuid], site.cloud.api.current_time())
    site.end(body)
    return shelve.uuid


def moves_of(site: Moved, uuid: str) -> tuple[str, str]:
    """The snapshot that a shelved server is built from again, and the hash of its content."""
    batch = site.server(uuid).batch_id
    move = site.cloud.api.read(mappings.specs_by_batch, [batch])[batch].move
    assert move is not None
    return move.image_id or "", move.image_hash


class TestPermits:
    def test_of_two_runnable_bodies_the_other_is_held(self, site: Moved) -> None:
        """Both databases have lost that the source was held."""
        [uuid] = site.active()
        operation = site.building(uuid)
        site.built(operation)
        site.database(uuid).write(lambda tx: tx.execute(row(uuid).values(power=Power.ON, version=1000)))
        site.api(mapping(uuid).values(power=Power.ON, seen=1000))
        [finding] = [each for each in site.auditor.findings() if each.kind == permits.PERMITTED]
        assert (finding.key, finding.facts[0]) == (operation.twin_uuid, uuid)
        site.auditor.repair()
        assert site.cloud.row(uuid).power is Power.HELD
        site.api(sa.delete(table).where(table.c.uuid == operation.uuid))
        site.auditor.repair()
        site.end(operation.twin_uuid or "")
        site.cloud.delete(uuid)
        site.auditor.repair()
        site.end(uuid)

    def test_an_uncompared_operation_holds_the_older_body(self, site: Moved) -> None:
        """Both databases have lost that the server was moved on: the body that it has now was adopted."""
        [uuid] = site.active()
        operation = site.building(uuid)
        site.built(operation)
        site.database(uuid).write(lambda tx: tx.execute(row(uuid).values(power=Power.ON, task_number=0, version=1000)))
        site.api(mapping(uuid).values(power=Power.ON, task_number=0, seen=1000))
        lost = {"state": OperationState.VERIFY, "twin_uuid": str(uuids.uuid4()), "frozen": "the restore"}
        site.api(sa.update(table).where(table.c.uuid == operation.uuid).values(lost))
        [finding] = [each for each in site.auditor.findings() if each.kind == permits.PERMITTED]
        assert (finding.key, finding.facts[0]) == (operation.twin_uuid, uuid)
        site.auditor.repair()
        assert site.cloud.row(uuid).power is Power.HELD
        site.api(sa.delete(table).where(table.c.uuid == operation.uuid))
        site.auditor.repair()
        site.end(operation.twin_uuid or "")
        site.cloud.delete(uuid)
        site.auditor.repair()
        site.end(uuid)


class TestBodies:
    def test_an_unneeded_body_is_deleted_with_its_guest(self, site: Moved) -> None:
        """As where an operation was removed by hand."""
        [uuid] = site.active()
        operation = site.building(uuid)
        twin = operation.twin_uuid or ""
        site.built(operation)
        site.api(sa.delete(table).where(table.c.uuid == operation.uuid))
        assert (operations.SPARE, twin) in site.auditor.kinds()
        site.auditor.repair()
        assert site.cloud.row(twin).state is State.DELETING
        site.end(twin)
        assert site.auditor.kinds() == [(operations.HELD, uuid)]
        site.auditor.repair()
        [start] = site.cloud.api.read(api_operations.of_server, uuid)
        assert (start.kind, start.state) == (OperationKind.START, OperationState.STARTING)
        site.tasked(uuid, Task(number=start.number + 3, kind=TaskKind.POWER, power=Power.ON))
        site.finish()

    def test_what_is_shown_follows_the_pointer(self, site: Moved) -> None:
        [uuid] = site.active()
        twin = site.moved(uuid).twin_uuid or ""
        site.api(mapping(twin).values(hidden=True))
        assert sorted(site.auditor.kinds()) == sorted([(operations.HIDDEN, twin), (quota.MISCHARGED, "p")])
        assert site.auditor.repair() == []
        assert [body.hidden for body in site.cloud.api.read(api_operations.bodies_by_uuid, [twin]).values()] == [False]

    def test_a_pointer_to_a_missing_body_is_reported(self, site: Moved) -> None:
        [uuid] = site.active()
        operation = site.building(uuid)
        site.api(mapping(uuid).values(body_uuid=str(uuids.uuid4())))
        kinds = site.auditor.kinds()
        assert (operations.POINTER, uuid) in kinds
        assert site.auditor.repair().count((operations.POINTER, uuid)) == 1
        assert site.cloud.row(uuid).state is State.ACTIVE, "nothing is deleted"
        site.api(mapping(uuid).values(body_uuid=None))
        site.give_up(operation)


class TestOperations:
    def test_one_whose_twin_is_nowhere_is_given_up(self, site: Moved) -> None:
        [uuid] = site.active()
        operation = site.placing(uuid)
        site.api(sa.delete(build_requests).where(build_requests.c.instance_uuid == operation.twin_uuid))
        assert site.auditor.kinds() == [(operations.TWINLESS, uuid)]
        assert site.auditor.repair() == []
        assert site.state(operation)[0] is OperationState.UNDOING
        site.cloud.api.write(steps.given_up, [operation.uuid], site.cloud.api.current_time())
        assert (site.server(uuid).state, site.state(operation)[1]) == ("active", Outcome.GIVEN_UP)

    def test_overdue_operations_are_reported_unless_waiting_for_users(self, site: Moved) -> None:
        [uuid] = site.active()
        operation = site.placing(uuid)
        site.api(sa.update(table).where(table.c.uuid == operation.uuid).values(deadline=site.cloud.api.current_time() - 60.0))
        assert Auditor(site.conductor, overdue=3600.0).kinds() == []
        assert (operations.LATE, uuid) in Auditor(site.conductor, overdue=30.0).kinds()
        site.api(sa.update(table).where(table.c.uuid == operation.uuid).values(state=OperationState.VERIFY))
        assert (operations.LATE, uuid) not in Auditor(site.conductor, overdue=30.0).kinds()
        site.api(sa.update(table).where(table.c.uuid == operation.uuid).values(state=OperationState.PLACING))
        site.give_up(operation)


class TestRestored:
    """The API database was restored from a backup: rows of bodies show what it has lost."""

    def forget(self, site: Moved, operation: Operation) -> None:
        """As before the operation was accepted."""
        site.api(sa.delete(table).where(table.c.uuid == operation.uuid))
        site.api(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid == operation.twin_uuid))
        now = {"body_uuid": None, "hidden": False, "last_number": 0, "deleted": False, "state": "active"}
        site.api(mapping(operation.server_uuid).values(**now))

    def settle(self, site: Moved) -> None:
        for _ in range(3):  # mappings, then claims and quota, then what is spare by now
            site.auditor.repair()
            site.conductor.deleter.run_round()
            site.keep()

    def test_a_server_is_its_latest_runnable_body(self, site: Moved) -> None:
        [uuid] = site.active()
        operation = site.moved(uuid)
        twin = operation.twin_uuid or ""
        self.forget(site, operation)
        assert {(rows.UNMAPPED, twin), (servers.CELL_ONLY, uuid)} <= set(site.auditor.kinds())
        self.settle(site)
        assert (site.server(uuid).body_uuid, site.server(uuid).state, site.server(uuid).deleted) == (twin, "active", False)
        assert site.cloud.row(twin).state is State.ACTIVE
        again = site.placing(uuid)
        assert again.number > operation.number + 3, "no number is given twice"
        site.give_up(again)

    def test_a_server_without_home_row_keeps_its_uuid(self, site: Moved) -> None:
        [uuid] = site.active()
        operation = site.moved(uuid)
        self.forget(site, operation)
        site.api(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid == uuid))
        self.settle(site)
        assert (site.server(uuid).body_uuid, site.server(uuid).state) == (operation.twin_uuid, "active")
        site.cloud.delete(uuid)
        site.end(operation.twin_uuid or "")

    def test_an_operation_continues_from_its_twins_cell(self, site: Moved) -> None:
        [uuid] = site.active()
        operation = site.building(uuid)
        twin = operation.twin_uuid or ""
        site.built(operation)
        site.api(mapping(twin).values(cell_uuid=None, seen=0, state="building", host=None))
        site.api(sa.update(table).where(table.c.uuid == operation.uuid).values(state=OperationState.PLACING, held=False))
        assert (rows.UNMAPPED, twin) in site.auditor.kinds()
        self.settle(site)
        assert site.state(operation)[0] is OperationState.BUILDING
        site.conductor.ledger.write(steps.switch_servers, [operation.uuid], site.cloud.api.current_time())
        assert (site.server(uuid).body_uuid, site.state(operation)[1]) == (twin, Outcome.DONE)
        site.end(uuid)


class TestRows:
    def test_a_row_missing_its_task_gets_it_again(self, site: Moved) -> None:
        """As after its cell was restored from a backup: the server is stopped, and must not be started by its host."""
        [uuid] = site.active()
        number = site.cloud.operate(uuid, OperationKind.STOP).number
        site.tasked(uuid, Task(number=number, kind=TaskKind.POWER, power=Power.OFF))
        site.finish()
        row = sa.update(instance_table).where(instance_table.c.uuid == uuid)
        site.cell("cell1", row.values(power=Power.ON, task_number=0))
        assert site.auditor.kinds() == [(servers.FORGETFUL, uuid)]
        assert site.auditor.repair() == []
        found = site.cloud.row(uuid)
        assert (found.power, found.task_number, found.task_state) == (Power.OFF, number, TaskState.ORDERED)
        assert len(site.cloud.databases["cell1"].read(tasks.orders_of, [uuid])) == 1, "its host is told"

    def test_a_row_missing_a_detach_gets_it_again(self, site: Moved) -> None:
        """A power in its place would say that the guest is without the interface, whose address would be free."""
        [uuid] = site.active()
        blue = make_network(site.cloud.api, "10.0.0.0/28")
        attach = site.cloud.operate(uuid, OperationKind.ATTACH_INTERFACE, port=PortRequest(network=blue))
        [port] = ports_of(site.cloud.api, uuid)[uuid]
        args = TaskArgs(ports=(port,))
        site.tasked(uuid, Task(number=attach.number, kind=TaskKind.INTERFACES, power=Power.ON, args=args))
        site.finish()
        assert site.state(attach)[1] is Outcome.DONE
        assert site.auditor.kinds() == [(addresses.LACKING, uuid)], "no agent has told of it here"
        detach = site.cloud.operate(uuid, OperationKind.DETACH_INTERFACE, args=OperationArgs(mac=port.mac))
        done = Task(number=detach.number, kind=TaskKind.INTERFACES, power=Power.ON)
        site.tasked(uuid, done)
        row = sa.update(instance_table).where(instance_table.c.uuid == uuid)
        site.cell("cell1", row.values(task_number=0))
        assert (servers.FORGETFUL, uuid) in site.auditor.kinds()
        site.auditor.repair()
        [due] = site.cloud.databases["cell1"].read(tasks.orders_of, [uuid])
        assert due.order is not None
        assert (due.order.number, due.order.kind, due.order.args) == (detach.number, TaskKind.INTERFACES, TaskArgs())
        site.tasked(uuid, done)
        site.finish()
        assert (site.state(detach)[1], ports_of(site.cloud.api, uuid)) == (Outcome.DONE, {})

    def test_a_summary_missing_a_task_is_refreshed(self, site: Moved) -> None:
        [uuid] = site.active()
        site.api(mapping(uuid).values(power=Power.OFF))
        assert site.auditor.kinds() == [(servers.OUTDATED_SUMMARY, uuid)]
        assert site.auditor.repair() == []
        assert site.server(uuid).power is Power.ON

    def test_a_body_ended_only_in_cell_spares_server(self, site: Moved) -> None:
        [uuid] = site.active()
        operation = site.building(uuid)
        site.cell("cell1", sa.update(instance_table).where(instance_table.c.uuid == uuid).values(state=State.DELETED))
        assert (servers.CELL_ONLY, uuid) in site.auditor.kinds()
        assert (servers.CELL_ONLY, uuid) in site.auditor.repair()
        assert not site.server(uuid).deleted
        site.cell("cell1", sa.update(instance_table).where(instance_table.c.uuid == uuid).values(state=State.ACTIVE))
        site.give_up(operation)

    def test_a_task_of_an_inactive_row_is_forgotten(self, site: Moved) -> None:
        [uuid] = site.active()
        operation = site.cloud.operate(uuid, OperationKind.STOP)
        task = Task(number=operation.number, kind=TaskKind.POWER, power=Power.OFF)
        site.cloud.databases["cell1"].write(tasks.ask_tasks, [TaskFor(instance_uuid=uuid, task=task)], 80.0)
        site.cloud.delete(uuid)
        site.conductor.deleter.run_round()
        assert site.state(operation)[1] is Outcome.DELETED
        _, sweep = site.cloud.cell_conductor("cell1")
        sweep.resend_tasks()
        assert site.cloud.databases["cell1"].read(tasks.read_task, uuid) is None
        site.end(uuid)
