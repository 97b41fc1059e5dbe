"""Accept operations on servers: store each with what it needs, and charge its project, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec
import sqlalchemy as sa
from oslo_db.exception import RetryRequest

from db import secrets
from db.api.operations import operations
from db.api.operations.operations import Body
from db.api.projects import quotas
from db.api.rows import incarnation, spec_fields
from db.api.rows.tables import all_or_nothing, build_requests, instance_mappings, request_specs
from db.api.rows.tables import operations as table
from db.api.servers import addresses, edits, mappings, server_images
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.engine import DuplicateEntry
from objects import errors, stored
from objects.base import Object
from objects.cell import CELL0_UUID
from objects.destination import Destination
from objects.flavor import Flavor
from objects.instance import Server
from objects.move import Move, MoveKind
from objects.network import PortRequest
from objects.operation import Operation, OperationArgs, OperationKind, OperationState, Outcome, allows_operation
from objects.phase import task_of, vm_state_of
from objects.quota import ImageLimits, QuotaLimits, QuotaUsage, sum_shares
from objects.spec import RequestSpec
from objects.task import Power, TaskState

NUMBERS = 4
"""Task numbers of one operation: its task or hold, one that no task has, the task of its twin, and the start at its end."""


LOST_MOVE_TIMEOUT_S = 3600.0
"""Seconds in which a move should end that the API database had lost."""


class NewOperation(Object, frozen=True, kw_only=True):
    """What is asked of a server.

    ``body_uuid``: the body that the caller has judged; None: any. If another one is the server by now, its host may be a live one.
    ``scope``: the project that the server must belong to; None: any. ``overrides_lock``: whether the caller may change a locked
    server. ``flavor``: of a resize. ``twin_uuid``, ``batch_id``: new uuids for the twin of a move, and for its request.
    ``destination_cell``: the cell of the host asked for, if any. ``limits``: the default limits of projects. ``sealed``: the sealed
    secrets of a task, under ``uuid``, or of a move, under ``batch_id``, if it has any. ``port``: the interface to be attached.
    ``image_limits``: of an image of the server.
    """

    uuid: str
    server_uuid: str
    kind: OperationKind
    scope: str | None
    user_id: str
    request_id: str
    deadline: float
    args: OperationArgs = OperationArgs()
    body_uuid: str | None = None
    overrides_lock: bool = False
    flavor: Flavor | None = None
    twin_uuid: str | None = None
    batch_id: str | None = None
    destination_cell: str | None = None
    limits: QuotaLimits = QuotaLimits()
    sealed: str | None = None
    port: PortRequest | None = None
    image_limits: ImageLimits = ImageLimits()


def accept_operation(tx: ApiTransaction, new_operation: NewOperation, now: float) -> Operation:
    """Accept one operation: see ``accept_all``."""
    [operation] = accept_all(tx, [new_operation], now)
    return operation


def accept_all(tx: ApiTransaction, new_operations: Sequence[NewOperation], now: float) -> list[Operation]:
    """Store operations of different servers, and for each move its twin, which waits in the build queue. Returns them in order.

    Raises errors.NotFound for an unknown or deleted server, errors.Conflict if a server's state, lock or open operation does not
    allow it, errors.Invalid for a destination that cannot be, and errors.OverQuota. Nothing is then written for any of them.
    errors.NotCompared is raised for servers of a restored database (``cells/thaw.py``).
    """
    servers = lock_servers(tx, {new_operation.server_uuid: new_operation.scope for new_operation in new_operations})
    bodies = {uuid: body for uuid, (_, body) in servers.items()}
    incarnation.refuse_unless_compared(tx)
    open_operations = operations.open_for(tx, bodies)
    for operation in open_operations.values():
        operations.refuse_frozen(operation)
    _refuse_unless_ready(tx, new_operations, bodies, open_operations)
    _end_interrupted(tx, open_operations.values(), now)
    accepted = [
        _operation_of(new_operation, *servers[new_operation.server_uuid], open_operations.get(new_operation.server_uuid), now)
        for new_operation in new_operations
    ]
    moves = [pair for pair in zip(new_operations, accepted, strict=True) if pair[0].kind.is_move]
    if moves:
        sized = _accept_moves(tx, moves, bodies, now)
        accepted = [sized.get(new_operation.uuid, new_operation) for new_operation in accepted]
    accepted = [
        _with_interface(tx, new_operation, operation) for new_operation, operation in zip(new_operations, accepted, strict=True)
    ]
    store_operations(tx, accepted)
    for new_operation, operation in zip(new_operations, accepted, strict=True):
        if new_operation.kind.makes_image:
            server_images.check_quota(tx, operation.project_id, new_operation.image_limits)
    server_images.add_images(tx, accepted)
    operations.keep_secrets(
        tx,
        {
            new_operation.uuid: new_operation.sealed
            for new_operation in new_operations
            if new_operation.sealed is not None and not new_operation.kind.is_move
        },
    )
    return accepted


def _operation_of(new_operation: NewOperation, home: Body, body: Body, interrupted: Operation | None, now: float) -> Operation:
    """``interrupted``: the operation that this one has ended."""
    power = Power.ON if new_operation.kind is OperationKind.UNSHELVE else wanted_power(body, interrupted)
    return Operation(
        uuid=new_operation.uuid,
        server_uuid=new_operation.server_uuid,
        kind=new_operation.kind,
        state=_first_state(new_operation.kind),
        number=last_number(home, body) + NUMBERS,
        power_before=power,
        project_id=body.server.project_id,
        user_id=new_operation.user_id,
        request_id=new_operation.request_id,
        created_at=now,
        updated_at=now,
        deadline=new_operation.deadline,
        args=msgspec.structs.replace(new_operation.args, mends=interrupted is not None and interrupted.settles_interfaces),
        held=interrupted is not None or new_operation.kind in (OperationKind.SHELVE, OperationKind.SOFT_DELETE),
        forced=new_operation.kind is OperationKind.EVACUATE,
        source_uuid=body.uuid,
        twin_uuid=new_operation.twin_uuid,
        source_host=body.server.host,
    )


def _with_interface(tx: ApiTransaction, new_operation: NewOperation, operation: Operation) -> Operation:
    """Claim the addresses of an interface that is attached. Raises errors.NotFound if the one to be detached has gone."""
    if new_operation.port is not None:
        mac = addresses.attach_interface(tx, new_operation.server_uuid, new_operation.port)
        return msgspec.structs.replace(operation, args=msgspec.structs.replace(operation.args, mac=mac))
    if new_operation.kind is OperationKind.DETACH_INTERFACE:
        attached_ports = addresses.ports_of(tx, [new_operation.server_uuid]).get(new_operation.server_uuid, ())
        if new_operation.args.mac not in [port.mac for port in attached_ports]:
            raise errors.NotFound(
                f"Instance {new_operation.server_uuid} does not have the interface {new_operation.args.mac} any more"
            )
    return operation


def _first_state(kind: OperationKind) -> OperationState:
    if kind is OperationKind.SOFT_DELETE:
        return OperationState.SOFT_DELETED
    return OperationState.PLACING if kind.is_move else OperationState.TASK


def wanted_power(body: Body, opened: Operation | None) -> Power:
    """What the user wants of the server, whose guest is held while it is being shelved. ``opened``: its open operation."""
    return opened.power_before if opened is not None and opened.kind is OperationKind.SHELVE else body.server.power


def store_operations(tx: ApiTransaction, new_operations: Sequence[Operation]) -> None:
    """Write new operations, whose home rows are locked.

    Raises errors.Conflict if a server has another open one; the caller must then roll back.
    """
    if not new_operations:
        return
    tx.execute(_NUMBER, [{"uuid": operation.server_uuid, "number": operation.number} for operation in new_operations])
    try:
        tx.execute(sa.insert(table), [_operation_row(operation) for operation in new_operations])
    except DuplicateEntry as error:
        which = f"server {new_operations[0].server_uuid}" if len(new_operations) == 1 else f"one of {len(new_operations)} servers"
        raise errors.Conflict(f"another operation on {which} was just accepted; wait until it has ended") from error


def _power_before_lost_move(source: Body, twin: Body) -> Power:
    if twin.server.power is Power.INCOMING and source.server.power is Power.PAUSED:
        return Power.PAUSED
    return Power.OFF if twin.server.power is Power.OFF else Power.ON


def _kind_of_lost_move(source: Body, twin: Body, spec: RequestSpec | None) -> OperationKind:
    if source.server.state == "error":
        return OperationKind.RESPAWN
    if twin.server.power is Power.INCOMING:
        return OperationKind.LIVE_MIGRATE
    is_resize = spec is not None and spec.move is not None and spec.move.kind is MoveKind.RESIZE
    return OperationKind.RESIZE if is_resize else OperationKind.MIGRATE


def operation_of_twin(source: Body, twin: Body, spec: RequestSpec | None, now: float, *, frozen: str | None = None) -> Operation:
    """The operation that has made the body ``twin``, as far as that is known. It is on its way.

    ``spec``: that of the twin's request. It tells a resize from a migration; without it nobody is asked to confirm.
    """
    kind = _kind_of_lost_move(source, twin, spec)
    new = str(uuid4())
    return Operation(
        uuid=new,
        server_uuid=twin.server.uuid,
        kind=kind,
        state=OperationState.BUILDING,
        number=twin.server.turn * NUMBERS,
        power_before=_power_before_lost_move(source, twin),
        project_id=twin.server.project_id,
        user_id=twin.server.user_id,
        request_id=f"req-{new}",
        created_at=now,
        updated_at=now,
        deadline=now + LOST_MOVE_TIMEOUT_S,
        held=kind is not OperationKind.RESPAWN,
        source_uuid=source.uuid,
        twin_uuid=twin.uuid,
        source_host=source.server.host,
        target_host=twin.server.host,
        vcpus=spec.flavor.vcpus if spec is not None else twin.charge[0],
        memory_mb=spec.flavor.memory_mb if spec is not None else twin.charge[1],
        frozen=frozen,
    )


def reopen(tx: ApiTransaction, source: Body, twin: Body, now: float, frozen: str) -> None:
    """Open again the lost operation that has made ``twin``; all rows are locked. It is frozen for this reason.

    Until it ends, the twin is charged for its growth only, as if the operation had just been accepted.
    """
    batch_id = twin.server.batch_id
    spec = mappings.specs_by_batch(tx, [batch_id]).get(batch_id)
    store_operations(tx, [operation_of_twin(source, twin, spec, now, frozen=frozen)])
    if spec is None:
        return
    cores, ram = growth_of(spec, source)
    tx.execute(_CHARGE, {"uuid": twin.uuid, "cores": cores, "ram": ram})
    less = QuotaUsage(cores=cores - twin.charge[0], ram=ram - twin.charge[1])
    quotas.add_usage(tx, twin.server.project_id, {twin.server.user_id: less})


def last_number(home: Body, body: Body) -> int:
    """The number of the server's last operation.

    A cell may have seen later ones than the home row, if the API database was restored from a backup. It refuses them again.
    """
    return max(home.last_number, body.server.turn * NUMBERS, body.server.task_number // NUMBERS * NUMBERS)


def turn_of(number: int) -> int:
    """Which body of its server an operation makes."""
    return number // NUMBERS


def lock_servers(tx: ApiTransaction, scopes: Mapping[str, str | None]) -> dict[str, tuple[Body, Body]]:
    """Lock the home rows of servers and the bodies that they point to; return both by server.

    ``scopes``: the project that each server must belong to; None: any. Raises errors.NotFound for a deleted server, or one out of
    its scope.
    """
    read = operations.bodies_by_uuid(tx, scopes)
    locked_bodies = operations.lock_bodies(tx, {*read, *(body.body_uuid for body in read.values() if body.body_uuid is not None)})
    locked: dict[str, tuple[Body, Body]] = {}
    for uuid, scope in scopes.items():
        home = locked_bodies.get(uuid)
        if home is None or home.server.own_uuid is not None:  # a body's uuid is no server
            raise _missing_instance(uuid)
        if home.body_uuid != read[uuid].body_uuid:
            raise RetryRequest(LookupError(f"the body of server {uuid} was just replaced"))
        body = locked_bodies.get(home.body_uuid or uuid)
        if body is None or body.server.deleted or scope not in (None, body.server.project_id):
            raise _missing_instance(uuid)
        locked[uuid] = home, body
    return locked


def _missing_instance(server_uuid: str) -> errors.NotFound:
    return errors.NotFound(f"Instance {server_uuid[:80]} could not be found.")


_NUMBER = (
    sa.update(instance_mappings)
    .where(instance_mappings.c.instance_uuid == sa.bindparam("uuid"))
    .values(last_number=sa.bindparam("number"))
)
_CHARGE = (
    sa.update(instance_mappings)
    .where(instance_mappings.c.instance_uuid == sa.bindparam("uuid"))
    .values(vcpus=sa.bindparam("cores"), memory_mb=sa.bindparam("ram"))
)
_OPEN_BATCHES = sa.select(all_or_nothing.c.batch_id).where(all_or_nothing.c.batch_id.in_(dialect.uuids_parameter("batches")))


def _refuse_unless_ready(
    tx: ApiTransaction, new_operations: Sequence[NewOperation], bodies: Mapping[str, Body], open_operations: Mapping[str, Operation]
) -> None:
    """Raise errors.Conflict unless each server can take its operation now. ``open_operations``: open operations by server."""
    for new_operation in new_operations:
        _refuse_unless_allowed(new_operation, bodies[new_operation.server_uuid], open_operations.get(new_operation.server_uuid))
    batches = sorted({body.server.batch_id for body in bodies.values()})
    unfinished = set(tx.execute(_OPEN_BATCHES, {"batches": batches}).scalars())
    for new_operation in new_operations:
        if bodies[new_operation.server_uuid].server.batch_id in unfinished:
            text = f"Cannot '{new_operation.kind.value}' instance {new_operation.server_uuid}"
            raise errors.Conflict(f"{text} before all servers of its all-or-nothing request are ACTIVE")


def _refuse_unless_allowed(new_operation: NewOperation, body: Body, opened: Operation | None) -> None:
    server = msgspec.structs.replace(body.server, operation=opened)
    text = f"Cannot '{new_operation.kind.value}' instance {server.uuid}"
    if new_operation.body_uuid not in (None, body.uuid):
        raise errors.Conflict(f"{text}: it has just been moved to host {server.host}")
    edits.check_lock(server.uuid, server.locked_by, ignored=new_operation.overrides_lock)
    if opened is not None:
        _refuse_unless_interrupts(new_operation, server, opened)
    has_body = server.is_shelved if new_operation.kind is OperationKind.UNSHELVE else server.state == "active"
    failed = server.task_state is TaskState.FAILED
    takes = has_body and server.cell_uuid != CELL0_UUID
    if not takes or not allows_operation(
        new_operation.kind, wanted_power(body, opened), hard=new_operation.args.hard, failed=failed
    ):
        raise errors.Conflict(f"{text} while it is in {_describe_situation(server)}")


def _describe_situation(server: Server) -> str:
    """What keeps a server from an operation, as the Compute API names it."""
    state, task = vm_state_of(server), task_of(server)
    return f"vm_state {state}" if task is None or state == "building" else f"task_state {task}"


def _refuse_unless_interrupts(new_operation: NewOperation, server: Server, opened: Operation) -> None:
    """Only an evacuation ends an open operation: one that its host would have to carry out."""
    if opened.unreadable:
        raise errors.Conflict(f"Operation {opened.uuid} of instance {server.uuid} cannot be read: {opened.unreadable}")
    if new_operation.kind is not OperationKind.EVACUATE or not opened.waits_for_host:
        why = f"while its {opened.kind.value} is in state {opened.state}: operation {opened.uuid}"
        raise errors.Conflict(
            f"Cannot '{new_operation.kind.value}' instance {server.uuid} while it is in {_describe_situation(server)}, {why}"
        )


def _end_interrupted(tx: ApiTransaction, interrupted: Collection[Operation], now: float) -> None:
    """End the open tasks of servers that are evacuated: the hosts that should carry them out are called dead.

    A task may still be carried out late: if the evacuation is given up, the power is written again.
    """
    operations.end_operations(tx, list(interrupted), Outcome.GIVEN_UP, now, "The server's host was called dead.")


# -- the twin ------------------------------------------------------------------------------------------------------------------

_KINDS = {
    OperationKind.MIGRATE: MoveKind.MIGRATE,
    OperationKind.RESIZE: MoveKind.RESIZE,
    OperationKind.LIVE_MIGRATE: MoveKind.MIGRATE,
    OperationKind.EVACUATE: MoveKind.EVACUATE,
}
_INSERT_SPEC, _INSERT_REQUEST, _INSERT_MAPPING = (sa.insert(each) for each in (request_specs, build_requests, instance_mappings))
COPIED = (
    "project_id", "user_id", "name", "launch_index", "created_at", "locked_by", "locked_reason", "description", "metadata", "tags",
    "user_version", "hostname", "access_ip_v4", "access_ip_v6", "auto_disk_config",
    "key_name", "public_key",
)  # fmt: skip
"""Columns of the source's mapping that its twin has too, so that lists show it in the same place and with the same texts."""
_COPY = sa.select(instance_mappings.c.instance_uuid, *(instance_mappings.c[name] for name in COPIED)).where(
    instance_mappings.c.instance_uuid.in_(dialect.uuids_parameter())
)


