"""Compare the quota usage charged to projects and their users with their servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding
from conductor.audit.places import Places
from db.audit import quotas
from objects.quota import QuotaUsage

MISCHARGED = "quota unlike the servers"


def list_pages(places: Places) -> Iterator[AuditPage]:
    """Only projects whose usage differs, or that of a user in them: two statements compare all."""
    projects = sorted({drift.project_id for drift in places.api.read(quotas.list_differences)})
    for start in range(0, len(projects), AUDIT_PAGE_SIZE):
        yield AuditPage(keys=tuple(projects[start : start + AUDIT_PAGE_SIZE]))


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    return [
        Finding(
            kind=MISCHARGED,
            key=drift.project_id,
            what=f"{_charged_owner(drift)} is charged for {_usage_text(drift.used)}, and has {_usage_text(drift.counted)}",
            repair="charged for its actual usage",
            safe=True,
        )
        for drift in places.api.read(quotas.list_differences)
        if drift.project_id in page.keys
    ]


def _charged_owner(drift: quotas.Drift) -> str:
    return f"project {drift.project_id}" if drift.user_id is None else f"user {drift.user_id} in project {drift.project_id}"


def _usage_text(usage: QuotaUsage) -> str:
    return f"{usage.instances} instances, {usage.cores} cores, {usage.ram} MiB"


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    for project_id in sorted({finding.key for finding in findings}):
        places.api.write(quotas.repair_charges, project_id)
