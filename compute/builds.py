"""From the order to a guest that is reported: what is begun, granted, spawned, put off, called off.

A queued build has been accepted. The protocol lets any time pass between the grant and the spawn, so a queue there adds no new
case: dying with the queue is dying before the spawn (the next start hands back), and a delete, a deadline or a false death meets
a queued build as it would meet a spawning one (``active`` is refused and the guest destroyed). Asking only when a thread is free
would leave the row SCHEDULED: the cell would send the order again and again, and each build would cost a call of its own.

The row of a build may end while the driver is at it: its time is over, or the host was called dead. Then the cell says so, by a
delete or by refusing an accept that is asked for once more, and the spawn is cancelled and cleaned up without a word.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from compute import failures
from compute.build import Build, Phase, build_of
from compute.driver import Guest
from compute.entries import Entries
from objects import errors
from objects.build import BuildOrder, Report, ReportKind
from objects.instance import Failure, FailureClass
from objects.selection import HostCapacity
from objects.spec import BootSecrets

_BEGUN = (Phase.QUEUED, Phase.SPAWNING)
_REPORTS = {Phase.ACCEPTING: ReportKind.ACCEPT, Phase.REPORTING: ReportKind.ACTIVE, Phase.FAILED: ReportKind.FAILED}


class Builds:
    """The entries from ``begin`` to REPORTING, and those that are to be reported. Every method is one short step without I/O."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    def begin(self, guest: Guest, limits: HostCapacity | None, *, wants_secrets: bool = False) -> Build | None:
        """Start the attempt once, with its claim or (no room, stopping) as failed.

        None: started or passed before, by fence and attempt, or a guest is held. ``wants_secrets``: it must not be spawned without
        those that come with the grant.
        The order of a later attempt may overtake the answer to the report that called for it: that report has done its work.
        """
        with self._entries as entries:
            earlier = entries.get(guest.uuid)
            number = (guest.fence, guest.attempt)
            if earlier is not None and earlier.phase is Phase.FAILED and (earlier.fence, earlier.attempt) < number:
                entries.forget(earlier)
            if guest.uuid in entries or entries.bars(guest.uuid, *number):
                return None
            build = entries.enter(build_of(guest, Phase.ACCEPTING))
            build.wants_secrets = wants_secrets
            if entries.stopping:
                _hand_over(entries, build)
                return build
            refusal = entries.tracker.claim(guest, limits)
            if refusal is not None:
                build.failure = failures.no_room(refusal, entries.clock())
                build.phase = Phase.FAILED
            return build

    def repeated(self, guest: Guest) -> Build | None:
        """An order that was not begun asks for an attempt that is over here: report it failed. None: an entry is at it.

        Usually the cell has moved on, and refuses. If its database lost that, this moves it on again.
        """
        with self._entries as entries:
            if guest.uuid in entries or not entries.bars(guest.uuid, guest.fence, guest.attempt):
                return None
            build = entries.enter(build_of(guest, Phase.FAILED))
            build.failure = failures.repeated(entries.clock())
            return build

    def refuse(self, order: BuildOrder, failure: Failure) -> Build | None:
        """An order that cannot be carried out is to be reported as failed. None: the instance has an entry or a later attempt."""
        with self._entries as entries:
            number = (order.fence, order.attempt)
            earlier = entries.get(order.instance_uuid)
            if earlier is not None and (earlier.fence, earlier.attempt) == number and earlier.phase is Phase.ACCEPTING:
                entries.forget(earlier)  # entered just now, before it went wrong
            if order.instance_uuid in entries or entries.bars(order.instance_uuid, *number):
                return None
            build = Build(
                uuid=order.instance_uuid,
                fence=order.fence,
                attempt=order.attempt,
                builder=entries.builder,
                phase=Phase.FAILED,
                failure=failure,
            )
            return entries.enter(build)

    def granted(self, build: Build, secrets: BootSecrets | None = None) -> bool:
        """The cell accepted. False: the build was deleted meanwhile, so the grant is for nobody; or the agent stops: FAILED."""
        with self._entries as entries:
            if not entries.move(build, Phase.ACCEPTING, Phase.QUEUED):
                return False
            if entries.stopping:
                _hand_over(entries, build)
                return False
            build.secrets = secrets
            return True

    def refused(self, build: Build) -> bool:
        """The cell refused the accept: forget it."""
        with self._entries as entries:
            if not entries.at(build, Phase.ACCEPTING):
                return False
            entries.forget(build)
            return True

    def spawn(self, build: Build, overdue_at: float | None) -> bool:
        """A thread takes the build out of the queue. False: it was deleted meanwhile."""
        with self._entries as entries:
            build.overdue_at = overdue_at
            return entries.move(build, Phase.QUEUED, Phase.SPAWNING)

    def take_secrets(self, build: Build) -> BootSecrets | None:
        """What the guest is to be given, once: nothing of it stays here.

        Raises ``errors.BuildFailed`` where there should be some: the cell's conductor is too old to have sent them.
        """
        with self._entries:
            secrets, build.secrets = build.secrets, None
            if secrets is None and build.wants_secrets:
                raise errors.BuildFailed("The cell's conductor sent no user data and password with its grant: upgrade it.")
            return secrets

    def spawned(self, build: Build, failure: Failure | None) -> bool:
        """The driver returned. True: the guest runs and is to be reported. False: destroy now, whatever there is."""
        with self._entries as entries:
            build.failure = build.failure or failure  # a time-out was noted first and is the cause of what the driver raised
            unwanted = build.delete_attempt is not None or build.abandoned
            if not unwanted and build.failure is None and build.guest is not None:
                entries.tracker.hold(build.guest)
                build.phase = Phase.REPORTING
                return True
            build.phase = Phase.DESTROYING
            if not unwanted and build.failure is not None and build.failure.kind is FailureClass.HOST:
                entries.tracker.build_failed()
            return False

    def postponed(self, build: Build, resume_at: Callable[[int], float]) -> None:
        """The driver returned because a service that the hosts share is down: destroy now, then wait.

        ``resume_at``: when to ask the cell again, told how often in a row this has happened. A time-out, a delete or the agent's
        stop that came first counts instead.
        """
        with self._entries:
            build.phase = Phase.DESTROYING
            build.outage = build.failure is None
            build.outages += 1
            build.resume_at = resume_at(build.outages)

    def resumed(self, now: float) -> list[Build]:
        """The builds whose wait is over at ``now``, each handed out once: the cell is to be asked about them again."""
        with self._entries as entries:
            due = [build for build in entries if build.phase is Phase.WAITING and build.resume_at <= now]
            for build in due:
                build.phase = Phase.ACCEPTING
            return due

    def begun(self, uuid: str) -> Build | None:
        """The build of this uuid, if it was granted and its guest does not run yet."""
        with self._entries as entries:
            build = entries.get(uuid)
            return build if build is not None and build.phase in _BEGUN and not build.abandoned else None

    def question(self, build: Build) -> Report:
        """Is this still ours to build? The secrets that came with the first answer are not asked for again."""
        with self._entries as entries:
            return msgspec.structs.replace(entries.report(ReportKind.ACCEPT, build), wants_secrets=False)

    def abandon(self, build: Build) -> bool:
        """The cell has taken a granted build away: cancel it. False: it came to its end before."""
        with self._entries as entries:
            if not entries.at(build, *_BEGUN, Phase.WAITING):
                return False
            if build.phase is Phase.SPAWNING:
                build.abandoned = True
                build.cancel.set()
            else:
                entries.forget(build)
            return True

    def overdue(self, now: float, failure: Failure) -> list[Build]:
        """Cancel the spawns whose time is over; ``now`` on the clock of ``spawn``'s ``overdue_at``."""
        with self._entries as entries:
            late = [
                build
                for build in entries
                if build.phase is Phase.SPAWNING
                and not build.cancel.is_set()
                and build.overdue_at is not None
                and build.overdue_at <= now
            ]
            for build in late:
                build.failure = failure
                build.cancel.set()
            return late

    def stop(self) -> list[Build]:
        """Begin nothing from now on. Returns what no thread had taken, as FAILED, to be reported: others need not wait for us."""
        with self._entries as entries:
            entries.stopping = True
            waiting = [build for build in entries if build.phase in (Phase.QUEUED, Phase.WAITING)]
            for build in waiting:
                _hand_over(entries, build)
            return waiting

    def cancel_all(self) -> None:
        """The agent is stopping and its time is over: let every spawn return, as failed for this reason."""
        with self._entries as entries:
            for build in entries:
                if build.phase is Phase.SPAWNING and not build.cancel.is_set():
                    build.failure = failures.stopping(entries.clock())
                    build.cancel.set()

    def report(self, build: Build) -> Report | None:
        """What the entry has to ask or tell in its phase."""
        with self._entries as entries:
            kind = _REPORTS.get(build.phase)
            return entries.report(kind, build) if kind is not None else None


def _hand_over(entries: Entries, build: Build) -> None:
    """The agent stops before this build has begun: the cell is to have it back."""
    build.phase = Phase.FAILED
    build.failure = failures.stopping(entries.clock())
    build.secrets = None
    entries.tracker.release(build.uuid)
