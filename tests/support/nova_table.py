"""The tables of ``docs/nova-scheduler.md``: what of Nova's scheduler is here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

DOCUMENT = "docs/nova-scheduler.md"
HONOURED, REFUSED, HOST, NOT_THERE = STATES = ("honoured", "refused", "host", "not there")
_CODE = re.compile(r"`([^`]+)`")


class NovaRow(NamedTuple):
    """``names`` of Nova; one may end in ``*``. ``instead``: the names in the remarks."""

    names: tuple[str, ...]
    here: str
    instead: tuple[str, ...]

    def has(self, name: str) -> bool:
        return any(name.startswith(each[:-1]) if each.endswith("*") else name == each for each in self.names)


def tables(text: str) -> dict[str, list[NovaRow]]:
    """The rows by heading. Raises ValueError for a row without one of the STATES."""
    found: dict[str, list[NovaRow]] = {}
    for section in text.split("\n## ")[1:]:
        heading, *lines = section.splitlines()
        found[heading] = [_row(line) for line in lines if line.startswith("| `")]
    return found


def _row(line: str) -> NovaRow:
    names, here, remarks = (cell.strip() for cell in line.strip("|").split("|"))
    if here not in STATES:
        raise ValueError(f"{line}: {here} is none of {', '.join(STATES)}")
    return NovaRow(tuple(_CODE.findall(names)), here, tuple(_CODE.findall(remarks)))


def find(rows: Sequence[NovaRow], name: str) -> NovaRow | None:
    """The first row that has the name."""
    return next((row for row in rows if row.has(name)), None)
