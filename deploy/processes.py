"""Processes of this machine as /proc shows them: is it still the one we started, and what has it left behind?"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_INTERVAL_S = 0.05
"""Seconds between two looks at a process that is not our child."""


def start_time_of(pid: int) -> str:
    """When the process began, as text that no later process with the same number has; empty where there is none (or a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # A killed process shows as a zombie while its other threads are still on their way out, with its ports and files in hand.
        ended = fields[0] in "ZX" and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except OSError:
        return ""
    return "" if ended else f"{boot}:{fields[19]}"


def list_marked(name: str, value: str) -> Iterator[int]:
    """The processes, other than this one, that carry ``name=value`` in the environment they were started with."""
    entry = f"{name}={value}".encode()
    for pid in list_pids():
        with contextlib.suppress(OSError):
            if entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and start_time_of(pid):
                yield pid


def at_work_in(folder: Path, command: str) -> Iterator[int]:
    """The processes of this command name whose working folder is ``folder``."""
    for pid in list_pids():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == command and Path(os.readlink(f"/proc/{pid}/cwd")) == folder:
                yield pid


def list_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and int(entry.name) != os.getpid()]


def end_process(pid: int, number: signal.Signals, patience: float) -> bool:
    """Send the signal to the process and wait up to ``patience`` seconds until it is gone. Whether it is."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    return wait_until(lambda: not start_time_of(pid), patience)


def wait_until(condition: Callable[[], bool], patience: float) -> bool:
    """Whether the condition comes true within ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL_S)
    return True
