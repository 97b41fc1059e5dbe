"""Tasks that share one thread and stop wherever a process can be interrupted, so that a test decides what happens next.

A task stops before each of its transactions and messages, and while it waits for an answer. Nothing else runs until the test lets
one go on, so a schedule is the test's alone and can be repeated. A task that is killed never goes on, as a process that was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from greenlet import getcurrent, greenlet

from objects import errors


class Killed(BaseException):
    """Raised where a task stands, when its process dies. Nobody catches it."""


class Run(greenlet):  # type: ignore[misc]  # greenlet has no types
    """The stack of one task."""

    task: Task


class Task:
    """One thread of a process. ``at``: what it is about to do, where it stands. ``waits_for``: the answer that has not come."""

    def __init__(self, owner: str, name: str, function: Callable[[], object], *, pauses: bool) -> None:
        self.owner = owner
        self.name = name
        self.at = "begin"
        self.waits_for: object = None
        self.error: errors.SuperconductorError | None = None
        self._pauses = pauses
        self._atomic = 0
        self._function = function
        self._run = Run(self._main, _root())
        self._run.task = self

    def __repr__(self) -> str:
        return f"{self.owner}: {self.name}, {self.at}"

    @property
    def done(self) -> bool:
        return bool(self._run.dead)

    @property
    def waits(self) -> bool:
        return self.waits_for is not None

    @property
    def stops(self) -> bool:
        """Whether it may be held up where it is."""
        return self._pauses and not self._atomic

    def go(self) -> None:
        """Let it run to where it stops next. Raises what it raises, errors of ours apart: those end it, as they end a sweep."""
        self._run.switch()

    def kill(self) -> None:
        """It never goes on."""
        if self._run:
            self._run.throw(Killed)
        else:
            self._run = Run(lambda: None, _root())
            self._run.switch()

    def stop(self, at: str) -> None:
        """Called by the task itself: stand here until somebody lets it go on."""
        self.at = at
        parent = self._run.parent
        if parent is not None:
            parent.switch()

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Do not stop inside: a lock is held that other tasks of the process may want."""
        self._atomic += 1
        try:
            yield
        finally:
            self._atomic -= 1

    def _main(self) -> None:
        try:
            self._function()
        except Killed:
            self.at = "killed"
        except errors.SuperconductorError as error:
            self.error = error
            self.at = "failed"
        else:
            self.at = "done"


def _root() -> greenlet:
    """The test itself, to which every task comes back when it stops, whoever began it."""
    found = getcurrent()
    while found.parent is not None:
        found = found.parent
    return found


def current() -> Task | None:
    """The task that runs; None: the test itself does."""
    run = getcurrent()
    return run.task if isinstance(run, Run) else None


def pause(at: str) -> None:
    """The task that runs may be held up here, or killed."""
    task = current()
    if task is not None and task.stops:
        task.stop(at)


@contextmanager
def atomic() -> Iterator[None]:
    """What is done inside is one step of the task that runs."""
    task = current()
    if task is None:
        yield
        return
    with task.atomic():
        yield
