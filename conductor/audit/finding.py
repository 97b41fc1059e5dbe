"""What an audit finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from conductor.audit.places import Places
from objects.base import Object

PAGE = 500
"""Keys looked at with one statement: no longer than an IN list may be."""


class AuditPage(Object, frozen=True, kw_only=True):
    """Keys to look at: in the cell with this uuid, or at the API level where it is empty."""

    cell_uuid: str = ""
    keys: tuple[str, ...]


class Finding(Object, frozen=True, kw_only=True):
    """One thing that does not agree with another, the same at every look for as long as nothing changes.

    ``key`` and ``scope`` (a page's ``cell_uuid``) are what to look at again. ``cell`` is the name of the cell it concerns, if one.
    ``repair`` is what is done about it, as the end of "would be ..."; None: nothing, and ``advice`` says what a person can do.
    ``safe``: right whatever the cause may be, so that it may be done unasked. ``ends_guest``: the repair destroys a guest, if there
    is one. ``facts`` are those that guard the repair.
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
    """A module that compares one kind of thing. ``conductor/audit/checks.py`` lists them."""

    def pages(self, places: Places) -> Iterator[AuditPage]:
        """All there is to look at, page by page."""

    def look(self, places: Places, page: AuditPage) -> list[Finding]:
        """What does not agree of these keys, now. Cells that cannot be asked are left out, as ``Places.ask`` notes."""

    def repair(self, places: Places, findings: Sequence[Finding]) -> None:
        """Put these right, under guards that lose against whatever changed since. All are of one scope, and have a repair."""


def pages_of(read: Callable[[str], Sequence[str] | None], cell_uuid: str = "") -> Iterator[AuditPage]:
    """Pages of the keys that ``read(after)`` gives, PAGE of them at most, until it gives fewer."""
    after: str | None = ""
    while after is not None and (keys := read(after)):
        yield AuditPage(cell_uuid=cell_uuid, keys=tuple(keys))
        after = keys[-1] if len(keys) >= PAGE else None


def of_kind(findings: Sequence[Finding], *kinds: str) -> list[Finding]:
    return [finding for finding in findings if finding.kind in kinds]
