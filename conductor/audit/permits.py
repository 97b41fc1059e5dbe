"""Find servers of which two bodies may run: by their rows in the cells, and by the guests that agents report as unknown.

At most one body's row permits it to run at any time (M0 in ``docs/moves.md``). A restored database may have lost a hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from cells.verdict import latest_of
from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, of_kind, pages_of
from conductor.audit.places import Places
from db.api.operations.operations import Body
from db.audit import cell_rows, operations
from db.audit.operations import BodyRole
from db.cell import tasks, unknown_guests
from db.cell.tasks import TaskFor
from db.cell.unknown_guests import Reported
from objects.instance_row import InstanceRow
from objects.operation import OperationState
from objects.task import Power, Task, TaskKind

PERMITTED = "server with two bodies that may run"
RUNNING = "server with two guests that run"


def pages(places: Places) -> Iterator[AuditPage]:
    yield from pages_of(lambda after: places.api.read(operations.bodies_after, after, AUDIT_PAGE_SIZE))
    for cell in places.builders:
        reported = places.ask(cell.uuid, unknown_guests.list_all) or ()
        keys = sorted({each.guest.uuid for each in reported if each.guest.runs})
        for start in range(0, len(keys), AUDIT_PAGE_SIZE):
            yield AuditPage(cell_uuid=cell.uuid, keys=tuple(keys[start : start + AUDIT_PAGE_SIZE]))


def look(places: Places, page: AuditPage) -> list[Finding]:
    return _running(places, page) if page.cell_uuid else _permitted(places, page)


def _permitted(places: Places, page: AuditPage) -> list[Finding]:
    roles = [each for each in places.api.read(operations.roles, page.keys) if not each.is_shown and not each.body.server.deleted]
    shown = [each.shown for each in roles if each.shown is not None and not each.shown.server.deleted]
    rows = _rows(places, [*(each.body for each in roles), *shown])
    found = (_judge(places, each, rows) for each in roles)
    return [finding for finding in found if finding is not None]


def _rows(places: Places, bodies: Sequence[Body]) -> dict[str, InstanceRow]:
    """The rows of these bodies in their cells, of those that permit their guests to run."""
    by_cell: dict[str, set[str]] = defaultdict(set)
    for body in bodies:
        by_cell[body.server.cell_uuid or ""].add(body.uuid)
    found: dict[str, InstanceRow] = {}
    for cell_uuid, uuids in by_cell.items():
        rows = places.ask(cell_uuid, cell_rows.rows, uuids)
        found |= {uuid: row for uuid, row in rows.rows.items() if _permits(row)} if rows is not None else {}
    return found


def _permits(row: InstanceRow) -> bool:
    """Also of a guest that is off: its user may start it."""
    return row.may_run and row.power in set(Power)


def _judge(places: Places, each: BodyRole, rows: dict[str, InstanceRow]) -> Finding | None:
    body, shown, operation = each.body, each.shown, each.operation
    if shown is None or body.uuid not in rows or shown.uuid not in rows:
        return None
    if operation is not None and operation.frozen is not None:  # what the server is cannot be told while both may run
        is_later = latest_of([rows[body.uuid], rows[shown.uuid]]).uuid == body.uuid
        return _held(places, each, rows, shown if is_later else body)
    is_built = operation is not None and operation.state is OperationState.BUILDING and operation.twin_uuid == body.uuid
    other = shown if is_built and operation is not None and operation.kind.holds else body
    return _held(places, each, rows, other)


def _held(places: Places, each: BodyRole, rows: dict[str, InstanceRow], other: Body) -> Finding:
    """``other``: the body that may not run."""
    body, shown = each.body, each.shown or each.body
    row, told = rows[other.uuid], other.server
    is_told = told.power is Power.HELD and told.task_number > row.task_number
    number = told.task_number if is_told else row.task_number + 1
    return Finding(
        kind=PERMITTED,
        key=body.uuid,
        what=f"{each.server}: {shown.uuid} on {rows[shown.uuid].host} and {body.uuid} on {rows[body.uuid].host}",
        cell=places.name(told.cell_uuid),
        repair=f"held: {other.uuid}",
        facts=(other.uuid, told.cell_uuid, number),
    )


def _running(places: Places, page: AuditPage) -> list[Finding]:
    """Guests that their cell's records do not account for, beside another guest of their server."""
    reported = [each for each in places.ask(page.cell_uuid, unknown_guests.list_all, page.keys) or () if each.guest.runs]
    hosts: dict[str, set[str]] = defaultdict(set)
    for each in reported:
        hosts[each.guest.uuid].add(each.host)
    roles = {each.body.uuid: each for each in places.api.read(operations.roles, sorted(hosts))}
    rows = _rows(places, [body for each in roles.values() for body in (each.body, each.shown) if body is not None])
    make = partial(Finding, scope=page.cell_uuid, cell=places.name(page.cell_uuid), kind=RUNNING)
    advice = (
        "look which of them its user needs; shut down and remove the other one on its host, and adopt this one if it has no record"
    )
    found: list[Finding] = []
    for each in reported:
        others = _others(each, roles.get(each.guest.uuid), rows, hosts[each.guest.uuid])
        if others:
            what = f"{each.guest.uuid} runs on {each.host} without a record, and {', '.join(others)}"
            found.append(make(key=each.guest.uuid, what=what, advice=advice))
    return found


def _others(reported: Reported, role: BodyRole | None, rows: dict[str, InstanceRow], hosts: set[str]) -> list[str]:
    """The other guests of the server, each with its host."""
    others = {(reported.guest.uuid, host) for host in hosts}
    for body in (role.body, role.shown) if role is not None else ():
        if body is not None and body.uuid in rows:
            others.add((body.uuid, rows[body.uuid].host or ""))
    return [f"{uuid} on {host}" for uuid, host in sorted(others - {(reported.guest.uuid, reported.host)})]


def repair(places: Places, findings: Sequence[Finding]) -> None:
    """Hold the bodies that may not run. A row that has got a later task meanwhile refuses."""
    by_cell: dict[str, list[TaskFor]] = defaultdict(list)
    for finding in of_kind(findings, PERMITTED):
        uuid, cell_uuid, number = finding.facts
        task = Task(number=int(number or 0), kind=TaskKind.POWER, power=Power.HELD)
        by_cell[str(cell_uuid)].append(TaskFor(instance_uuid=str(uuid), task=task))
    for cell_uuid, held in by_cell.items():
        places.change(cell_uuid, tasks.ask, held, places.now(cell_uuid))
        places.catch_up(cell_uuid)
