"""Tasks of a cell's ACTIVE instances that are not over. ``objects/lifecycle.py`` decides; the row of the instance has the state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from db.cell import instances
from db.cell.tables import builds, snapshots, tasks
from db.cell.tables import instances as rows
from db.secrets import Kept
from db.sql import dialect
from db.sql.clock import is_stale
from db.sql.connection import CellTransaction
from db.sql.dialect import Upsert
from db.sql.keyed import KeyedDelete, by_index
from db.sql.readable import sound_rows
from objects import lifecycle, stored
from objects.base import Object
from objects.instance import Instance, State
from objects.lifecycle import Change, Outcome
from objects.port import Port
from objects.task import Power, Task, TaskArgs, TaskKind, TaskOrder, TaskState

_ORDER = Upsert(tasks, key=["instance_uuid"], replaced=("number", "kind", "args", "builder", "request_id", "sent_at", "sealed"))
_SNAPSHOT = Upsert(snapshots, key=["instance_uuid"], replaced=("number", "image_id"))
_FORGET = KeyedDelete(tasks.c.instance_uuid, returning=[tasks.c.instance_uuid])
_COLUMNS = tuple(column for column in tasks.c if column is not tasks.c.sealed)
"""What is read of tasks: all but their secrets."""
_OF = sa.select(*_COLUMNS, rows.c.power).join(rows, rows.c.uuid == tasks.c.instance_uuid)
_ONE = _OF.where(tasks.c.instance_uuid == sa.bindparam("uuid"))
_KEPT = sa.select(tasks.c.instance_uuid, tasks.c.number, tasks.c.sealed).where(
    tasks.c.instance_uuid.in_(dialect.uuids_parameter()), tasks.c.sealed.is_not(None)
)
_GRANT = sa.update(tasks).where(tasks.c.instance_uuid == sa.bindparam("uuid")).values(builder=sa.bindparam("to"))


class TaskFor(Object, frozen=True, kw_only=True):
    """A task that the API level asks of an instance. ``sealed``: its secrets under the name ``secrets_name``, if it has any.

    ``fault``: it is over at once, and has failed for this reason: nothing is stored, and no host is to carry it out.
    """

    instance_uuid: str
    task: Task
    sealed: str | None = None
    fault: str | None = None


class DueTask(Object, frozen=True, kw_only=True):
    """A task with the host that is to carry it out. ``order`` None: the instance is not ACTIVE any more."""

    instance_uuid: str
    host: str
    order: TaskOrder | None


def ask_tasks(tx: CellTransaction, tasks_asked: Sequence[TaskFor], now: float) -> dict[str, Outcome]:
    """Write each task into its row, unless the row has this task or a later one; return the outcomes by uuid."""
    task_by_uuid = {task_for.instance_uuid: task_for for task_for in tasks_asked}

    def decide_task(row: Instance) -> Outcome:
        task_for = task_by_uuid[row.uuid]
        return lifecycle.ask_task(row, task_for.task.number, task_for.task.power, task_for.fault)

    outcomes = instances.carry_out(tx, task_by_uuid, decide_task, now)
    taken = [task_by_uuid[uuid] for uuid, outcome in outcomes.items() if isinstance(outcome, Change)]
    _ORDER(
        tx, [_task_row(task_for.instance_uuid, task_for.task, task_for.sealed, now) for task_for in taken if task_for.fault is None]
    )
    forget_tasks(tx, [task_for.instance_uuid for task_for in taken if task_for.fault is not None])
    if named := [snapshot_row for task_for in taken if (snapshot_row := _snapshot_of(task_for)) is not None]:
        _SNAPSHOT(tx, named)
    instances.append_changes(tx, outcomes.values(), now)
    return outcomes


class TaskEnd(Object, frozen=True, kw_only=True):
    """How a task ended, as the API level has seen it. ``version``: of the row, as it was read."""

    version: int
    number: int
    power: Power
    state: TaskState


def relearn_tasks(tx: CellTransaction, ended: Mapping[str, TaskEnd], now: float) -> dict[str, Outcome]:
    """Write how these tasks ended into rows of a restored database, by uuid; return the outcomes (``lifecycle.relearn_task``)."""

    def decide_relearned(row: Instance) -> Outcome:
        known = ended[row.uuid]
        return lifecycle.relearn_task(row, known.version, known.number, known.power, known.state)

    outcomes = instances.carry_out(tx, ended, decide_relearned, now)
    forget_tasks(tx, [uuid for uuid, outcome in outcomes.items() if isinstance(outcome, Change)])
    instances.append_changes(tx, outcomes.values(), now)
    return outcomes


def _task_row(uuid: str, task: Task, sealed: str | None, now: float) -> dict[str, Any]:
    values = {"number": task.number, "kind": task.kind, "args": stored.dump_value(task.args), "builder": None, "sealed": sealed}
    return {"instance_uuid": uuid, "request_id": task.request_id, "sent_at": now} | values


def _snapshot_of(task_for: TaskFor) -> dict[str, Any] | None:
    task = task_for.task
    if task.kind is not TaskKind.SNAPSHOT or task.args.image_id is None:
        return None
    return {"instance_uuid": task_for.instance_uuid, "number": task.number, "image_id": task.args.image_id}


def read_task(tx: CellTransaction, uuid: str) -> Task | None:
    """The task of this instance that is not over. Raises one of ``stored.UNREADABLE`` or ValueError for one that cannot be read."""
    row = tx.execute(_ONE, {"uuid": uuid}).one_or_none()
    if row is None:
        return None
    args = stored.load_text(row.args, TaskArgs)
    return Task(
        number=row.number,
        kind=TaskKind(row.kind),
        power=Power(row.power),
        args=args,
        request_id=row.request_id,
        builder=row.builder,
    )


def secrets_name(uuid: str, number: int) -> str:
    """The name that the secrets of a task are sealed under, so that they are of no use in another task's row."""
    return f"{uuid}:{number}"


