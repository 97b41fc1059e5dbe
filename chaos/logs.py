"""Errors that nobody foresaw, as the region's logs show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

TRACEBACK = "Traceback (most recent call last)"
CRASH = "Fatal Python error"


def count_tracebacks(folder: Path) -> Counter[str]:
    """For each error that was logged with its traceback, or ended a process: how often."""
    counts: Counter[str] = Counter()
    for log in sorted(folder.glob("*.log")):
        with log.open(errors="replace") as lines:
            counts.update(_list_errors(lines))
    return counts


def _list_errors(lines: Iterable[str]) -> Iterator[str]:
    """The last line of every traceback: the first one after it that is not indented and not of the log's own text."""
    within = False
    for line in lines:
        text = line.partition("] ")[2] if line[:2] == "20" else line  # log lines begin with their date
        if CRASH in text:
            yield text.strip()[:160]
        elif TRACEBACK in text:
            within = True
        elif within and text.strip() and not text.startswith((" ", "-")):
            within = False
            yield text.strip()[:160]
