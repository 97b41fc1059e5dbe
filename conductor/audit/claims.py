"""Check for claims without an instance, which the reaper should have released."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, pages_of
from conductor.audit.places import Places
from db.api.claims import claim_repair
from db.audit import claims

ORPHAN = "claim without instance"


def list_pages(places: Places) -> Iterator[AuditPage]:
    return pages_of(lambda after: places.api.read(claims.claims_after, after, AUDIT_PAGE_SIZE))


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    return [
        Finding(
            kind=ORPHAN,
            key=orphan.uuid,
            what=f"{orphan.vcpus} vcpus of {orphan.uuid} on {orphan.host or 'no host'}",
            cell=places.name_of(orphan.cell_uuid),
            repair="released",
            safe=True,
        )
        for orphan in places.api.read(claims.list_orphans, page.keys)
    ]


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    places.ledger.write(claim_repair.release_orphans, [finding.key for finding in findings])
