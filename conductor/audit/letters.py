"""Check for dead letters: items that steps could not process, at the API level and in the cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Finding
from conductor.audit.places import Places
from db import dead_letters
from objects.utc import utc

DEAD = "dead letter"


def pages(places: Places) -> Iterator[AuditPage]:
    yield from _pages("", [each.key for each in places.api.read(dead_letters.list_all, "api")])
    for cell in places.builders:
        yield from _pages(cell.uuid, [each.key for each in places.ask(cell.uuid, dead_letters.list_all, "cell") or ()])


def _pages(scope: str, keys: Sequence[str]) -> Iterator[AuditPage]:
    distinct = sorted(set(keys))
    for start in range(0, len(distinct), AUDIT_PAGE_SIZE):
        yield AuditPage(cell_uuid=scope, keys=tuple(distinct[start : start + AUDIT_PAGE_SIZE]))


def look(places: Places, page: AuditPage) -> list[Finding]:
    """The letters, except those that an operator has skipped."""
    if page.cell_uuid:
        found = places.ask(page.cell_uuid, dead_letters.get, "cell", page.keys) or ()
    else:
        found = places.api.read(dead_letters.get, "api", page.keys)
    cell = places.name(page.cell_uuid)
    advice = "it is retried automatically; fix the cause that the reason names, or run 'superconductor dead-letter skip'"
    return [
        Finding(
            kind=DEAD,
            key=each.key,
            scope=page.cell_uuid,
            cell=cell,
            what=f"{each.step} cannot process {each.key} since {_iso(each.first_at)}: {each.reason}",
            advice=advice,
        )
        for each in found
        if not each.skipped
    ]


def repair(places: Places, findings: Sequence[Finding]) -> None:
    """Nothing: the step itself retries."""


def _iso(at: float) -> str:
    return utc(at).strftime("%Y-%m-%dT%H:%M:%SZ")
