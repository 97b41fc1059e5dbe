"""Wait at start-up for the dependencies of a process, and log the missing one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from objects import errors

LOG = logging.getLogger(__name__)

RETRY_INTERVAL_S = 1.0
"""Seconds between two attempts."""
LOG_REPEAT_INTERVAL_S = 30.0
"""Seconds after which an unchanged reason is logged again."""


def wait_for(dependency: str, attempt: Callable[[], object], stopped: threading.Event, pause: float = RETRY_INTERVAL_S) -> bool:
    """Call ``attempt`` until it raises none of our errors; return False if ``stopped`` is set before that.

    Each new reason is logged once, and repeated every half minute, so that the log shows what is missing. Raises Misconfigured.
    """
    began = time.monotonic()
    said, said_at = "", began
    while not stopped.is_set():
        reason = _find_reason(attempt)
        now = time.monotonic()
        if not reason:
            if said:
                LOG.info("%s is available after %.0f s", dependency, now - began)
            return True
        if reason != said or now - said_at > LOG_REPEAT_INTERVAL_S:
            LOG.warning("waiting for %s: %s", dependency, reason)
            said, said_at = reason, now
        stopped.wait(pause)
    return False


def _find_reason(attempt: Callable[[], object]) -> str:
    """Why the dependency is not ready; empty if it is. Raises Misconfigured, because waiting cannot fix that."""
    try:
        attempt()
    except errors.Misconfigured:
        raise
    except errors.SuperconductorError as error:
        return str(error)
    return ""
