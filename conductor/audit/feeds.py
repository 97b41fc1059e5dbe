"""Compare the cursors of the cells' feeds with the ends of the feeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conductor.audit.finding import AuditPage, Finding
from conductor.audit.places import Places
from db.api.reconcile import events
from db.audit import servers
from db.cell import feed

BEHIND = "feed that nobody applies"
AHEAD = "feed that ends before its cursor"


def list_pages(places: Places) -> Iterator[AuditPage]:
    for cell in places.building_cells:
        yield AuditPage(cell_uuid=cell.uuid, keys=(cell.uuid,))


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    """Find a cursor that does not move although the feed goes on.

    The text names the cursor and not the number of events, so that the finding stays the same.
    """
    cursor = places.api.read(servers.cursors_by_cell).get(page.cell_uuid, 0)
    head = places.read_cell(page.cell_uuid, feed.read_head)
    if head is None or head == cursor:
        return []
    if cursor == events.BEYOND_ANY_EVENT:
        kind, description = BEHIND, "its rows must be read again, because its database was restored"
    elif head > cursor:
        kind, description = BEHIND, f"nothing after event {cursor}"
    else:
        kind, description = AHEAD, f"event {cursor} was applied before"
    cell = places.name_of(page.cell_uuid)
    return [Finding(kind=kind, key=page.cell_uuid, scope=page.cell_uuid, what=description, cell=cell, repair="applied", safe=True)]


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    for finding in findings:
        places.catch_up(finding.scope)
