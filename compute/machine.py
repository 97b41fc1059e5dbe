"""The machine that an agent runs on."""

from __future__ import annotations

import functools
import time


@functools.cache
def booted_at() -> float:
    """When it was started: whole seconds since the epoch. The same throughout the process, so that reports do not change."""
    return float(round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)))
