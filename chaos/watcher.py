"""What looks at a region again and again while it is under load."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Watcher(ABC):
    """Looks every ``interval`` seconds in a thread of its own, from ``start`` to ``stop``."""

    def __init__(self, name: str, interval: float) -> None:
        self._interval = interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def watch_once(self) -> None:
        """Look once."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self.watch_once()
