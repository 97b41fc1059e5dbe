"""What projects are charged for against the servers that they have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conductor.audit.finding import PAGE, Finding, Page
from conductor.audit.places import Places
from db import quota_audit
from objects.quota import Usage

MISCHARGED = "quota unlike the servers"


def pages(places: Places) -> Iterator[Page]:
    """Only projects that differ: one statement compares them all."""
    projects = [drift.project_id for drift in places.api.read(quota_audit.differences)]
    for start in range(0, len(projects), PAGE):
        yield Page(keys=tuple(projects[start : start + PAGE]))


def look(places: Places, page: Page) -> list[Finding]:
    return [
        Finding(
            kind=MISCHARGED,
            key=drift.project_id,
            what=f"project {drift.project_id} is charged for {_named(drift.used)}, and has {_named(drift.counted)}",
            repair="charged for what it has",
            safe=True,
        )
        for drift in places.api.read(quota_audit.differences)
        if drift.project_id in page.keys
    ]


def _named(usage: Usage) -> str:
    return f"{usage.instances} instances, {usage.cores} cores, {usage.ram} MiB"


def repair(places: Places, findings: Sequence[Finding]) -> None:
    for finding in findings:
        places.api.write(quota_audit.repair, finding.key)
