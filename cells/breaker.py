"""A circuit breaker: after a few failures in a row, callers are refused at once and only one now and then may try."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime


class Breaker:
    """Judges one resource by how the calls to it end.

    Closed until ``threshold`` calls in a row have failed. Then it is open: ``get_refusal()`` gives the reason, and every ``pause``
    seconds lets one caller through as a probe. A success closes it. A probe that never reports needs no care: the next one goes
    ``pause`` seconds after it, whatever became of it.

    ``what`` names the resource in reasons ("cell 'east'"). ``clock`` measures pauses, ``wall`` only dates the first failure.
    """

    def __init__(
        self,
        resource_name: str,
        *,
        threshold: int = 3,
        pause: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._what = resource_name
        self._threshold = threshold
        self._pause = pause
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._failures = 0
        self._since = 0.0
        self._reason = ""
        self._probe_at = 0.0

    @property
    def silent_since(self) -> float | None:
        """When the first of the present failures happened, in seconds since the epoch; None if the last call succeeded."""
        return self._since if self._failures else None

    @property
    def open(self) -> bool:
        """Whether calls are refused, probes apart."""
        return self._failures >= self._threshold

    def get_refusal(self) -> str | None:
        """Why a call may not be made now, or None: go on, and tell ``note_success`` or ``note_failure`` how it ended."""
        if self._failures < self._threshold:
            return None  # the usual way costs one comparison: no lock
        with self._lock:
            if self._failures < self._threshold:
                return None
            now = self._clock()
            if now >= self._probe_at:
                self._probe_at = now + self._pause
                return None
            since = datetime.fromtimestamp(self._since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            return f"{self._what} has not answered since {since} ({self._reason})"

    def note_success(self) -> None:
        """The resource answered, if only to say no."""
        if self._failures:
            with self._lock:
                self._failures = 0

    def note_failure(self, reason: str) -> None:
        """The resource did not answer; ``reason`` is shown to those refused."""
        with self._lock:
            if self._failures == 0:
                self._since = self._wall()
            self._failures += 1
            self._reason = reason
            self._probe_at = self._clock() + self._pause
