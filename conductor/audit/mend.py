"""Repairs of servers that differ from their rows. Every write is guarded by the values read, or depends on final states only."""

from __future__ import annotations

from collections.abc import Sequence

from cells import shelved
from conductor.audit.finding import Finding
from conductor.audit.places import Places
from conductor.operation_tasks import interface_tasks
from db.api.claims import claim_repair
from db.api.reconcile import operation_repair, repair
from db.api.reconcile import repair as repairs
from db.api.servers import mappings
from db.audit import cell_rows
from db.audit import servers as audit_servers
from db.cell import instances, row_repair, staging, strays, tasks
from db.cell.row_repair import Read
from db.cell.tasks import TaskFor
from objects.instance import Instance, State
from objects.lifecycle import Change
from objects.selection import Selection
from objects.task import Power, Task, TaskKind

LOST = "The record of this server in its cell was lost."


def end_lost(places: Places, uuids: Sequence[str]) -> None:
    """Queue them again, past their deadline, so that a super conductor ends them. Skips servers that may have a row in a cell."""
    somewhere = handed_over(places, uuids)
    if somewhere is not None:
        places.api.write(repairs.queue_again, [uuid for uuid in uuids if uuid not in somewhere], places.api.current_time())


def handed_over(places: Places, uuids: Sequence[str]) -> set[str] | None:
    """Those of these bodies that a cell has a row of which was handed over to it; None if a cell does not answer."""
    rows = [places.read_cell(cell_uuid, cell_rows.read_rows, uuids) for cell_uuid in places.cells]
    if places.unknown or any(read_rows is None for read_rows in rows):
        return None
    return {uuid for read_rows in rows if read_rows for uuid, row in read_rows.rows.items() if row.state is not State.STAGED}


def delete(places: Places, uuids: Sequence[str]) -> None:
    """Delete bodies whose rows are tombstones, which are final, with the servers that they are."""
    for uuid in uuids:
        places.ledger.write(operation_repair.delete_ended, uuid, places.api.current_time())
    _confirm_ended(places, uuids)


def shelve_servers(places: Places, cell_uuid: str, uuids: Sequence[str]) -> None:
    """Shelve the servers again that are these bodies, whose rows in the cell are tombstones, and whose snapshots were seen."""
    cells = {uuid: cell for uuid, cell in places.cells.items() if uuid not in places.unknown}
    places.call_cell(cell_uuid, lambda cell: shelved.shelve_servers(places.ledger, cell, uuids, cells))


def carry_deletes(places: Places, cell_uuid: str, uuids: Sequence[str]) -> None:
    """Send deletes to the cell as the deletes' sweep does. The cell's own sweep sends the orders to hosts."""
    rows = places.write_cell(cell_uuid, instances.delete, uuids, places.cell_time(cell_uuid))
    if rows:
        gone = [uuid for uuid, row in rows.items() if row.state is State.DELETED]
        _confirm_ended(places, gone)
        places.catch_up(cell_uuid)


def confirm_deletes(places: Places, cell_uuid: str, uuids: Sequence[str]) -> None:
    """Record as gone those whose rows are tombstones: both the delete and the tombstone are final."""
    rows = places.read_cell(cell_uuid, cell_rows.read_rows, uuids)
    if rows is not None:
        _confirm_ended(places, [uuid for uuid, row in rows.rows.items() if row.state is State.DELETED])


def _confirm_ended(places: Places, uuids: Sequence[str]) -> None:
    if uuids:
        places.api.write(mappings.confirm_deletes, uuids, places.api.current_time())
        places.ledger.write(claim_repair.release_orphans, uuids)


def retell_rows(places: Places, cell_uuid: str, findings: Sequence[Finding]) -> None:
    """Write the rows to the cell's feed again and apply it: this updates summaries and claims, as any event does."""
    places.write_cell(cell_uuid, row_repair.retell_rows, _read(findings), places.cell_time(cell_uuid))
    places.catch_up(cell_uuid)


