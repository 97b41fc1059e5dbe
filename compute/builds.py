"""What this start of the agent is doing, per instance: the agent's half of the boot protocol, without any I/O.

An entry is its uuid's lock: while one exists nothing else can begin for that uuid, and whoever moved it into a phase carries that
phase out alone. So no lock is ever held across a spawn, a destroy or a call, and yet the driver never has two hands on one guest.

                 +---------------- WAITING                                a service that hosts share is down: ask again later
                 v                    ^
    begin -> ACCEPTING -> QUEUED -> SPAWNING -> REPORTING -> RUNNING      a guest that was found starts at REPORTING
                 |           |          |           |
              refused     stopping  DESTROYING <----+ refused             a delete goes to DESTROYING from anywhere
                 |           v          |                                 (from SPAWNING: when the spawn has returned)
              (forgotten)  FAILED <-----+---> (forgotten), WAITING

A queued build has been accepted. The protocol lets any time pass between the grant and the spawn, so a queue there adds no new
case: dying with the queue is dying before the spawn (the next start hands back), and a delete, a deadline or a false death meets
a queued build as it would meet a spawning one (``active`` is refused and the guest destroyed). Asking only when a thread is free
would leave the row SCHEDULED: the cell would send the order again and again, and each build would cost a call of its own.

The row of a build may end while the driver is at it: its time is over, or the host was called dead. Then the cell says so, by a
delete or by refusing an accept that is asked for once more, and the spawn is cancelled and cleaned up without a word.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection

import msgspec

from compute import failures
from compute.build import Build, Phase
from compute.driver import Guest
from compute.tracker import ResourceTracker
from objects import errors
from objects.build import Report, ReportKind
from objects.instance import Failure, FailureClass
from objects.selection import Limits
from objects.spec import BootSecrets

PASSED_LIMIT = 10_000
"""Ended builds that are remembered per host. An order older than that is still refused, by its ``accept``."""


ANY_FENCE = sys.maxsize
"""A delete by a sender that names no fence bars every order that is still on its way: a delete is for good."""


_BEGUN = (Phase.QUEUED, Phase.SPAWNING)


class Builds:
    """The entries of one start of the agent on one host. ``builder`` names that start."""

    def __init__(self, host: str, builder: str, tracker: ResourceTracker, clock: Callable[[], float]) -> None:
        self.host = host
        self.builder = builder
        self._tracker = tracker
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, Build] = {}
        self._passed: OrderedDict[str, tuple[int, int]] = OrderedDict()  # fence and attempt
        self._stopping = False

    # -- orders ---------------------------------------------------------------------------------------------------------

    def begin(self, guest: Guest, limits: Limits | None, *, wants_secrets: bool = False) -> Build | None:
        """Start the attempt once, with its claim or (no room, stopping) as failed.

        None: started or passed before, by fence and attempt, or a guest is held. ``wants_secrets``: it must not be spawned without
        those that come with the grant.
        The order of a later attempt may overtake the answer to the report that called for it: that report has done its work.
        """
        with self._lock:
            earlier = self._entries.get(guest.uuid)
            number = (guest.fence, guest.attempt)
            if earlier is not None and earlier.phase is Phase.FAILED and (earlier.fence, earlier.attempt) < number:
                self._forget(earlier)
            if guest.uuid in self._entries or self._passed.get(guest.uuid, (0, 0)) >= number:
                return None
            build = self._enter(guest, Phase.ACCEPTING)
            build.wants_secrets = wants_secrets
            if self._stopping:
                self._hand_over(build)
                return build
            refusal = self._tracker.claim(guest, limits)
            if refusal is not None:
                build.failure = failures.no_room(refusal, self._clock())
                build.phase = Phase.FAILED
            return build

    def granted(self, build: Build, secrets: BootSecrets | None = None) -> bool:
        """The cell accepted. False: the build was deleted meanwhile, so the grant is for nobody; or the agent stops: FAILED."""
        with self._lock:
            if not self._move(build, Phase.ACCEPTING, Phase.QUEUED):
                return False
            if self._stopping:
                self._hand_over(build)
                return False
            build.secrets = secrets
            return True

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

    def take_secrets(self, build: Build) -> BootSecrets | None:
        """What the guest is to be given, once: nothing of it stays here.

        Raises ``errors.BuildFailed`` where there should be some: the cell's conductor is too old to have sent them.
        """
        with self._lock:
            secrets, build.secrets = build.secrets, None
            if secrets is None and build.wants_secrets:
                raise errors.BuildFailed("The cell's conductor sent no user data and password with its grant: upgrade it.")
            return secrets

    def spawned(self, build: Build, failure: Failure | None) -> bool:
        """The driver returned. True: the guest runs and is to be reported. False: destroy now, whatever there is."""
        with self._lock:
            build.failure = build.failure or failure  # a time-out was noted first and is the cause of what the driver raised
            unwanted = build.delete_attempt is not None or build.abandoned
            if not unwanted and build.failure is None and build.guest is not None:
                self._tracker.hold(build.guest)
                build.phase = Phase.REPORTING
                return True
            build.phase = Phase.DESTROYING
            if not unwanted and build.failure is not None and build.failure.kind is FailureClass.HOST:
                self._tracker.build_failed()
            return False

    def postponed(self, build: Build, resume_at: Callable[[int], float]) -> None:
        """The driver returned because a service that the hosts share is down: destroy now, then wait.

        ``resume_at``: when to ask the cell again, told how often in a row this has happened. A time-out, a delete or the agent's
        stop that came first counts instead.
        """
        with self._lock:
            build.phase = Phase.DESTROYING
            build.outage = build.failure is None
            build.outages += 1
            build.resume_at = resume_at(build.outages)

    def resumed(self, now: float) -> list[Build]:
        """The builds whose wait is over at ``now``, each handed out once: the cell is to be asked about them again."""
        with self._lock:
            due = [build for build in self._entries.values() if build.phase is Phase.WAITING and build.resume_at <= now]
            for build in due:
                build.phase = Phase.ACCEPTING
            return due

    def begun(self, uuid: str) -> Build | None:
        """The build of this uuid, if it was granted and its guest does not run yet."""
        with self._lock:
            build = self._entries.get(uuid)
            return build if build is not None and build.phase in _BEGUN and not build.abandoned else None

    def question(self, build: Build) -> Report:
        """Is this still ours to build? The secrets that came with the first answer are not asked for again."""
        with self._lock:
            return msgspec.structs.replace(self._report(ReportKind.ACCEPT, build), wants_secrets=False)

    def abandon(self, build: Build) -> bool:
        """The cell has taken a granted build away: cancel it. False: it came to its end before."""
        with self._lock:
            if self._entries.get(build.uuid) is not build or build.phase not in (*_BEGUN, Phase.WAITING):
                return False
            if build.phase is Phase.SPAWNING:
                build.abandoned = True
                build.cancel.set()
            else:
                self._forget(build)
            return True

    def overdue(self, now: float, failure: Failure) -> list[Build]:
        """Cancel the spawns whose time is over; ``now`` on the clock of ``spawn``'s ``overdue_at``."""
        with self._lock:
            late = [
                build
                for build in self._entries.values()
                if build.phase is Phase.SPAWNING
                and not build.cancel.is_set()
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
            build.unknown_since = None
            return self._move(build, Phase.REPORTING, Phase.RUNNING)

    def rejected(self, build: Build) -> bool:
        """``active`` was refused. True: destroy the guest now."""
        with self._lock:
            return self._move(build, Phase.REPORTING, Phase.DESTROYING)

    def unknown(self, build: Build, now: float) -> float:
        """The cell has no record of the guest; return for how many seconds it has been saying so."""
        with self._lock:
            if build.unknown_since is None:
                build.unknown_since = now
            return now - build.unknown_since

    def on_record(self, uuids: Collection[str]) -> None:
        """The cell has records of these."""
        with self._lock:
            for build in self._entries.values():
                if build.uuid in uuids:
                    build.unknown_since = None

    def kept(self, build: Build) -> None:
        """A guest that the cell has no record of stays, for now."""
        with self._lock:
            self._move(build, Phase.REPORTING, Phase.RUNNING)

    def unknown_guests(self) -> Counter[str]:
        """How many guests of each node the cell has no record of."""
        with self._lock:
            unknown = [build.guest for build in self._entries.values() if build.unknown_since is not None]
            return Counter(guest.node for guest in unknown if guest is not None)

    # -- ends -----------------------------------------------------------------------------------------------------------

    def delete(self, uuid: str, attempt: int, fence: int = 0) -> Build | None:
        """A delete arrived: end whatever runs, unless it is of a later attempt. ``fence`` 0: whatever the fence is.

        The entry to destroy now; None: who is at it will see to it.
        """
        with self._lock:
            build = self._entries.get(uuid)
            if build is None:
                build = Build(uuid=uuid, fence=fence, attempt=attempt, builder=self.builder, phase=Phase.RUNNING)
                self._entries[uuid] = build
            elif (build.fence, build.attempt) > (fence or build.fence, attempt):
                return None
            self._pass(uuid, fence or build.fence or ANY_FENCE, attempt)
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
            self._pass(uuid, fence, attempt)
            return build

    def destroyed(self, build: Build) -> Report | None:
        """Nothing is left of it: give its claim back, and return what the cell is owed: ``gone``, ``failed`` or nothing.

        Where it is to wait for a shared service, it keeps its claim and nothing is owed.
        """
        with self._lock:
            if not self._is(build, Phase.DESTROYING):
                return None
            if build.delete_attempt is not None:
                self._forget(build)
                return self._report(ReportKind.GONE, build, attempt=build.delete_attempt)
            if build.abandoned:
                self._forget(build)
                return None
            if build.outage:
                build.outage = False
                if not self._stopping:
                    build.phase = Phase.WAITING
                    return None
                build.failure = failures.stopping(self._clock())
            self._tracker.release(build.uuid)
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

    def stop(self) -> list[Build]:
        """Begin nothing from now on. Returns what no thread had taken, as FAILED, to be reported: others need not wait for us."""
        with self._lock:
            self._stopping = True
            waiting = [build for build in self._entries.values() if build.phase in (Phase.QUEUED, Phase.WAITING)]
            for build in waiting:
                self._hand_over(build)
            return waiting

    def cancel_all(self) -> None:
        """The agent is stopping and its time is over: let every spawn return, as failed for this reason."""
        with self._lock:
            for build in self._entries.values():
                if build.phase is Phase.SPAWNING and not build.cancel.is_set():
                    build.failure = failures.stopping(self._clock())
                    build.cancel.set()

    # -- under the lock -------------------------------------------------------------------------------------------------

    def _enter(self, guest: Guest, phase: Phase) -> Build:
        build = Build(uuid=guest.uuid, fence=guest.fence, attempt=guest.attempt, builder=guest.builder, phase=phase, guest=guest)
        self._entries[guest.uuid] = build
        self._pass(guest.uuid, guest.fence, guest.attempt)
        return build

    def _hand_over(self, build: Build) -> None:
        build.phase = Phase.FAILED
        build.failure = failures.stopping(self._clock())
        build.secrets = None
        self._tracker.release(build.uuid)

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

    def _pass(self, uuid: str, fence: int, attempt: int) -> None:
        self._passed[uuid] = max((fence, attempt), self._passed.get(uuid, (0, 0)))
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
            wants_secrets=build.wants_secrets and kind is ReportKind.ACCEPT,
        )
