"""Check for builds that are past their deadline and were not ended by their cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding, pages_of
from conductor.audit.places import Places
from db.audit import cell_rows
from db.cell import instances
from objects import lifecycle
from objects.instance import Failure, FailureClass

LATE = "build past its deadline"


def list_pages(places: Places) -> Iterator[AuditPage]:
    for cell in places.building_cells:
        yield from pages_of(partial(_next_rows, places, cell.uuid), cell.uuid)


def _next_rows(places: Places, cell_uuid: str, after: str) -> list[str] | None:
    return places.read_cell(cell_uuid, cell_rows.late_after, after, AUDIT_PAGE_SIZE, places.late_in(cell_uuid))


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    late = places.read_cell(page.cell_uuid, cell_rows.list_late, page.keys, places.late_in(page.cell_uuid))
    rows = places.read_cell(page.cell_uuid, cell_rows.read_rows, late or ())
    return [
        Finding(
            kind=LATE,
            key=row.uuid,
            scope=page.cell_uuid,
            what=f"{row.uuid}, {row.state.upper()} on {row.host}, attempt {row.attempt}",
            cell=places.name_of(page.cell_uuid),
            repair="ended as ERROR",
            safe=True,
            facts=(row.attempt,),
        )
        for row in (rows.rows.values() if rows else ())
    ]


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    """End them as the cell's own sweep does, with the same guard."""
    read = {finding.key: int(finding.facts[0] or 0) for finding in findings}
    now = places.cell_time(findings[0].scope)
    failure = Failure(kind=FailureClass.DEADLINE, error="BuildTimeout", message="found past its deadline by an audit", at=now)
    places.write_cell(
        findings[0].scope, instances.transition_rows, read, lambda row: lifecycle.end_overdue(row, read[row.uuid], failure), now
    )
    places.catch_up(findings[0].scope)