class Twin(Object, frozen=True, kw_only=True):
    """A body to be made: of which operation, by which request spec, in the place of which body."""

    operation: Operation
    spec: RequestSpec
    source: Body


def _accept_moves(
    tx: ApiTransaction, moves: Sequence[tuple[NewOperation, Operation]], bodies: Mapping[str, Body], now: float
) -> dict[str, Operation]:
    """Queue the builds of the twins, and charge their growth. Returns the operations with the sizes of their twins, by uuid."""
    known = mappings.specs_by_batch(tx, {bodies[new_operation.server_uuid].server.batch_id for new_operation, _ in moves})
    twins: list[Twin] = []
    growth: list[tuple[str, str, QuotaUsage]] = []
    for new_operation, operation in moves:
        source = bodies[new_operation.server_uuid]
        spec = _spec_of_twin(new_operation, source, known.get(source.server.batch_id))
        cores, ram = growth_of(spec, source)
        if cores or ram:
            growth.append((operation.project_id, source.server.user_id, QuotaUsage(cores=cores, ram=ram)))
        sized = msgspec.structs.replace(operation, vcpus=spec.flavor.vcpus, memory_mb=spec.flavor.memory_mb)
        twins.append(Twin(operation=sized, spec=spec, source=source))
    insert_specs(tx, [twin.spec for twin in twins], now)
    sealed = {
        new_operation.batch_id: new_operation.sealed
        for new_operation, _ in moves
        if new_operation.batch_id is not None and new_operation.sealed is not None
    }
    secrets.keep_requests(tx, sealed, now)
    insert_twins(tx, twins, now)
    limits = {operation.project_id: new_operation.limits for new_operation, operation in moves}
    for project_id, more in sum_shares(growth).items():
        quotas.charge_more(tx, project_id, more, limits[project_id])
    return {twin.operation.uuid: twin.operation for twin in twins}


