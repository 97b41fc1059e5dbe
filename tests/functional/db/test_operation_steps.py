"""Operations on servers at the API level: each step on the condition that its guard names, on every server that answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from db.api.claims import claims
from db.api.operations import operations, steps
from db.api.operations.operations import OperationQuery
from db.api.projects import quotas
from db.api.queue import builds
from db.api.reconcile import purge
from db.api.rows import metering
from db.api.servers import mappings
from db.audit import quotas as quota_audit
from db.sql.connection import Connection
from db.sql.engine import Database
from objects import errors
from objects.feed import EventKind
from objects.flavor import Flavor
from objects.operation import Operation, OperationArgs, OperationKind, OperationState, Outcome
from objects.quota import OwnLimits, QuotaLimits, QuotaUsage
from objects.task import Power, TaskState
from service import metrics
from tests.support.conductor import NOW, Queue
from tests.support.fleet import CELLS
from tests.support.moves import Moves

LARGE = Flavor(flavor_id="large", name="large", vcpus=4, memory_mb=4096, root_gb=10)
SMALL = QuotaUsage(instances=1, cores=1, ram=1024)


@pytest.fixture(params=["of projects", "of users"])
def moves(database: Database, request: pytest.FixtureRequest) -> Iterator[Moves]:
    """Both usages that are recorded are compared at the end of each test."""
    made = Moves(Queue(database))
    if request.param == "of users":
        database.write(quotas.change_user, "p", "u", OwnLimits(instances=-1), QuotaLimits())
    yield made
    assert database.read(quota_audit.list_differences) == []


def delete(moves: Moves, server: str) -> builds.Deleted | None:
    return moves.queue.delete(server)


# -- tasks -----------------------------------------------------------------------------------------------------------------------


def test_a_task_ends_once_its_cell_has_told(moves: Moves) -> None:
    server = moves.active()
    stop = moves.accept(server, OperationKind.STOP)
    moves.step("finish_tasks", stop)
    assert moves.state(stop) == ("task", None)
    moves.tell(server, EventKind.TASK, power=Power.OFF, task_number=stop.number, task_state=TaskState.ORDERED)
    moves.step("finish_tasks", stop)
    assert moves.state(stop) == ("task", None)
    moves.tell(server, EventKind.TASK, power=Power.OFF, task_number=stop.number, task_state=TaskState.DONE)
    moves.step("finish_tasks", stop)
    assert moves.state(stop) == ("ended", Outcome.DONE)
    assert moves.server(server).power is Power.OFF


def test_numbers_rise_from_operation_to_operation(moves: Moves) -> None:
    server = moves.active()
    first = moves.accept(server, OperationKind.STOP)
    moves.tell(server, EventKind.TASK, power=Power.OFF, task_number=first.number, task_state=TaskState.DONE)
    moves.step("finish_tasks", first)
    second = moves.accept(server, OperationKind.START)
    assert second.number == first.number + 4
    moves.step("finish_tasks", second)
    assert moves.state(second) == ("task", None), "the answer to an earlier task does not count"


def test_one_operation_at_a_time(moves: Moves) -> None:
    server = moves.active()
    stop = moves.accept(server, OperationKind.STOP)
    with pytest.raises(errors.Conflict, match=stop.uuid):
        moves.migrate(server)


@pytest.mark.parametrize(
    ("kind", "power"), [(OperationKind.START, Power.ON), (OperationKind.STOP, Power.OFF), (OperationKind.RESIZE, Power.PAUSED)]
)
def test_an_operation_needs_a_server_ready_for_it(moves: Moves, kind: OperationKind, power: Power) -> None:
    server = moves.active()
    moves.tell(server, EventKind.TASK, power=power)
    with pytest.raises(errors.Conflict, match="while it is in vm_state"):
        moves.accept(server, kind, flavor=LARGE)


def test_an_unknown_deleted_or_building_server_is_refused(moves: Moves) -> None:
    server, [queued] = moves.active(), moves.queue.claimed(1)
    with pytest.raises(errors.NotFound):
        moves.accept("11111111-0000-4000-8000-000000000000", OperationKind.STOP)
    with pytest.raises(errors.NotFound):
        moves.accept(server, OperationKind.STOP, scope="another project")
    with pytest.raises(errors.Conflict, match="building"):
        moves.accept(queued, OperationKind.STOP)
    assert delete(moves, server)
    with pytest.raises(errors.NotFound):
        moves.accept(server, OperationKind.STOP)


def test_an_overdue_task_restores_the_previous_target(moves: Moves) -> None:
    server = moves.active()
    stop = moves.accept(server, OperationKind.STOP)
    moves.step("time_out", stop)
    assert moves.state(stop) == ("starting", None)
    moves.step("finish_tasks", stop)
    assert moves.state(stop) == ("starting", None)
    moves.tell(server, EventKind.TASK, power=Power.ON, task_number=stop.number + 3, task_state=TaskState.ORDERED)
    moves.step("finish_tasks", stop)
    assert moves.state(stop) == ("ended", Outcome.GIVEN_UP)


# -- secrets of rebuilds ---------------------------------------------------------------------------------------------------------


def kept(moves: Moves, operation: Operation) -> str | None:
    return moves.database.read(operations.kept_secrets, [operation.uuid]).get(operation.uuid)


@pytest.mark.parametrize("state", [TaskState.DONE, TaskState.FAILED])
def test_a_rebuilds_secrets_are_erased_with_its_task(moves: Moves, state: TaskState) -> None:
    server, other = moves.active(), moves.active()
    rebuild = moves.accept(server, OperationKind.REBUILD, sealed="api:sealed")
    beside = moves.accept(other, OperationKind.REBUILD, sealed="api:other")
    moves.tell(server, EventKind.TASK, task_number=rebuild.number, task_state=TaskState.RUNNING)
    moves.step("finish_tasks", rebuild)
    assert kept(moves, rebuild) == "api:sealed"
    moves.tell(server, EventKind.TASK, task_number=rebuild.number, task_state=state)
    moves.step("finish_tasks", rebuild)
    assert (kept(moves, rebuild), kept(moves, beside)) == (None, "api:other")
    delete(moves, other)
    assert kept(moves, beside) is None


def test_a_rebuilds_secrets_are_erased_at_its_timeout(moves: Moves) -> None:
    rebuild = moves.accept(moves.active(), OperationKind.REBUILD, sealed="api:sealed")
    moves.step("time_out", rebuild)
    assert moves.state(rebuild) == ("starting", None)
    assert kept(moves, rebuild) is None


def test_an_evacuation_erases_an_ended_rebuilds_secrets(moves: Moves) -> None:
    server = moves.active()
    rebuild = moves.accept(server, OperationKind.REBUILD, sealed="api:sealed")
    moves.accept(server, OperationKind.EVACUATE)
    assert kept(moves, rebuild) is None


# -- moves -----------------------------------------------------------------------------------------------------------------------


def test_a_migration_ends_with_the_twin_as_server(moves: Moves) -> None:
    server = moves.active()
    operation = moves.moved(server)
    twin = operation.twin_uuid or ""
    assert moves.server(server).body_uuid == server
    assert moves.switch(operation).deleted == (server,)
    found = moves.server(server)
    assert (found.uuid, found.body_uuid, found.state, found.deleted) == (server, twin, "active", False)
    assert moves.shown(server) == [twin]
    assert moves.state(operation) == ("ended", Outcome.DONE)
    assert moves.used() == SMALL
    assert moves.body(server).server.deleted


def test_a_twin_waiting_for_its_source_is_unqueued(moves: Moves) -> None:
    """A guest may take minutes to shut down: no scheduler, host or conductor is missing meanwhile."""
    server, before = moves.active(), moves.database.read(mappings.measure_queue).depth
    operation = moves.migrate(server)
    assert moves.database.read(mappings.measure_queue).depth == before + 1
    assert moves.hold(moves.placed(operation))
    assert moves.database.read(mappings.measure_queue).depth == before
    assert sum(each.count for each in moves.database.read(metering.count_queued, 20)) == before
    moves.give_up(operation)


def test_others_know_a_moved_server_by_its_body(moves: Moves) -> None:
    """Hints that name it, its request, metrics and the purge."""
    server = moves.active()
    home = moves.body(server).server
    operation = moves.moved(server)
    counted = {each.name: each.count for each in moves.database.read(metering.open_operations)}
    moves.switch(operation)
    twin = operation.twin_uuid or ""
    left = {each.name: each.count for each in moves.database.read(metering.open_operations)}
    assert left.get("building", 0) == counted["building"] - 1
    assert moves.database.read(claims.hosts_of, "p", [server]) == {server: moves.body(twin).server.host}
    assert moves.database.read(claims.hosts_of, "p", [twin]) == {}, "it is no server"
    assert [each.body_uuid for each in moves.database.read(mappings.of_batch, home.batch_id)] == [twin]
    moves.tell(server, EventKind.ENDED, state="deleted", terminated_at=NOW)
    ahead = moves.queue.database.current_time() + 1e6
    assert server not in moves.database.read(purge.old_servers, ahead, {moves.cell}), "what it points to lives"
    delete(moves, server)
    moves.tell(twin, EventKind.ENDED, state="deleted", terminated_at=NOW)
    assert server not in moves.database.read(purge.old_servers, ahead, {moves.cell}), "its body is listed until it is purged"
    moves.database.write(purge.forget_servers, [twin])
    assert server in moves.database.read(purge.old_servers, ahead, {moves.cell})
    moves.database.write(purge.forget_servers, [server])
    assert moves.database.read(operations.get, [operation.uuid]) == []


def test_an_ended_operation_is_counted_after_its_commit(moves: Moves) -> None:
    counter = metrics.OPERATIONS_ENDED.labels(OperationKind.MIGRATE, Outcome.DONE)
    operation = moves.moved(moves.active())

    def lose(tx: Connection, stamp: claims.Stamp) -> None:
        steps.switch_servers(tx, stamp, [operation.uuid], NOW)  # type: ignore[arg-type]  # any transaction will do
        raise errors.Conflict("the transaction is lost")

    before = counter._value.get()
    with pytest.raises(errors.Conflict):
        moves.queue.ledger.write(lose)
    assert counter._value.get() == before
    moves.switch(operation)
    assert counter._value.get() == before + 1


def test_a_moved_server_moves_again(moves: Moves) -> None:
    server = moves.active()
    first = moves.moved(server)
    moves.switch(first)
    moves.tell_gone(server)
    second = moves.moved(server)
    assert second.source_uuid == first.twin_uuid
    assert moves.switch(second).deleted == (first.twin_uuid,)
    assert moves.shown(server) == [second.twin_uuid]
    assert moves.used() == SMALL


def test_the_twin_is_handed_over_after_holding_source(moves: Moves) -> None:
    server = moves.active()
    operation = moves.migrate(server)
    item = moves.placed(operation)
    assert not moves.hand_over(item), "not asked yet"
    assert moves.hold(item)
    moves.tell_held(server, operation.number, TaskState.RUNNING)
    assert not moves.hand_over(item), "asked, and not answered"
    moves.tell_held(server, operation.number, TaskState.FAILED)
    assert not moves.hand_over(item), "a hold that failed is no hold"
    moves.tell_held(server, operation.number - 4)
    assert not moves.hand_over(item), "the answer to another hold"
    moves.tell_held(server, operation.number)
    assert moves.hand_over(item)
    assert moves.state(operation) == ("building", None)
    assert not moves.hand_over(item), "once"


def test_an_evacuation_waits_for_row_not_host(moves: Moves) -> None:
    server = moves.active()
    operation = moves.accept(server, OperationKind.EVACUATE)
    item = moves.placed(operation)
    assert moves.hold(item)
    assert not moves.hand_over(item)
    moves.tell_held(server, operation.number, TaskState.ORDERED)
    assert moves.hand_over(item)


def test_an_evacuation_ends_a_task_that_is_open(moves: Moves) -> None:
    server = moves.active()
    stop = moves.accept(server, OperationKind.STOP)
    operation = moves.accept(server, OperationKind.EVACUATE)
    assert moves.state(stop) == ("ended", Outcome.GIVEN_UP)
    moves.give_up(operation)
    moves.step("given_up", operation)
    assert moves.state(operation)[0] == "starting", "the stop may come late, so the power is written again"


def test_switch_waits_for_the_twin(moves: Moves) -> None:
    server = moves.active()
    operation = moves.migrate(server)
    assert moves.switch(operation).operations == ()
    item = moves.placed(operation)
    moves.hold(item)
    moves.tell_held(server, operation.number)
    moves.hand_over(item)
    assert moves.switch(operation).operations == ()
    assert moves.shown(server) == [server]


@pytest.mark.parametrize("handed", [False, True])
def test_a_cancelled_operation_does_not_move_the_server(moves: Moves, handed: bool) -> None:
    server = moves.active()
    operation = moves.migrate(server)
    item = moves.placed(operation)
    assert moves.hold(item)
    moves.tell_held(server, operation.number)
    if handed:
        assert moves.hand_over(item)
    done = moves.give_up(operation, "No valid host was found.")
    assert done.deleted == ((item.instance_uuid,) if handed else ())
    assert not moves.hand_over(item)
    assert moves.switch(operation).operations == ()
    moves.step("given_up", operation)
    assert moves.state(operation)[0] == ("undoing" if handed else "starting"), "a twin that may still run is waited for"
    if handed:
        moves.tell_gone(item.instance_uuid)
        moves.step("given_up", operation)
    moves.tell(server, EventKind.TASK, power=Power.ON, task_number=operation.number + 3, task_state=TaskState.ORDERED)
    moves.step("finish_tasks", operation)
    assert moves.state(operation) == ("ended", Outcome.GIVEN_UP)
    assert (moves.shown(server), moves.used()) == ([server], SMALL)
    assert item.instance_uuid not in moves.queue.site.claimed()


def test_nothing_is_started_where_nothing_was_held(moves: Moves) -> None:
    server = moves.active()
    operation = moves.migrate(server)
    moves.give_up(operation)
    moves.step("given_up", operation)
    assert moves.state(operation) == ("ended", Outcome.GIVEN_UP)


def test_a_switch_cannot_be_given_up(moves: Moves) -> None:
    server = moves.active()
    operation = moves.moved(server, OperationKind.RESIZE, flavor=LARGE)
    moves.switch(operation)
    assert moves.give_up(operation).operations == ()
    assert moves.state(operation) == ("verify", None)


# -- resize ----------------------------------------------------------------------------------------------------------------------


def test_a_resize_charges_the_difference_and_awaits_confirmation(moves: Moves) -> None:
    server = moves.active()
    operation = moves.moved(server, OperationKind.RESIZE, flavor=LARGE)
    both = QuotaUsage(instances=1, cores=4, ram=4096)
    assert moves.used() == both
    assert moves.switch(operation).deleted == ()
    assert (moves.state(operation), moves.used()) == (("verify", None), both)
    assert moves.shown(server) == [operation.twin_uuid]
    assert moves.step("confirm_moves", operation, charges=True).deleted == (server,)
    assert (moves.state(operation), moves.used()) == (("ended", Outcome.DONE), both)
    assert moves.step("revert_moves", operation).operations == ()


def test_a_smaller_size_is_charged_from_confirmation(moves: Moves) -> None:
    server = moves.active(size=LARGE)
    operation = moves.moved(
        server, OperationKind.RESIZE, flavor=Flavor(flavor_id="s", name="s", vcpus=1, memory_mb=1024, root_gb=10)
    )
    moves.switch(operation)
    assert moves.used() == QuotaUsage(instances=1, cores=4, ram=4096)
    moves.step("confirm_moves", operation, charges=True)
    assert moves.used() == SMALL


def test_a_revert_points_back_after_holding_the_twin(moves: Moves) -> None:
    server = moves.active()
    operation = moves.moved(server, OperationKind.RESIZE, flavor=LARGE)
    twin = operation.twin_uuid or ""
    moves.switch(operation)
    moves.step("revert_moves", operation)
    assert moves.step("confirm_moves", operation, charges=True).operations == ()
    assert moves.step("point_back", operation, (), charges=True).operations == ()
    moves.tell_held(twin, operation.number + 2)
    assert moves.step("point_back", operation, (), charges=True).deleted == (twin,)
    assert (moves.shown(server), moves.used()) == ([server], SMALL)
    moves.tell(server, EventKind.TASK, power=Power.ON, task_number=operation.number + 3, task_state=TaskState.ORDERED)
    moves.step("finish_tasks", operation)
    assert moves.state(operation) == ("ended", Outcome.REVERTED)


def test_a_resize_beyond_the_quota_writes_nothing(moves: Moves) -> None:
    server = moves.active()
    before = moves.queue.mapped(), moves.queue.requests()
    with pytest.raises(errors.OverQuota, match="Quota exceeded for cores: Requested 3, but already used 1 of 2 cores"):
        moves.accept(server, OperationKind.RESIZE, flavor=LARGE, limits=QuotaLimits(cores=2))
    assert (moves.queue.mapped(), moves.queue.requests()) == before
    assert moves.used() == SMALL


def test_a_resize_beyond_the_users_quota_writes_nothing(moves: Moves) -> None:
    """Whoever else of the project asks for it."""
    server = moves.active()
    moves.database.write(quotas.change_user, "p", "u", OwnLimits(cores=2), QuotaLimits())
    before = moves.queue.mapped(), moves.queue.requests()
    with pytest.raises(errors.OverQuota, match="Requested 3, but already used 1 of 2 cores of this user"):
        moves.accept(server, OperationKind.RESIZE, flavor=LARGE, user_id="admin")
    assert (moves.queue.mapped(), moves.queue.requests()) == before
    moves.database.write(quotas.change_user, "p", "u", OwnLimits(cores=4), QuotaLimits())
    moves.accept(server, OperationKind.RESIZE, flavor=LARGE, user_id="admin")


def test_a_destination_in_another_cell_needs_leave(moves: Moves) -> None:
    server = moves.active()
    host = moves.server(server).host
    with pytest.raises(errors.Invalid, match="already"):
        moves.migrate(server, host=host)
    with pytest.raises(errors.Invalid, match="another cell"):
        moves.accept(server, OperationKind.MIGRATE, args=OperationArgs(host="far"), destination_cell="another")
    moves.accept(server, OperationKind.MIGRATE, args=OperationArgs(host="far", cross_cell=True), destination_cell="another")


# -- delete ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["placing", "holding", "building", "verify", "after"])
def test_a_delete_takes_every_body_and_the_operation(moves: Moves, moment: str) -> None:
    server = moves.active()
    operation = moves.accept(server, OperationKind.RESIZE, flavor=LARGE)
    twin = operation.twin_uuid or ""
    if moment != "placing":
        item = moves.placed(operation)
        moves.hold(item)
    if moment in ("building", "verify", "after"):
        moves.tell_held(server, operation.number)
        moves.hand_over(item)
    if moment in ("verify", "after"):
        moves.tell(twin, EventKind.ACTIVE)
        moves.switch(operation)
    if moment == "after":
        moves.step("confirm_moves", operation, charges=True)
    deleted = delete(moves, server)
    assert deleted is not None
    bodies = {"placing": {server}, "holding": {server}, "after": {twin}}.get(moment, {server, twin})
    assert set(deleted.bodies) == bodies
    assert moves.server(server).deleted
    assert moves.used() == QuotaUsage()
    assert moves.state(operation) == ("ended", Outcome.DONE if moment == "after" else Outcome.DELETED)
    assert delete(moves, server) is None
    assert moves.queue.requests() == {}
    assert moves.switch(operation).operations == moves.give_up(operation).operations == ()


def test_the_uuid_of_a_body_is_no_server(moves: Moves) -> None:
    server = moves.active()
    operation = moves.moved(server)
    assert delete(moves, operation.twin_uuid or "") is None
    with pytest.raises(errors.NotFound):
        moves.accept(operation.twin_uuid or "", OperationKind.STOP)


# -- what operators ask --------------------------------------------------------------------------------------------------------


def test_a_body_no_longer_the_server_never_moves(moves: Moves) -> None:
    """The caller may have judged its host long ago; an evacuation from a host that lives would run the server twice."""
    server = moves.active()
    judged = moves.server(server).body_uuid
    first = moves.moved(server)
    moves.switch(first)
    with pytest.raises(errors.Conflict, match="has just been moved to host"):
        moves.accept(server, OperationKind.EVACUATE, body_uuid=judged)
    moves.accept(server, OperationKind.EVACUATE, body_uuid=first.twin_uuid)


def test_operations_are_listed_by_server_host_cell_state(moves: Moves) -> None:
    server = moves.active()
    ended = moves.moved(server)
    moves.switch(ended)
    opened = moves.migrate(server)
    twin = moves.server(server)

    def listed(**filters: Any) -> list[str]:
        query = OperationQuery(server_uuid=server, **filters)
        return [each.uuid for each in moves.database.read(operations.list_, query)]

    assert listed() == [opened.uuid]
    assert sorted(listed(include_ended=True)) == sorted([opened.uuid, ended.uuid])
    assert len(listed(include_ended=True, limit=1)) == 1
    assert listed(host=twin.host) == [opened.uuid]
    assert listed(host="nowhere", include_ended=True) == []
    assert sorted(listed(cell_uuid=moves.cell, include_ended=True)) == sorted([opened.uuid, ended.uuid])
    assert listed(cell_uuid=CELLS[1], include_ended=True) == []
    assert listed(state=OperationState.PLACING) == [opened.uuid]
    assert listed(state=OperationState.ENDED, include_ended=True) == [ended.uuid]


def test_a_recently_cancelled_evacuation_is_known(moves: Moves) -> None:
    server, other = moves.active(), moves.active()

    def lately(kind: OperationKind, since: float) -> set[str]:
        return moves.database.read(operations.lately_given_up, {server, other}, kind, since)

    moves.give_up(evacuation := moves.accept(server, OperationKind.EVACUATE))
    assert lately(OperationKind.EVACUATE, NOW - 1) == set(), "it is not over"
    moves.step("given_up", evacuation)
    assert moves.state(evacuation) == ("ended", Outcome.GIVEN_UP)
    assert lately(OperationKind.EVACUATE, NOW - 1) == {server}
    assert lately(OperationKind.EVACUATE, NOW + 1) == set()
    assert lately(OperationKind.MIGRATE, NOW - 1) == set()
