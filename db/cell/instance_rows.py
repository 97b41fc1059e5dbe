"""Read, lock and write instance rows of a cell as records. ``instances.py`` decides which rows, and why."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from db.cell import staging
from db.cell.tables import builds, instance_faults, instances
from db.sql import dialect
from db.sql.connection import CellTransaction
from db.sql.dialect import UpdateMany
from db.sql.keyed import by_index
from db.sql.readable import odd_column
from objects import stored
from objects.instance import Attempt, Instance, State
from objects.lifecycle import Change
from objects.port import Port
from objects.selection import HostCapacity, Selection
from objects.task import Power, StoredContent, TaskState
from objects.text import FAULT_SIZE, clean_text
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

UNREADABLE = (*stored.UNREADABLE, ValueError)
"""What decoding a column can raise. ValueError: a state of another release, or text that is not Unicode."""

_COMPLAINTS = RateLimitedLog(LOG)

# Without the columns for tenants, because every report of an agent reads all columns of PROTOCOL.
_ASIDE = ("project_id", "user_id", "name", "flavor", "launch_index")
PROTOCOL: sa.Select[Any] = sa.select(
    *(column for column in instances.c if column.name not in _ASIDE),
    builds.c.instance_uuid.label("build"),
    builds.c.limits,
    builds.c.alternates,
    builds.c.max_attempts,
    builds.c.history,
    builds.c.deadline,
    builds.c.has_group,
    builds.c.ports,
).select_from(instances.outerjoin(builds, builds.c.instance_uuid == instances.c.uuid))
"""The columns that ``instance_from_row`` converts into a record."""
LAST_FAULT = (
    sa.select(instance_faults.c.message)
    .where(instance_faults.c.instance_uuid == instances.c.uuid)
    .order_by(instance_faults.c.id.desc())
    .limit(1)
    .scalar_subquery()
    .label("fault")
)
"""The latest fault, a column to add to PROTOCOL for showing the row."""


def instance_from_row(row: sa.Row[Any], fault: str | None = None) -> Instance:
    """Convert a row of PROTOCOL. The tombstone of an instance that was never in this cell has no build record.

    It never raises because of a column's content, so that one row does not block others in the same read.
    """
    if row.build is None:
        return _without_build(row, fault)
    if odd_column(row, instances) is not None or odd_column(row, builds) is not None:
        return _decode_damaged(row, fault)
    try:
        return _decode_whole(row, fault)
    except UNREADABLE:
        return _decode_damaged(row, fault)


def _decode_whole(row: sa.Row[Any], fault: str | None) -> Instance:
    return Instance(
        uuid=row.uuid,
        state=State(row.state),
        fence=row.fence,
        attempt=row.attempt,
        builder=row.builder,
        version=row.version,
        host=row.host,
        node=row.node,
        limits=stored.load_text(row.limits, HostCapacity | None) if row.limits else None,  # type: ignore[arg-type]  # a union is a type form
        availability_zone=row.availability_zone,
        alternates=() if row.alternates == "[]" else stored.load_text(row.alternates, tuple[Selection, ...]),
        max_attempts=row.max_attempts,
        history=() if row.history == "[]" else stored.load_text(row.history, tuple[Attempt, ...]),
        deadline=row.deadline,
        has_group=row.has_group,
        batch_id=row.batch_id,
        building_at=row.building_at,
        launched_at=row.launched_at,
        terminated_at=row.terminated_at,
        fault=fault,
        rolled_back=row.rolled_back,
        created_at=row.created_at,
        changed_at=row.updated_at,
        server_uuid=row.server_uuid,
        turn=row.turn,
        power=Power(row.power),
        task_number=row.task_number,
        task_state=TaskState(row.task_state),
        task_fault=row.task_fault,
        task_stored=stored.load_or_none(row.task_stored, StoredContent),
        ports=stored.load_text(row.ports, tuple[Port, ...]) if row.ports else (),
    )


def _without_build(row: sa.Row[Any], fault: str | None) -> Instance:
    bare_instance = Instance(
        uuid=row.uuid, state=state_of(row.state), fence=row.fence, attempt=row.attempt, version=row.version, fault=fault
    )
    return bare_instance if bare_instance.state is State.DELETED else _decode_damaged(row, fault)


def _decode_damaged(row: sa.Row[Any], fault: str | None) -> Instance:
    """The row with defaults for columns that cannot be decoded. Fence, attempt and builder still guard its transitions."""
    damage: list[str] = []

    def decode_column(name: str, kind: Any, default: Any) -> Any:
        try:
            return stored.load_text(getattr(row, name), kind)
        except UNREADABLE as error:
            damage.append(f"{name}: {type(error).__name__}: {error}" if row.build is not None else f"{name}: no build record")
            return default

    limits = decode_column("limits", HostCapacity | None, None) if row.limits else None
    alternates = decode_column("alternates", tuple[Selection, ...], ())
    history = decode_column("history", tuple[Attempt, ...], ())
    ports = decode_column("ports", tuple[Port, ...], ()) if row.ports else ()
    power, task_state = _kind_or_none(Power, row.power), _kind_or_none(TaskState, row.task_state)
    damage += [
        f"{name}: {getattr(row, name)!r} is not known"
        for name, column_value in (("power", power), ("task_state", task_state))
        if not column_value
    ]
    odd = {name for table in (instances, builds) if (name := odd_column(row, table)) is not None}
    damage += [f"{name}: {type(getattr(row, name)).__name__} in a column of another type" for name in sorted(odd)]
    if state_of(row.state) is State.UNKNOWN:
        damage.append(f"state: {row.state!r} is not known to this release")
    reason = clean_text("; ".join(damage), FAULT_SIZE)
    _COMPLAINTS(reason, logging.ERROR, "instance %s: its record cannot be read in full: %s", clean_text(row.uuid, 36), reason)
    return Instance(
        uuid=row.uuid,
        state=state_of(row.state),
        fence=_number_or_zero(row.fence),
        attempt=_number_or_zero(row.attempt),
        builder=_text_or_none(row.builder),
        version=_number_or_zero(row.version),
        host=_text_or_none(row.host),
        node=_text_or_none(row.node),
        limits=limits,
        availability_zone=_text_or_none(row.availability_zone),
        alternates=alternates,
        max_attempts=_number_or_zero(row.max_attempts),
        history=history,
        deadline=row.deadline or 0.0,
        has_group=bool(row.has_group),
        batch_id=_text_or_none(row.batch_id),
        building_at=row.building_at,
        launched_at=row.launched_at,
        terminated_at=row.terminated_at,
        fault=fault,
        rolled_back=_text_or_none(row.rolled_back),
        created_at=row.created_at,
        changed_at=row.updated_at,
        damage=reason,
        server_uuid=_text_or_none(row.server_uuid),
        turn=row.turn if isinstance(row.turn, int) else 1,  # if in doubt, its operation decides about it
        power=power or Power.HELD,
        task_number=_number_or_zero(row.task_number),
        task_state=task_state or TaskState.FAILED,
        ports=ports,
    )


def _number_or_zero(value: object) -> int:
    return value if isinstance(value, int) else 0


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


Kind = TypeVar("Kind", Power, TaskState)


def _kind_or_none(kind: type[Kind], text: str) -> Kind | None:
    try:
        return kind(text)
    except ValueError:
        return None


def state_of(text: str) -> State:
    """The state of a row. UNKNOWN: another release wrote it."""
    try:
        return State(text)
    except ValueError:
        return State.UNKNOWN


_OF_UUIDS = PROTOCOL.where(instances.c.uuid.in_(dialect.uuids_parameter())).order_by(instances.c.uuid)
_LOCKED = by_index(_OF_UUIDS.with_for_update(of=instances), instances)
# After waiting for a lock, PostgreSQL returns the locked row as it is now but joined rows as they were: so lock first, then read.
_LOCK = (
    sa.select(instances.c.uuid).where(instances.c.uuid.in_(dialect.uuids_parameter())).order_by(instances.c.uuid).with_for_update()
)


def lock_rows(tx: CellTransaction, uuids: list[str]) -> list[Instance]:
    """Lock these rows in uuid order, and return them with their builds."""
    query = _LOCKED
    if tx.dialect.name == "postgresql":
        uuids, query = list(tx.execute(_LOCK, {"uuids": uuids}).scalars()), _OF_UUIDS
    return [instance_from_row(row) for row in tx.execute(query, {"uuids": uuids})]


_CHANGED = {
    name: f"new_{name}"
    for name in (
        "state", "attempt", "builder", "version", "host", "node", "availability_zone", "building_at", "launched_at",
        "terminated_at", "rolled_back", "updated_at",
    )
}  # fmt: skip
_WRITE = UpdateMany(
    sa.update(instances)
    .where(instances.c.uuid == sa.bindparam("row_uuid"), instances.c.version == sa.bindparam("read_version"))
    .values({column: sa.bindparam(parameter) for column, parameter in _CHANGED.items()}),
    instances,
    key=("uuid", "row_uuid"),
    values=_CHANGED,
    where="t.version = w.read_version",
)
_WRITE_TASK = (
    sa.update(instances)
    .where(instances.c.uuid == sa.bindparam("row"))
    .values({name: sa.bindparam(f"new_{name}") for name in ("power", "task_number", "task_state", "task_fault", "task_stored")})
)
_WRITE_BUILD = (
    sa.update(builds)
    .where(builds.c.instance_uuid == sa.bindparam("row"))
    .values(
        limits=sa.bindparam("new_limits"),
        alternates=sa.bindparam("new_alternates"),
        history=sa.bindparam("new_history"),
        sent_at=sa.bindparam("new_sent_at"),
    )
)


def write(tx: CellTransaction, changes: Sequence[tuple[Instance, Change]], now: float) -> None:
    """Write these changes of locked rows, their builds if these changed, and new faults."""
    if not changes:
        return
    written = _WRITE(tx, [_new_values(old, change.row, now) for old, change in changes])
    if written != len(changes):
        raise RuntimeError(f"{len(changes) - written} locked instance rows changed under their lock")
    rebuilt = [
        change.row for old, change in changes if (old.history, old.alternates) != (change.row.history, change.row.alternates)
    ]
    if rebuilt:
        tx.execute(
            _WRITE_BUILD,
            [
                {
                    "row": row.uuid,
                    "new_limits": stored.dump_value(row.limits),
                    "new_alternates": stored.dump_value(row.alternates),
                    "new_history": stored.dump_value(row.history),
                    "new_sent_at": now,
                }
                for row in rebuilt
            ],
        )
    tasks = [change.row for old, change in changes if _task_of(old) != _task_of(change.row)]
    if tasks:
        tx.execute(
            _WRITE_TASK, [{"row": row.uuid} | {f"new_{name}": value for name, value in _task_of(row).items()} for row in tasks]
        )
    faults = [staging.fault_row(change.row, now) for old, change in changes if change.row.fault and change.row.fault != old.fault]
    if faults:
        tx.execute(sa.insert(instance_faults), faults)


def _new_values(old: Instance, row: Instance, now: float) -> dict[str, Any]:
    building_at = now if row.state is State.BUILDING and old.state is not State.BUILDING else row.building_at
    return {
        "row_uuid": row.uuid,
        "read_version": old.version,
        "new_state": row.state,
        "new_attempt": row.attempt,
        "new_builder": row.builder,
        "new_version": row.version,
        "new_host": row.host,
        "new_node": row.node,
        "new_availability_zone": row.availability_zone,
        "new_building_at": building_at if row.attempt == old.attempt else None,
        "new_launched_at": row.launched_at,
        "new_terminated_at": row.terminated_at,
        "new_rolled_back": row.rolled_back,
        "new_updated_at": now,
    }


def _task_of(row: Instance) -> dict[str, object]:
    return {
        "power": row.power,
        "task_number": row.task_number,
        "task_state": row.task_state,
        "task_fault": row.task_fault,
        "task_stored": stored.dump_value(row.task_stored) if row.task_stored is not None else None,
    }