def ask_again(places: Places, cell_uuid: str, findings: Sequence[Finding]) -> None:
    """Write the power into rows that have lost a task: under its own number, so that a later one is left alone."""
    seen = {finding.key: int(finding.facts[1] or 0) for finding in findings}
    connecting = interface_tasks(places.api, list(seen))
    lost = [TaskFor(instance_uuid=f.key, task=connecting.get(f.key) or _power_of(f)) for f in findings]
    tasks_asked = places.write_cell(cell_uuid, tasks.ask_tasks, lost, places.cell_time(cell_uuid)) or {}
    tasks_told = {
        uuid: Read(version=outcome.row.version, seen=seen[uuid])
        for uuid, outcome in tasks_asked.items()
        if isinstance(outcome, Change)
    }
    places.write_cell(cell_uuid, row_repair.retell_rows, tasks_told, places.cell_time(cell_uuid))
    places.catch_up(cell_uuid)


def _power_of(finding: Finding) -> Task:
    return Task(number=int(finding.facts[2] or 0), kind=TaskKind.POWER, power=Power(str(finding.facts[3])))


def _read(findings: Sequence[Finding]) -> dict[str, Read]:
    return {f.key: Read(version=int(f.facts[0] or 0), seen=int(f.facts[1] or 0)) for f in findings}


def replace_rows(places: Places, cell_uuid: str, findings: Sequence[Finding]) -> None:
    """Replace lost rows by rows in ERROR, so that users see the state of their servers and can delete them."""
    now = places.cell_time(cell_uuid)
    servers = {server.body_uuid: server for server in places.api.read(mappings.of_bodies, [finding.key for finding in findings])}
    specs = places.api.read(mappings.specs_by_batch, [server.batch_id for server in servers.values()])
    for finding in findings:
        server = servers.get(finding.key)
        if server is None or server.batch_id not in specs:
            continue
        spec, (seen, fence, *_) = specs[server.batch_id], finding.facts
        row = Instance(
            uuid=server.body_uuid,
            state=State.ERROR,
            fence=int(fence or 0),
            host=server.host,
            node=server.node,
            availability_zone=server.availability_zone,
            max_attempts=spec.max_attempts,
            fault=LOST,
            server_uuid=server.own_uuid and server.uuid,
            turn=server.turn,
        )
        new = staging.NewInstance(instance=row, name=server.name, launch_index=server.launch_index, created_at=server.created_at)
        places.write_cell(cell_uuid, row_repair.replace_lost, spec, new, int(seen or 0), now)
    places.catch_up(cell_uuid)


def claim_resources(places: Places, cell_uuid: str, findings: Sequence[Finding]) -> None:
    """Claim the requested resources for live instances, on the hosts in their rows.

    The row is read before the mapping, and the mapping is locked: an end applied meanwhile prevents the claim.
    """
    uuids = [finding.key for finding in findings]
    stray_rows = places.read_cell(cell_uuid, strays.list_strays, uuids)
    if stray_rows is None:
        return
    specs_lost = {stray.row.batch_id or stray.row.uuid: stray.spec for stray in stray_rows if stray.spec is not None}
    places.api.write(repair.put_back_specs, specs_lost, places.api.current_time())
    _, records = places.api.read(audit_servers.read_records, uuids)
    specs = places.api.read(mappings.specs_by_batch, [record.batch_id for record in records.values()])
    for row in (stray.row for stray in stray_rows):
        record = records.get(row.uuid)
        if record is None or record.batch_id not in specs or row.host is None or row.node is None:
            continue
        spec = specs[record.batch_id]
        lost = claim_repair.Unclaimed(
            instance_uuid=row.uuid,
            seen=record.seen,
            fence=row.fence,
            takes=spec.taken_amounts,
            selection=Selection(host=row.host, node=row.node, cell_uuid=cell_uuid, fence=row.fence),
            group=spec.group,
            fault_domain=spec.fault_domain,
        )
        places.ledger.write(claim_repair.restore_claim, lost)
