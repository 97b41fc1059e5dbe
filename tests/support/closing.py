"""What tests have opened, closed together: on RabbitMQ each server takes up to a second to stop, and a region has many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pytest


class Closing:
    """What is to be closed at the end: services first, then the buses below them, then the databases.

    All of one kind are closed at once, and everything is tried: the first error is raised when all is done.
    """

    def __init__(self) -> None:
        self.services: list[Callable[[], object]] = []
        self.buses: list[Callable[[], object]] = []
        self.databases: list[Callable[[], object]] = []

    def close(self) -> None:
        failed = [error for closes in (self.services, self.buses, self.databases) for error in close_all(closes)]
        if failed:
            raise failed[0]


class Later:
    """Ends things behind the back of the tests that follow, which have other databases and buses: two at a time at most.

    What went wrong is raised for whoever comes next.
    """

    def __init__(self) -> None:
        self._running: list[threading.Thread] = []
        self._failed: list[BaseException] = []

    def end(self, *ends: Callable[[], object]) -> None:
        while len(self._running) > 1:
            self._running.pop(0).join()
        thread = threading.Thread(target=self._run, args=(ends,), name="end of a test")
        self._running.append(thread)
        thread.start()
        if self._failed:
            raise self._failed.pop()

    def wait(self) -> None:
        """Until all has ended: for a test that judges what this process logs."""
        while self._running:
            self._running.pop(0).join()

    def _run(self, ends: Sequence[Callable[[], object]]) -> None:
        for end in ends:
            try:
                end()
            except BaseException as error:  # noqa: BLE001 - raised in the thread of a test
                self._failed.append(error)


LATER = Later()


def close_all(closes: Sequence[Callable[[], object]]) -> list[BaseException]:
    """Call all of them at once; what they raised."""
    if not closes:
        return []
    with ThreadPoolExecutor(len(closes)) as pool:
        results = [pool.submit(close) for close in closes]
        return [error for result in results if (error := result.exception()) is not None]


class Closable(Protocol):
    """What a test opens and closes."""

    def close(self) -> None: ...


def closing_fixture(make: Callable[[Path], Closable]) -> object:
    """A fixture: what is made in the folder of the test, closed after it."""

    @pytest.fixture
    def opened(tmp_path: Path) -> Iterator[Closable]:
        made = make(tmp_path)
        yield made
        made.close()

    return opened
