"""The machine that an agent runs on."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from objects.machine import Machine

MACHINE_ID = Path("/etc/machine-id")
ID_LENGTH = 32


@functools.cache
def booted_at() -> float:
    """When it was started: whole seconds since the epoch. The same throughout the process, so that reports do not change."""
    return float(round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)))


def identify(folder: str) -> Machine:
    """This machine. ``folder``: where the driver keeps its guests, so that agents with folders of their own differ.

    The ID of a machine is not to leave it, so a digest of it does (machine-id(5)). It stays the same when the agent is installed
    again. A machine without an ID is told apart by the folder only.
    """
    machine_id = b""
    with suppress(OSError):
        machine_id = MACHINE_ID.read_bytes().strip()
    digest = hashlib.sha256(
        b"superconductor\0" + machine_id + b"\0" + os.fsencode(os.path.realpath(folder) if folder else "")
    ).hexdigest()
    return Machine(id=digest[:ID_LENGTH], name=f"{socket.gethostname()} with {folder} ({digest[:8]})")