def growth_of(spec: RequestSpec, source: Body) -> tuple[int, int]:
    """The vCPUs and MiB of memory that a body of this spec has more than its source is charged for."""
    return max(0, spec.flavor.vcpus - source.charge[0]), max(0, spec.flavor.memory_mb - source.charge[1])


def insert_twins(tx: ApiTransaction, twins: Sequence[Twin], now: float) -> None:
    """Queue the builds of these bodies, whose requests have their specs, and insert their mappings."""
    if not twins:
        return
    requests = [
        {
            "instance_uuid": twin.operation.twin_uuid,
            "batch_id": twin.spec.batch_id,
            "created_at": now,
            "deadline": twin.operation.deadline,
            "state": "queued",
            "lease_until": 0.0,
            "fence": 0,
            "priority": 0,
        }
        for twin in twins
    ]
    tx.execute(_INSERT_REQUEST, requests)
    insert_mappings(tx, [(twin.source, _mapping_of_twin(twin, now)) for twin in twins])


def insert_specs(tx: ApiTransaction, specs: Sequence[RequestSpec], now: float) -> None:
    rows = [
        {"batch_id": spec.batch_id, "spec": stored.dump_value(spec), "created_at": now} | spec_fields.columns_of(spec)
        for spec in specs
    ]
    tx.execute(_INSERT_SPEC, rows)
    spec_fields.label_batches(tx, {spec.batch_id: spec for spec in specs})


