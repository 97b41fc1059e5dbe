"""The findings of an audit, and the interface of its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from conductor.audit.places import Places
from objects.base import Object

AUDIT_PAGE_SIZE = 500
"""Keys checked with one statement; limited by the size of an IN list."""


class AuditPage(Object, frozen=True, kw_only=True):
    """Keys to check: in the cell with this UUID, or at the API level if it is empty."""

    cell_uuid: str = ""
    keys: tuple[str, ...]


class Finding(Object, frozen=True, kw_only=True):
    """One inconsistency; equal at every check while nothing changes.

    ``key`` and ``scope`` (a page's ``cell_uuid``): what to check again. ``cell``: name of the cell it concerns, if any.
    ``repair_findings``: the end of "would be ..."; None: there is no repair, and ``advice`` says what a person can do. ``safe``:
    the repair is right whatever the cause, so it may run automatically. ``ends_guest``: the repair destroys the guest, if there is
    one.
    ``facts``: the values that guard the repair.
    """

    kind: str
    key: str
    what: str
    scope: str = ""
    cell: str = ""
    repair: str | None = None
    advice: str = ""
    safe: bool = False
    ends_guest: bool = False
    facts: tuple[str | int | None, ...] = ()

    def __str__(self) -> str:
        place = f" ({self.cell})" if self.cell else ""
        return f"{self.kind}: {self.what}{place}"


class Check(Protocol):
    """A module that checks one kind of record. ``conductor/audit/checks.py`` lists them."""

    def list_pages(self, places: Places) -> Iterator[AuditPage]:
        """All keys to check, page by page."""

    def find_inconsistent(self, places: Places, page: AuditPage) -> list[Finding]:
        """The present inconsistencies of these keys. Cells that do not answer are left out; ``Places.read_cell`` notes them."""

    def repair_findings(self, places: Places, findings: Sequence[Finding]) -> None:
        """Repair these, with guards that skip what has changed since. All are of one scope, and have a repair."""


def pages_of(read: Callable[[str], Sequence[str] | None], cell_uuid: str = "") -> Iterator[AuditPage]:
    """Pages of the keys that ``read(after)`` returns, at most ``AUDIT_PAGE_SIZE`` each, until it returns fewer."""
    after: str | None = ""
    while after is not None and (keys := read(after)):
        yield AuditPage(cell_uuid=cell_uuid, keys=tuple(keys))
        after = keys[-1] if len(keys) >= AUDIT_PAGE_SIZE else None


def of_kind(findings: Sequence[Finding], *kinds: str) -> list[Finding]:
    return [finding for finding in findings if finding.kind in kinds]
