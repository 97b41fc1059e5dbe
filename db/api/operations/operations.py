"""Operations on servers: read, and lock together with the bodies that they are about.

``operation_accept.py`` makes operations and ``operation_steps.py`` takes them from state to state. ``docs/moves.md`` has the
guards. Every writer locks in this order: build requests, mappings, operations, then what they charge and claim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from db.api.rows.tables import instance_mappings, operations
from db.api.servers import image_removals, server_images
from db.api.servers.listing import server_of
from db.sql import dialect
from db.sql.connection import ApiTransaction, at_commit
from db.sql.keyed import by_index
from db.sql.readable import convert_readable, read_one, readable_page
from objects import errors, stored
from objects.base import Object
from objects.instance import Server
from objects.operation import Operation, OperationArgs, OperationKind, OperationState, Outcome
from objects.task import Power, TaskState
from service import metrics

T = TypeVar("T")


class Body(Object, frozen=True, kw_only=True):
    """One body of a server, as its mapping has it. ``charge``: its vCPUs and MiB of memory that the project is charged for."""

    server: Server
    hidden: bool
    charge: tuple[int, int]
    body_uuid: str | None = None
    last_number: int = 0

    @property
    def uuid(self) -> str:
        return self.server.body_uuid

    @property
    def task_answer(self) -> TaskState | None:
        """How its latest task ended, as its cell has told; None: it is under way."""
        return self.server.task_state if self.server.task_state.is_over else None

    def was_told(self, number: int) -> bool:
        """Whether its cell has told that it has the task of this number, or a later one."""
        return self.server.task_number >= number

    def is_held(self, number: int, *, forced: bool = False) -> bool:
        """Whether its cell has told that it may not run, under this task number, and that its guest is off.

        ``forced``: its host need not have answered. A hold that a host reports as failed does not count.
        """
        server = self.server
        is_off = server.task_state is TaskState.DONE or forced
        return (server.power, server.task_number) == (Power.HELD, number) and not server.deleted and is_off


class OpenOperation(Object, frozen=True, kw_only=True):
    """An operation with its bodies. ``source`` or ``twin`` None: it has none, or its row is gone."""

    operation: Operation
    source: Body | None
    twin: Body | None


_BY_UUID = by_index(
    sa.select(instance_mappings)
    .where(instance_mappings.c.instance_uuid.in_(dialect.uuids_parameter()))
    .order_by(instance_mappings.c.instance_uuid),
    instance_mappings,
)
_LOCK_BODIES = by_index(_BY_UUID.with_for_update(), instance_mappings)
_COLUMNS = tuple(column for column in operations.c if column is not operations.c.sealed)
"""What is read of operations: all but their secrets."""
_OF_UUIDS = sa.select(*_COLUMNS).where(operations.c.uuid.in_(dialect.uuids_parameter())).order_by(operations.c.uuid)
_LOCK = by_index(_OF_UUIDS.with_for_update(), operations)
_OPEN = (
    sa.select(*_COLUMNS)
    .where(operations.c.open_for > sa.bindparam("after"))
    .order_by(operations.c.open_for)
    .limit(sa.bindparam("limit"))
)
_OPEN_FOR = sa.select(*_COLUMNS).where(operations.c.open_for.in_(dialect.uuids_parameter()))
_OF_TWINS = sa.select(*_COLUMNS).where(operations.c.twin_uuid.in_(dialect.uuids_parameter()), operations.c.open_for.is_not(None))
_OF_SERVER = sa.select(*_COLUMNS).where(operations.c.server_uuid == sa.bindparam("server")).order_by(operations.c.created_at.desc())


def operation_of(row: sa.Row[Any]) -> Operation:
    """Convert a row. Arguments that cannot be read are those of an operation that was asked for without any.

    Other values that cannot be read are named in ``unreadable``: nobody acts on the operation, but its bodies are known.
    """
    odd: list[str] = []

    def read(name: str, convert: Callable[[Any], T], instead: T) -> T:
        value = getattr(row, name)
        try:
            return convert(value)
        except (TypeError, ValueError):
            odd.append(f"{name} {str(value)[:40]!r}")
            return instead

    now_open = row.open_for is not None
    return Operation(
        uuid=row.uuid,
        server_uuid=row.open_for or row.server_uuid,
        kind=read("kind", OperationKind, OperationKind.RESET),
        state=read("state", OperationState, OperationState.TASK if now_open else OperationState.ENDED),
        number=row.number,
        power_before=read("power_before", Power, Power.ON),
        project_id=row.project_id,
        user_id=row.user_id,
        request_id=row.request_id,
        created_at=read("created_at", float, 0.0),
        updated_at=read("updated_at", float, 0.0),
        deadline=read("deadline", float, 0.0),
        args=stored.load_or_none(row.args, OperationArgs) or OperationArgs(),
        held=row.held,
        forced=row.forced,
        source_uuid=row.source_uuid,
        twin_uuid=row.twin_uuid,
        source_host=row.source_host,
        target_host=row.target_host,
        vcpus=row.vcpus,
        memory_mb=row.memory_mb,
        ended_at=None if row.ended_at is None else read("ended_at", float, 0.0),
        outcome=None if now_open else read("outcome", Outcome, Outcome.FAILED),
        fault=row.fault,
        frozen=row.frozen,
        unreadable=", ".join(odd),
    )


def body_of(row: sa.Row[Any]) -> Body:
    """Convert a row of ``instance_mappings``."""
    return Body(
        server=server_of(row),
        hidden=row.hidden,
        charge=(row.vcpus or 0, row.memory_mb or 0),
        body_uuid=row.body_uuid,
        last_number=row.last_number,
    )


# -- reading -------------------------------------------------------------------------------------------------------------------


def get(tx: ApiTransaction, uuids: Sequence[str]) -> list[Operation]:
    """The operations with these uuids, by uuid."""
    return convert_readable(tx.execute(_OF_UUIDS, {"uuids": list(uuids)}), operation_of, operations)


def of_server(tx: ApiTransaction, server_uuid: str, limit: int = 1000) -> list[Operation]:
    """The operations of a server, newest first."""
    return convert_readable(tx.execute(_OF_SERVER.limit(limit), {"server": server_uuid}), operation_of, operations)


def open_for(tx: ApiTransaction, servers: Collection[str]) -> dict[str, Operation]:
    """The open operations of these servers, by server."""
    operation_by_server: dict[str, Operation] = {}
    ordered_servers = sorted(servers)
    for page in dialect.split_pages(ordered_servers):
        rows = tx.execute(_OPEN_FOR, {"uuids": page})
        operation_by_server |= {operation.server_uuid: operation for operation in convert_readable(rows, operation_of, operations)}
    return operation_by_server


def of_twins(tx: ApiTransaction, twins: Collection[str]) -> dict[str, Operation]:
    """The open operations whose twins these are, by twin. At most ``dialect.IN_LIST_SIZE``."""
    if not twins:
        return {}
    twin_operations = convert_readable(tx.execute(_OF_TWINS, {"uuids": sorted(twins)}), operation_of, operations)
    return {operation.twin_uuid: operation for operation in twin_operations if operation.twin_uuid is not None}


def cells_left(tx: ApiTransaction, twins: Collection[str]) -> list[str]:
    """The cells of the sources of these twins. At most ``dialect.IN_LIST_SIZE``."""
    sources = [operation.source_uuid for operation in of_twins(tx, twins).values() if operation.source_uuid is not None]
    return sorted({body.server.cell_uuid for body in bodies_by_uuid(tx, sources).values() if body.server.cell_uuid is not None})


def open_page(tx: ApiTransaction, limit: int, after: str = "") -> list[OpenOperation]:
    """At most ``limit`` open operations with their bodies, by server, after ``after``."""

    def read(start: str) -> Sequence[sa.Row[Any]]:
        return tx.execute(_OPEN, {"after": start, "limit": limit}).all()

    return _with_bodies(tx, readable_page(read, after, operation_of, operations, "open_for"), _BY_UUID)


def with_bodies(tx: ApiTransaction, uuids: Sequence[str]) -> list[OpenOperation]:
    """Those of these operations that are open, with their bodies."""
    open_operations = [operation for operation in get(tx, uuids) if operation.outcome is None]
    return _with_bodies(tx, open_operations, _BY_UUID)


def _with_bodies(tx: ApiTransaction, open_operations: Sequence[Operation], query: sa.Select[Any]) -> list[OpenOperation]:
    """Nobody acts on an operation that has a body which cannot be read: without it, it would look as if that body were gone."""
    uuids = _uuids_of(open_operations)
    bodies, damaged = _read_bodies(tx, uuids, query)
    if damaged:
        open_operations = [_with_damaged(operation, damaged) for operation in open_operations]
    return [
        OpenOperation(
            operation=operation, source=bodies.get(operation.source_uuid or ""), twin=bodies.get(operation.twin_uuid or "")
        )
        for operation in open_operations
    ]


def _with_damaged(operation: Operation, damaged: Collection[str]) -> Operation:
    odd = sorted(_uuids_of([operation]).intersection(damaged))
    reasons = filter(None, (operation.unreadable, *(f"the row of body {uuid}" for uuid in odd)))
    return msgspec.structs.replace(operation, unreadable=", ".join(reasons)) if odd else operation


def bodies_by_uuid(tx: ApiTransaction, uuids: Collection[str]) -> dict[str, Body]:
    """The bodies with these uuids, by uuid, unlocked."""
    return _read_bodies(tx, uuids, _BY_UUID)[0]


def read_body(tx: ApiTransaction, uuid: str) -> Body:
    """One that there is, unlocked. Raises errors.Conflict if its row cannot be read."""
    return read_one(tx.execute(_BY_UUID, {"uuids": [uuid]}).one(), body_of, instance_mappings)


def _uuids_of(listed: Iterable[Operation]) -> set[str]:
    return {
        uuid
        for operation in listed
        for uuid in (operation.server_uuid, operation.source_uuid, operation.twin_uuid)
        if uuid is not None
    }


def _read_bodies(tx: ApiTransaction, uuids: Collection[str], query: sa.Select[Any]) -> tuple[dict[str, Body], set[str]]:
    """The bodies by uuid, and the uuids of those whose rows cannot be read."""
    body_by_uuid: dict[str, Body] = {}
    damaged: set[str] = set()
    ordered_uuids = sorted(uuids)
    for page in dialect.split_pages(ordered_uuids):
        rows = tx.execute(query, {"uuids": page}).all()
        read = {body.uuid: body for body in convert_readable(rows, body_of, instance_mappings)}
        body_by_uuid |= read
        damaged |= {row.instance_uuid for row in rows} - read.keys()
    return body_by_uuid, damaged


class OperationQuery(Object, frozen=True, kw_only=True):
    """The filters of a list; an operation must pass all. ``host``, ``cell_uuid``: of either of its bodies.

    ``kinds``: empty: all. ``changed_since``, ``changed_before``: of its latest change, in seconds since the epoch, both inclusive.
    ``include_ended``: operations that have ended, too. ``limit``: the newest. ``marker``: only those after the one with this uuid.
    """

    server_uuid: str | None = None
    host: str | None = None
    cell_uuid: str | None = None
    state: OperationState | None = None
    kinds: tuple[OperationKind, ...] = ()
    source_host: str | None = None
    user_id: str | None = None
    project_id: str | None = None
    changed_since: float | None = None
    changed_before: float | None = None
    include_ended: bool = False
    limit: int = 1000
    marker: str | None = None

    def page_after(self, marker: str) -> OperationQuery:
        """The query of the page that follows this operation."""
        return msgspec.structs.replace(self, marker=marker)


def list_(tx: ApiTransaction, query: OperationQuery) -> list[Operation]:
    """The operations that pass the filters, the newest first. Raises errors.Invalid for an unknown marker."""
    of = operations.c
    conditions: list[sa.ColumnElement[bool]] = [] if query.include_ended else [of.open_for.is_not(None)]
    equal = {
        of.server_uuid: query.server_uuid,
        of.source_host: query.source_host,
        of.user_id: query.user_id,
        of.project_id: query.project_id,
        of.state: query.state,
    }
    conditions += [column == value for column, value in equal.items() if value is not None]
    if query.kinds:
        conditions.append(of.kind.in_(query.kinds))
    if query.changed_since is not None:
        conditions.append(of.updated_at >= query.changed_since)
    if query.changed_before is not None:
        conditions.append(of.updated_at <= query.changed_before)
    if query.marker is not None:
        conditions.append(_is_after_marker(tx, query.marker))
    if query.host is not None:
        conditions.append(sa.or_(of.source_host == query.host, of.target_host == query.host))
    if query.cell_uuid is not None:
        in_cell = sa.select(instance_mappings.c.instance_uuid).where(
            instance_mappings.c.instance_uuid.in_([of.source_uuid, of.twin_uuid]), instance_mappings.c.cell_uuid == query.cell_uuid
        )
        conditions.append(in_cell.exists())
    statement = sa.select(*_COLUMNS).where(*conditions).order_by(of.created_at.desc(), of.uuid).limit(query.limit)
    return convert_readable(tx.execute(statement), operation_of, operations)


def _is_after_marker(tx: ApiTransaction, marker: str) -> sa.ColumnElement[bool]:
    of = operations.c
    at = tx.execute(sa.select(of.created_at).where(of.uuid == marker)).scalar_one_or_none()
    if at is None:
        raise errors.Invalid(f"Marker {marker[:80]} could not be found.")
    return sa.or_(of.created_at < at, sa.and_(of.created_at == at, of.uuid > marker))


_FAILED = sa.select(operations.c.server_uuid).where(
    operations.c.server_uuid.in_(dialect.uuids_parameter()),
    operations.c.kind == sa.bindparam("kind"),
    operations.c.outcome == Outcome.GIVEN_UP,
    operations.c.ended_at >= sa.bindparam("since"),
)


def lately_given_up(tx: ApiTransaction, servers: Collection[str], kind: OperationKind, since: float) -> set[str]:
    """Those of these servers whose operation of this kind was given up since then (seconds since the epoch)."""
    given_up: set[str] = set()
    ordered_servers = sorted(servers)
    for page in dialect.split_pages(ordered_servers):
        parameters = {"uuids": page, "kind": kind, "since": since}
        given_up.update(tx.execute(_FAILED, parameters).scalars())
    return given_up


# -- secrets of rebuilds --------------------------------------------------------------------------------------------------------

_KEEP = sa.update(operations).where(operations.c.uuid == sa.bindparam("op")).values(sealed=sa.bindparam("text"))
_KEPT = sa.select(operations.c.uuid, operations.c.sealed).where(
    operations.c.uuid.in_(dialect.uuids_parameter()), operations.c.sealed.is_not(None)
)
_ERASE = by_index(
    sa.update(operations).where(operations.c.uuid.in_(dialect.uuids_parameter())).values(sealed=sa.null()), operations
)


def keep_secrets(tx: ApiTransaction, sealed: Mapping[str, str]) -> None:
    """Store the sealed secrets of these operations, which the transaction has accepted. They are erased with the task's end."""
    if sealed:
        tx.execute(_KEEP, [{"op": uuid, "text": text} for uuid, text in sealed.items()])