def secrets_of(tx: CellTransaction, uuids: Iterable[str]) -> dict[str, Kept]:
    """The sealed secrets of the tasks of these instances that are not over, by instance, of those that have some."""
    kept_rows = tx.execute(_KEPT, {"uuids": sorted(uuids)})
    return {row.instance_uuid: Kept(batch_id=secrets_name(row.instance_uuid, row.number), sealed=row.sealed) for row in kept_rows}


def record_granted(tx: CellTransaction, builders: Mapping[str, str]) -> None:
    """Note the agent start that each of these tasks was granted to, by instance uuid."""
    for uuid, builder in sorted(builders.items()):
        tx.execute(_GRANT, {"uuid": uuid, "to": builder})


_CONNECTED = by_index(
    sa.select(tasks.c.instance_uuid, tasks.c.args).where(
        tasks.c.instance_uuid.in_(dialect.uuids_parameter()), tasks.c.kind == TaskKind.INTERFACES
    ),
    tasks,
)
_CONNECT = sa.update(builds).where(builds.c.instance_uuid == sa.bindparam("uuid")).values(ports=sa.bindparam("own"))


def record_connected(tx: CellTransaction, uuids: Iterable[str]) -> None:
    """The tasks of these instances are done: note the interfaces that some of them have given their guests."""
    for row in tx.execute(_CONNECTED, {"uuids": sorted(uuids)}).all():
        connect_interfaces(tx, row.instance_uuid, stored.load_text(row.args, TaskArgs).ports)


def connect_interfaces(tx: CellTransaction, uuid: str, ports: Sequence[Port]) -> None:
    """Note the interfaces that the guest of this instance has."""
    tx.execute(_CONNECT, {"uuid": uuid, "own": stored.dump_value(tuple(ports)) if ports else None})


def forget_tasks(tx: CellTransaction, uuids: Iterable[str]) -> None:
    """Forget the tasks of these instances."""
    _FORGET(tx, sorted(uuids))


_I = rows.c
_DUE = (
    sa.select(*_COLUMNS, _I.host, _I.fence, _I.attempt, _I.state, _I.power, _I.task_number, _I.task_state)
    .select_from(tasks.outerjoin(rows, rows.c.uuid == tasks.c.instance_uuid))
    .order_by(tasks.c.sent_at)
)
_UNFINISHED = (TaskState.ORDERED, TaskState.RUNNING)


def list_unfinished(tx: CellTransaction, before: float, limit: int) -> tuple[list[DueTask], dict[str, Exception]]:
    """At most ``limit`` tasks last sent before ``before``, the longest waiting first, and the errors of unreadable ones by uuid."""
    return _due_tasks(tx, _DUE.where(is_stale(tasks.c.sent_at, before)).limit(limit))


def orders_of(tx: CellTransaction, uuids: Iterable[str]) -> list[DueTask]:
    """The tasks of these instances that are not over."""
    return _due_tasks(tx, _DUE.where(tasks.c.instance_uuid.in_(sorted(uuids))))[0]


def _due_tasks(tx: CellTransaction, query: sa.Select[Any]) -> tuple[list[DueTask], dict[str, Exception]]:
    due: list[DueTask] = []
    unreadable: dict[str, Exception] = {}
    for row in sound_rows(tx.execute(query), tasks):
        is_wanted = row.state == State.ACTIVE and row.task_number == row.number and row.task_state in _UNFINISHED
        try:
            order = TaskOrder(
                instance_uuid=row.instance_uuid,
                fence=row.fence,
                attempt=row.attempt,
                number=row.number,
                kind=TaskKind(row.kind),
                power=Power(row.power),
                args=stored.load_text(row.args, TaskArgs),
                request_id=row.request_id,
            )
        except (*stored.UNREADABLE, ValueError) as error:
            unreadable[row.instance_uuid] = error
        else:
            due.append(DueTask(instance_uuid=row.instance_uuid, host=row.host or "", order=order if is_wanted else None))
    return due, unreadable


_SENT = by_index(
    sa.update(tasks).where(tasks.c.instance_uuid.in_(dialect.uuids_parameter())).values(sent_at=sa.bindparam("now")), tasks
)


def record_sent(tx: CellTransaction, uuids: Iterable[str], now: float) -> None:
    """Record when orders were sent again."""
    tx.execute(_SENT, {"uuids": sorted(uuids), "now": now})
