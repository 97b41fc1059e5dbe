"""What this start of the agent is doing, per instance: the agent's half of the boot protocol, without any I/O.

An entry is its uuid's lock: while one exists nothing else can begin for that uuid, and whoever moved it into a phase carries that
phase out alone. So no lock is ever held across a spawn, a destroy or a call, and yet the driver never has two hands on one guest.

    begin -> ACCEPTING -> QUEUED -> SPAWNING -> REPORTING -> RUNNING      a guest that was found starts at REPORTING
                 |                      |           |
              refused               DESTROYING <----+ refused             a delete goes to DESTROYING from anywhere
                 |                      |                                 (from SPAWNING: when the spawn has returned)
              (forgotten)            FAILED -> (forgotten)

A queued build has been accepted. The protocol lets any time pass between the grant and the spawn, so a queue there adds no new
case: dying with the queue is dying before the spawn (the next start hands back), and a delete, a deadline or a false death meets
a queued build as it would meet a spawning one (``active`` is refused and the guest destroyed). Asking only when a thread is free
would leave the row SCHEDULED: the cell would send the order again and again, and each build would cost a call of its own.
"""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from compute import failures
from compute.driver import Guest
from compute.tracker import ResourceTracker
from objects.build import Report, ReportKind
from objects.instance import Failure, FailureClass
from objects.selection import Limits

PASSED_LIMIT = 10_000
"""Ended builds that are remembered per host. An order older than that is still refused, by its ``accept``."""


class Phase(enum.StrEnum):
    ACCEPTING = "accepting"  # has its claim; the cell was asked
    QUEUED = "queued"  # accepted; waits for a thread
    SPAWNING = "spawning"  # the driver is at it
    REPORTING = "reporting"  # the guest runs; ``active`` is not answered yet
    RUNNING = "running"  # the guest runs and the cell has said so
    DESTROYING = "destroying"  # the driver is to leave nothing
    FAILED = "failed"  # no guest, no claim; ``failed`` is not answered yet


@dataclass(eq=False, slots=True)
class Build:
    """One entry. Only ``Builds`` changes it, under its lock."""

    uuid: str
    fence: int
    attempt: int
    builder: str
    phase: Phase
    guest: Guest | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    failure: Failure | None = None
    delete_attempt: int | None = None  # answer a delete with this attempt once destroyed
    overdue_at: float | None = None
    stuck: bool = False  # a destroy failed and is to be tried again