def kept_secrets(tx: ApiTransaction, uuids: Sequence[str]) -> dict[str, str]:
    """The sealed secrets of those of these operations that have some, by operation."""
    return {row.uuid: row.sealed for row in tx.execute(_KEPT, {"uuids": list(uuids)})}


def erase_secrets(tx: ApiTransaction, uuids: Sequence[str]) -> None:
    """Erase what is kept for these operations, whose tasks are not asked for any more."""
    if uuids:
        tx.execute(_ERASE, {"uuids": list(uuids)})


def refuse_frozen(operation: Operation | None) -> None:
    """Raise errors.NotCompared for an operation that takes no step before it was compared with the cells."""
    if operation is not None and operation.frozen is not None:
        text = f"The {operation.kind} of instance {operation.server_uuid} has not been compared with its cells"
        raise errors.NotCompared(f"{text} since the database was restored from a backup: operation {operation.uuid}")


# -- locking -------------------------------------------------------------------------------------------------------------------


class Locked(Object, frozen=True, kw_only=True):
    """Operations that are locked with all their bodies: what is read here stays so until the transaction ends."""

    operations: tuple[OpenOperation, ...]
    bodies: dict[str, Body]


def lock_bodies(tx: ApiTransaction, uuids: Collection[str]) -> dict[str, Body]:
    """Lock these bodies in the order of their uuids; return them by uuid."""
    locked_bodies, damaged = _read_bodies(tx, uuids, _LOCK_BODIES)
    if damaged:
        raise errors.Conflict(f"the row of body {min(map(str, damaged))} cannot be read: the log says why")
    return locked_bodies


