"""A clock that tests move."""

from __future__ import annotations


class Clock:
    """Seconds since any beginning."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
