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


def list_pages(places: Places) -> Iterator[AuditPage]:
    yield from pages_of(lambda after: places.api.read(operations.bodies_after, after, AUDIT_PAGE_SIZE))
    for cell in places.building_cells:
        reported = places.read_cell(cell.uuid, unknown_guests.list_all) or ()
        keys = sorted({reported_guest.guest.uuid for reported_guest in reported if reported_guest.guest.uses_disk})
        for start in range(0, len(keys), AUDIT_PAGE_SIZE):
            yield AuditPage(cell_uuid=cell.uuid, keys=tuple(keys[start : start + AUDIT_PAGE_SIZE]))


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    return _find_running(places, page) if page.cell_uuid else _find_permitted(places, page)


def _find_permitted(places: Places, page: AuditPage) -> list[Finding]:
    roles = [
        role for role in places.api.read(operations.list_roles, page.keys) if not role.is_shown and not role.body.server.deleted
    ]
    shown = [role.shown for role in roles if role.shown is not None and not role.shown.server.deleted]
    rows = _permitting_rows(places, [*(role.body for role in roles), *shown])
    judged = (_judge_role(places, role, rows) for role in roles)
    return [finding for finding in judged if finding is not None]


def _permitting_rows(places: Places, bodies: Sequence[Body]) -> dict[str, InstanceRow]:
    """The rows of these bodies in their cells, of those that permit their guests to run."""
    by_cell: dict[str, set[str]] = defaultdict(set)
    for body in bodies:
        by_cell[body.server.cell_uuid or ""].add(body.uuid)
    permitting: dict[str, InstanceRow] = {}
    for cell_uuid, uuids in by_cell.items():
        rows = places.read_cell(cell_uuid, cell_rows.read_rows, uuids)
        permitting |= {uuid: row for uuid, row in rows.rows.items() if _permits_running(row)} if rows is not None else {}
    return permitting


def _permits_running(row: InstanceRow) -> bool:
    """Also of a guest that is off: its user may start it."""
    return row.may_run and row.power in set(Power)


def _judge_role(places: Places, role: BodyRole, rows: dict[str, InstanceRow]) -> Finding | None:
    body, shown, operation = role.body, role.shown, role.operation
    if shown is None or body.uuid not in rows or shown.uuid not in rows:
        return None
    if operation is not None and operation.frozen is not None:  # what the server is cannot be told while both may run
        is_later = latest_of([rows[body.uuid], rows[shown.uuid]]).uuid == body.uuid
        return _hold_finding(places, role, rows, shown if is_later else body)
    is_built = operation is not None and operation.state is OperationState.BUILDING and operation.twin_uuid == body.uuid
    other = shown if is_built and operation is not None and operation.kind.holds_source else body
    return _hold_finding(places, role, rows, other)


def _hold_finding(places: Places, role: BodyRole, rows: dict[str, InstanceRow], other: Body) -> Finding:
    """``other``: the body that may not run."""
    body, shown = role.body, role.shown or role.body
    row, server_told = rows[other.uuid], other.server
    is_told = server_told.power is Power.HELD and server_told.task_number > row.task_number
    number = server_told.task_number if is_told else row.task_number + 1
    return Finding(
        kind=PERMITTED,
        key=body.uuid,
        what=f"{role.uuid_of_server}: {shown.uuid} on {rows[shown.uuid].host} and {body.uuid} on {rows[body.uuid].host}",
        cell=places.name_of(server_told.cell_uuid),
        repair=f"held: {other.uuid}",
        facts=(other.uuid, server_told.cell_uuid, number),
    )


def _find_running(places: Places, page: AuditPage) -> list[Finding]:
    """Guests that their cell's records do not account for, beside another guest of their server."""
    reported = [
        reported_guest
        for reported_guest in places.read_cell(page.cell_uuid, unknown_guests.list_all, page.keys) or ()
        if reported_guest.guest.uses_disk
    ]
    hosts: dict[str, set[str]] = defaultdict(set)
    for reported_guest in reported:
        hosts[reported_guest.guest.uuid].add(reported_guest.host)
    roles = {reported_guest.body.uuid: reported_guest for reported_guest in places.api.read(operations.list_roles, sorted(hosts))}
    rows = _permitting_rows(
        places,
        [body for reported_guest in roles.values() for body in (reported_guest.body, reported_guest.shown) if body is not None],
    )
    make = partial(Finding, scope=page.cell_uuid, cell=places.name_of(page.cell_uuid), kind=RUNNING)
    advice = (
        "look which of them its user needs; shut down and remove the other one on its host, and adopt this one if it has no record"
    )
    findings: list[Finding] = []
    for reported_guest in reported:
        others = _other_guests(reported_guest, roles.get(reported_guest.guest.uuid), rows, hosts[reported_guest.guest.uuid])
        if others:
            description = f"{reported_guest.guest.uuid} runs on {reported_guest.host} without a record, and {', '.join(others)}"
            findings.append(make(key=reported_guest.guest.uuid, what=description, advice=advice))
    return findings


def _other_guests(reported: Reported, role: BodyRole | None, rows: dict[str, InstanceRow], hosts: set[str]) -> list[str]:
    """The other guests of the server, each with its host."""
    others = {(reported.guest.uuid, host) for host in hosts}
    for body in (role.body, role.shown) if role is not None else ():
        if body is not None and body.uuid in rows:
            others.add((body.uuid, rows[body.uuid].host or ""))
    return [f"{uuid} on {host}" for uuid, host in sorted(others - {(reported.guest.uuid, reported.host)})]


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    """Hold the bodies that may not run. A row that has got a later task meanwhile refuses."""
    by_cell: dict[str, list[TaskFor]] = defaultdict(list)
    for finding in of_kind(findings, PERMITTED):
        uuid, cell_uuid, number = finding.facts
        task = Task(number=int(number or 0), kind=TaskKind.POWER, power=Power.HELD)
        by_cell[str(cell_uuid)].append(TaskFor(instance_uuid=str(uuid), task=task))
    for cell_uuid, held in by_cell.items():
        places.write_cell(cell_uuid, tasks.ask_tasks, held, places.cell_time(cell_uuid))
        places.catch_up(cell_uuid)
