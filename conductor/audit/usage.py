"""Compare the usage of the inventories with the sum of the claims on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, pages_of
from conductor.audit.places import Places
from db.api.claims import claim_repair
from db.api.claims.inventories import UsageChange
from db.audit import claims

MISCOUNTED = "usage unlike the claims"


def pages(places: Places) -> Iterator[AuditPage]:
    return pages_of(lambda after: places.api.read(claims.inventories_after, after, AUDIT_PAGE_SIZE))


def look(places: Places, page: AuditPage) -> list[Finding]:
    return [
        Finding(
            kind=MISCOUNTED,
            key=str(found.id),
            what=f"{_named(found.counted)} counted on {found.host}, {_named(found.claimed)} claimed",
            cell=places.name(found.cell_uuid),
            repair="counted again",
            safe=True,
        )
        for found in places.api.read(claims.sums, [int(key) for key in page.keys])
        if found.counted != found.claimed
    ]


def _named(amounts: UsageChange) -> str:
    custom = "".join(f", {amount} {name}" for name, amount in amounts.resources)
    return f"{amounts.vcpus} vcpus, {amounts.memory_mb} MiB, {amounts.disk_gb} GiB{custom} by {amounts.instances} instances"


def repair(places: Places, findings: Sequence[Finding]) -> None:
    places.ledger.write(claim_repair.recount, [int(finding.key) for finding in findings])
