"""A conductor in a process of its own that is stopped when each of its threads stands at a step of its own, and continued later.

    python -m tests.support.sleeper super API_DATABASE < jobs     drive batches as a super conductor does
    python -m tests.support.sleeper cell DATABASE < jobs          sweep and take reports as a cell's conductor does

``jobs`` is a JSON list. Each job has a thread, and ``at``: the transaction before or after which it is to stand, and which of that
name it is: "before hand_over 1". When all stand there the process sends itself SIGSTOP; after SIGCONT they go on to their end. What
they sent, and what was said to them, is printed as JSON.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from cells.bulkhead import BulkheadSettings
from cells.opts import RegistrySettings
from cells.registry import CellRegistry
from conductor.build import Builder
from conductor.cell_conductor import CellConductor
from conductor.context import ConductorContext
from conductor.sweep_cell import CellSweep
from db.api.claims.claims import Ledger, Stamp
from db.api.queue import leases
from db.sql.engine import Database
from objects import errors
from objects.base import Object
from objects.build import Report
from objects.cell import CellMapping
from objects.context import RequestContext
from rpc.counting import MessageCounter
from rpc.scheduler import SchedulerClient
from rpc.transport import Bus
from scheduler.framework.settings import SchedulerSettings
from scheduler.main import SchedulerService
from tests.support.world import Sender

P = ParamSpec("P")
T = TypeVar("T")

CONTEXT = RequestContext(request_id="req-sleeper")
LEASE = 1.0
"""Seconds. It is stopped for longer."""


REGISTRY = RegistrySettings(poll_interval=0.0, linger=0.0, bulkhead=BulkheadSettings(timeout=600.0))
"""A call to a cell outlasts the sleep: one that was given up would be made again, and the second is none of the test."""


class Job(Object, frozen=True, kw_only=True):
    """What one thread does. ``refuse_stage``: the first cell that it asks cannot take the build."""

    at: str
    batch: str = ""
    refuse_stage: bool = False
    sweep: str = ""
    report: Report | None = None


class Told(Object, frozen=True, kw_only=True):
    """What came of a job: how many orders it sent, and the error or the verdict that it ended with."""

    sent: int
    end: str = ""


class Sleep:
    """The moment at which all threads stand at their places."""

    def __init__(self, threads: int) -> None:
        self.writing = threading.RLock()
        """Held by the transactions of whoever is no job: a lock that SQLite keeps over the sleep would stop all others."""
        self._barrier = threading.Barrier(threads, action=self._stop)

    def _stop(self) -> None:
        with self.writing:
            # To this thread: one that is sent to the process is another thread's to take, and this one would go on meanwhile.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def fall(self) -> None:
        self._barrier.wait()


class Place:
    """Where one thread is to stand. ``refuse_stage``: the next cell that is to take its build cannot."""

    def __init__(self, at: str, sleep: Sleep, *, refuse_stage: bool = False) -> None:
        self.refuse_stage = refuse_stage
        self._when, self._name, number = at.split()
        self._number = int(number)
        self._sleep = sleep
        self._counts: Counter[str] = Counter()

    def pass_by(self, when: str, name: str) -> None:
        self._counts[f"{when} {name}"] += 1
        if (when, name, self._counts[f"{when} {name}"]) == (self._when, self._name, self._number):
            self._sleep.fall()


class AwakeDatabase(Database):
    """Of who serves the jobs: within none of its transactions the process falls asleep."""

    def __init__(self, url: str, name: str, sleep: Sleep) -> None:
        super().__init__(url, name=name)
        self._sleep = sleep

    def write(self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._sleep.writing:
            return super().write(fn, *args, **kwargs)

    def read(self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._sleep.writing:
            return super().read(fn, *args, **kwargs)


class SleepingDatabase(Database):
    """One thread's own, whose transactions are places to stand at."""

    def __init__(self, url: str, name: str, place: Place) -> None:
        super().__init__(url, name=name)
        self.place = place

    def write(self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        name = str(getattr(fn, "__name__", fn)).lstrip("_")
        if name == "stage_instances":
            name = "stage_buried" if self.name == "cell0" else name
        self.place.pass_by("before", name)
        if name == "stage_parts" and self.place.refuse_stage:
            self.place.refuse_stage = False
            raise errors.DatabaseUnavailable("the test pulled the cable")
        result = super().write(fn, *args, **kwargs)
        self.place.pass_by("after", name)
        return result


class SleepingLedger(Ledger):
    """The same for what is written to the ledger."""

    def write(self, fn: Callable[Concatenate[Any, Stamp, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        assert isinstance(self.database, SleepingDatabase)
        self.database.place.pass_by("before", fn.__name__)
        result = super().write(fn, *args, **kwargs)
        self.database.place.pass_by("after", fn.__name__)
        return result


def drive(job: Job, sleep: Sleep, url: str, bus: Bus) -> Told:
    """Lease a batch and build it."""
    place, sent = Place(job.at, sleep, refuse_stage=job.refuse_stage), MessageCounter()
    database = SleepingDatabase(url, "api", place)

    def open_database(mapping: CellMapping) -> Database:
        return SleepingDatabase(mapping.database_url, mapping.name, place)

    def open_bus(mapping: CellMapping) -> Bus | None:
        return None if mapping.is_cell0 else Bus(mapping.transport_url, observer=sent)

    registry = CellRegistry(database, REGISTRY, open_database=open_database, open_bus=open_bus)
    context = ConductorContext(SleepingLedger(database, job.at), registry)
    client = SchedulerClient(bus, timeout=60.0)
    builder = Builder(context, client, owner=f"sleeper {job.at}", lease_seconds=LEASE, retry_pause=0.1)
    end = ""
    try:
        builder.schedule_and_build([job.batch])
    except errors.SuperconductorError as error:
        end = f"{type(error).__name__}: {error}"
    left = database.read(leases.list_waiting, 1e12, 1000)
    return Told(sent=sent.count_messages(), end=end or ("left" if job.batch in left else "done"))


def sweep(job: Job, sleep: Sleep, url: str, bus: Bus) -> Told:
    """One round of a sweep, or one report taken."""
    sent = MessageCounter()
    bus.observer = sent
    database, sender = SleepingDatabase(url, "cell", Place(job.at, sleep)), Sender("cell", bus)
    endpoint = CellConductor(database, sender)
    if job.report is not None:
        report = endpoint.build_instances if job.report.failure else endpoint.report
        [verdict] = report(CONTEXT, [job.report])
        return Told(sent=sent.count_messages(), end="accepted" if verdict.accepted else "refused")
    sweeps = CellSweep(database, sender, endpoint, resend_age=-1.0, down_time=60.0, feed_age=1e6)
    getattr(sweeps, job.sweep)()
    return Told(sent=sent.count_messages(), end="done")


def main() -> int:
    role, url = sys.argv[1:]
    jobs = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Job])
    sleep, told = Sleep(len(jobs)), dict[int, Told]()
    service: SchedulerService | None = None
    api = AwakeDatabase(url, "api", sleep)
    if role == "super":
        quick = SchedulerSettings(warm_up=0.0, claim_window=0.0)
        service = SchedulerService(quick, CellRegistry(api, REGISTRY), api, Bus("embedded://sleeper/api"))
        service.start()

    def run(number: int) -> None:
        if role == "super":
            told[number] = drive(jobs[number], sleep, url, Bus("embedded://sleeper/api"))
        else:
            told[number] = sweep(jobs[number], sleep, url, Bus(f"embedded://sleeper/cell{number}"))

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    sys.stdout.write(msgspec.json.encode([told.get(number) for number in range(len(jobs))]).decode())
    sys.stdout.flush()
    os._exit(0)  # whatever still runs is of no interest


if __name__ == "__main__":
    sys.exit(main())
