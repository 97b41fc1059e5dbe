"""Cache an answer that is expensive, or may never come. A separate thread asks for it, and callers wait only briefly."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from service.rate_limited_log import RateLimitedLog
from service.threads import start_daemon

LOG = logging.getLogger(__name__)

T = TypeVar("T")

MIN_CACHE_S = 10.0
"""Minimum seconds that an answer is cached."""
CACHE_DURATION_FACTOR = 20
"""An answer is cached for at least this many times its duration: however slow, asking takes a twentieth of the time."""
DISCARD_FACTOR = 6
"""An answer is discarded after this many times its cache duration."""
CALLER_WAIT_S = 2.0
"""Seconds that a caller waits for a new answer."""


class Sample(Generic[T]):
    """The latest answer of ``ask``, cached for max(``keep``, 20 x its duration) seconds. Thread-safe."""

    def __init__(self, name: str, ask: Callable[[], T], *, keep: float = MIN_CACHE_S, patience: float = CALLER_WAIT_S) -> None:
        self._name = name
        self._ask = ask
        self._keep = keep
        self._patience = patience
        self._changed = threading.Condition()
        self._answer: T | None = None
        self._asking = False
        self._due = self._stale = float("-inf")
        self._complaints = RateLimitedLog(LOG)

    def get(self) -> T | None:
        """The answer, refreshed if it is old. The old answer if refreshing takes long; None if that one is stale."""
        with self._changed:
            if time.monotonic() >= self._due and not self._asking:
                self._asking = start_daemon(f"sample {self._name}", self._take_sample) is not None
            self._changed.wait_for(lambda: not self._asking, self._patience)
            return self._answer if time.monotonic() < self._stale else None

    def _take_sample(self) -> None:
        began = time.monotonic()
        try:
            answer = self._ask()
        except Exception as error:  # noqa: BLE001 - it is asked again later; the error is logged
            text = f"{type(error).__name__}: {error}"
            self._complaints(text, logging.WARNING, "%s cannot be read: %s", self._name, text)
            answer = None
        now = time.monotonic()
        with self._changed:
            rest = max(self._keep, CACHE_DURATION_FACTOR * (now - began))
            self._due = now + rest
            if answer is not None:
                self._answer, self._stale = answer, now + DISCARD_FACTOR * rest
            self._asking = False
            self._changed.notify_all()
