"""Compare the addresses of the pools with the servers that have them, and with what their cells were told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cells.addresses_in_use import settle_contested
from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, of_kind, pages_of
from conductor.audit.places import Places
from db.api.operations import operations
from db.api.servers import addresses, mappings
from db.api.servers.mappings import ServerQuery
from db.audit import cell_rows
from db.cell import tasks
from db.cell.tasks import TaskFor
from objects.port import Port
from objects.task import Power, Task, TaskArgs, TaskKind, TaskState

ORPHAN = "address of no server"
UNCLAIMED = "address that its server has not claimed"
LACKING = "address that its server's guest was not given"


def list_pages(places: Places) -> Iterator[AuditPage]:
    yield from pages_of(lambda after: places.api.read(addresses.holders_after, after, AUDIT_PAGE_SIZE))
    for cell in places.building_cells:
        yield from pages_of(
            lambda after, uuid=cell.uuid: places.read_cell(uuid, cell_rows.with_ports_after, after, AUDIT_PAGE_SIZE),  # type: ignore[misc]  # mypy cannot infer it
            cell.uuid,
        )


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    return _find_unclaimed(places, page) if page.cell_uuid else [*_find_orphans(places, page), *_find_lacking(places, page)]


def _find_orphans(places: Places, page: AuditPage) -> list[Finding]:
    ended = sorted(places.api.read(addresses.list_ended, page.keys))
    held = places.api.read(addresses.ports_of, ended)
    return [
        Finding(
            kind=ORPHAN,
            key=server,
            what=f"{', '.join(address for _, address in _network_addresses(held[server]))} of {server}, which is gone",
            repair="freed",
            safe=True,
        )
        for server in ended
        if server in held
    ]


def _find_lacking(places: Places, page: AuditPage) -> list[Finding]:
    """Of ACTIVE servers without an open operation: that of an attach claims its address before the guest has it.

    A body whose task is under way may be getting them now.
    """
    opened = places.api.read(operations.open_for, page.keys)
    query = ServerQuery(uuids=page.keys, limit=AUDIT_PAGE_SIZE)
    active = [server for server in places.api.read(mappings.list_, query) if server.state == "active" and server.uuid not in opened]
    held = places.api.read(addresses.ports_of, [server.uuid for server in active])
    findings: list[Finding] = []
    for cell_uuid in sorted({server.cell_uuid for server in active if server.cell_uuid is not None}):
        servers_here = [server for server in active if server.cell_uuid == cell_uuid and server.uuid in held]
        bodies = [server.body_uuid for server in servers_here]
        reported, rows = (
            places.read_cell(cell_uuid, cell_rows.ports_by_row, bodies),
            places.read_cell(cell_uuid, cell_rows.read_rows, bodies),
        )
        for server in servers_here if reported is not None and rows is not None else ():
            row = rows.rows.get(server.body_uuid) if rows is not None else None
            if row is None or row.task_state in (TaskState.ORDERED, TaskState.RUNNING):
                continue
            if more := sorted(
                _network_addresses(held[server.uuid]) - _network_addresses((reported or {}).get(server.body_uuid, ()))
            ):
                description = f"{', '.join(address for _, address in more)} of {server.uuid}"
                advice = "if the guest does not have it, detach the interface with 'server remove port', and attach another"
                repair = "given to its guest, unless it has it" if row.may_run and row.power in set(Power) else None
                facts = (row.uuid, cell_uuid, row.task_number, row.power)
                make = partial(Finding, kind=LACKING, key=server.uuid, what=description, cell=places.name_of(cell_uuid))
                findings.append(make(repair=repair, advice=advice, facts=facts))
    return findings


def _give_interfaces(places: Places, findings: Sequence[Finding]) -> None:
    """Ask the guests' hosts to see to it that their guests have all interfaces of their servers, as an attach does.

    The record may have lost what a guest has, and then nothing changes on its host.
    """
    held = places.api.read(addresses.ports_of, [finding.key for finding in findings])
    for finding in findings:
        uuid, cell_uuid, number, power = finding.facts
        args = TaskArgs(ports=held.get(finding.key, ()))
        task = Task(number=int(number or 0) + 1, kind=TaskKind.INTERFACES, power=Power(str(power)), args=args)
        places.write_cell(
            str(cell_uuid), tasks.ask_tasks, [TaskFor(instance_uuid=str(uuid), task=task)], places.cell_time(str(cell_uuid))
        )
        places.catch_up(str(cell_uuid))


def _find_unclaimed(places: Places, page: AuditPage) -> list[Finding]:
    """Of servers that are not deleted. A move leaves the addresses with the server, so all bodies have the same."""
    reported = places.read_cell(page.cell_uuid, cell_rows.ports_by_row, page.keys) or {}
    bodies = {server.body_uuid: server for server in places.api.read(mappings.of_bodies, reported) if not server.deleted}
    held = places.api.read(addresses.ports_of, [server.uuid for server in bodies.values()])
    findings: list[Finding] = []
    for body, server in sorted(bodies.items()):
        if lost := sorted(_network_addresses(reported[body]) - _network_addresses(held.get(server.uuid, ()))):
            holders = places.api.read(addresses.holders_of, lost)
            has = f", which {', '.join(holders)} has" if holders else ""
            findings.append(
                Finding(
                    kind=UNCLAIMED,
                    key=body,
                    what=f"{', '.join(address for _, address in lost)} of {server.uuid}{has}",
                    scope=page.cell_uuid,
                    cell=places.name_of(page.cell_uuid),
                    repair="claimed for it, unless another server's guest has it",
                    advice="delete the server, or the one that has its address",
                    safe=True,
                )
            )
    return findings


def _network_addresses(ports: Sequence[Port]) -> set[tuple[str, str]]:
    return {(port.network_id, address.address) for port in ports for address in port.addresses}


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    if lacking := of_kind(findings, LACKING):
        _give_interfaces(places, lacking)
    if orphans := of_kind(findings, ORPHAN):
        places.api.write(addresses.free_ended, [finding.key for finding in orphans], places.api.current_time())
    if unclaimed := of_kind(findings, UNCLAIMED):
        reported = places.read_cell(unclaimed[0].scope, cell_rows.ports_by_row, [finding.key for finding in unclaimed]) or {}
        servers = {server.body_uuid: server.uuid for server in places.api.read(mappings.of_bodies, reported) if not server.deleted}
        lost = {servers[body]: own_ports for body, own_ports in reported.items() if body in servers}
        contested = places.api.write(addresses.take_back, lost, places.api.current_time())
        if contested:
            cells = {uuid: cell for uuid, cell in places.cells.items() if uuid not in places.unknown}
            places.call_cell(unclaimed[0].scope, lambda _: settle_contested(places.api, cells, contested))
