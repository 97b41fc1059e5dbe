"""How far servers have come that a command waits for, on standard error."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import TextIO

from cli.shared.streams import inner_stream

BAR_WIDTH = 30
STEPS = 10
"""Lines that are written where standard error is no terminal."""
FEWEST_FOR_LINES = 10
"""Servers from which on these lines are worth reading."""


class WaitProgress:
    """A bar that is drawn again and again on a terminal; elsewhere a line for every tenth of the servers."""

    def __init__(self, stream: TextIO, total: int, *, quiet: bool = False) -> None:
        self._out = inner_stream(stream)
        self._total = total
        self._live = self._out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._silent = quiet or total < (2 if self._live else FEWEST_FOR_LINES)
        self._shown_step = 0

    def show_statuses(self, statuses: Iterable[str]) -> None:
        """``statuses``: of all servers, now."""
        counts = Counter(statuses)
        ended = self._total - counts["BUILD"]
        if self._silent or not self._total:
            return
        text = f"{ended} of {self._total} servers: {counts['ACTIVE']} ACTIVE, {counts['ERROR']} in ERROR"
        step = ended * STEPS // self._total
        if self._live:
            filled = ended * BAR_WIDTH // self._total
            self._write(f"\r[{'#' * filled:<{BAR_WIDTH}}] {text}\x1b[K")
        elif step > self._shown_step:
            self._shown_step = step
            self._write(f"{text}\n")

    def end_line(self) -> None:
        """Leave the line of the bar."""
        if self._live and not self._silent:
            self._write("\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