class Builds:
    """The entries of one start of the agent on one host. ``builder`` names that start."""

    def __init__(self, host: str, builder: str, tracker: ResourceTracker, clock: Callable[[], float]) -> None:
        self.host = host
        self.builder = builder
        self._tracker = tracker
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, Build] = {}
        self._passed: OrderedDict[str, int] = OrderedDict()

    # -- orders ---------------------------------------------------------------------------------------------------------

    def begin(self, guest: Guest, limits: Limits | None) -> Build | None:
        """Start the attempt once, with its claim or (no room) as failed. None: started or passed before, or a guest is held.

        The order of a later attempt may overtake the answer to the report that called for it: that report has done its work.
        """
        with self._lock:
            earlier = self._entries.get(guest.uuid)
            if earlier is not None and earlier.phase is Phase.FAILED and earlier.attempt < guest.attempt:
                self._forget(earlier)
            if guest.uuid in self._entries or self._passed.get(guest.uuid, 0) >= guest.attempt:
                return None
            build = self._enter(guest, Phase.ACCEPTING)
            refusal = self._tracker.claim(guest, limits)
            if refusal is not None:
                build.failure = failures.no_room(refusal, self._clock())
                build.phase = Phase.FAILED
            return build

    def granted(self, build: Build) -> bool:
        """The cell accepted. False: the build was deleted meanwhile, the grant is for nobody."""
        with self._lock:
            return self._move(build, Phase.ACCEPTING, Phase.QUEUED)

    def refused(self, build: Build) -> bool:
        """The cell refused the accept: forget it."""
        with self._lock:
            if not self._is(build, Phase.ACCEPTING):
                return False
            self._forget(build)
            return True

    def spawn(self, build: Build, overdue_at: float | None) -> bool:
        """A thread takes the build out of the queue. False: it was deleted meanwhile."""
        with self._lock:
            build.overdue_at = overdue_at
            return self._move(build, Phase.QUEUED, Phase.SPAWNING)

    def spawned(self, build: Build, failure: Failure | None) -> bool:
        """The driver returned. True: the guest runs and is to be reported. False: destroy now, whatever there is."""
        with self._lock:
            build.failure = build.failure or failure  # a time-out was noted first and is the cause of what the driver raised
            if build.delete_attempt is None and build.failure is None and build.guest is not None:
                self._tracker.hold(build.guest)
                build.phase = Phase.REPORTING
                return True
            build.phase = Phase.DESTROYING
            if build.failure is not None and build.failure.kind is FailureClass.HOST and build.delete_attempt is None:
                self._tracker.build_failed(self._clock())
            return False

    def overdue(self, now: float, failure: Failure) -> list[Build]:
        """Cancel the spawns whose time is over; ``now`` on the clock of ``spawn``'s ``overdue_at``."""
        with self._lock:
            late = [
                build
                for build in self._entries.values()
                if build.phase is Phase.SPAWNING
                and build.failure is None
                and build.overdue_at is not None
                and build.overdue_at <= now
            ]
            for build in late:
                build.failure = failure
                build.cancel.set()
            return late

    # -- guests ---------------------------------------------------------------------------------------------------------

    def found(self, guest: Guest) -> Build | None:
        """A guest is on the host that no entry knows: count it and report it. None: an entry knows it."""
        with self._lock:
            if guest.uuid in self._entries:
                return None
            self._tracker.hold(guest)
            return self._enter(guest, Phase.REPORTING)

    def doubted(self, uuid: str) -> Build | None:
        """The cell's records do not confirm a guest of ours: report it once more. None: it is not at rest, or gone."""
        with self._lock:
            build = self._entries.get(uuid)
            return build if build is not None and self._move(build, Phase.RUNNING, Phase.REPORTING) else None

    def confirmed(self, build: Build) -> bool:
        """``active`` was accepted."""
        with self._lock:
            return self._move(build, Phase.REPORTING, Phase.RUNNING)

    def rejected(self, build: Build) -> bool:
        """``active`` was refused. True: destroy the guest now."""
        with self._lock:
            return self._move(build, Phase.REPORTING, Phase.DESTROYING)

    # -- ends -----------------------------------------------------------------------------------------------------------

    def delete(self, uuid: str, attempt: int) -> Build | None:
        """A delete arrived: end whatever runs. The entry to destroy now; None: who is at it will see to it."""
        with self._lock:
            self._pass(uuid, attempt)
            build = self._entries.get(uuid)
            if build is None:
                build = Build(uuid=uuid, fence=0, attempt=attempt, builder=self.builder, phase=Phase.RUNNING)
                self._entries[uuid] = build
            build.delete_attempt = attempt
            build.cancel.set()
            if build.phase in (Phase.SPAWNING, Phase.DESTROYING):
                return None
            build.phase = Phase.DESTROYING
            return build

    def hand_back(self, uuid: str, fence: int, attempt: int, builder: str) -> Build | None:
        """The cell has a build here, and neither guest nor entry is: destroy (what may be half made) and report it failed."""
        with self._lock:
            if uuid in self._entries:
                return None
            build = Build(uuid=uuid, fence=fence, attempt=attempt, builder=builder, phase=Phase.DESTROYING)
            build.failure = failures.restarted(self._clock())
            self._entries[uuid] = build
            self._pass(uuid, attempt)
            return build

    def destroyed(self, build: Build) -> Report | None:
        """Nothing is left of it: give its claim back, and return what the cell is owed: ``gone``, ``failed`` or nothing."""
        with self._lock:
            if not self._is(build, Phase.DESTROYING):
                return None
            self._tracker.release(build.uuid)
            if build.delete_attempt is not None:
                self._forget(build)
                return self._report(ReportKind.GONE, build, attempt=build.delete_attempt)
            if build.failure is not None:
                build.phase = Phase.FAILED
                return self._report(ReportKind.FAILED, build)
            self._forget(build)
            return None

    def not_destroyed(self, build: Build) -> None:
        """The driver could not: keep the entry, and the claim, for another try."""
        with self._lock:
            build.stuck = True

    def stuck(self) -> list[Build]:
        """The entries whose destroy is to be tried again, each handed out once."""
        with self._lock:
            stuck = [build for build in self._entries.values() if build.stuck]
            for build in stuck:
                build.stuck = False
            return stuck

    def settled(self, build: Build) -> None:
        """``failed`` was answered: whatever the answer, this attempt is over here."""
        with self._lock:
            if self._is(build, Phase.FAILED):
                self._forget(build)

    # -- views ----------------------------------------------------------------------------------------------------------

    def report(self, build: Build) -> Report | None:
        """What the entry has to ask or tell in its phase."""
        kinds = {Phase.ACCEPTING: ReportKind.ACCEPT, Phase.REPORTING: ReportKind.ACTIVE, Phase.FAILED: ReportKind.FAILED}
        with self._lock:
            kind = kinds.get(build.phase)
            return self._report(kind, build) if kind is not None else None

    def snapshot(self) -> dict[str, tuple[Phase, Guest | None]]:
        """Phase and guest of every entry, by uuid."""
        with self._lock:
            return {uuid: (build.phase, build.guest) for uuid, build in self._entries.items()}

    def cancel_all(self, failure: Failure) -> None:
        """The agent is stopping and its time is over: let every spawn return, as failed for this reason."""
        with self._lock:
            for build in self._entries.values():
                if build.phase is Phase.SPAWNING:
                    build.failure = build.failure or failure
                    build.cancel.set()

    # -- under the lock -------------------------------------------------------------------------------------------------

    def _enter(self, guest: Guest, phase: Phase) -> Build:
        build = Build(uuid=guest.uuid, fence=guest.fence, attempt=guest.attempt, builder=guest.builder, phase=phase, guest=guest)
        self._entries[guest.uuid] = build
        self._pass(guest.uuid, guest.attempt)
        return build

    def _is(self, build: Build, phase: Phase) -> bool:
        return self._entries.get(build.uuid) is build and build.phase is phase

    def _move(self, build: Build, before: Phase, after: Phase) -> bool:
        if not self._is(build, before):
            return False
        build.phase = after
        return True

    def _forget(self, build: Build) -> None:
        self._tracker.release(build.uuid)
        del self._entries[build.uuid]

    def _pass(self, uuid: str, attempt: int) -> None:
        self._passed[uuid] = max(attempt, self._passed.get(uuid, 0))
        self._passed.move_to_end(uuid)
        if len(self._passed) > PASSED_LIMIT:
            self._passed.popitem(last=False)

    def _report(self, kind: ReportKind, build: Build, *, attempt: int | None = None) -> Report:
        return Report(
            kind=kind,
            instance_uuid=build.uuid,
            host=self.host,
            fence=build.fence,
            attempt=build.attempt if attempt is None else attempt,
            builder=build.builder,
            failure=build.failure if kind is ReportKind.FAILED else None,
        )
