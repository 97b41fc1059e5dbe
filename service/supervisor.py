"""Tell the supervisor of this process that it is ready or stops, by systemd's sd_notify protocol. Without one nothing is told."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import MutableMapping

LOG = logging.getLogger(__name__)

VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"
STOPPING = "STOPPING=1"


class Supervisor:
    """``address``: the datagram socket it listens on; None if there is none."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Supervisor:
        """The supervisor that started this process.

        The variable is removed: cotyledon would tell a supervisor in it that the process is ready before any worker is, and
        programs that workers start must not speak for this process.
        """
        return cls(environment.pop(VARIABLE, None) or None)

    def tell_states(self, *states: str) -> None:
        """Send lines such as ``READY=1``. A supervisor that cannot be told is logged: a process does not end because of it."""
        if self._address is None:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)) as sender:
            try:
                sender.sendto("\n".join(states).encode(), address)
            except OSError as error:
                LOG.warning("the supervisor at %s cannot be told %s: %s", self._address, states[0], error.strerror)
