"""Wait for what the API does behind its answers."""

from __future__ import annotations

import time
from collections.abc import Callable

from objects import errors

POLL_INTERVAL_S = 0.5
"""Seconds between two looks at what is waited for."""

WAIT_TIMEOUT_S = 3600.0
"""Seconds to wait at most: longer than any build may take."""


def wait_for_end(subject: str, is_over: Callable[[], bool]) -> None:
    """Ask until it is over. Raises SuperconductorError after ``WAIT_TIMEOUT_S`` seconds: what was accepted continues."""
    if not ends_in_time(is_over):
        raise errors.SuperconductorError(late_text(subject))


def ends_in_time(is_over: Callable[[], bool]) -> bool:
    """Ask until it is over, and pause for twice as long as an answer takes. False after ``WAIT_TIMEOUT_S`` seconds."""
    end = time.monotonic() + WAIT_TIMEOUT_S
    while (began := time.monotonic()) <= end:
        if is_over():
            return True
        time.sleep(max(POLL_INTERVAL_S, 2 * (time.monotonic() - began)))
    return is_over()


def late_text(subject: str, shown_by: str = "server event list") -> str:
    """What to tell whoever waited in vain. ``shown_by``: the command that shows how it continues."""
    return f"{subject} is not over after {WAIT_TIMEOUT_S / 60:.0f} minutes. It continues: see 'superconductor {shown_by}'."
