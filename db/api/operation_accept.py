"""Accept operations on servers: store each with what it needs, and charge its project, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import sqlalchemy as sa
from oslo_db.exception import RetryRequest

from db.api import edits, mappings, operations, quotas, spec_fields
from db.api.operations import Body
from db.api.tables import all_or_nothing, build_requests, instance_mappings, request_specs
from db.api.tables import operations as table
from db.sql.connection import ApiTransaction
from db.sql.engine import DuplicateEntry
from objects import errors, stored
from objects.base import Object
from objects.cell import CELL0_UUID
from objects.destination import Destination
from objects.flavor import Flavor
from objects.instance import Server
from objects.move import Move, MoveKind
from objects.operation import Operation, OperationArgs, OperationKind, OperationState, Outcome, allows
from objects.phase import vm_state_of
from objects.quota import QuotaLimits, QuotaUsage
from objects.spec import Image, RequestSpec
from objects.task import Power, TaskState

NUMBERS = 4
"""Task numbers of one operation: its task or hold, one that no task has, the hold of its twin, and the start at its end."""


class NewOperation(Object, frozen=True, kw_only=True):
    """What is asked of a server.

    ``body_uuid``: the body that the caller has judged; None: any. If another one is the server by now, its host may be a live one.
    ``scope``: the project that the server must belong to; None: any. ``overrides_lock``: whether the caller may change a locked
    server. ``flavor``: of a resize. ``twin_uuid``, ``batch_id``: new uuids for the twin of a move, and for its request.
    ``destination_cell``: the cell of the host asked for, if any. ``limits``: the default limits of projects.
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


def accept(tx: ApiTransaction, asked: NewOperation, now: float) -> Operation:
    """Store the operation, and for a move its twin, which waits in the build queue. Returns the operation.

    Raises errors.NotFound for an unknown or deleted server, errors.Conflict if the server's state, lock or open operation does not
    allow it, errors.Invalid for a destination that cannot be, and errors.OverQuota. Nothing is then written.
    """
    home, body = lock_server(tx, asked.server_uuid, asked.scope)
    _refuse_unless_ready(tx, asked, body)
    interrupted = _end_interrupted(tx, asked, now)
    number = last_number(home, body) + NUMBERS
    operation = Operation(
        uuid=asked.uuid,
        server_uuid=asked.server_uuid,
        kind=asked.kind,
        state=OperationState.PLACING if asked.kind.moves else OperationState.TASK,
        number=number,
        power_before=body.server.power,
        project_id=body.server.project_id,
        user_id=asked.user_id,
        request_id=asked.request_id,
        created_at=now,
        updated_at=now,
        deadline=asked.deadline,
        args=asked.args,
        held=interrupted,
        forced=asked.kind is OperationKind.EVACUATE,
        source_uuid=body.uuid,
        twin_uuid=asked.twin_uuid,
        source_host=body.server.host,
    )
    if asked.kind.moves:
        operation = _accept_move(tx, asked, operation, body, now)
    store(tx, operation)
    return operation


def store(tx: ApiTransaction, operation: Operation) -> None:
    """Write a new operation, whose home row is locked. Raises errors.Conflict if another one is open; the caller must roll back."""
    tx.execute(_NUMBER, {"uuid": operation.server_uuid, "number": operation.number})
    try:
        tx.execute(sa.insert(table), _row(operation))
    except DuplicateEntry as error:
        text = f"another operation on server {operation.server_uuid} was just accepted; wait until it has ended"
        raise errors.Conflict(text) from error


