"""Log a persistent problem once and then at intervals: every request meets a server that is down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

REPEAT_INTERVAL_S = 30.0
"""Seconds in which a complaint is not repeated."""
REMEMBERED_KEYS_LIMIT = 1000
"""Maximum number of different complaints that are remembered."""


class RateLimitedLog:
    """Logs each complaint at most once per ``interval`` seconds. Repetitions in between are counted and logged at DEBUG.

    ``key`` identifies a complaint: the name of what is down and the reason, without details that differ between requests.
    Thread-safe.
    """

    def __init__(
        self, log: logging.Logger, interval: float = REPEAT_INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[str, tuple[float, int]] = {}

    def __call__(self, key: str, level: int, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log ``text`` with ``args`` at ``level``, unless the same complaint was logged less than ``interval`` seconds ago."""
        held = self.count_suppressed(key)
        if held is None:
            self._log.debug(text, *args)
        elif held:
            self._log.log(level, f"{text} (and %d more like it)", *args, held, exc_info=exc_info)
        else:
            self._log.log(level, text, *args, exc_info=exc_info)

    def count_suppressed(self, key: str) -> int | None:
        """The number of repetitions suppressed since the last log line if it is time to log again; None to suppress this one
        too.
        """
        now = self._clock()
        with self._lock:
            at, held = self._said.get(key, (float("-inf"), 0))
            if now - at < self._interval:
                self._said[key] = at, held + 1
                return None
            if len(self._said) >= REMEMBERED_KEYS_LIMIT:
                self._said = {name: said for name, said in self._said.items() if now - said[0] < self._interval}
                if len(self._said) >= REMEMBERED_KEYS_LIMIT:
                    self._said.clear()
            self._said[key] = now, 0
            return held
