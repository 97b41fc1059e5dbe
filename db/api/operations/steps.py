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
from objects.quota import QuotaUsage, shares
from objects.task import Power, StoredContent, TaskState

State = OperationState

_C = instance_mappings.c
_LOCK_REQUESTS = by_index(
    sa.select(build_requests.c.instance_uuid, build_requests.c.state, build_requests.c.fence)
    .where(build_requests.c.instance_uuid.in_(dialect.uuids()))
    .order_by(build_requests.c.instance_uuid)
    .with_for_update(),
    build_requests,
)
_TAKE_REQUESTS = KeyedDelete(build_requests.c.instance_uuid, returning=[build_requests.c.instance_uuid])
_FREE_LEASE = by_index(
    sa.update(build_requests)
    .where(build_requests.c.instance_uuid.in_(dialect.uuids()), build_requests.c.owner.is_(None))
    .values(lease_until=sa.bindparam("now")),
    build_requests,
)
_LEAVE = (
    sa.update(build_requests)
    .where(build_requests.c.instance_uuid == sa.bindparam("twin"))
    .values(owner=None, lease_until=sa.bindparam("until"))
)
_SET = by_index(
    sa.update(table).where(table.c.uuid.in_(dialect.uuids())).values(state=sa.bindparam("to"), updated_at=sa.bindparam("now")),
    table,
)
_START = by_index(
    sa.update(table)
    .where(table.c.uuid.in_(dialect.uuids()))
    .values(state=State.STARTING, power_before=Power.ON, updated_at=sa.bindparam("now")),
    table,
)
_HELD = by_index(sa.update(table).where(table.c.uuid.in_(dialect.uuids())).values(held=sa.true()), table)
_DUE_NOW = by_index(
    sa.update(table)
    .where(table.c.uuid.in_(dialect.uuids()), table.c.deadline > sa.bindparam("now"))
    .values(deadline=sa.bindparam("now")),
    table,
)
_FAULT = sa.update(table).where(table.c.uuid == sa.bindparam("op")).values(fault=sa.bindparam("why"))
_TARGET = sa.update(table).where(table.c.uuid == sa.bindparam("op")).values(target_host=sa.bindparam("to_host"))
_SHOW = by_index(
    sa.update(instance_mappings).where(_C.instance_uuid.in_(dialect.uuids())).values(hidden=sa.false()), instance_mappings
)
_HIDE = by_index(
    sa.update(instance_mappings).where(_C.instance_uuid.in_(dialect.uuids())).values(hidden=sa.true()), instance_mappings
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
    .where(_C.instance_uuid.in_(dialect.uuids()))
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


def hold(tx: ApiTransaction, fences: Mapping[str, int], until: Mapping[str, float], now: float) -> dict[str, str]:
    """These twins are staged: from now on their sources are asked to be off. Returns the uuids of their operations, by twin.

    ``fences``: under which their requests are leased, by twin. A twin that is missing in the answer is lost: the caller stops.
    ``until``: by twin, when to lease it again if its source may still run. Nobody drives it until then, or until ``due``.
    """
    found = operations.of_twins(tx, _leased(tx, fences))
    locked = operations.lock(tx, [each.uuid for each in found.values()], (State.PLACING, State.HOLDING))
    fresh = [each.operation.uuid for each in locked.operations if each.operation.state is State.PLACING]
    if fresh:
        tx.execute(_SET, {"uuids": fresh, "to": State.HOLDING, "now": now})
        guests = [each.operation.uuid for each in locked.operations if each.operation.kind.holds]
        tx.execute(_HELD, {"uuids": [uuid for uuid in fresh if uuid in guests]})
    waiting = [each.twin.uuid for each in locked.operations if each.twin is not None and not _is_source_held(each)]
    if waiting:
        tx.execute(_LEAVE, [{"twin": twin, "until": until[twin]} for twin in waiting])
    return {each.twin.uuid: each.operation.uuid for each in locked.operations if each.twin is not None}


def held(tx: ApiTransaction, fences: Mapping[str, int]) -> dict[str, Operation]:
    """Lock the operations of these twins whose sources may not run any more, with requests and bodies; return them by twin.

    ``fences``: under which the requests are leased. Twins whose sources may still run are left out: they wait for ``due``.
    """
    found = operations.of_twins(tx, _leased(tx, fences))
    locked = operations.lock(tx, [each.uuid for each in found.values()], (State.HOLDING,))
    return {each.twin.uuid: each.operation for each in locked.operations if each.twin is not None and _is_source_held(each)}


def handed_over(tx: ApiTransaction, hosts: Mapping[str, str], now: float) -> None:
    """Twins of these operations were handed over to their cells in this transaction. ``hosts``: theirs, by operation."""
    tx.execute(_SET, {"uuids": sorted(hosts), "to": State.BUILDING, "now": now})
    tx.execute(_TARGET, [{"op": uuid, "to_host": host} for uuid, host in sorted(hosts.items())])


def _leased(tx: ApiTransaction, fences: Mapping[str, int]) -> list[str]:
    """Lock these requests; return those that are still leased under their fences."""
    rows = tx.execute(_LOCK_REQUESTS, {"uuids": sorted(fences)}) if fences else ()
    return [row.instance_uuid for row in rows if row.state == "leased" and row.fence == fences[row.instance_uuid]]


def _is_source_held(each: OpenOperation) -> bool:
    operation = each.operation
    if not operation.kind.holds:  # there is no guest, or it goes over while it runs
        return each.source is not None and not each.source.server.deleted
    return each.source is not None and each.source.is_held(operation.number, forced=operation.forced)


# -- the sweep ---------------------------------------------------------------------------------------------------------------------


def due(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """Their sources are off: let the next conductor lease the twins' requests and hand them over.

    A request that a conductor drives keeps its lease: else each sweep would take the move from who is about to hand it over.
    """
    locked = _lock_with_requests(tx, uuids, (State.HOLDING,))
    ready = tuple(each for each in locked.operations if _is_source_held(each))
    twins = [each.twin.uuid for each in ready if each.twin is not None]
    if twins:
        tx.execute(_FREE_LEASE, {"uuids": sorted(twins), "now": now})
    return Stepped(operations=ready)


def send(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """The twins of live migrations listen: from now on their sources are asked to go over to them."""
    locked = operations.lock(tx, uuids, (State.BUILDING,))
    ready = tuple(each for each in locked.operations if each.operation.kind is OperationKind.LIVE_MIGRATE and _listens(each))
    _set(tx, ready, State.SENDING, now)
    if ready:
        tx.execute(_HELD, {"uuids": [each.operation.uuid for each in ready]})
    return Stepped(operations=ready)


def _listens(each: OpenOperation) -> bool:
    source, twin = each.source, each.twin
    if source is None or twin is None or source.server.deleted or twin.server.deleted:
        return False
    return twin.server.state == "active"


def switch(tx: ApiTransaction, stamp: claims.Stamp, uuids: Collection[str], now: float) -> Stepped:
    """The twins are ACTIVE: they are the servers now. Some wait for their users; of all others the sources are deleted."""
    locked = operations.lock(tx, uuids, (State.BUILDING, State.SENDING))
    ready = [each for each in locked.operations if _may_switch(each)]
    point(tx, [(each, each.twin, each.source) for each in ready], now)
    waiting = [each for each in ready if each.operation.waits]
    if waiting:
        tx.execute(_SET, {"uuids": [each.operation.uuid for each in waiting], "to": State.VERIFY, "now": now})
    deleted = _part(tx, stamp, [each for each in ready if each not in waiting], now)
    return Stepped(operations=tuple(ready), deleted=tuple(deleted))


def _may_switch(each: OpenOperation) -> bool:
    source, twin = each.source, each.twin
    if source is None or twin is None or source.server.deleted or source.hidden:
        return False
    if each.operation.kind is OperationKind.LIVE_MIGRATE and not has_received(each):
        return False
    return twin.server.state == "active" and not twin.server.deleted and twin.hidden


def has_received(each: OpenOperation) -> bool:
    """Whether the twin of a live migration has answered that the guest has gone over to it. Only the twin's answer counts."""
    return _answer_of_twin(each) is TaskState.DONE


def has_closed(each: OpenOperation) -> bool:
    """Whether the twin has answered that it has received nothing. It has closed before that, so nothing goes over any more."""
    return _answer_of_twin(each) is TaskState.FAILED


def _answer_of_twin(each: OpenOperation) -> TaskState | None:
    asked = each.operation.state is State.SENDING and each.twin is not None
    return each.twin.answer if asked and each.twin is not None and each.twin.was_told(each.operation.number + 2) else None


def confirm(tx: ApiTransaction, stamp: claims.Stamp, uuids: Collection[str], now: float) -> Stepped:
    """The user, or time, says that the moved server is right: delete what it was before, and charge its new size."""
    locked = operations.lock(tx, uuids, (State.VERIFY,))
    return Stepped(operations=locked.operations, deleted=tuple(_part(tx, stamp, locked.operations, now)))


def revert(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """The user wants the server as it was: its twin is asked to be off first."""
    locked = operations.lock(tx, uuids, (State.VERIFY,))
    _set(tx, locked.operations, State.REVERTING, now)
    return Stepped(operations=locked.operations)


def point_back(tx: ApiTransaction, stamp: claims.Stamp, uuids: Collection[str], dead: Collection[str], now: float) -> Stepped:
    """The twins are off: their sources are the servers again. ``dead``: operations whose twins' hosts are called dead."""
    locked = _lock_with_requests(tx, uuids, (State.REVERTING,))
    ready = [each for each in locked.operations if _may_point_back(each, forced=each.operation.uuid in dead)]
    point(tx, [(each, each.source, each.twin) for each in ready], now)
    deleted = drop(tx, stamp, [each.twin for each in ready if each.twin is not None], _initiators(ready), now)
    _set(tx, ready, State.STARTING, now)
    return Stepped(operations=tuple(ready), deleted=tuple(deleted))


def _may_point_back(each: OpenOperation, *, forced: bool) -> bool:
    source, twin, number = each.source, each.twin, each.operation.number + 2
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
    some = tuple(
        each
        for each in locked.operations
        if each.operation.state is not State.SENDING or has_closed(each) or each.operation.uuid in dead
    )
    if fences is not None:
        mine = set(_leased(tx, fences))
        some = tuple(each for each in some if each.operation.twin_uuid in mine)
    deleted = drop(tx, stamp, [each.twin for each in some if each.twin is not None], _initiators(some), now)
    _set(tx, some, State.UNDOING, now)
    _each(tx, _FAULT, [_reason(each.operation.uuid, faults) for each in some])
    return Stepped(operations=some, deleted=tuple(deleted))


def recall(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """End live migrations that send, as at their deadlines: their twins are asked whether the guests have gone over."""
    locked = operations.lock(tx, uuids, (State.SENDING,))
    if locked.operations:
        tx.execute(_DUE_NOW, {"uuids": [each.operation.uuid for each in locked.operations], "now": now})
    return Stepped(operations=locked.operations)


def abort(ledger: claims.Ledger, operation_uuid: str, why: str) -> Stepped:
    """Give up an operation that is under way, or recall it if it sends. It changed nothing if it is in another state.

    Raises errors.NotCompared for a frozen one.
    """
    database = ledger.database
    for operation in database.read(operations.get, [operation_uuid]):
        operations.refuse_frozen(operation)
    stepped = ledger.write(give_up, {operation_uuid: why}, database.now())
    return stepped if stepped.operations else database.write(recall, [operation_uuid], database.now())


def given_up(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """The twins have ended: write back what the users had wanted of the sources, where these were asked to be off."""
    locked = operations.lock(tx, uuids, (State.UNDOING,))
    over = [each for each in locked.operations if each.twin is None or _has_ended(each.twin)]
    _set(tx, [each for each in over if each.operation.held], State.STARTING, now)
    operations.end(tx, [each.operation for each in over if not each.operation.held], Outcome.GIVEN_UP, now)
    respawned = [each for each in over if each.operation.kind is OperationKind.RESPAWN]
    _each(tx, _SHOW_FAULT, [{"uuid": each.operation.source_uuid, "why": _both_faults(each)} for each in respawned])
    return Stepped(operations=tuple(over))


def _both_faults(each: OpenOperation) -> str:
    """What happened in the first cell and in the other one."""
    first = each.source.server.fault if each.source is not None else None
    return text.clean(f"{first or ''} In another cell: {each.operation.fault or ''}".strip(), text.FAULTS_SIZE)


def _has_ended(twin: Body) -> bool:
    return twin.server.deleted and twin.server.state == "deleted"


def start_again(tx: ApiTransaction, uuids: Collection[str], state: OperationState, now: float) -> Stepped:
    """Users want these servers back that are off on their hosts, shelved or soft-deleted as ``state`` says: start them there."""
    locked = operations.lock(tx, uuids, (state,))
    if locked.operations:
        tx.execute(_START, {"uuids": [each.operation.uuid for each in locked.operations], "now": now})
    return Stepped(operations=locked.operations)


def reclaim(tx: ApiTransaction, stamp: claims.Stamp, uuids: Collection[str], now: float) -> Stepped:
    """Delete these servers, which are still soft-deleted: their users have not restored them in time."""
    locked = operations.lock(tx, uuids, (State.SOFT_DELETED,))
    carried: list[str] = []
    for each in locked.operations:
        if each.source is not None:
            carried += _end_server(tx, stamp, each.source, [each.source], each.operation, Initiator.of(each.operation), now)
    return Stepped(operations=locked.operations, deleted=tuple(carried))


def time_out(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """Tasks past their deadlines: what the users had wanted before is written under higher numbers."""
    locked = operations.lock(tx, uuids, (State.TASK,))
    _set(tx, locked.operations, State.STARTING, now)
    operations.erase_secrets(tx, [each.operation.uuid for each in locked.operations])
    why = "The host did not carry it out in time."
    _each(tx, _FAULT, [{"op": each.operation.uuid, "why": why} for each in locked.operations])
    return Stepped(operations=locked.operations)


def finish(tx: ApiTransaction, uuids: Collection[str], now: float) -> Stepped:
    """End operations in *task* whose tasks are over, and those in *starting* whose cells have the start.

    A server whose snapshot is complete is shelved. If the snapshot has failed, the server is started again as it was. So is one
    whose image, for example, has failed: it may not be shown in ERROR. An interface that its guest does not have is the server's no
    more: its addresses are free.
    """
    locked = operations.lock(tx, uuids, (State.TASK, State.STARTING))
    done, failed, back = list[OpenOperation](), list[OpenOperation](), list[OpenOperation]()
    for each in locked.operations:
        told = each.source.server if each.source is not None else None
        if told is None or told.deleted:
            back.append(each)
        elif each.operation.state is State.STARTING:
            back += [each] if has_started(each) else []
        elif told.task_number == each.operation.number and told.task_state.over:
            has_failed = told.task_state is TaskState.FAILED and each.operation.kind is not OperationKind.FAIL
            (failed if has_failed else done).append(each)
    _each(tx, _FAULT, [{"op": each.operation.uuid, "why": _fault_of_task(each)} for each in failed])
    shelved = [each for each in done if each.operation.kind is OperationKind.SHELVE]
    done = [each for each in done if each not in shelved]
    unchanged = [each for each in failed if _goes_back(each.operation.kind)]
    failed = [each for each in failed if each not in unchanged]
    _set(tx, shelved, State.SHELVED, now)
    _set(tx, unchanged, State.STARTING, now)
    operations.erase_secrets(tx, [each.operation.uuid for each in unchanged])
    rebuilt = [each.operation for each in done if each.operation.kind is OperationKind.REBUILD]
    _each(tx, _IMAGE, [_image_of(operation) for operation in rebuilt])
    for each in (*done, *back):
        if each.operation.args.mac is not None and _is_without_interface(each):
            addresses.detach(tx, each.operation.server_uuid, each.operation.args.mac, now)
    server_images.complete(tx, [(each.operation, _stored(each)) for each in done], now)
    operations.end(tx, [each.operation for each in done], Outcome.DONE, now)
    operations.end(tx, [each.operation for each in failed], Outcome.FAILED, now)
    operations.end(tx, [each.operation for each in back if each.operation.fault], Outcome.GIVEN_UP, now)
    operations.end(tx, [each.operation for each in back if not each.operation.fault], Outcome.REVERTED, now)
    return Stepped(operations=(*done, *shelved, *failed, *unchanged, *back))


def _image_of(operation: Operation) -> dict[str, str | None]:
    """The image of a server that was rebuilt."""
    args = operation.args
    image = None if args.rebuilt_from is None else stored.dump(args.rebuilt_from)
    return {"uuid": operation.source_uuid, "to_image": args.image_id, "to_hash": args.image_hash or None, "from_image": image}


def has_started(each: OpenOperation) -> bool:
    """Whether the cell has the start of an operation in *starting*: if it settles interfaces, whether that has ended there."""
    told, number = each.source.server if each.source is not None else None, each.operation.number + 3
    if told is None or told.deleted or told.state == "deleted" or told.task_number > number:
        return True
    return told.task_number == number and (told.task_state.over or not each.operation.settles)


def _goes_back(kind: OperationKind) -> bool:
    """Whether a task that failed leaves the server as it was before, which is written into its cell again."""
    return kind is OperationKind.SHELVE or kind.is_harmless or kind.connects


def _is_without_interface(each: OpenOperation) -> bool:
    """Whether the cell has told that the guest does not have the interface of this operation, which ends."""
    operation, told = each.operation, each.source.server if each.source is not None else None
    removes = OperationKind.ATTACH_INTERFACE if operation.state is State.STARTING else OperationKind.DETACH_INTERFACE
    if told is None or told.deleted or operation.kind is not removes:
        return False
    number = operation.number + (3 if operation.state is State.STARTING else 0)
    return told.task_number == number and told.task_state is TaskState.DONE


def _stored(each: OpenOperation) -> StoredContent | None:
    """What the host of the source has written into the image store."""
    return each.source.server.task_stored if each.source is not None else None


def _fault_of_task(each: OpenOperation) -> str:
    return (each.source.server.task_fault if each.source is not None else None) or "The host gave no reason."


# -- inside ------------------------------------------------------------------------------------------------------------------------


def _each(tx: ApiTransaction, statement: sa.Update, rows: Sequence[Mapping[str, Any]]) -> None:
    """Execute the statement for each of these rows of parameters."""
    if rows:
        tx.execute(statement, rows)


def _lock_with_requests(tx: ApiTransaction, uuids: Collection[str], states: Collection[OperationState]) -> Locked:
    lock_requests(tx, [each.twin_uuid for each in operations.get(tx, sorted(uuids)) if each.twin_uuid is not None])
    return operations.lock(tx, uuids, states)


def lock_requests(tx: ApiTransaction, bodies: Sequence[str]) -> None:
    """Lock the build requests of these bodies that are still queued: before the bodies."""
    if bodies:
        tx.execute(_LOCK_REQUESTS, {"uuids": sorted(bodies)}).all()


def _set(tx: ApiTransaction, some: Sequence[OpenOperation], state: OperationState, now: float) -> None:
    if some:
        tx.execute(_SET, {"uuids": [each.operation.uuid for each in some], "to": state, "now": now})


def _reason(uuid: str, faults: Mapping[str, str]) -> dict[str, str]:
    return {"op": uuid, "why": text.clean(faults[uuid], text.FAULTS_SIZE)}


def point(tx: ApiTransaction, turns: Sequence[tuple[OpenOperation, Body | None, Body | None]], now: float) -> None:
    """Point each server to another body: (operation, body to show, body to hide). All rows are locked."""
    if not turns:
        return
    tx.execute(_SHOW, {"uuids": [shown.uuid for _, shown, _ in turns if shown is not None]})
    tx.execute(_HIDE, {"uuids": [hidden.uuid for _, _, hidden in turns if hidden is not None]})
    pointed = [(each.operation, shown, hidden) for each, shown, hidden in turns if shown is not None]
    tx.execute(_POINT, [{"home": operation.server_uuid, "body": shown.uuid} for operation, shown, _ in pointed])
    if outbox.kept(tx):
        outbox.put(
            tx,
            "api",
            [
                notification.of_switch(
                    operation.server_uuid, operation.uuid, shown.server, hidden.server.state if hidden else "active", now
                )
                for operation, shown, hidden in pointed
            ],
        )


def _part(tx: ApiTransaction, stamp: claims.Stamp, some: Sequence[OpenOperation], now: float) -> list[str]:
    """The ends of moves that came to their goal: delete the sources, and charge the twins for what they are."""
    if not some:
        return []
    for each in some:
        if each.twin is None:
            raise errors.Conflict(f"operation {each.operation.uuid} has lost its twin")
    deleted = drop(tx, stamp, [each.source for each in some if each.source is not None], _initiators(some), now)
    charge(tx, some)
    operations.end(tx, [each.operation for each in some], Outcome.DONE, now)
    return deleted


def charge(tx: ApiTransaction, some: Sequence[OpenOperation]) -> None:
    """Charge the twins of these operations for their whole size: they are the servers now."""
    charged_for = [(each.operation.twin_uuid, each.operation.vcpus or 0, each.operation.memory_mb or 0) for each in some]
    _each(tx, _CHARGE, [{"uuid": uuid, "cores": cores, "ram": ram} for uuid, cores, ram in charged_for])
    growth: list[tuple[str, str, QuotaUsage]] = []
    for each, twin in [(each, each.twin) for each in some if each.twin is not None]:
        more_cores, more_ram = (each.operation.vcpus or 0) - twin.charge[0], (each.operation.memory_mb or 0) - twin.charge[1]
        growth.append((each.operation.project_id, twin.server.user_id, QuotaUsage(cores=more_cores, ram=more_ram)))
    for project_id, more in shares(growth).items():
        quotas.add(tx, project_id, more)


def explain(tx: ApiTransaction, uuid: str, fault: str) -> None:
    """Store why the operation comes to nothing."""
    tx.execute(_FAULT, {"op": uuid, "why": fault})


def _initiators(some: Sequence[OpenOperation]) -> dict[str, Initiator]:
    """Who asked for these operations, by server."""
    return {each.operation.server_uuid: Initiator.of(each.operation) for each in some}


def drop(
    tx: ApiTransaction, stamp: claims.Stamp, bodies: Sequence[Body], initiators: Mapping[str, Initiator], now: float
) -> list[str]:
    """Mark these bodies deleted and free their charges. Those in no cell are gone at once; returns those that a cell has to delete.

    ``initiators``: who ends them, by server.
    """
    live = [body for body in bodies if not body.server.deleted]
    if not live:
        return []
    by = {body.uuid: initiators.get(body.server.uuid, NOBODY) for body in live}
    tx.execute(_MARK, [{"uuid": uuid, "now": now, "request": each.request_id, "user": each.user_id} for uuid, each in by.items()])
    _TAKE_REQUESTS(tx, sorted(body.uuid for body in live))
    gone = sorted(body.uuid for body in live if body.server.cell_uuid is None)
    if gone:
        tx.execute(_GONE, {"uuids": gone, "now": now})
    image_removals.add(tx, dict.fromkeys(snapshots_of(tx, [body for body in live if body.server.is_shelved]).values()), now)
    freed = [(b.server.project_id, b.server.user_id, QuotaUsage(cores=b.charge[0], ram=b.charge[1])) for b in live]
    for project_id, less in shares(freed).items():
        quotas.release(tx, project_id, less)
    claims.release(tx, stamp, gone)
    if over := [body.uuid for body in live if body.uuid in gone or body.server.state == "deleted"]:
        addresses.free(tx, over, now)
    return [body.uuid for body in live if body.uuid not in gone]


def snapshots_of(tx: ApiTransaction, shelved: Collection[Body]) -> dict[str, str]:
    """The snapshots of these shelved bodies, by body. One whose spec cannot be read is left out."""
    specs = mappings.specs(tx, {body.server.batch_id for body in shelved}) if shelved else {}
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
    home = operations.body(tx, server_uuid)
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
    carried = drop(tx, stamp, bodies, {server_uuid: initiator}, now)
    names.free(tx, server_uuid)
    quotas.release(tx, shown.server.project_id, {shown.server.user_id: QuotaUsage(instances=1)})
    if outbox.kept(tx) and (shown.server.turn or (opened is not None and opened.held)):
        outbox.put(tx, "api", notification.of_moved_delete(server_uuid, shown.server.host, now))
    if opened is not None:
        operations.end(tx, [opened], Outcome.DELETED, now)
    return carried
