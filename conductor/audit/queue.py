"""Check for requests that have a decided mapping or none, that no conductor drives, or that are past their deadline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, of_kind, pages_of
from conductor.audit.places import Places
from db.api.queue import holds
from db.api.reconcile import repair as repairs
from db.audit import queue, servers
from db.audit.queue import QueuedRequest
from db.audit.servers import Record
from objects.hold import HELD
from objects.utc import to_utc

DECIDED = "request beside a decided mapping"
UNMAPPED = "request without mapping"
WAITING = "request that nobody drives"
LATE = "request past its deadline"
STRAY = "held request without hold"


def list_pages(places: Places) -> Iterator[AuditPage]:
    return pages_of(lambda after: places.api.read(queue.requests_after, after, AUDIT_PAGE_SIZE))


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    requests = places.api.read(queue.list_requests, page.keys)
    _, records = places.api.read(servers.read_records, [request.uuid for request in requests])
    held = [request.uuid for request in requests if request.state == HELD]
    stray = places.api.read(holds.without_hold, held) if held else set()
    judged = (_judge_request(places, request, records.get(request.uuid), stray) for request in requests)
    return [finding for finding in judged if finding is not None]


def _judge_request(places: Places, request: QueuedRequest, record: Record | None, stray: Set[str]) -> Finding | None:
    uuid = request.uuid
    if not request.mapped:
        description = f"{uuid} is queued, and no server of this uuid was accepted"
        return Finding(kind=UNMAPPED, key=uuid, what=description, repair="removed", safe=True)
    if record is not None and record.requested and (record.cell_uuid is not None or record.deleted):
        fate = "deleted" if record.cell_uuid is None else f"mapped to cell {places.name_of(record.cell_uuid)}"
        return Finding(kind=DECIDED, key=uuid, what=f"{uuid} is queued and {fate}", repair="removed", safe=True)
    if uuid in stray:
        description = f"{uuid} is held, and its hold is neither there nor booted"
        return Finding(
            kind=STRAY, key=uuid, what=description, repair="queued past its deadline, so that it ends as ERROR", safe=True
        )
    if request.state == HELD:
        return None
    if max(request.created_at, request.lease_until) < places.overdue_before:
        driver = f"since {request.owner} held it under fence {request.fence}" if request.owner else "since it was accepted"
        advice = "make sure that a super conductor runs: it leases waiting requests and ends overdue ones"
        return Finding(kind=WAITING, key=uuid, what=f"{uuid} {driver}", advice=advice)
    if request.deadline < places.overdue_before:  # repeated leases hide that no conductor can end it
        advice = "see the super conductors' logs, and 'superconductor dead-letter list'"
        return Finding(kind=LATE, key=uuid, what=f"{uuid} should have ended at {_iso_time(request.deadline)}", advice=advice)
    return None


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    """Remove the requests. A conductor that drives one loses at hand-over in any case. Those held without a hold are queued."""
    places.api.write(repairs.drop_requests, [finding.key for finding in of_kind(findings, DECIDED, UNMAPPED)])
    if stray := [finding.key for finding in of_kind(findings, STRAY)]:
        places.api.write(holds.queue_strays, stray)


def _iso_time(at: float) -> str:
    return to_utc(at).strftime("%Y-%m-%dT%H:%M:%SZ")
