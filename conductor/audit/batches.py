"""Check for all-or-nothing batches that should have been decided, and for those rolled back only in part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, pages_of
from conductor.audit.places import Places
from conductor.roll_back import judge_batches, list_standing, roll_back
from db.api.queue import batches
from db.api.queue.batches import AllOrNothingBatch, Member

UNDECIDED = "all-or-nothing batch that nobody decided"
HALF = "all-or-nothing batch half rolled back"


def list_pages(places: Places) -> Iterator[AuditPage]:
    return pages_of(lambda after: [batch.batch_id for batch in places.api.read(batches.list_after, AUDIT_PAGE_SIZE, after)])


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    rows = places.api.read(batches.list_batches, page.keys)
    members = places.api.read(batches.members_of, page.keys, ("building", "active", "error"))
    judged = [_judge_batch(places, batch, members.get(batch.batch_id, [])) for batch in rows]
    return [finding for finding in judged if finding is not None]


def _judge_batch(places: Places, batch: AllOrNothingBatch, members: Sequence[Member]) -> Finding | None:
    if batch.fault is None:
        return _judge_open(places, batch, members)
    remaining = [member for member in members if member.state != "error"]
    silent = bool(remaining) and all(member.cell_uuid in places.unknown for member in remaining)
    if silent or (batch.failed_at or 0.0) > places.overdue_before:
        return None
    description = f"{batch.batch_id}, {len(remaining)} of its servers are not in ERROR; {batch.fault}"
    return Finding(kind=HALF, key=batch.batch_id, what=description, repair="rolled back where its servers are", safe=True)


def _judge_open(places: Places, batch: AllOrNothingBatch, members: Sequence[Member]) -> Finding | None:
    states = {member.state for member in members}
    if "error" not in states and "building" in states:
        return None
    if max([batch.created_at, *(member.updated_at for member in members)]) > places.overdue_before:
        return None
    verdict = "failed" if "error" in states else "settled"
    return Finding(kind=UNDECIDED, key=batch.batch_id, what=batch.batch_id, repair=f"called {verdict}", safe=True)


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    """Decide and roll back as the super conductor's sweep does. The cells' own sweeps send the orders to hosts."""
    rows = places.api.read(batches.list_batches, [finding.key for finding in findings])
    failed = judge_batches(places.api, [row for row in rows if row.fault is None]) + [row for row in rows if row.fault is not None]
    for cell_uuid, reasons in list_standing(places.api, failed).items():
        places.write_cell(cell_uuid, roll_back, reasons, places.cell_time(cell_uuid))
        places.catch_up(cell_uuid)
    list_standing(places.api, failed)  # servers without a guest have ended now: their batch may be finished
