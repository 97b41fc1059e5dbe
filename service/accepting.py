"""An HTTP server that pauses when it cannot accept a connection. Waitress tries again at once, and logs a stack each time."""

from __future__ import annotations

import errno
import logging
import time
from typing import Any

from waitress.server import TcpWSGIServer

from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

ACCEPT_PAUSE_S = 0.2
"""Seconds before the server accepts connections again after an error."""
_OUT_OF_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class PausingServer(TcpWSGIServer):
    """Its clients wait in the backlog meanwhile. Connections that are there are served."""

    _accepts_after = float("-inf")
    _complaints = RateLimitedLog(LOG)
    effective_host: Any
    effective_port: Any

    def accept(self) -> Any:
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in _OUT_OF_ROOM:
                raise
            self._accepts_after = time.monotonic() + ACCEPT_PAUSE_S
            self._complaints("accept", logging.WARNING, "A connection cannot be accepted, retrying: %s", error.strerror)
            return None

    def readable(self) -> bool:
        return bool(super().readable()) and time.monotonic() >= self._accepts_after
