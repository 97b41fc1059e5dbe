"""Say what is wrong once and then now and again, however often it is met: a server that is down is met by every request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

REMIND = 30.0
"""Seconds in which one complaint is not repeated."""
KEPT = 1000
"""Different complaints that are remembered."""


class RateLimitedLog:
    """Logs each complaint at most once per ``interval`` seconds; what is left out in between is counted, and shown at DEBUG.

    ``key`` tells what is the same: the name of what is down and why, without what differs from one who meets it to the next.
    Safe for threads.
    """

    def __init__(self, log: logging.Logger, interval: float = REMIND, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[str, tuple[float, int]] = {}

    def __call__(self, key: str, level: int, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log ``text`` with ``args`` at ``level``, unless the same was said just now."""
        held = self.due(key)
        if held is None:
            self._log.debug(text, *args)
        elif held:
            self._log.log(level, f"{text} (and %d more like it)", *args, held, exc_info=exc_info)
        else:
            self._log.log(level, text, *args, exc_info=exc_info)

    def due(self, key: str) -> int | None:
        """How many were left out since it was said last, if it is to be said now; None if this one is to be left out too."""
        now = self._clock()
        with self._lock:
            at, held = self._said.get(key, (float("-inf"), 0))
            if now - at < self._interval:
                self._said[key] = at, held + 1
                return None
            if len(self._said) >= KEPT:
                self._said = {name: said for name, said in self._said.items() if now - said[0] < self._interval}
                if len(self._said) >= KEPT:
                    self._said.clear()
            self._said[key] = now, 0
            return held
