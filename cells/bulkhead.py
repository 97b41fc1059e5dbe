"""Keep one sick database or broker from holding up whoever calls it: bounded threads, a deadline, a breaker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NoReturn, TypeVar

from cells.breaker import Breaker
from objects import errors
from objects.base import Object
from service.worker_pool import WorkerPool

T = TypeVar("T")


class BulkheadSettings(Object, frozen=True, kw_only=True):
    """Bounds for the calls to one resource of one cell (its database, or its bus). Times in seconds.

    ``timeout``: the longest a caller is held. ``threads``: calls under way at once. ``failures`` in a row open the breaker, and
    while it is open one call every ``pause`` tries whether the resource is back.
    """

    timeout: float = 10.0
    threads: int = 4
    failures: int = 3
    pause: float = 2.0


class PendingCall(Generic[T]):
    """A call under way: call this to wait for its result, once."""

    def __init__(self, collect: Callable[[], T], ends_within: Callable[[float], bool]) -> None:
        self._collect = collect
        self.ends_within = ends_within
        """Wait up to so many seconds; whether its outcome is there, or is not being waited for but made when it is asked for."""

    def __call__(self) -> T:
        return self._collect()


class Bulkhead:
    """Runs calls to one resource, and answers ``CellUnavailable`` in bounded time where the resource does not.

    ``what`` and ``resource`` name it in refusals: "cell 'east'", "database". The exceptions in ``silent`` mean that the resource
    did not answer; they are turned into CellUnavailable. All others pass: a resource that says no is well.

    With ``inline`` calls run in the caller's thread and no deadline is kept. That is for what cannot hang, the bus inside this
    process, where handing the call to another thread would cost more than the call itself. The breaker works all the same.

    A call must not call the same bulkhead again: it would wait for a thread while holding one.
    """

    def __init__(
        self, resource_name: str, resource: str, settings: BulkheadSettings, *, inline: bool, silent: Sequence[type[Exception]] = ()
    ) -> None:
        self.breaker = Breaker(resource_name, threshold=settings.failures, pause=settings.pause)
        self._what = resource_name
        self._resource = resource
        self._timeout = settings.timeout
        self._silent = tuple(silent)
        self._workers = None if inline else WorkerPool(f"{resource_name} {resource}", settings.threads, spare=settings.threads)

    def run(self, call: Callable[[], T], timeout: float | None = None) -> T:
        """The result of ``call()``, within ``timeout`` seconds (None: as configured).

        Raises CellUnavailable: refused by the breaker, not answered in time, or failed with one of ``silent``. When it came too
        late to be called back its effect is unknown: it may still happen, so only calls that may be repeated belong here.
        """
        self._refuse_if_open()
        if self._workers is None:
            return self._judge_call(call)
        return self._begin_in_workers(self._workers, call, timeout)()

    def begin_call(self, call: Callable[[], T], timeout: float | None = None) -> PendingCall[T]:
        """Start ``call()`` and return what waits for its result: so that many cells can be asked at the same time.

        The deadline counts from now. The outcome, whatever it is, comes from the function returned, which is to be called once.
        Inline it is that function that makes the call: cells that cannot hang are asked one after the other.
        """
        if self._workers is None:
            return PendingCall(lambda: self.run(call), _at_once)
        try:
            self._refuse_if_open()
        except errors.CellUnavailable as refused:
            return PendingCall(partial(_raise_error, refused), _at_once)
        return self._begin_in_workers(self._workers, call, timeout)

    def close(self) -> None:
        """End the threads once they are idle. A bulkhead that is closed still runs what it is given."""
        if self._workers is not None:
            self._workers.close()

    def _refuse_if_open(self) -> None:
        refusal = self.breaker.get_refusal()
        if refusal is not None:
            raise self._unavailable_error(refusal)

    def _begin_in_workers(self, workers: WorkerPool, call: Callable[[], T], timeout: float | None) -> PendingCall[T]:
        allowed = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + allowed
        job = workers.submit_call(call)

        def collect_result() -> T:
            if not job.wait_end(deadline - time.monotonic()):
                started = workers.give_up(job)
                if not job.wait_end(0):
                    raise self._timeout_error(allowed, started)
            return self._judge_call(job.get_result)

        return PendingCall(collect_result, job.wait_end)

    def _timeout_error(self, allowed: float, started: bool) -> errors.CellUnavailable:
        if not started:  # whoever holds the threads will tell the breaker how that ended: being busy is no failure
            return self._unavailable_error(f"{self._what}: its {self._resource} is busy, no call began within {allowed:.3g} s")
        reason = f"its {self._resource} gave no answer within {allowed:.3g} s"
        self.breaker.note_failure(reason)
        return self._unavailable_error(f"{self._what}: {reason}")

    def _unavailable_error(self, text: str) -> errors.CellUnavailable:
        return errors.BusUnavailable(text) if self._resource == "bus" else errors.CellUnavailable(text)

    def _judge_call(self, call: Callable[[], T]) -> T:
        try:
            result = call()
        except self._silent as error:
            self.breaker.note_failure(str(error))
            raise self._unavailable_error(f"{self._what}: {error}") from error
        except Exception:
            self.breaker.note_success()
            raise
        self.breaker.note_success()
        return result


def _at_once(_: float) -> bool:
    return True


def _raise_error(error: Exception) -> NoReturn:
    raise error
