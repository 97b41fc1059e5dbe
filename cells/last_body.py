"""Ask the cells before a body of a server is deleted: it must not be the only one that is left.

The API level knows of rows what the cells' feeds have told. After a loss of commits, that may be older than what happened.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from cells.registry import CellRegistry
from db.api.operations import operations, thaw
from db.api.operations.operations import Body, OpenOperation
from db.audit import cell_rows
from db.sql.engine import ApiDatabase
from objects import errors
from objects.base import Object
from objects.instance import State
from objects.instance_row import InstanceRow


class Ending(enum.StrEnum):
    """Steps that delete a body, or lead to that."""

    GIVE_UP = "give up"
    POINT_BACK = "revert"
    CONFIRM = "confirm"
    RECLAIM = "reclaim"


class LastBodies(Object, frozen=True, kw_only=True):
    """Operations that may not end so, by uuid. ``wrong``: what the cells' rows show. ``silent``: why a cell did not answer."""

    wrong: Mapping[str, str]
    silent: Mapping[str, str]


def look_at_rows(registry: CellRegistry, ending: Ending, opened_operations: Iterable[OpenOperation]) -> LastBodies:
    """Read the rows of these operations' bodies, as far as this end depends on them."""
    deciding_bodies = {opened.operation.uuid: (opened, _deciding_bodies_of(ending, opened)) for opened in opened_operations}
    rows, away = _read_rows(registry, [body for _, bodies in deciding_bodies.values() for body in bodies])
    wrong: dict[str, str] = {}
    silent: dict[str, str] = {}
    for uuid, (opened, bodies) in deciding_bodies.items():
        unread = [why for body in bodies if (why := away.get(body.server.cell_uuid or ""))]
        if unread:
            silent[uuid] = unread[0]
        elif bodies and (why := _find_contradiction(ending, opened, rows)):
            wrong[uuid] = why
    return LastBodies(wrong=wrong, silent=silent)


def refuse_last_body(database: ApiDatabase, registry: CellRegistry, ending: Ending, operation_uuid: str) -> None:
    """Raise errors.Conflict if the end of the operation would delete the only body of its server; it is then compared first.

    Raises errors.CellUnavailable if a cell does not answer that has to be asked.
    """
    open_operations = database.read(operations.with_bodies, [operation_uuid])
    last = look_at_rows(registry, ending, open_operations)
    for why in last.silent.values():
        raise errors.CellUnavailable(why)
    for why in last.wrong.values():
        database.write(thaw.freeze_operations, list(last.wrong), why, database.current_time())
        raise errors.NotCompared(f"Operation {operation_uuid}: {why}")


def _deciding_bodies_of(ending: Ending, opened: OpenOperation) -> list[Body]:
    """The bodies whose rows decide; none: nothing can be lost."""
    source, twin = opened.source, opened.twin
    match ending:
        case Ending.RECLAIM:
            bodies = [source]
        case Ending.CONFIRM:
            bodies = [twin]
        case _ if twin is None or twin.server.cell_uuid is None or twin.server.state in ("error", "deleted"):
            bodies = []
        case _:
            bodies = [source, twin]
    return [body for body in bodies if body is not None and body.server.cell_uuid is not None]


def _find_contradiction(ending: Ending, opened: OpenOperation, rows: Mapping[str, InstanceRow]) -> str:
    operation = opened.operation
    source, twin = rows.get(operation.source_uuid or ""), rows.get(operation.twin_uuid or "")
    if ending is Ending.RECLAIM:
        restored = source is not None and source.task_number > operation.number
        return "its cell shows that the server was restored" if restored else ""
    if ending is Ending.CONFIRM:
        return "" if twin is not None and twin.state is State.ACTIVE else "its cell does not have the moved server as ACTIVE"
    is_only_one = opened.source is not None and opened.source.server.cell_uuid is not None and _has_ended(source)
    if is_only_one and twin is not None and twin.state is State.ACTIVE:
        return "its cells show that the new body is the only one that is left"
    return ""


def _has_ended(row: InstanceRow | None) -> bool:
    return row is None or row.state in (State.DELETING, State.DELETED)


def _read_rows(registry: CellRegistry, bodies: Sequence[Body]) -> tuple[dict[str, InstanceRow], dict[str, str]]:
    """The rows by uuid, and why cells did not answer, by their uuids."""
    by_cell: dict[str, list[str]] = defaultdict(list)
    for body in bodies:
        by_cell[body.server.cell_uuid or ""].append(body.uuid)
    rows: dict[str, InstanceRow] = {}
    away: dict[str, str] = {}
    for cell_uuid, uuids in by_cell.items():
        try:
            rows |= registry.get(cell_uuid).read(cell_rows.read_rows, uuids).rows
        except (errors.Transient, errors.NotFound) as error:
            away[cell_uuid] = str(error)
    return rows, away
