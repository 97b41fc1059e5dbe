"""Check for secrets that are no longer needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, pages_of
from conductor.audit.places import Places
from db import secrets
from db.audit import cell_rows, queue

KEPT = "secrets of a batch that is done"


def pages(places: Places) -> Iterator[AuditPage]:
    """Only batches whose secrets have been stored for long."""
    yield from pages_of(lambda after: places.api.read(queue.kept_secrets_after, after, AUDIT_PAGE_SIZE, places.late))
    for cell in places.builders:
        yield from pages_of(partial(_next, places, cell.uuid), cell.uuid)


def _next(places: Places, cell_uuid: str, after: str) -> list[str] | None:
    return places.ask(cell_uuid, cell_rows.kept_secrets_after, after, AUDIT_PAGE_SIZE, places.late_in(cell_uuid))


def look(places: Places, page: AuditPage) -> list[Finding]:
    if page.cell_uuid:
        kept = places.ask(page.cell_uuid, cell_rows.kept_secrets, page.keys) or []
    else:
        kept = places.api.read(queue.kept_secrets, page.keys)
    return [
        Finding(
            kind=KEPT,
            key=batch,
            scope=page.cell_uuid,
            what=f"batch {batch}",
            cell=places.name(page.cell_uuid) if page.cell_uuid else "",
            repair="erased",
            safe=True,
        )
        for batch in kept
    ]


def repair(places: Places, findings: Sequence[Finding]) -> None:
    batches, cell_uuid = [finding.key for finding in findings], findings[0].scope
    if cell_uuid:
        places.change(cell_uuid, secrets.erase_builds, batches)
    else:
        places.api.write(secrets.erase_requests, batches)
