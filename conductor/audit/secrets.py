"""Check for secrets that are no longer needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, pages_of
from conductor.audit.places import Places
from db import secrets
from db.audit import cell_rows, queue

KEPT_SECRETS = "secrets of a batch that is done"


def list_pages(places: Places) -> Iterator[AuditPage]:
    """Only batches whose secrets have been stored for long."""
    yield from pages_of(lambda after: places.api.read(queue.kept_secrets_after, after, AUDIT_PAGE_SIZE, places.overdue_before))
    for cell in places.building_cells:
        yield from pages_of(partial(_next_batches, places, cell.uuid), cell.uuid)


def _next_batches(places: Places, cell_uuid: str, after: str) -> list[str] | None:
    return places.read_cell(cell_uuid, cell_rows.kept_secrets_after, after, AUDIT_PAGE_SIZE, places.late_in(cell_uuid))


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    if page.cell_uuid:
        kept_batches = places.read_cell(page.cell_uuid, cell_rows.kept_secrets, page.keys) or []
    else:
        kept_batches = places.api.read(queue.kept_secrets, page.keys)
    return [
        Finding(
            kind=KEPT_SECRETS,
            key=batch,
            scope=page.cell_uuid,
            what=f"batch {batch}",
            cell=places.name_of(page.cell_uuid) if page.cell_uuid else "",
            repair="erased",
            safe=True,
        )
        for batch in kept_batches
    ]


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    batches, cell_uuid = [finding.key for finding in findings], findings[0].scope
    if cell_uuid:
        places.write_cell(cell_uuid, secrets.erase_builds, batches)
    else:
        places.api.write(secrets.erase_requests, batches)
