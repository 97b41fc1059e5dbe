"""Whether the machine itself stood still: what else uses its disk and cores is no fault of the processes of a region."""

from __future__ import annotations

import os
import time
from pathlib import Path

from chaos.watcher import Watcher

PAUSE_S = 0.5
STALL_S = 2.0
"""Seconds in which a page reaches the disk, as each commit of a database does. Busy machines take less than one."""
WORK_S = 0.01
"""Seconds of a core that are used up at each look..."""
STARVED = 10.0
"""...and how many times as long that takes on a machine on which nothing is answered in time."""


class StallWatch(Watcher):
    """Writes a page to the disk and works a little, and notes when that takes long, or the time until the next look does."""

    def __init__(self, folder: Path) -> None:
        super().__init__("stalls", PAUSE_S)
        self._path = folder / "stalls"
        self._looked = time.time()
        self.stalls: list[tuple[float, float]] = []
        """Begin and end of each, in seconds since the epoch."""

    def start(self) -> None:
        self._looked = time.time()
        super().start()

    def watch_once(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            file.write(bytes(4096))
            os.fsync(file.fileno())
        written = time.time()
        worked = use_core()
        began, self._looked = self._looked, time.time()
        if written - began > STALL_S + PAUSE_S or worked > STARVED * WORK_S:
            self.stalls.append((began, self._looked))


def use_core() -> float:
    """Use up WORK_S of a core; the seconds that this took."""
    began, end = time.monotonic(), time.thread_time() + WORK_S
    while time.thread_time() < end:
        pass
    return time.monotonic() - began
