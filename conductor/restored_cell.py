"""Bring the rows of a cell whose database was restored up to what the API database knows, before anything starts from them.

Until then the cell's conductors let no task begin (``conductor/mark_watch.py``). Everything here may be repeated. Its writes have
the guards of the cell's rows, so a row that is as new as the API level knows it does not change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cells import comparison
from cells.cell import Cell
from cells.registry import CellRegistry
from conductor.audit import permits
from conductor.audit.places import Places
from conductor.operation_tasks import interface_tasks, task_of
from db.api.claims.claims import Ledger
from db.api.operations import operations
from db.audit import cell_rows, servers
from db.audit.servers import Record
from db.cell import instances, tasks
from db.cell.tasks import TaskEnd, TaskFor
from db.sql.engine import ApiDatabase
from objects import errors, lifecycle
from objects.instance import State
from objects.instance_row import InstanceRow
from objects.operation import OperationState
from objects.task import Power, Task, TaskKind, TaskState

ENDING_STATES = (State.DELETING, State.DELETED)


def reconcile_cell(ledger: Ledger, cell: Cell) -> int:
    """Write into the cell what the API level knows of later tasks, powers and deletes of its rows. Returns how many it tells again.

    No guest is touched. Raises CellUnavailable.
    """
    after = ""
    while uuids := cell.read(cell_rows.rows_after, after, comparison.PAGE_SIZE):
        after = uuids[-1]
        rows = cell.read(cell_rows.read_rows, uuids).rows
        _, records = ledger.database.read(servers.read_records, uuids)
        known = {uuid: record for uuid, record in records.items() if record.cell_uuid == cell.uuid and uuid in rows}
        _delete(cell, [uuid for uuid, record in known.items() if record.deleted and rows[uuid].state not in ENDING_STATES])
        known = {uuid: record for uuid, record in known.items() if not record.deleted}
        _lose_track(cell, {uuid: rows[uuid] for uuid, record in known.items() if _runs_elsewhere(rows[uuid], record)})
        active = {uuid: record for uuid, record in known.items() if rows[uuid].state is State.ACTIVE}
        _relearn_tasks(cell, rows, {uuid: record for uuid, record in active.items() if record.seen > rows[uuid].version})
        _ask_tasks(cell, _later_tasks(ledger.database, rows, active))
    return comparison.retell_rows(ledger, cell)


def reconcile_all(registry: CellRegistry, ledger: Ledger, without: Collection[str] = ()) -> None:
    """The same of all cells: the API database was restored, and any of them may have been too.

    ``without``: names of cells that an operator has left out. Raises ComparisonBlocked if another cell stops answering.
    """
    try:
        for cell in registry.list_cells():
            if cell.name not in without:
                reconcile_cell(ledger, cell)
    except errors.CellUnavailable as error:
        raise comparison.ComparisonBlocked(str(error)) from error


def hold_others(places: Places) -> None:
    """Of each server with several bodies whose rows permit them to run, hold those that are not the server."""
    places.begin_check()
    for page in permits.list_pages(places):
        if findings := [finding for finding in permits.find_inconsistent(places, page) if finding.repair]:
            permits.repair_findings(places, findings)


def _delete(cell: Cell, uuids: Sequence[str]) -> None:
    if uuids:
        cell.write(instances.delete, uuids, cell.current_time())


def _runs_elsewhere(row: InstanceRow, record: Record) -> bool:
    is_older = record.seen > row.version
    return is_older and row.state in lifecycle.LIVE and record.state == "active" and record.host != row.host


def _lose_track(cell: Cell, rows: Mapping[str, InstanceRow]) -> None:
    if rows:
        now = cell.current_time()
        cell.write(instances.transition_rows, rows, lambda row: lifecycle.lose_track(row, rows[row.uuid].attempt, now), now)


def _relearn_tasks(cell: Cell, rows: Mapping[str, InstanceRow], records: Mapping[str, Record]) -> None:
    """How the rows' own tasks ended, and what powers their hosts have reported since."""
    ended = {
        uuid: TaskEnd(
            version=rows[uuid].version, number=record.task_number, power=Power(record.power), state=TaskState(record.task_state)
        )
        for uuid, record in records.items()
        if record.task_number == rows[uuid].task_number and _is_readable(record)
    }
    if ended:
        cell.write(tasks.relearn_tasks, ended, cell.current_time())


def _later_tasks(database: ApiDatabase, rows: Mapping[str, InstanceRow], records: Mapping[str, Record]) -> list[TaskFor]:
    """The tasks that the rows have lost: the latest that the cell had told, or that an open live migration asks of its source."""
    lost = [uuid for uuid, record in records.items() if record.task_number > rows[uuid].task_number and _is_readable(record)]
    later_tasks = interface_tasks(database, lost)
    for uuid in lost:
        record = records[uuid]
        later_tasks.setdefault(uuid, Task(number=record.task_number, kind=TaskKind.POWER, power=Power(record.power)))
    later_tasks |= _pending_transfers(database, rows, records)
    return [
        TaskFor(instance_uuid=uuid, task=task) for uuid, task in sorted(later_tasks.items()) if task.number > rows[uuid].task_number
    ]


def _pending_transfers(database: ApiDatabase, rows: Mapping[str, InstanceRow], records: Mapping[str, Record]) -> dict[str, Task]:
    """Of guests that may have gone over to other bodies, although no cell has told so yet."""
    opened = database.read(operations.open_for, {record.uuid_of_server for record in records.values()})
    sending = [
        opened_operation.uuid
        for opened_operation in opened.values()
        if opened_operation.state is OperationState.SENDING and not opened_operation.unreadable
    ]
    sending_operations = database.read(operations.with_bodies, sending) if sending else []
    sources = {
        opened_operation.source.uuid: task_of(opened_operation, opened_operation.source, ())
        for opened_operation in sending_operations
        if opened_operation.source is not None
    }
    return {uuid: task for uuid, task in sources.items() if uuid in records and task.number > records[uuid].task_number}


def _ask_tasks(cell: Cell, tasks_wanted: Sequence[TaskFor]) -> None:
    if tasks_wanted:
        cell.write(tasks.ask_tasks, tasks_wanted, cell.current_time())


def _is_readable(record: Record) -> bool:
    """Whether this release knows its power and its task's state."""
    return record.power in set(Power) and record.task_state in set(TaskState)
