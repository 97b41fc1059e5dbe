"""Start threads where the system may have no room for one more: the caller goes on without it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

_COMPLAINTS = RateLimitedLog(LOG)


def start_daemon(name: str, function: Callable[..., object], *arguments: object) -> threading.Thread | None:
    """A daemon thread that calls the function. None if it cannot be started: a limit of processes or of memory is reached."""
    thread = threading.Thread(target=function, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        log_unstarted(error)
        return None
    return thread


def log_unstarted(error: BaseException) -> None:
    """Log that a thread could not be started."""
    _COMPLAINTS("thread", logging.WARNING, "A thread cannot be started, and what it would do waits: %s", error)
