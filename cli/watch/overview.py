"""What ``status`` and ``top`` say of operations and of one cell.

Short in a table, and in full below it where something does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

UNKNOWN = "?"
ANSWERS, SILENT = "answers", "silent"
UNASKED = "not asked yet"


def view_word(cell: dict[str, Any]) -> str:
    """Whether its hosts are known, in a word."""
    word = str(cell["view"])
    return word if word in (ANSWERS, UNASKED) else SILENT


def reached_word(part: dict[str, Any]) -> str:
    return ANSWERS if part["reachable"] else SILENT


def host_counts(cell: dict[str, Any]) -> tuple[Any, Any]:
    """How many are up, disabled or not, and how many down. Of a cell that has not answered nothing is known, which is not none."""
    if not _is_known(cell):
        return UNKNOWN, UNKNOWN
    up = cell["hosts"].get("UP", 0) + cell["hosts"].get("MAINTENANCE", 0)
    return up, sum(cell["hosts"].values()) - up


def of_hosts(cell: dict[str, Any], field: str) -> Any:
    """Another number that is read with them."""
    return cell[field] if _is_known(cell) else UNKNOWN


def lag_text(feed: dict[str, Any] | None) -> str:
    if feed is None:
        return UNKNOWN
    return "read" if not feed["behind"] else f"{feed['behind']} behind, {feed['seconds'] or 0:.1f} s"


def operation_sentences(status: dict[str, Any]) -> Iterator[str]:
    """How many are open in each state, and since when; those that wait after a restore. An API of an older release tells none."""
    by_state = sorted(status.get("operations", {}).items())
    texts = [f"{entry['count']} in {state}, the oldest for {entry['oldest_seconds']:.1f} s" for state, entry in by_state]
    if texts:
        yield f"Open operations: {'; '.join(texts)}"
    frozen = status.get("frozen_operations", {"count": 0})
    if frozen["count"]:
        text = f"{frozen['count']} operations take no step before they are compared with the cells: {frozen['reason']}"
        yield f"{text}; see 'superconductor verify'"


def trouble_sentences(cell: dict[str, Any]) -> Iterator[str]:
    """A sentence for each part that does not answer."""
    for name in ("database", "bus"):
        part = cell[name]
        if not part["reachable"]:
            since = f" since {part['since']}" if part["since"] else ""
            yield (
                f"Cell {cell['name']}: its {'broker' if name == 'bus' else name} is silent{since}: "
                f"{_bare_reason(cell, part['reason'])}"
            )
    if view_word(cell) == SILENT and cell["database"]["reachable"]:
        yield f"Cell {cell['name']}: its hosts are not known: {_bare_reason(cell, cell['view'])}"


def _is_known(cell: dict[str, Any]) -> bool:
    """Its hosts were read, and could be read now: what was read before is old."""
    return view_word(cell) == ANSWERS and bool(cell["database"]["reachable"])


def _bare_reason(cell: dict[str, Any], reason: str | None) -> str:
    """Without the name of the cell, which has been said."""
    return (reason or "it does not say why").removeprefix(f"cell '{cell['name']}': ")
