"""Threads for tests."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread


def run_threads(threads: Sequence[Thread]) -> None:
    """Start all of them, and wait for their ends."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
