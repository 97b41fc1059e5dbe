"""Check for dead letters: items that steps could not process, at the API level and in the cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding
from conductor.audit.places import Places
from db import dead_letters
from objects.utc import to_utc

DEAD = "dead letter"


def list_pages(places: Places) -> Iterator[AuditPage]:
    yield from _key_pages("", [letter.key for letter in places.api.read(dead_letters.list_all, "api")])
    for cell in places.building_cells:
        yield from _key_pages(
            cell.uuid, [letter.key for letter in places.read_cell(cell.uuid, dead_letters.list_all, "cell") or ()]
        )


def _key_pages(scope: str, keys: Sequence[str]) -> Iterator[AuditPage]:
    distinct = sorted(set(keys))
    for start in range(0, len(distinct), AUDIT_PAGE_SIZE):
        yield AuditPage(cell_uuid=scope, keys=tuple(distinct[start : start + AUDIT_PAGE_SIZE]))


def find_inconsistent(places: Places, page: AuditPage) -> list[Finding]:
    """The letters, except those that an operator has skipped."""
    if page.cell_uuid:
        letters = places.read_cell(page.cell_uuid, dead_letters.get, "cell", page.keys) or ()
    else:
        letters = places.api.read(dead_letters.get, "api", page.keys)
    cell = places.name_of(page.cell_uuid)
    advice = "it is retried automatically; fix the cause that the reason names, or run 'superconductor dead-letter skip'"
    return [
        Finding(
            kind=DEAD,
            key=letter.key,
            scope=page.cell_uuid,
            cell=cell,
            what=f"{letter.step} cannot process {letter.key} since {_iso_time(letter.first_at)}: {letter.reason}",
            advice=advice,
        )
        for letter in letters
        if not letter.skipped
    ]


def repair_findings(places: Places, findings: Sequence[Finding]) -> None:
    """Nothing: the step itself retries."""


def _iso_time(at: float) -> str:
    return to_utc(at).strftime("%Y-%m-%dT%H:%M:%SZ")
