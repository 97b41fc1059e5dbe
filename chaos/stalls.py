"""Whether the machine itself stood still: what else uses its disk and cores is no fault of the processes of a region."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

PAUSE_S = 0.5
STALL_S = 2.0
"""Seconds in which a page reaches the disk, as each commit of a database does. Busy machines take less than one."""
WORK_S = 0.01
"""Seconds of a core that are used up at each look..."""
STARVED = 10.0
"""...and how many times as long that takes on a machine on which nothing is answered in time."""


class StallWatch:
    """Writes a page to the disk and works a little, again and again, from ``start`` to ``stop``, and notes when that takes long."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "stalls"
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)
        self.stalls: list[tuple[float, float]] = []
        """Begin and end of each, in seconds since the epoch."""
        self._began = 0.0

    def start(self) -> None:
        self._began = time.time()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            began = self._began
            while not self._stopped.wait(PAUSE_S):
                file.seek(0)
                file.write(bytes(4096))
                os.fsync(file.fileno())
                written = time.time()
                worked = work()
                ended = time.time()
                if written - began > STALL_S + PAUSE_S or worked > STARVED * WORK_S:
                    self.stalls.append((began, ended))
                began = ended


def work() -> float:
    """Use up WORK_S of a core; the seconds that this took."""
    began, wanted = time.monotonic(), time.thread_time() + WORK_S
    while time.thread_time() < wanted:
        pass
    return time.monotonic() - began
