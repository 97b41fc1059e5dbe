"""Operations from state to state. Each function locks what it changes, and leaves alone what is in another state by then.

``docs/moves.md`` has the guards and says what happens without each. All take several operations, so that one transaction serves
many; each returns those that it changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import RetryRequest

from db import outbox
from db.api.claims import claims
from db.api.operations import operations
from db.api.operations.operations import Body, Locked, OpenOperation
from db.api.projects import quotas
from db.api.rows.tables import build_requests, instance_mappings
from db.api.rows.tables import operations as table
from db.api.servers import addresses, edits, image_removals, mappings, names, server_images
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import KeyedDelete, by_index
from objects import errors, notification, stored, text
from objects.base import Object
from objects.operation import NOBODY, Initiator, Operation, OperationKind, OperationState, Outcome
from objects.quota import QuotaUsage, sum_shares
from objects.task import Power, StoredContent, TaskState

State = OperationState

_C = instance_mappings.c
_LOCK_REQUESTS = by_index(
    sa.select(build_requests.c.instance_uuid, build_requests.c.state, build_requests.c.fence)
    .where(build_requests.c.instance_uuid.in_(dialect.uuids_parameter()))
    .order_by(build_requests.c.instance_uuid)
    .with_for_update(),
    build_requests,
)
_TAKE_REQUESTS = KeyedDelete(build_requests.c.instance_uuid, returning=[build_requests.c.instance_uuid])
_FREE_LEASE = by_index(
    sa.update(build_requests)
    .where(build_requests.c.instance_uuid.in_(dialect.uuids_parameter()), build_requests.c.owner.is_(None))
    .values(lease_until=sa.bindparam("now")),
    build_requests,
)
_LEAVE = (
    sa.update(build_requests)
    .where(build_requests.c.instance_uuid == sa.bindparam("twin"))
    .values(owner=None, lease_until=sa.bindparam("until"))
)
_SET = by_index(
    sa.update(table)
    .where(table.c.uuid.in_(dialect.uuids_parameter()))
    .values(state=sa.bindparam("to"), updated_at=sa.bindparam("now")),
    table,
)
_START = by_index(
    sa.update(table)
    .where(table.c.uuid.in_(dialect.uuids_parameter()))
    .values(state=State.STARTING, power_before=Power.ON, updated_at=sa.bindparam("now")),
    table,
)
_HELD = by_index(sa.update(table).where(table.c.uuid.in_(dialect.uuids_parameter())).values(held=sa.true()), table)
_DUE_NOW = by_index(
    sa.update(table)
    .where(table.c.uuid.in_(dialect.uuids_parameter()), table.c.deadline > sa.bindparam("now"))
    .values(deadline=sa.bindparam("now")),
    table,
)
_FAULT = sa.update(table).where(table.c.uuid == sa.bindparam("op")).values(fault=sa.bindparam("why"))
_TARGET = sa.update(table).where(table.c.uuid == sa.bindparam("op")).values(target_host=sa.bindparam("to_host"))
_SHOW = by_index(
    sa.update(instance_mappings).where(_C.instance_uuid.in_(dialect.uuids_parameter())).values(hidden=sa.false()), instance_mappings
)
_HIDE = by_index(
    sa.update(instance_mappings).where(_C.instance_uuid.in_(dialect.uuids_parameter())).values(hidden=sa.true()), instance_mappings
)
_POINT = sa.update(instance_mappings).where(_C.instance_uuid == sa.bindparam("home")).values(body_uuid=sa.bindparam("body"))
_MARK = (
    sa.update(instance_mappings)
    .where(_C.instance_uuid == sa.bindparam("uuid"), _C.deleted.is_(sa.false()))
    .values(
        deleted=sa.true(),
        updated_at=sa.bindparam("now"),
        deleted_at=sa.bindparam("now"),
        deleted_by=sa.bindparam("request"),
        deleted_by_user=sa.bindparam("user"),
    )
)
_GONE = by_index(
    sa.update(instance_mappings)
    .where(_C.instance_uuid.in_(dialect.uuids_parameter()))
    .values(state="deleted", terminated_at=sa.bindparam("now")),
    instance_mappings,
)
_SHOW_FAULT = sa.update(instance_mappings).where(_C.instance_uuid == sa.bindparam("uuid")).values(fault=sa.bindparam("why"))
_IMAGE = (
    sa.update(instance_mappings)
    .where(_C.instance_uuid == sa.bindparam("uuid"))
    .values(image_id=sa.bindparam("to_image"), image_hash=sa.bindparam("to_hash"), rebuilt_from=sa.bindparam("from_image"))
)
_CHARGE = (
    sa.update(instance_mappings)
    .where(_C.instance_uuid == sa.bindparam("uuid"))
    .values(vcpus=sa.bindparam("cores"), memory_mb=sa.bindparam("ram"))
)


class Stepped(Object, frozen=True, kw_only=True):
    """What a step changed. ``operations``: those that it changed. ``deleted``: bodies whose deletes must reach their cells."""

    operations: tuple[OpenOperation, ...] = ()
    deleted: tuple[str, ...] = ()


NOTHING = Stepped()


# -- the twin, in the hands of the conductor that leased its request --------------------------------------------------------------


def hold_sources(tx: ApiTransaction, fences: Mapping[str, int], until: Mapping[str, float], now: float) -> dict[str, str]:
    """These twins are staged: from now on their sources are asked to be off. Returns the uuids of their operations, by twin.

    ``fences``: under which their requests are leased, by twin. A twin that is missing in the answer is lost: the caller stops.
    ``until``: by twin, when to lease it again if its source may still run. Nobody drives it until then, or until ``queue_twins``.
    """
    twin_operations = operations.of_twins(tx, _lock_leased(tx, fences))
    locked = operations.lock_operations(tx, [opened.uuid for opened in twin_operations.values()], (State.PLACING, State.HOLDING))
    fresh = [opened.operation.uuid for opened in locked.operations if opened.operation.state is State.PLACING]
    if fresh:
        tx.execute(_SET, {"uuids": fresh, "to": State.HOLDING, "now": now})
        guests = [opened.operation.uuid for opened in locked.operations if opened.operation.kind.holds_source]
        tx.execute(_HELD, {"uuids": [uuid for uuid in fresh if uuid in guests]})
    waiting = [opened.twin.uuid for opened in locked.operations if opened.twin is not None and not _is_source_held(opened)]
    if waiting:
        tx.execute(_LEAVE, [{"twin": twin, "until": until[twin]} for twin in waiting])
    return {opened.twin.uuid: opened.operation.uuid for opened in locked.operations if opened.twin is not None}


def lock_held(tx: ApiTransaction, fences: Mapping[str, int]) -> dict[str, Operation]:
    """Lock the operations of these twins whose sources may not run any more, with requests and bodies; return them by twin.

    ``fences``: under which the requests are leased. Twins whose sources may still run are left out: they wait for ``queue_twins``.
    """
    twin_operations = operations.of_twins(tx, _lock_leased(tx, fences))
    locked = operations.lock_operations(tx, [opened.uuid for opened in twin_operations.values()], (State.HOLDING,))
    return {
        opened.twin.uuid: opened.operation for opened in locked.operations if opened.twin is not None and _is_source_held(opened)
    }


def handed_over(tx: ApiTransaction, hosts: Mapping[str, str], now: float) -> None:
    """Twins of these operations were handed over to their cells in this transaction. ``hosts``: theirs, by operation."""
    tx.execute(_SET, {"uuids": sorted(hosts), "to": State.BUILDING, "now": now})
    tx.execute(_TARGET, [{"op": uuid, "to_host": host} for uuid, host in sorted(hosts.items())])


def _lock_leased(tx: ApiTransaction, fences: Mapping[str, int]) -> list[str]:
    """Lock these requests; return those that are still leased under their fences."""
    rows = tx.execute(_LOCK_REQUESTS, {"uuids": sorted(fences)}) if fences else ()
    return [row.instance_uuid for row in rows if row.state == "leased" and row.fence == fences[row.instance_uuid]]


def _is_source_held(opened: OpenOperation) -> bool:
    operation = opened.operation
    if not operation.kind.holds_source:  # there is no guest, or it goes over while it runs
        return opened.source is not None and not opened.source.server.deleted
    return opened.source is not None and opened.source.is_held(operation.number, forced=operation.forced)


# -- the sweep ---------------------------------------------------------------------------------------------------------------------


def queue_twins(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """Their sources are off: let the next conductor lease the twins' requests and hand them over.

    A request that a conductor drives keeps its lease: else each sweep would take the move from who is about to hand it over.
    """
    locked = _lock_with_requests(tx, uuids, (State.HOLDING,))
    ready = tuple(opened for opened in locked.operations if _is_source_held(opened))
    twins = [opened.twin.uuid for opened in ready if opened.twin is not None]
    if twins:
        tx.execute(_FREE_LEASE, {"uuids": sorted(twins), "now": now})
    return Stepped(operations=ready)


def send(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """The twins of live migrations listen: from now on their sources are asked to go over to them."""
    locked = operations.lock_operations(tx, uuids, (State.BUILDING,))
    ready = tuple(
        opened for opened in locked.operations if opened.operation.kind is OperationKind.LIVE_MIGRATE and _is_twin_listening(opened)
    )
    _set_state(tx, ready, State.SENDING, now)
    if ready:
        tx.execute(_HELD, {"uuids": [opened.operation.uuid for opened in ready]})
    return Stepped(operations=ready)


def _is_twin_listening(opened: OpenOperation) -> bool:
    source, twin = opened.source, opened.twin
    if source is None or twin is None or source.server.deleted or twin.server.deleted:
        return False
    return twin.server.state == "active"


def switch_servers(tx: ApiTransaction, stamp: claims.Stamp, uuids: Collection[str], now: float) -> Stepped:
    """The twins are ACTIVE: they are the servers now. Some wait for their users; of all others the sources are deleted."""
    locked = operations.lock_operations(tx, uuids, (State.BUILDING, State.SENDING))
    ready = [opened for opened in locked.operations if _may_switch(opened)]
    point_servers(tx, [(opened, opened.twin, opened.source) for opened in ready], now)
    waiting = [opened for opened in ready if opened.operation.waits_for_user]
    if waiting:
        tx.execute(_SET, {"uuids": [opened.operation.uuid for opened in waiting], "to": State.VERIFY, "now": now})
    deleted = _complete_moves(tx, stamp, [opened for opened in ready if opened not in waiting], now)
    return Stepped(operations=tuple(ready), deleted=tuple(deleted))


def _may_switch(opened: OpenOperation) -> bool:
    source, twin = opened.source, opened.twin
    if source is None or twin is None or source.server.deleted or source.hidden:
        return False
    if opened.operation.kind is OperationKind.LIVE_MIGRATE and not has_received(opened):
        return False
    return twin.server.state == "active" and not twin.server.deleted and twin.hidden


def has_received(opened: OpenOperation) -> bool:
    """Whether the twin of a live migration has answered that the guest has gone over to it. Only the twin's answer counts."""
    return _answer_of_twin(opened) is TaskState.DONE


