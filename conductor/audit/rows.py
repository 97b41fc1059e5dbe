"""Compare the cells' rows with the mappings: rows without a mapping, rows mapped to another cell, unsettled STAGED rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cells.instance_mapping import adopt_rows
from conductor.audit import mend
from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, of_kind, pages_of
from conductor.audit.places import Places
from conductor.audit.shelved import SHELVED_SINCE, snapshot_of
from conductor.settle import settle_rows
from db.audit import cell_rows, servers
from db.audit.servers import Record
from db.cell import instances
from objects import lifecycle
from objects.instance import Instance, State
from objects.instance_row import InstanceRow
from objects.lifecycle import Outcome, Refused
from objects.process import AGENT_BINARY

UNSETTLED = "staged row that nobody settled"
UNMAPPED = "row without mapping"
UNDECIDED = "row before its hand-over"
ELSEWHERE = "row in another cell than mapped"


def list_pages(places: Places) -> Iterator[AuditPage]:
    for uuid in places.cells:
        yield from pages_of(partial(_next_rows, places, uuid), uuid)


def _next_rows(places: Places, cell_uuid: str, after: str) -> list[str] | None:
    return places.read_cell(cell_uuid, cell_rows.rows_after, after, AUDIT_PAGE_SIZE)


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    rows = places.read_cell(page.cell_uuid, cell_rows.read_rows, page.keys)
    if rows is None:
        return []
    _, records = places.api.read(servers.read_records, page.keys)
    judged = (_judge_row(places, page.cell_uuid, row, records.get(uuid)) for uuid, row in sorted(rows.rows.items()))
    return [finding for finding in judged if finding is not None]


def _judge_row(places: Places, cell_uuid: str, row: InstanceRow, record: Record | None) -> Finding | None:
    home = record.cell_uuid if record else None
    about = partial(Finding, key=row.uuid, scope=cell_uuid, cell=places.name_of(cell_uuid))
    make = partial(about, facts=(row.version, row.attempt))
    if row.state is State.STAGED:
        return _judge_staged(places, cell_uuid, make, row, record)
    if record is None and (snapshot := snapshot_of(places, cell_uuid, row)) is not None and snapshot.is_saved:
        description = f"{row.uuid}, {row.state.upper()} on {row.host}, whose snapshot is {snapshot.snapshot.image_id}"
        return about(kind=SHELVED_SINCE, what=description, repair="shelved again")
    if row.state is State.DELETED or home == cell_uuid:
        return None
    description = f"{row.uuid}, {row.state.upper()} on {row.host}"
    if record is None or (home is None and not record.deleted and not record.requested):
        description = (
            f"{description}, is no server that the API level knows" if record is None else f"{description}, is mapped to no cell"
        )
        return make(kind=UNMAPPED, what=description, repair="mapped to this cell")
    if home is None and not record.deleted:
        return make(kind=UNDECIDED, what=f"{description}, is still queued", repair="mapped to this cell, and its request removed")
    if row.state is State.DELETING and row.updated_at > places.late_in(cell_uuid):
        return None
    where = f"is mapped to cell {places.name_of(home)}" if home else "was deleted before its hand-over"
    if home is not None and not places.is_known(home):
        return None  # the mapping is wrong, not the row
    if home is None or places.end_unproven or _is_active(places, home, row.uuid):
        return make(kind=ELSEWHERE, what=f"{description}, {where}", repair="deleted here, with its guest", ends_guest=True)
    advice = (
        "left as it is: its guest may be the only one, as the row in that cell is not ACTIVE on a host that is up; "
        "'verify --repair --end-unproven' deletes it here"
    )
    return make(kind=ELSEWHERE, what=f"{description}, {where}", advice=advice)


def _is_active(places: Places, home: str, uuid: str) -> bool:
    """Whether the server is ACTIVE in the cell it is mapped to, on a host whose agent reported lately."""
    rows = places.read_cell(home, cell_rows.read_rows, [uuid])
    row = rows.rows.get(uuid) if rows else None
    if row is None or row.state is not State.ACTIVE or row.host is None:
        return False
    agent = (places.read_cell(home, cell_rows.agents_by_host, [row.host], AGENT_BINARY) or {}).get(row.host)
    return agent is not None and not agent.forced_down and agent.age <= places.heard_within


def _judge_staged(
    places: Places, cell_uuid: str, make: partial[Finding], row: InstanceRow, record: Record | None
) -> Finding | None:
    """A copy is normal for a while, and for as long as its request lives."""
    undecided = record is not None and record.cell_uuid is None and not record.deleted
    if undecided or row.updated_at > places.late_in(cell_uuid):
        return None
    mapped = record is not None and record.cell_uuid is not None
    if record is not None and record.deleted and mapped:
        return None  # the delete has yet to reach it
    description = f"{row.uuid} under fence {row.fence}, staged for {row.host}"
    is_here = mapped and record is not None and places.name_of(record.cell_uuid) == make.keywords["cell"]
    return make(kind=UNSETTLED, what=description, repair="activated" if is_here else "removed", safe=True)


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    cell_uuid = findings[0].scope
    if staged := of_kind(findings, UNSETTLED):
        places.call_cell(cell_uuid, lambda cell: settle_rows(places.api, cell, [finding.key for finding in staged]))
    if unmapped := of_kind(findings, UNMAPPED, UNDECIDED):
        places.call_cell(cell_uuid, lambda cell: adopt_rows(places.ledger, cell, [finding.key for finding in unmapped]))
        places.catch_up(cell_uuid)
    if shelved := of_kind(findings, SHELVED_SINCE):
        places.call_cell(cell_uuid, lambda cell: adopt_rows(places.ledger, cell, [finding.key for finding in shelved]))
        places.catch_up(cell_uuid)
        mend.shelve_servers(places, cell_uuid, [finding.key for finding in shelved])
    if astray := [finding for finding in of_kind(findings, ELSEWHERE) if finding.repair]:
        read = {finding.key: finding.facts for finding in astray}
        now = places.cell_time(cell_uuid)
        places.write_cell(cell_uuid, instances.transition_rows, read, lambda row: _delete(row, read, now), now)
        places.catch_up(cell_uuid)


def _delete(row: Instance, read: dict[str, tuple[str | int | None, ...]], now: float) -> Outcome:
    """The mapping is final, so only the row can have changed: then its next look decides."""
    if (row.version, row.attempt) != read[row.uuid]:
        return Refused(reason=f"version {row.version}")
    return lifecycle.delete(row, now)
