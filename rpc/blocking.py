"""Whether the broker has blocked those who publish: it does while it is low on memory or disk, and takes no message."""

from __future__ import annotations

import time

TEXT = "the broker takes no messages: an alarm for its memory or disk has blocked who publishes; see 'rabbitmqctl status'"

VALID_S = 30.0
"""Seconds for which a block counts that cannot be verified."""


class Blocking:
    """What the connections of one bus were told. Thread-safe, as it has one field."""

    def __init__(self) -> None:
        self._told_at: float | None = None

    def note_blocked(self) -> None:
        self._told_at = time.monotonic()

    def note_unblocked(self) -> None:
        """The broker has taken a message, or said that it takes them again."""
        self._told_at = None

    @property
    def is_told(self) -> bool:
        return self._told_at is not None

    @property
    def is_fresh(self) -> bool:
        """Whether a connection was told a moment ago."""
        return self._told_at is not None and time.monotonic() < self._told_at + VALID_S