def lock_operations(
    tx: ApiTransaction, uuids: Collection[str], states: Collection[OperationState], *, frozen: bool = False
) -> Locked:
    """Lock those of these operations that are in one of ``states``, their bodies and home rows first.

    ``frozen``: only those that have not been compared with their cells; else these are left out.
    """
    # which bodies these are never changes, so it may be read without a lock
    locked_bodies = lock_bodies(tx, _uuids_of(get(tx, sorted(uuids))))
    now = convert_readable(tx.execute(_LOCK, {"uuids": sorted(uuids)}), operation_of, operations)
    open_operations = tuple(
        OpenOperation(
            operation=operation,
            source=locked_bodies.get(operation.source_uuid or ""),
            twin=locked_bodies.get(operation.twin_uuid or ""),
        )
        for operation in now
        if operation.outcome is None
        and operation.state in states
        and not operation.unreadable
        and (operation.frozen is not None) is frozen
    )
    return Locked(operations=open_operations, bodies=locked_bodies)


# -- ends ----------------------------------------------------------------------------------------------------------------------

_END = by_index(
    sa.update(operations)
    .where(operations.c.uuid.in_(dialect.uuids_parameter()), operations.c.open_for.is_not(None))
    .values(
        state=OperationState.ENDED,
        open_for=sa.null(),
        outcome=sa.bindparam("how"),
        sealed=sa.null(),
        frozen=sa.null(),
        ended_at=sa.bindparam("now"),
        updated_at=sa.bindparam("now"),
    ),
    operations,
)
_WHY = (
    sa.update(operations)
    .where(operations.c.uuid == sa.bindparam("op"), operations.c.fault.is_(None))
    .values(fault=sa.bindparam("why"))
)


