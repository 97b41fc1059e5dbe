"""What ``status`` and ``top`` say of operations and of one cell.

Short in a table, and in full below it where something does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

UNKNOWN = "?"
ANSWERS, SILENT = "answers", "silent"
UNASKED = "not asked yet"


def view(cell: dict[str, Any]) -> str:
    """Whether its hosts are known, in a word."""
    found = str(cell["view"])
    return found if found in (ANSWERS, UNASKED) else SILENT


def reached(what: dict[str, Any]) -> str:
    return ANSWERS if what["reachable"] else SILENT


def hosts(cell: dict[str, Any]) -> tuple[Any, Any]:
    """How many are up, disabled or not, and how many down. Of a cell that has not answered nothing is known, which is not none."""
    if not _known(cell):
        return UNKNOWN, UNKNOWN
    up = cell["hosts"].get("UP", 0) + cell["hosts"].get("MAINTENANCE", 0)
    return up, sum(cell["hosts"].values()) - up


def of_hosts(cell: dict[str, Any], what: str) -> Any:
    """Another number that is read with them."""
    return cell[what] if _known(cell) else UNKNOWN


def lag(feed: dict[str, Any] | None) -> str:
    if feed is None:
        return UNKNOWN
    return "read" if not feed["behind"] else f"{feed['behind']} behind, {feed['seconds'] or 0:.1f} s"


def operations(status: dict[str, Any]) -> Iterator[str]:
    """How many are open in each state, and since when; those that wait after a restore. An API of an older release tells none."""
    found = sorted(status.get("operations", {}).items())
    told = [f"{each['count']} in {state}, the oldest for {each['oldest_seconds']:.1f} s" for state, each in found]
    if told:
        yield f"Open operations: {'; '.join(told)}"
    frozen = status.get("frozen_operations", {"count": 0})
    if frozen["count"]:
        text = f"{frozen['count']} operations take no step before they are compared with the cells: {frozen['reason']}"
        yield f"{text}; see 'superconductor verify'"


def troubles(cell: dict[str, Any]) -> Iterator[str]:
    """A sentence for each part that does not answer."""
    for name in ("database", "bus"):
        what = cell[name]
        if not what["reachable"]:
            since = f" since {what['since']}" if what["since"] else ""
            yield f"Cell {cell['name']}: its {'broker' if name == 'bus' else name} is silent{since}: {_bare(cell, what['reason'])}"
    if view(cell) == SILENT and cell["database"]["reachable"]:
        yield f"Cell {cell['name']}: its hosts are not known: {_bare(cell, cell['view'])}"


def _known(cell: dict[str, Any]) -> bool:
    """Its hosts were read, and could be read now: what was read before is old."""
    return view(cell) == ANSWERS and bool(cell["database"]["reachable"])


def _bare(cell: dict[str, Any], reason: str | None) -> str:
    """Without the name of the cell, which has been said."""
    return (reason or "it does not say why").removeprefix(f"cell '{cell['name']}': ")
