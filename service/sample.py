"""What costs something to know, or may never be told: asked for now and then, in a thread of its own, and never waited for long."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

T = TypeVar("T")

KEEP = 10.0
"""Seconds that an answer is used again at least."""
SHARE = 20
"""An answer is used again for so many times what it took: however slow it has become, looking takes a twentieth of the time."""
STALE = 6
"""After so many times as long it says nothing about now."""
PATIENCE = 2.0
"""Seconds that a caller waits for a new answer."""


class Sample(Generic[T]):
    """The latest answer of ``ask``. Safe for threads."""

    def __init__(self, name: str, ask: Callable[[], T], *, keep: float = KEEP, patience: float = PATIENCE) -> None:
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
        """The answer, asked for anew where it is old; the old one where that takes long; None where it is too old for that."""
        with self._changed:
            if time.monotonic() >= self._due and not self._asking:
                self._asking = True
                threading.Thread(target=self._look, name=f"sample {self._name}", daemon=True).start()
            self._changed.wait_for(lambda: not self._asking, self._patience)
            return self._answer if time.monotonic() < self._stale else None

    def _look(self) -> None:
        began = time.monotonic()
        try:
            answer = self._ask()
        except Exception as error:  # noqa: BLE001 - asked again; the error is logged
            text = f"{type(error).__name__}: {error}"
            self._complaints(text, logging.WARNING, "%s cannot be looked at: %s", self._name, text)
            answer = None
        now = time.monotonic()
        with self._changed:
            rest = max(self._keep, SHARE * (now - began))
            self._due = now + rest
            if answer is not None:
                self._answer, self._stale = answer, now + STALE * rest
            self._asking = False
            self._changed.notify_all()