def has_closed(opened: OpenOperation) -> bool:
    """Whether the twin has answered that it has received nothing. It has closed before that, so nothing goes over any more."""
    return _answer_of_twin(opened) is TaskState.FAILED


def _answer_of_twin(opened: OpenOperation) -> TaskState | None:
    is_sending = opened.operation.state is State.SENDING and opened.twin is not None
    return (
        opened.twin.task_answer
        if is_sending and opened.twin is not None and opened.twin.was_told(opened.operation.number + 2)
        else None
    )


def confirm_moves(tx: ApiTransaction, stamp: claims.Stamp, uuids: Collection[str], now: float) -> Stepped:
    """The user, or time, says that the moved server is right: delete what it was before, and charge its new size."""
    locked = operations.lock_operations(tx, uuids, (State.VERIFY,))
    return Stepped(operations=locked.operations, deleted=tuple(_complete_moves(tx, stamp, locked.operations, now)))


def revert_moves(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """The user wants the server as it was: its twin is asked to be off first."""
    locked = operations.lock_operations(tx, uuids, (State.VERIFY,))
    _set_state(tx, locked.operations, State.REVERTING, now)
    return Stepped(operations=locked.operations)


def point_back(tx: ApiTransaction, stamp: claims.Stamp, uuids: Collection[str], dead: Collection[str], now: float) -> Stepped:
    """The twins are off: their sources are the servers again. ``dead``: operations whose twins' hosts are called dead."""
    locked = _lock_with_requests(tx, uuids, (State.REVERTING,))
    ready = [opened for opened in locked.operations if _may_point_back(opened, forced=opened.operation.uuid in dead)]
    point_servers(tx, [(opened, opened.source, opened.twin) for opened in ready], now)
    deleted = drop_bodies(
        tx, stamp, [opened.twin for opened in ready if opened.twin is not None], _initiators_by_server(ready), now
    )
    _set_state(tx, ready, State.STARTING, now)
    return Stepped(operations=tuple(ready), deleted=tuple(deleted))


def _may_point_back(opened: OpenOperation, *, forced: bool) -> bool:
    source, twin, number = opened.source, opened.twin, opened.operation.number + 2
    if source is None or twin is None or source.server.deleted:
        return False
    return twin.is_held(number, forced=forced)


def give_up(
    tx: ApiTransaction,
    stamp: claims.Stamp,
    faults: Mapping[str, str],
    now: float,
    fences: Mapping[str, int] | None = None,
    dead: Collection[str] = (),
) -> Stepped:
    """End these operations without their twins; their servers stay where they are. ``faults``: the reasons, by operation.

    ``fences``: only those whose twins' requests are leased under these, by twin: what a conductor may give up. ``dead``: operations
    whose twins' hosts are called dead. A live migration that sends is otherwise given up only after its twin has closed.
    """
    locked = _lock_with_requests(tx, faults, (State.PLACING, State.HOLDING, State.BUILDING, State.SENDING))
    operations_here = tuple(
        opened
        for opened in locked.operations
        if opened.operation.state is not State.SENDING or has_closed(opened) or opened.operation.uuid in dead
    )
    if fences is not None:
        mine = set(_lock_leased(tx, fences))
        operations_here = tuple(opened for opened in operations_here if opened.operation.twin_uuid in mine)
    deleted = drop_bodies(
        tx,
        stamp,
        [opened.twin for opened in operations_here if opened.twin is not None],
        _initiators_by_server(operations_here),
        now,
    )
    _set_state(tx, operations_here, State.UNDOING, now)
    _execute_each(tx, _FAULT, [_fault_parameters(opened.operation.uuid, faults) for opened in operations_here])
    return Stepped(operations=operations_here, deleted=tuple(deleted))


def recall_migrations(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """End live migrations that send, as at their deadlines: their twins are asked whether the guests have gone over."""
    locked = operations.lock_operations(tx, uuids, (State.SENDING,))
    if locked.operations:
        tx.execute(_DUE_NOW, {"uuids": [opened.operation.uuid for opened in locked.operations], "now": now})
    return Stepped(operations=locked.operations)


def abort_operation(ledger: claims.Ledger, operation_uuid: str, why: str) -> Stepped:
    """Give up an operation that is under way, or recall it if it sends. It changed nothing if it is in another state.

    Raises errors.NotCompared for a frozen one.
    """
    database = ledger.database
    for operation in database.read(operations.get, [operation_uuid]):
        operations.refuse_frozen(operation)
    stepped = ledger.write(give_up, {operation_uuid: why}, database.current_time())
    return stepped if stepped.operations else database.write(recall_migrations, [operation_uuid], database.current_time())


def given_up(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """The twins have ended: write back what the users had wanted of the sources, where these were asked to be off."""
    locked = operations.lock_operations(tx, uuids, (State.UNDOING,))
    over = [opened for opened in locked.operations if opened.twin is None or _has_ended(opened.twin)]
    _set_state(tx, [opened for opened in over if opened.operation.held], State.STARTING, now)
    operations.end_operations(tx, [opened.operation for opened in over if not opened.operation.held], Outcome.GIVEN_UP, now)
    respawned = [opened for opened in over if opened.operation.kind is OperationKind.RESPAWN]
    _execute_each(tx, _SHOW_FAULT, [{"uuid": opened.operation.source_uuid, "why": _both_faults(opened)} for opened in respawned])
    return Stepped(operations=tuple(over))


def _both_faults(opened: OpenOperation) -> str:
    """What happened in the first cell and in the other one."""
    first = opened.source.server.fault if opened.source is not None else None
    return text.clean_text(f"{first or ''} In another cell: {opened.operation.fault or ''}".strip(), text.FAULTS_SIZE)


def _has_ended(twin: Body) -> bool:
    return twin.server.deleted and twin.server.state == "deleted"


def start_again(tx: ApiTransaction, uuids: Collection[str], state: OperationState, now: float) -> Stepped:
    """Users want these servers back that are off on their hosts, shelved or soft-deleted as ``state`` says: start them there."""
    locked = operations.lock_operations(tx, uuids, (state,))
    if locked.operations:
        tx.execute(_START, {"uuids": [opened.operation.uuid for opened in locked.operations], "now": now})
    return Stepped(operations=locked.operations)


def reclaim_servers(tx: ApiTransaction, stamp: claims.Stamp, uuids: Collection[str], now: float) -> Stepped:
    """Delete these servers, which are still soft-deleted: their users have not restored them in time."""
    locked = operations.lock_operations(tx, uuids, (State.SOFT_DELETED,))
    carried: list[str] = []
    for opened in locked.operations:
        if opened.source is not None:
            carried += _end_server(
                tx, stamp, opened.source, [opened.source], opened.operation, Initiator.of_operation(opened.operation), now
            )
    return Stepped(operations=locked.operations, deleted=tuple(carried))


def time_out(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """Tasks past their deadlines: what the users had wanted before is written under higher numbers."""
    locked = operations.lock_operations(tx, uuids, (State.TASK,))
    _set_state(tx, locked.operations, State.STARTING, now)
    operations.erase_secrets(tx, [opened.operation.uuid for opened in locked.operations])
    why = "The host did not carry it out in time."
    _execute_each(tx, _FAULT, [{"op": opened.operation.uuid, "why": why} for opened in locked.operations])
    return Stepped(operations=locked.operations)


def finish_tasks(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """End operations in *task* whose tasks are over, and those in *starting* whose cells have the start.

    A server whose snapshot is complete is shelved. If the snapshot has failed, the server is started again as it was. So is one
    whose image, for example, has failed: it may not be shown in ERROR. An interface that its guest does not have is the server's no
    more: its addresses are free.
    """
    locked = operations.lock_operations(tx, uuids, (State.TASK, State.STARTING))
    done, failed, back = list[OpenOperation](), list[OpenOperation](), list[OpenOperation]()
    for opened in locked.operations:
        server = opened.source.server if opened.source is not None else None
        if server is None or server.deleted:
            back.append(opened)
        elif opened.operation.state is State.STARTING:
            back += [opened] if has_started(opened) else []
        elif server.task_number == opened.operation.number and server.task_state.is_over:
            has_failed = server.task_state is TaskState.FAILED and opened.operation.kind is not OperationKind.FAIL
            (failed if has_failed else done).append(opened)
    _execute_each(tx, _FAULT, [{"op": opened.operation.uuid, "why": _fault_of_task(opened)} for opened in failed])
    shelved = [opened for opened in done if opened.operation.kind is OperationKind.SHELVE]
    done = [opened for opened in done if opened not in shelved]
    unchanged = [opened for opened in failed if _goes_back(opened.operation.kind)]
    failed = [opened for opened in failed if opened not in unchanged]
    _set_state(tx, shelved, State.SHELVED, now)
    _set_state(tx, unchanged, State.STARTING, now)
    operations.erase_secrets(tx, [opened.operation.uuid for opened in unchanged])
    rebuilt = [opened.operation for opened in done if opened.operation.kind is OperationKind.REBUILD]
    _execute_each(tx, _IMAGE, [_image_of(operation) for operation in rebuilt])
    for opened in (*done, *back):
        if opened.operation.args.mac is not None and _is_without_interface(opened):
            addresses.detach_interface(tx, opened.operation.server_uuid, opened.operation.args.mac, now)
    server_images.complete_images(tx, [(opened.operation, _stored_content(opened)) for opened in done], now)
    operations.end_operations(tx, [opened.operation for opened in done], Outcome.DONE, now)
    operations.end_operations(tx, [opened.operation for opened in failed], Outcome.FAILED, now)
    operations.end_operations(tx, [opened.operation for opened in back if opened.operation.fault], Outcome.GIVEN_UP, now)
    operations.end_operations(tx, [opened.operation for opened in back if not opened.operation.fault], Outcome.REVERTED, now)
    return Stepped(operations=(*done, *shelved, *failed, *unchanged, *back))


def _image_of(operation: Operation) -> dict[str, str | None]:
    """The image of a server that was rebuilt."""
    args = operation.args
    image = None if args.rebuilt_from is None else stored.dump_value(args.rebuilt_from)
    return {"uuid": operation.source_uuid, "to_image": args.image_id, "to_hash": args.image_hash or None, "from_image": image}


def has_started(opened: OpenOperation) -> bool:
    """Whether the cell has the start of an operation in *starting*: if it settles interfaces, whether that has ended there."""
    server, number = opened.source.server if opened.source is not None else None, opened.operation.number + 3
    if server is None or server.deleted or server.state == "deleted" or server.task_number > number:
        return True
    return server.task_number == number and (server.task_state.is_over or not opened.operation.settles_interfaces)


def _goes_back(kind: OperationKind) -> bool:
    """Whether a task that failed leaves the server as it was before, which is written into its cell again."""
    return kind is OperationKind.SHELVE or kind.is_harmless or kind.changes_interfaces


def _is_without_interface(opened: OpenOperation) -> bool:
    """Whether the cell has told that the guest does not have the interface of this operation, which ends."""
    operation, server = opened.operation, opened.source.server if opened.source is not None else None
    removes = OperationKind.ATTACH_INTERFACE if operation.state is State.STARTING else OperationKind.DETACH_INTERFACE
    if server is None or server.deleted or operation.kind is not removes:
        return False
    number = operation.number + (3 if operation.state is State.STARTING else 0)
    return server.task_number == number and server.task_state is TaskState.DONE


def _stored_content(opened: OpenOperation) -> StoredContent | None:
    """What the host of the source has written into the image store."""
    return opened.source.server.task_stored if opened.source is not None else None


def _fault_of_task(opened: OpenOperation) -> str:
    return (opened.source.server.task_fault if opened.source is not None else None) or "The host gave no reason."


# -- inside ------------------------------------------------------------------------------------------------------------------------


def _execute_each(tx: ApiTransaction, statement: sa.Update, rows: Sequence[Mapping[str, Any]]) -> None:
    """Execute the statement for each of these rows of parameters."""
    if rows:
        tx.execute(statement, rows)


def _lock_with_requests(tx: ApiTransaction, uuids: Collection[str], states: Collection[OperationState]) -> Locked:
    lock_requests(tx, [operation.twin_uuid for operation in operations.get(tx, sorted(uuids)) if operation.twin_uuid is not None])
    return operations.lock_operations(tx, uuids, states)


def lock_requests(tx: ApiTransaction, bodies: Sequence[str]) -> None:
    """Lock the build requests of these bodies that are still queued: before the bodies."""
    if bodies:
        tx.execute(_LOCK_REQUESTS, {"uuids": sorted(bodies)}).all()


def _set_state(tx: ApiTransaction, opened_operations: Sequence[OpenOperation], state: OperationState, now: float) -> None:
    if opened_operations:
        tx.execute(_SET, {"uuids": [opened.operation.uuid for opened in opened_operations], "to": state, "now": now})


def _fault_parameters(uuid: str, faults: Mapping[str, str]) -> dict[str, str]:
    return {"op": uuid, "why": text.clean_text(faults[uuid], text.FAULTS_SIZE)}


def point_servers(tx: ApiTransaction, turns: Sequence[tuple[OpenOperation, Body | None, Body | None]], now: float) -> None:
    """Point each server to another body: (operation, body to show, body to hide). All rows are locked."""
    if not turns:
        return
    tx.execute(_SHOW, {"uuids": [shown.uuid for _, shown, _ in turns if shown is not None]})
    tx.execute(_HIDE, {"uuids": [hidden.uuid for _, _, hidden in turns if hidden is not None]})
    pointed = [(opened.operation, shown, hidden) for opened, shown, hidden in turns if shown is not None]
    tx.execute(_POINT, [{"home": operation.server_uuid, "body": shown.uuid} for operation, shown, _ in pointed])
    if outbox.is_kept(tx):
        outbox.put_notices(
            tx,
            "api",
            [
                notification.of_switch(
                    operation.server_uuid, operation.uuid, shown.server, hidden.server.state if hidden else "active", now
                )
                for operation, shown, hidden in pointed
            ],
        )


def _complete_moves(tx: ApiTransaction, stamp: claims.Stamp, opened_operations: Sequence[OpenOperation], now: float) -> list[str]:
    """The ends of moves that came to their goal: delete the sources, and charge the twins for what they are."""
    if not opened_operations:
        return []
    for opened in opened_operations:
        if opened.twin is None:
            raise errors.Conflict(f"operation {opened.operation.uuid} has lost its twin")
    deleted = drop_bodies(
        tx,
        stamp,
        [opened.source for opened in opened_operations if opened.source is not None],
        _initiators_by_server(opened_operations),
        now,
    )
    charge_twins(tx, opened_operations)
    operations.end_operations(tx, [opened.operation for opened in opened_operations], Outcome.DONE, now)
    return deleted


def charge_twins(tx: ApiTransaction, opened_operations: Sequence[OpenOperation]) -> None:
    """Charge the twins of these operations for their whole size: they are the servers now."""
    charged_for = [
        (opened.operation.twin_uuid, opened.operation.vcpus or 0, opened.operation.memory_mb or 0) for opened in opened_operations
    ]
    _execute_each(tx, _CHARGE, [{"uuid": uuid, "cores": cores, "ram": ram} for uuid, cores, ram in charged_for])
    growth: list[tuple[str, str, QuotaUsage]] = []
    for opened, twin in [(opened, opened.twin) for opened in opened_operations if opened.twin is not None]:
        more_cores, more_ram = (opened.operation.vcpus or 0) - twin.charge[0], (opened.operation.memory_mb or 0) - twin.charge[1]
        growth.append((opened.operation.project_id, twin.server.user_id, QuotaUsage(cores=more_cores, ram=more_ram)))
    for project_id, more in sum_shares(growth).items():
        quotas.add_usage(tx, project_id, more)


def store_fault(tx: ApiTransaction, uuid: str, fault: str) -> None:
    """Store why the operation comes to nothing."""
    tx.execute(_FAULT, {"op": uuid, "why": fault})


def _initiators_by_server(opened_operations: Sequence[OpenOperation]) -> dict[str, Initiator]:
    """Who asked for these operations, by server."""
    return {opened.operation.server_uuid: Initiator.of_operation(opened.operation) for opened in opened_operations}


def drop_bodies(
    tx: ApiTransaction, stamp: claims.Stamp, bodies: Sequence[Body], initiators: Mapping[str, Initiator], now: float
) -> list[str]:
    """Mark these bodies deleted and free their charges. Those in no cell are gone at once; returns those that a cell has to delete.

    ``initiators``: who ends them, by server.
    """
    live = [body for body in bodies if not body.server.deleted]
    if not live:
        return []
    by = {body.uuid: initiators.get(body.server.uuid, NOBODY) for body in live}
    tx.execute(
        _MARK,
        [{"uuid": uuid, "now": now, "request": initiator.request_id, "user": initiator.user_id} for uuid, initiator in by.items()],
    )
    _TAKE_REQUESTS(tx, sorted(body.uuid for body in live))
    gone = sorted(body.uuid for body in live if body.server.cell_uuid is None)
    if gone:
        tx.execute(_GONE, {"uuids": gone, "now": now})
    image_removals.add_removals(
        tx, dict.fromkeys(snapshots_of(tx, [body for body in live if body.server.is_shelved]).values()), now
    )
    freed = [(b.server.project_id, b.server.user_id, QuotaUsage(cores=b.charge[0], ram=b.charge[1])) for b in live]
    for project_id, less in sum_shares(freed).items():
        quotas.release_usage(tx, project_id, less)
    claims.release_claims(tx, stamp, gone)
    if over := [body.uuid for body in live if body.uuid in gone or body.server.state == "deleted"]:
        addresses.free_addresses(tx, over, now)
    return [body.uuid for body in live if body.uuid not in gone]


def snapshots_of(tx: ApiTransaction, shelved: Collection[Body]) -> dict[str, str]:
    """The snapshots of these shelved bodies, by body. One whose spec cannot be read is left out."""
    specs = mappings.specs_by_batch(tx, {body.server.batch_id for body in shelved}) if shelved else {}
    moves = {body.uuid: spec.move for body in shelved if (spec := specs.get(body.server.batch_id)) is not None}
    return {uuid: move.image_id for uuid, move in moves.items() if move is not None and move.image_id is not None}


def delete(
    tx: ApiTransaction,
    stamp: claims.Stamp,
    server_uuid: str,
    initiator: Initiator,
    now: float,
    *,
    ignores_lock: bool = False,
    reclaims: bool = True,
) -> list[str] | None:
    """Delete a server that has had operations: all its bodies with their charges, and its open operation.

    ``reclaims``: also one that is soft-deleted; else that one stays so.
    Returns the bodies that cells have to delete; None if the server is deleted already. Raises errors.Conflict for a locked server,
    unless ``ignores_lock``, and errors.NotCompared while its operation is frozen.
    """
    home = operations.read_body(tx, server_uuid)
    shown = home.body_uuid or server_uuid
    before = operations.open_for(tx, [server_uuid]).get(server_uuid)
    twins = [before.twin_uuid] if before is not None and before.twin_uuid is not None else []
    lock_requests(tx, twins)
    source = [before.source_uuid] if before is not None and before.source_uuid is not None else []
    bodies = operations.lock_bodies(tx, {server_uuid, shown, *twins, *source})
    now_open = operations.open_for(tx, [server_uuid]).get(server_uuid)
    if bodies[server_uuid].body_uuid != home.body_uuid or (now_open and now_open.uuid) != (before and before.uuid):
        raise RetryRequest(LookupError(f"server {server_uuid} was just changed by an operation"))
    if shown not in bodies:
        raise errors.Conflict(
            f"instance_mappings instance_uuid={server_uuid} column body_uuid names no row: an operator has to correct this row"
        )
    if bodies[shown].server.deleted:
        return None
    edits.check_lock(server_uuid, bodies[shown].server.locked_by, ignored=ignores_lock)
    operations.refuse_frozen(now_open)
    if now_open is not None and now_open.state is State.SOFT_DELETED and not reclaims:
        return []
    return _end_server(tx, stamp, bodies[shown], list(bodies.values()), now_open, initiator, now)


def _end_server(
    tx: ApiTransaction,
    stamp: claims.Stamp,
    shown: Body,
    bodies: Sequence[Body],
    opened: Operation | None,
    initiator: Initiator,
    now: float,
) -> list[str]:
    """Delete these locked bodies of a server, of which users see ``shown``, and end its open operation.

    Returns the bodies that cells have to delete.
    """
    server_uuid = shown.server.uuid
    carried = drop_bodies(tx, stamp, bodies, {server_uuid: initiator}, now)
    names.free_name(tx, server_uuid)
    quotas.release_usage(tx, shown.server.project_id, {shown.server.user_id: QuotaUsage(instances=1)})
    if outbox.is_kept(tx) and (shown.server.turn or (opened is not None and opened.held)):
        outbox.put_notices(tx, "api", notification.of_moved_delete(server_uuid, shown.server.host, now))
    if opened is not None:
        operations.end_operations(tx, [opened], Outcome.DELETED, now)
    return carried