def insert_mappings(tx: ApiTransaction, new: Sequence[tuple[Body, dict[str, Any]]]) -> None:
    """Insert mappings of later bodies, each with what it has of the body that its server is now."""
    rows = {row.instance_uuid: row for row in tx.execute(_COPY, {"uuids": sorted({source.uuid for source, _ in new})})}
    copied = {uuid: {name: getattr(row, name) for name in COPIED} for uuid, row in rows.items()}
    tx.execute(_INSERT_MAPPING, [values | copied[source.uuid] for source, values in new])
    for source, values in new:
        _copy_labels(tx, source.server, values["instance_uuid"])


def _copy_labels(tx: ApiTransaction, server: Server, twin: str) -> None:
    """The tags and the metadata that its tenant has changed, as lists find them."""
    if server.tags is not None:
        spec_fields.tag_servers(tx, [twin], server.tags)
    if server.metadata is not None:
        spec_fields.map_servers(tx, [twin], server.metadata)


def _spec_of_twin(new_operation: NewOperation, source: Body, spec: RequestSpec | None) -> RequestSpec:
    """``spec``: that of the source's request."""
    server = source.server
    if spec is None:
        raise errors.Conflict(f"Instance {server.uuid} cannot be moved: its request cannot be read")
    if new_operation.twin_uuid is None or new_operation.batch_id is None:
        raise ValueError("a move needs uuids for its twin and for its request")
    if new_operation.kind is OperationKind.UNSHELVE:
        return _spec_to_unshelve(new_operation, source, spec, new_operation.batch_id)
    if server.host is None or server.cell_uuid is None:
        raise errors.Conflict(f"Instance {server.uuid} cannot be moved: it is on no host")
    if new_operation.args.host is not None and new_operation.args.host.lower() == server.host.lower():
        raise errors.Invalid(f"host: instance {server.uuid} is on host {server.host} already")
    if new_operation.destination_cell not in (None, server.cell_uuid) and not new_operation.args.cross_cell:
        raise errors.Invalid(f"host: {new_operation.args.host} is in another cell, and moves between cells are not allowed for it")
    move = Move(
        kind=_KINDS[new_operation.kind], instance_uuid=source.uuid, source_host=server.host, source_cell_uuid=server.cell_uuid
    )
    destination = Destination(host=new_operation.args.host, allow_cross_cell_move=new_operation.args.cross_cell)
    now = current_spec(spec, server)
    if new_operation.kind is OperationKind.RESIZE and new_operation.flavor is not None:
        _refuse_unless_fits(now, new_operation.flavor)
    moving = now.for_move(move, new_operation.batch_id, new_operation.flavor, destination)
    # its user data and password were erased when the first body was built
    return msgspec.structs.replace(moving, request_id=new_operation.request_id, has_secrets=new_operation.sealed is not None)