def last_number(home: Body, body: Body) -> int:
    """The number of the server's last operation.

    A cell may have seen later ones than the home row, if the API database was restored from a backup. It refuses them again.
    """
    return max(home.last_number, body.server.turn * NUMBERS, body.server.task_number // NUMBERS * NUMBERS)


def turn_of(number: int) -> int:
    """Which body of its server an operation makes."""
    return number // NUMBERS


def lock_server(tx: ApiTransaction, server_uuid: str, scope: str | None) -> tuple[Body, Body]:
    """Lock a server's home row and the body that it points to. Raises errors.NotFound for a deleted server, or one out of scope."""
    missing = errors.NotFound(f"Instance {server_uuid[:80]} could not be found.")
    read = operations.bodies(tx, [server_uuid]).get(server_uuid)
    if read is None:
        raise missing
    found = operations.lock_bodies(tx, {server_uuid, read.body_uuid or server_uuid})
    home = found.get(server_uuid)
    if home is None or home.server.own_uuid is not None:  # a body's uuid is no server
        raise missing
    if home.body_uuid != read.body_uuid:
        raise RetryRequest(LookupError(f"the body of server {server_uuid} was just replaced"))
    body = found.get(home.body_uuid or server_uuid)
    if body is None or body.server.deleted or scope not in (None, body.server.project_id):
        raise missing
    return home, body


_NUMBER = (
    sa.update(instance_mappings)
    .where(instance_mappings.c.instance_uuid == sa.bindparam("uuid"))
    .values(last_number=sa.bindparam("number"))
)
_OPEN_BATCH = sa.select(all_or_nothing.c.batch_id).where(all_or_nothing.c.batch_id == sa.bindparam("batch"))


def _refuse_unless_ready(tx: ApiTransaction, asked: NewOperation, body: Body) -> None:
    """Raise errors.Conflict unless the server can take the operation now, apart from another open one."""
    server, what = body.server, asked.kind.value
    if asked.body_uuid not in (None, body.uuid):
        raise errors.Conflict(f"Cannot '{what}' instance {server.uuid}: it has just been moved to host {server.host}")
    edits.check_lock(server.uuid, server.locked_by, ignored=asked.overrides_lock)
    if server.state != "active" or server.cell_uuid in (None, CELL0_UUID):
        raise errors.Conflict(f"Cannot '{what}' instance {server.uuid} while it is in vm_state {vm_state_of(server)}")
    failed = server.task_state is TaskState.FAILED
    if not allows(asked.kind, server.power, hard=asked.args.hard, failed=failed):
        raise errors.Conflict(f"Cannot '{what}' instance {server.uuid} while it is in vm_state {vm_state_of(server)}")
    if tx.execute(_OPEN_BATCH, {"batch": server.batch_id}).first() is not None:
        raise errors.Conflict(f"Cannot '{what}' instance {server.uuid} before all servers of its all-or-nothing request are ACTIVE")


def _end_interrupted(tx: ApiTransaction, asked: NewOperation, now: float) -> bool:
    """Refuse a second operation. Only an evacuation ends an open task: the host that should carry it out is called dead.

    Returns whether it did. The task may still be carried out late: if the evacuation is given up, the power is written again.
    """
    earlier = operations.open_for(tx, [asked.server_uuid]).get(asked.server_uuid)
    if earlier is None:
        return False
    if earlier.unreadable:
        raise errors.Conflict(f"Operation {earlier.uuid} of instance {asked.server_uuid} cannot be read: {earlier.unreadable}")
    if asked.kind is not OperationKind.EVACUATE or earlier.state is not OperationState.TASK:
        text = (
            f"Cannot '{asked.kind.value}' instance {asked.server_uuid} while its {earlier.kind.value} is in state {earlier.state}"
        )
        raise errors.Conflict(f"{text}: operation {earlier.uuid}")
    operations.end(tx, [earlier], Outcome.GIVEN_UP, now, "The server's host was called dead.")
    return True


# -- the twin ------------------------------------------------------------------------------------------------------------------

_KINDS = {
    OperationKind.MIGRATE: MoveKind.MIGRATE,
    OperationKind.RESIZE: MoveKind.RESIZE,
    OperationKind.EVACUATE: MoveKind.EVACUATE,
}
_INSERT_SPEC, _INSERT_REQUEST, _INSERT_MAPPING = (sa.insert(each) for each in (request_specs, build_requests, instance_mappings))
_COPIED = (
    "project_id", "user_id", "name", "launch_index", "created_at", "locked_by", "locked_reason", "description", "metadata", "tags",
    "user_version",
)  # fmt: skip
"""Columns of the source's mapping that its twin has too, so that lists show it in the same place and with the same texts."""


def _accept_move(tx: ApiTransaction, asked: NewOperation, operation: Operation, source: Body, now: float) -> Operation:
    """Queue the twin's build and charge what it is larger than its source. Returns the operation with the twin's size."""
    spec = _spec_of_twin(tx, asked, source)
    if asked.twin_uuid is None or asked.batch_id is None:
        raise ValueError("a move needs uuids for its twin and for its request")
    row = {"batch_id": spec.batch_id, "spec": stored.dump(spec), "created_at": now}
    tx.execute(_INSERT_SPEC, row | spec_fields.columns(spec))
    spec_fields.label(tx, {spec.batch_id: spec})
    insert_twin(tx, operation, spec, source, now)
    more = QuotaUsage(cores=max(0, spec.flavor.vcpus - source.charge[0]), ram=max(0, spec.flavor.memory_mb - source.charge[1]))
    if more.cores or more.ram:
        quotas.charge_more(tx, source.server.project_id, more, asked.limits)
    return msgspec.structs.replace(operation, vcpus=spec.flavor.vcpus, memory_mb=spec.flavor.memory_mb)


def insert_twin(tx: ApiTransaction, operation: Operation, spec: RequestSpec, source: Body, now: float) -> None:
    """Queue the build of the operation's twin, whose request has this spec, and insert its mapping."""
    twin = operation.twin_uuid or ""
    request = {"instance_uuid": twin, "batch_id": spec.batch_id, "created_at": now, "deadline": operation.deadline}
    tx.execute(_INSERT_REQUEST, request | {"state": "queued", "lease_until": 0.0, "fence": 0, "priority": 0})
    tx.execute(_INSERT_MAPPING, _mapping_of_twin(tx, operation, spec, source, now))
    _copy_labels(tx, source.server, twin)


def _copy_labels(tx: ApiTransaction, server: Server, twin: str) -> None:
    """The tags and the metadata that its tenant has changed, as lists find them."""
    if server.tags is not None:
        spec_fields.tag_servers(tx, [twin], server.tags)
    if server.metadata is not None:
        spec_fields.map_servers(tx, [twin], server.metadata)


def _spec_of_twin(tx: ApiTransaction, asked: NewOperation, source: Body) -> RequestSpec:
    server = source.server
    spec = mappings.specs(tx, [server.batch_id]).get(server.batch_id)
    if spec is None:
        raise errors.Conflict(f"Instance {server.uuid} cannot be moved: its request cannot be read")
    if server.host is None or server.cell_uuid is None:
        raise errors.Conflict(f"Instance {server.uuid} cannot be moved: it is on no host")
    if asked.kind is OperationKind.RESIZE and asked.flavor is not None and asked.flavor.flavor_id == spec.flavor.flavor_id:
        raise errors.Invalid("resize.flavorRef: the server has this flavor already")
    if asked.args.host is not None and asked.args.host.lower() == server.host.lower():
        raise errors.Invalid(f"host: instance {server.uuid} is on host {server.host} already")
    if asked.destination_cell not in (None, server.cell_uuid) and not asked.args.cross_cell:
        raise errors.Invalid(f"host: {asked.args.host} is in another cell, and moves between cells are not allowed for it")
    move = Move(kind=_KINDS[asked.kind], instance_uuid=source.uuid, source_host=server.host, source_cell_uuid=server.cell_uuid)
    destination = Destination(host=asked.args.host, allow_cross_cell_move=asked.args.cross_cell)
    if server.image_id is not None:
        spec = msgspec.structs.replace(spec, image=Image(id=server.image_id))
    moving = spec.moving(move, asked.batch_id or "", asked.flavor, destination)
    # its user data and password were erased when the first body was built
    return msgspec.structs.replace(moving, request_id=asked.request_id, has_secrets=False)


def _mapping_of_twin(tx: ApiTransaction, operation: Operation, spec: RequestSpec, source: Body, now: float) -> dict[str, Any]:
    copied = tx.execute(_COPY, {"uuid": source.uuid}).one()._mapping
    size = {"vcpus": max(0, spec.flavor.vcpus - source.charge[0]), "memory_mb": max(0, spec.flavor.memory_mb - source.charge[1])}
    power = Power.OFF if operation.power_before is Power.OFF else Power.ON
    return {
        "instance_uuid": operation.twin_uuid,
        "batch_id": spec.batch_id,
        "deleted": False,
        "fence": 0,
        "seen": 0,
        "state": "building",
        "availability_zone": spec.availability_zone,
        "updated_at": now,
        "server_uuid": operation.server_uuid,
        "turn": turn_of(operation.number),
        "hidden": True,
        "power": power,
        **size,
        **copied,
    }


_COPY = sa.select(*(instance_mappings.c[name] for name in _COPIED)).where(instance_mappings.c.instance_uuid == sa.bindparam("uuid"))


def _row(operation: Operation) -> Mapping[str, Any]:
    values = {name: getattr(operation, name) for name in operation.__struct_fields__ if name != "unreadable"}
    return values | {"args": stored.dump(operation.args), "open_for": operation.server_uuid}
