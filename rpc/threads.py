"""Threads that handle messages."""

from __future__ import annotations

import time
from collections.abc import Callable

from service.worker_pool import WorkerPool

UNDER_WAY_BYTES = 32 * 1024 * 1024
"""Maximum size in bytes of the messages handled at the same time. A larger message is handled alone."""


class Threads:
    """At most ``max_workers`` threads for functions whose results nobody asks for: what oslo.messaging calls an executor."""

    def __init__(self, max_workers: int, thread_name_prefix: str = "") -> None:
        self.limit = max_workers
        self._pool = WorkerPool(thread_name_prefix, max_workers)
        self._full_since: float | None = None

    def wait_for_room(self, size: int, timeout: float) -> bool:
        """Wait until a thread is free for a message of ``size`` bytes. Returns whether one is. For one caller at a time."""
        if not self._has_room(size):
            if self._full_since is None:
                self._full_since = time.monotonic()
            if not self._pool.wait_for(lambda: self._has_room(size), timeout):
                return False
        self._full_since = None
        return True

    @property
    def lag(self) -> float:
        """Seconds since a message waits for a thread; 0 if none does."""
        since = self._full_since
        return 0.0 if since is None else time.monotonic() - since

    def submit(self, function: Callable[..., object], *arguments: object, size: int = 0) -> None:
        """Call ``function``, which must raise nothing, as soon as a thread is free. ``size``: bytes that it is given."""
        self._pool.submit_call(function, *arguments, weight=size)

    def shutdown(self, wait: bool = True) -> None:
        """End, after all that was submitted; with ``wait`` return no sooner."""
        self._pool.close()
        if wait:
            self._pool.wait_for(lambda: not self._pool.thread_count, None)

    def _has_room(self, size: int) -> bool:
        under_way = self._pool.total_weight
        return self._pool.has_free_thread and (not under_way or under_way + size <= UNDER_WAY_BYTES)