def _refuse_unless_fits(spec: RequestSpec, flavor: Flavor) -> None:
    """Raises errors.Invalid for a flavor that a server of this spec cannot be resized to.

    A flavor that was deleted and made again has the same ID, and may have other sizes: only an equal one is no change.
    """
    if flavor == spec.flavor:
        raise errors.Invalid("resize.flavorRef: the server has this flavor already")
    if spec.flavor.root_gb and not flavor.root_gb:
        raise errors.Invalid("resize.flavorRef: the flavor has no root disk, and the server has one, which cannot shrink")
    if spec.image is not None and (reason := spec.image.why_not_with(flavor)):
        raise errors.Invalid(f"resize.flavorRef: {reason}")


def current_spec(spec: RequestSpec, server: Server) -> RequestSpec:
    """The spec with the image of the last rebuild, and with the hostname and the key that the server has now."""
    image = server.rebuilt_from or spec.image
    now = server.current_properties(spec.properties)
    properties = msgspec.structs.replace(spec.properties, hostname=now.hostname, key_name=now.key_name, public_key=now.public_key)
    return msgspec.structs.replace(spec, image=image, properties=properties)


def _spec_to_unshelve(new_operation: NewOperation, source: Body, spec: RequestSpec, batch_id: str) -> RequestSpec:
    """``spec``: that of the shelved body, which is on no host and so may go to any cell."""
    if spec.move is None or spec.move.image_id is None:
        raise errors.Conflict(f"Instance {source.server.uuid} cannot be unshelved: its snapshot is not on record")
    move = msgspec.structs.replace(spec.move, instance_uuid=source.uuid)
    destination = Destination(host=new_operation.args.host, allow_cross_cell_move=True)
    moving = current_spec(spec, source.server).for_move(move, batch_id, destination=destination)
    zone = None if new_operation.args.any_zone else new_operation.args.availability_zone or spec.availability_zone
    return msgspec.structs.replace(moving, request_id=new_operation.request_id, availability_zone=zone)


def _mapping_of_twin(twin: Twin, now: float) -> dict[str, Any]:
    operation = twin.operation
    vcpus, memory_mb = growth_of(twin.spec, twin.source)
    return {
        "instance_uuid": operation.twin_uuid,
        "batch_id": twin.spec.batch_id,
        "deleted": False,
        "fence": 0,
        "seen": 0,
        "state": "building",
        "availability_zone": twin.spec.availability_zone,
        "updated_at": now,
        "server_uuid": operation.server_uuid,
        "turn": turn_of(operation.number),
        "hidden": True,
        "power": _power_of_twin(operation),
        "vcpus": vcpus,
        "memory_mb": memory_mb,
    }


def _power_of_twin(operation: Operation) -> Power:
    if operation.kind is OperationKind.LIVE_MIGRATE:
        return Power.INCOMING
    return Power.OFF if operation.power_before is Power.OFF or operation.args.stopped else Power.ON


def _operation_row(operation: Operation) -> Mapping[str, Any]:
    values = {name: getattr(operation, name) for name in operation.__struct_fields__ if name != "unreadable"}
    return values | {"args": stored.dump_value(operation.args), "open_for": operation.server_uuid}
