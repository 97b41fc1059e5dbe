"""Wait at start-up for what a process needs, and say what it waits for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from objects import errors

LOG = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two attempts."""
REMIND = 30.0
"""Seconds after which the log is told again, should the reason still be the same."""


def wait_for(what: str, attempt: Callable[[], object], stopped: threading.Event, pause: float = PAUSE) -> bool:
    """Call ``attempt`` until it raises no error of ours any more; return False if ``stopped`` was set before that.

    Every reason it gives is logged once, and again every half minute, so that whoever looks sees what is missing.
    """
    began = time.monotonic()
    said, said_at = "", began
    while not stopped.is_set():
        reason = _reason(attempt)
        now = time.monotonic()
        if not reason:
            if said:
                LOG.info("%s is there after %.0f s", what, now - began)
            return True
        if reason != said or now - said_at > REMIND:
            LOG.warning("waiting for %s: %s", what, reason)
            said, said_at = reason, now
        stopped.wait(pause)
    return False


def _reason(attempt: Callable[[], object]) -> str:
    """Why it is not there yet; empty if it is. Raises Misconfigured, as no waiting will mend that."""
    try:
        attempt()
    except errors.Misconfigured:
        raise
    except errors.SuperconductorError as error:
        return str(error)
    return ""
