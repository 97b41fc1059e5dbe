"""Start a thread where the system may have none left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

_COMPLAINTS = RateLimitedLog(LOG)


def start_daemon(name: str, target: Callable[..., object], *arguments: object) -> bool:
    """Run ``target`` in a daemon thread of this name. False, with a log line: the system starts no more threads now.

    The limit of a container's processes, or its memory, is the usual reason. Undo what was to end with the thread then.
    """
    try:
        threading.Thread(target=target, args=arguments, name=name, daemon=True).start()
    except RuntimeError as error:
        _COMPLAINTS("start", logging.WARNING, "Thread %s cannot be started: %s. Raise the limit of threads or memory.", name, error)
        return False
    return True
