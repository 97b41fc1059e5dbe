"""Compare the usage of the inventories with the sum of the claims on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, pages_of
from conductor.audit.places import Places
from db.api.claims import claim_repair
from db.api.claims.inventories import UsageChange
from db.audit import claims

MISCOUNTED = "usage unlike the claims"


def list_pages(places: Places) -> Iterator[AuditPage]:
    return pages_of(lambda after: places.api.read(claims.inventories_after, after, AUDIT_PAGE_SIZE))


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    return [
        Finding(
            kind=MISCOUNTED,
            key=str(inventory_sum.id),
            what=(
                f"{_amounts_text(inventory_sum.counted)} counted on {inventory_sum.host}, "
                f"{_amounts_text(inventory_sum.claimed)} claimed"
            ),
            cell=places.name_of(inventory_sum.cell_uuid),
            repair="counted again",
            safe=True,
        )
        for inventory_sum in places.api.read(claims.sum_claims, [int(key) for key in page.keys])
        if inventory_sum.counted != inventory_sum.claimed
    ]


def _amounts_text(amounts: UsageChange) -> str:
    custom = "".join(f", {amount} {name}" for name, amount in amounts.resources)
    return f"{amounts.vcpus} vcpus, {amounts.memory_mb} MiB, {amounts.disk_gb} GiB{custom} by {amounts.instances} instances"


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    places.ledger.write(claim_repair.recount_usage, [int(finding.key) for finding in findings])
