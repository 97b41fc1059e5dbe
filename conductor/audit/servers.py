"""Compare the API level's servers with their rows in the cells: existence, state, deletes and claims.

The row is read first, then the cursor of its cell's feed, then the mapping. If the cursor has reached the feed's end as of after
the row was read, the mapping must agree with the row. Otherwise the two are not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from cells.verdict import latest_of
from conductor.audit import mend
from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, of_kind, pages_of
from conductor.audit.places import Places
from conductor.audit.shelved import SHELVED_SINCE, snapshot_of
from db.api.operations import operations
from db.audit import cell_rows, hosts, servers
from db.audit.cell_rows import Rows
from db.audit.servers import Record
from db.cell import unknown_guests
from objects.cell import CELL0_UUID, HostMapping
from objects.instance import State
from objects.instance_row import InstanceRow
from objects.lifecycle import LIVE
from objects.task import Power

NOWHERE = "server neither queued nor anywhere"
NO_CELL = "server in a cell that does not exist"
ROWLESS = "mapping without row"
CARRY = "delete that did not reach its cell"
CONFIRM = "delete that was not confirmed"
UNFINISHED = "delete that is not finished"
STANDING = "roll-back that is not finished"
CELL_ONLY = "row deleted in its cell only"
OUTDATED_SUMMARY = "summary unlike the row"
FORGETFUL = "row that has lost a task"
UNCLAIMED = "instance without claim"
MISPLACED = "claim on another host"
FOREIGN = "row on a host of another cell"

WITH_GUEST = frozenset({State.BUILDING, State.ACTIVE})
"""States of rows that may have a guest."""
_SHOWN = {State.ACTIVE: "active", State.ERROR: "error", State.SCHEDULED: "building", State.BUILDING: "building"}


def list_pages(places: Places) -> Iterator[AuditPage]:
    return pages_of(lambda after: places.api.read(servers.servers_after, after, AUDIT_PAGE_SIZE))


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    rows = _rows_by_cell(places, page.keys)
    cursors, records = places.api.read(servers.read_records, page.keys)
    homes = places.api.read(hosts.mappings_by_host, {row.host for read in rows.values() for row in read.rows.values() if row.host})
    findings: list[Finding] = []
    lost = [uuid for uuid, record in records.items() if _is_lost(record, rows)]
    guests = _unknown_guests(places, lost) if lost else frozenset()
    for uuid in sorted(records):
        record = records[uuid]
        if record.cell_uuid is None:
            findings += _judge_undecided(record, adoptable=uuid in guests)
        elif not places.is_known(record.cell_uuid):
            if record.state in ("error", "deleted"):
                continue  # it ended before its cell was removed, or with it
            advice = "register the cell again with its database, or delete the server"
            findings.append(Finding(kind=NO_CELL, key=uuid, what=f"{uuid} in cell {record.cell_uuid}", advice=advice))
        elif record.cell_uuid in rows:
            read = rows[record.cell_uuid]
            level = cursors.get(record.cell_uuid, 0) >= read.head
            make = partial(Finding, key=uuid, cell=places.name_of(record.cell_uuid))
            if uuid not in read.rows:
                findings += _judge_rowless(places, make, record, adoptable=uuid in guests)
            elif home := _foreign_home(record, read.rows[uuid], homes):
                findings.append(_judge_foreign(make, read.rows[uuid], places.name_of(home)))
            else:
                findings += _judge_record(places, make, record, read.rows[uuid], level)
    return findings


def _foreign_home(record: Record, row: InstanceRow, homes: Mapping[str, HostMapping]) -> str | None:
    """The UUID of the cell of this live row's host, if that is another cell than the row's."""
    mapping = homes.get(row.host or "")
    if mapping is None or mapping.cell_uuid == record.cell_uuid or record.deleted or row.state not in (*LIVE, State.ACTIVE):
        return None
    return mapping.cell_uuid


def _judge_foreign(make: partial[Finding], row: InstanceRow, home: str) -> Finding:
    advice = "find out who writes to its cell's database; lists and claims keep the previous host"
    return make(kind=FOREIGN, what=f"{row.uuid}, {row.state.upper()} on {row.host}, a host of cell {home}", advice=advice)


def _rows_by_cell(places: Places, uuids: Sequence[str]) -> Mapping[str, Rows]:
    """The rows by cell UUID, of the cells that answer."""
    by_cell: dict[str, list[str]] = defaultdict(list)
    for uuid, cell_uuid in places.api.read(servers.cells_of_servers, uuids).items():
        if cell_uuid is not None:
            by_cell[cell_uuid].append(uuid)
    rows_by_cell = {cell_uuid: places.read_cell(cell_uuid, cell_rows.read_rows, members) for cell_uuid, members in by_cell.items()}
    return {cell_uuid: rows for cell_uuid, rows in rows_by_cell.items() if rows is not None}


def _is_lost(record: Record, rows: Mapping[str, Rows]) -> bool:
    """Whether the server should have a row and has none."""
    if record.deleted or record.requested or record.state == "shelved":
        return False
    return record.cell_uuid is None or (record.cell_uuid in rows and record.uuid not in rows[record.cell_uuid].rows)


def _unknown_guests(places: Places, uuids: Sequence[str]) -> frozenset[str]:
    """Those of these instances whose guest an agent reports as unknown: the record is lost and the guest runs."""
    answers = (places.read_cell(cell.uuid, unknown_guests.list_all, uuids) for cell in places.building_cells)
    return frozenset(reported.guest.uuid for reported_guests in answers for reported in reported_guests or ())


def _adopt_advice(uuid: str) -> str:
    return f"its guest runs: 'superconductor guest adopt {uuid}', or delete the server"


def _judge_undecided(record: Record, *, adoptable: bool) -> Iterator[Finding]:
    if not record.deleted and not record.requested and record.server_uuid is None:  # of a twin its operation decides
        description = f"{record.uuid} of batch {record.batch_id}"
        if adoptable:
            yield Finding(kind=NOWHERE, key=record.uuid, what=description, advice=_adopt_advice(record.uuid))
            return
        yield Finding(kind=NOWHERE, key=record.uuid, what=description, repair="ended as ERROR in cell0")


def _judge_rowless(places: Places, make: partial[Finding], record: Record, *, adoptable: bool) -> Iterator[Finding]:
    """A mapped server must have a row: it was written before the mapping was decided, and a delete leaves a tombstone.

    In cell0 the row may be missing: if cell0 cannot write it, the request ends without, and its summary holds everything.
    """
    if not record.deleted and record.cell_uuid == CELL0_UUID and record.state == "error":
        return
    if not record.deleted:
        description = f"{record.uuid} on {record.host}"
        if adoptable:
            yield make(kind=ROWLESS, what=description, advice=_adopt_advice(record.uuid))
            return
        yield make(kind=ROWLESS, what=description, repair="given a row in ERROR", facts=(record.seen, record.fence))
    elif record.state != "deleted" and record.updated_at < places.overdue_before:
        yield make(kind=CARRY, what=f"{record.uuid}, which has no row in its cell", repair="carried into the cell", safe=True)


def _judge_record(places: Places, make: partial[Finding], record: Record, row: InstanceRow, level: bool) -> Iterator[Finding]:
    description = f"{record.uuid}, {row.state.upper()} on {row.host}"
    applied = level or record.cell_uuid == CELL0_UUID  # cell0 has no feed
    if record.deleted:
        yield from _judge_deleted(places, make, record, row, applied)
    elif row.state is State.DELETED:
        yield from _judge_tombstone(places, make, record, row)
    elif row.state is State.DELETING:
        if row.updated_at < places.late_in(record.cell_uuid or "") and row.rolled_back is not None:
            yield make(kind=STANDING, what=description, advice=_guest_stays(row), facts=(row.version,))
        elif row.updated_at < places.late_in(record.cell_uuid or ""):
            advice = "delete the server: the API level knows of no delete"
            yield make(kind=UNFINISHED, what=description, advice=advice, facts=(row.version,))
    elif row.state is not State.STAGED and record.cell_uuid != CELL0_UUID:
        yield from _judge_live(make, record, row, level)


def _judge_tombstone(places: Places, make: partial[Finding], record: Record, row: InstanceRow) -> Iterator[Finding]:
    """Only the body that a server is takes the server with it, and no body goes while an operation may need it."""
    description = record.uuid if record.server_uuid is None else f"{record.uuid}, a body of {record.uuid_of_server}"
    operation = places.api.read(operations.open_for, [record.uuid_of_server]).get(record.uuid_of_server)
    if operation is not None:
        waits = "has to be compared with the cells first" if operation.frozen is not None else "has to end first"
        advice = f"its {operation.kind}, operation {operation.uuid}, {waits}"
        yield make(kind=CELL_ONLY, what=description, advice=advice, facts=(row.version,))
    elif not record.hidden and row.power == Power.HELD:
        yield _judge_shelved(places, make, record, row, description)
    else:
        yield make(kind=CELL_ONLY, what=description, repair="deleted at the API level too", facts=(row.version,))


def _judge_shelved(places: Places, make: partial[Finding], record: Record, row: InstanceRow, description: str) -> Finding:
    """A body that ended off: it was shelved, and then its snapshot is in the image store, unless the server was deleted since."""
    snapshot = snapshot_of(places, record.cell_uuid or "", row)
    if snapshot is None and _ended_later(places, record):
        return make(kind=CELL_ONLY, what=description, repair="deleted at the API level too", facts=(row.version,))
    if snapshot is None:
        advice = "left as it is: it may have been shelved after a backup, and be in the image store; or delete the server"
        return make(kind=CELL_ONLY, what=description, advice=advice, facts=(row.version,))
    if not snapshot.is_saved:
        return make(kind=CELL_ONLY, what=description, repair="deleted at the API level too", facts=(row.version,))
    return make(kind=SHELVED_SINCE, what=f"{description}, whose snapshot is {snapshot.snapshot.image_id}", repair="shelved again")


def _ended_later(places: Places, record: Record) -> bool:
    """Whether all bodies of its server have ended, and a later one that was not shelved, or whose snapshot is gone.

    So the server was moved, and deleted after that.
    """
    bodies: dict[str, tuple[str, InstanceRow]] = {}
    for cell in places.building_cells:
        bodies |= {
            row.uuid: (cell.uuid, row)
            for row in places.read_cell(cell.uuid, cell_rows.bodies_of_servers, [record.uuid_of_server]) or ()
        }
    rows = [row for _, row in bodies.values()]
    if places.unknown or not rows or any(row.state is not State.DELETED for row in rows):
        return False
    latest = latest_of(rows)
    if latest.power != Power.HELD:
        return True
    snapshot = snapshot_of(places, bodies[latest.uuid][0], latest)
    return snapshot is not None and not snapshot.is_saved


def _judge_deleted(places: Places, make: partial[Finding], record: Record, row: InstanceRow, applied: bool) -> Iterator[Finding]:
    description = f"{record.uuid}, {row.state.upper()} on {row.host}"
    if row.state is State.DELETED:
        if record.state != "deleted" and applied and record.updated_at < places.overdue_before:
            yield make(kind=CONFIRM, what=description, repair="confirmed, and its claim released", safe=True)
    elif row.state is State.DELETING:
        if row.updated_at < places.late_in(record.cell_uuid or ""):
            yield make(kind=UNFINISHED, what=description, advice=_guest_stays(row), facts=(row.version,))
    elif record.updated_at < places.overdue_before:
        yield make(kind=CARRY, what=description, repair="carried into the cell", safe=True, ends_guest=row.state in WITH_GUEST)


def _guest_stays(row: InstanceRow) -> str:
    return f"make sure that the agent of {row.host} runs, or force the host down"


def _judge_live(make: partial[Finding], record: Record, row: InstanceRow, level: bool) -> Iterator[Finding]:
    description = f"{record.uuid}, {row.state.upper()} on {row.host}"
    make = partial(make, facts=(row.version, record.seen))
    listed = (record.state, record.host, record.node)
    if level and listed != (_SHOWN[row.state], row.host, row.node):
        text = f"{description}; lists show it {record.state} on {record.host}"
        yield make(kind=OUTDATED_SUMMARY, what=text, repair="written to the feed again", safe=True)
    elif level and row.state is State.ACTIVE:
        yield from _judge_power(make, record, row)
    if row.state is State.ERROR or record.state in ("error", "deleted"):
        return  # claims of ended instances are checked with the claims
    if record.claim is None and level:
        yield make(kind=UNCLAIMED, what=description, repair="given a claim", safe=True)
    elif record.claim is not None and level and (record.claim.host, record.claim.node) != (row.host, row.node):
        text = f"{description}; its claim is on {record.claim.host or 'no host'}"
        yield make(kind=MISPLACED, what=text, repair="moved to the instance's host", safe=True)


def _judge_power(make: partial[Finding], record: Record, row: InstanceRow) -> Iterator[Finding]:
    recorded, written = (record.power, record.task_number, record.task_state), (row.power, row.task_number, row.task_state)
    if recorded == written:
        return
    description = f"{row.uuid}, {row.power} on {row.host}, task {row.task_number} {row.task_state}"
    text = f"{description}; its cell has told of {record.power}, task {record.task_number} {record.task_state}"
    if row.task_number < record.task_number:
        facts = (row.version, record.seen, record.task_number, record.power)
        yield make(kind=FORGETFUL, what=text, repair="given the task again", safe=True, facts=facts)
    else:
        yield make(kind=OUTDATED_SUMMARY, what=text, repair="written to the feed again", safe=True)


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    findings = [finding for finding in findings if finding.repair]
    if lost := of_kind(findings, NOWHERE):
        mend.end_lost(places, [finding.key for finding in lost])
    if deleted := of_kind(findings, CELL_ONLY):
        mend.delete(places, [finding.key for finding in deleted])
    homes = places.api.read(servers.cells_of_servers, [finding.key for finding in findings])
    for cell_uuid in sorted({home for home in homes.values() if home is not None}):
        findings_here = [finding for finding in findings if homes.get(finding.key) == cell_uuid]
        if shelved := of_kind(findings_here, SHELVED_SINCE):
            mend.shelve_servers(places, cell_uuid, [finding.key for finding in shelved])
        if rowless := of_kind(findings_here, ROWLESS):
            mend.replace_rows(places, cell_uuid, rowless)
        if carried := of_kind(findings_here, CARRY):
            mend.carry_deletes(places, cell_uuid, [finding.key for finding in carried])
        if confirmed := of_kind(findings_here, CONFIRM):
            mend.confirm_deletes(places, cell_uuid, [finding.key for finding in confirmed])
        if outdated := of_kind(findings_here, OUTDATED_SUMMARY, MISPLACED):
            mend.retell_rows(places, cell_uuid, outdated)
        if forgetful := of_kind(findings_here, FORGETFUL):
            mend.ask_again(places, cell_uuid, forgetful)
        if unclaimed := of_kind(findings_here, UNCLAIMED):
            mend.claim_resources(places, cell_uuid, unclaimed)