def end_operations(
    tx: ApiTransaction, operations_to_end: Sequence[Operation], outcome: Outcome, now: float, fault: str | None = None
) -> None:
    """End these operations, which the caller has locked. ``fault``: the reason, where none is known yet.

    The snapshot of a server that does not stay shelved is of no use any more, nor is an image that was not made.
    """
    if not operations_to_end:
        return
    tx.execute(_END, {"uuids": [operation.uuid for operation in operations_to_end], "how": outcome, "now": now})
    if fault is not None:
        tx.execute(_WHY, [{"op": operation.uuid, "why": fault} for operation in operations_to_end])
    if outcome is not Outcome.DONE:
        server_images.forget_images(tx, [operation.uuid for operation in operations_to_end if operation.kind.makes_image])
        written = [
            operation for operation in operations_to_end if operation.kind is OperationKind.SHELVE or operation.kind.makes_image
        ]
        image_removals.add_removals(tx, {operation.uuid: operation.source_uuid for operation in written}, now)
    at_commit(tx, partial(_count_ended, [operation.kind for operation in operations_to_end], outcome))


def _count_ended(kinds: Sequence[OperationKind], outcome: Outcome) -> None:
    for kind in kinds:
        metrics.OPERATIONS_ENDED.labels(kind, outcome).inc()
