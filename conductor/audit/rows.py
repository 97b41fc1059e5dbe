"""Rows of the cells against the mappings: nobody's, another cell's, and copies that nobody settled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

from conductor.audit.finding import PAGE, Finding, Page, of_kind, pages_of
from conductor.audit.places import Places
from conductor.settle import settle_rows
from db import audit_cell, audit_servers, instances
from db import repair as repairs
from db.audit_cell import Row
from db.audit_servers import Record
from objects import lifecycle
from objects.instance import Instance, State
from objects.lifecycle import Outcome, Refused

UNSETTLED = "staged row that nobody settled"
UNMAPPED = "row without mapping"
UNDECIDED = "row before its hand-over"
ELSEWHERE = "row in another cell than mapped"


def pages(places: Places) -> Iterator[Page]:
    for uuid in places.cells:
        yield from pages_of(partial(_next, places, uuid), uuid)


def _next(places: Places, cell_uuid: str, after: str) -> list[str] | None:
    return places.ask(cell_uuid, audit_cell.rows_after, after, PAGE)


def look(places: Places, page: Page) -> list[Finding]:
    rows = places.ask(page.cell_uuid, audit_cell.rows, page.keys)
    if rows is None:
        return []
    _, records = places.api.read(audit_servers.records, page.keys)
    found = (_judge(places, page.cell_uuid, row, records.get(uuid)) for uuid, row in sorted(rows.rows.items()))
    return [finding for finding in found if finding is not None]


def _judge(places: Places, cell_uuid: str, row: Row, record: Record | None) -> Finding | None:
    home = record.cell_uuid if record else None
    make = partial(Finding, key=row.uuid, scope=cell_uuid, cell=places.name(cell_uuid), facts=(row.version, row.attempt))
    if row.state is State.STAGED:
        return _judge_staged(places, make, row, record)
    if row.state is State.DELETED or home == cell_uuid:
        return None
    what = f"{row.uuid}, {row.state.upper()} on {row.host}"
    if record is None or (home is None and not record.deleted and not record.requested):
        what = f"{what}, is no server that the API level knows" if record is None else f"{what}, is mapped to no cell"
        return make(kind=UNMAPPED, what=what, repair="mapped to this cell")
    if home is None and not record.deleted:
        advice = "a STAGED row was changed by hand: delete the server, or wait for its deadline"
        return make(kind=UNDECIDED, what=f"{what}, is still queued", advice=advice)
    if row.state is State.DELETING and row.updated_at > places.late:
        return None
    where = f"is mapped to cell {places.name(home)}" if home else "was deleted before its hand-over"
    if home is not None and not places.exists(home):
        return None  # the mapping is what is wrong
    return make(kind=ELSEWHERE, what=f"{what}, {where}", repair="deleted here, with its guest")


def _judge_staged(places: Places, make: partial[Finding], row: Row, record: Record | None) -> Finding | None:
    """A copy is normal for a while, and for as long as its request lives."""
    undecided = record is not None and record.cell_uuid is None and not record.deleted
    if undecided or row.updated_at > places.late:
        return None
    mapped = record is not None and record.cell_uuid is not None
    if record is not None and record.deleted and mapped:
        return None  # the delete has yet to reach it
    what = f"{row.uuid} under fence {row.fence}, staged for {row.host}"
    here = mapped and record is not None and places.name(record.cell_uuid) == make.keywords["cell"]
    return make(kind=UNSETTLED, what=what, repair="activated" if here else "removed", safe=True)


def repair(places: Places, findings: Sequence[Finding]) -> None:
    cell_uuid = findings[0].scope
    if staged := of_kind(findings, UNSETTLED):
        places.on(cell_uuid, lambda cell: settle_rows(places.api, cell, [finding.key for finding in staged]))
    if unmapped := of_kind(findings, UNMAPPED):
        _adopt(places, cell_uuid, unmapped)
    if astray := of_kind(findings, ELSEWHERE):
        read = {finding.key: finding.facts for finding in astray}
        places.change(cell_uuid, instances.transition, read, lambda row: _delete(row, read), time.time())
        places.catch_up(cell_uuid)


def _adopt(places: Places, cell_uuid: str, findings: Sequence[Finding]) -> None:
    """As the rows are now. One that ended meanwhile is left alone."""
    rows = places.ask(cell_uuid, audit_cell.rows, [finding.key for finding in findings])
    live = [row for row in (rows.rows.values() if rows else ()) if row.state not in (State.STAGED, State.DELETED)]
    places.api.write(repairs.adopt, live, cell_uuid, time.time())


def _delete(row: Instance, read: dict[str, tuple[str | int | None, ...]]) -> Outcome:
    """The mapping is final, so only the row can have changed: then its next look decides."""
    if (row.version, row.attempt) != read[row.uuid]:
        return Refused(reason=f"version {row.version}")
    return lifecycle.delete(row, time.time())
