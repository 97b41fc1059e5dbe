"""From the order to a reported guest: begin, grant, spawn, postpone, cancel.

A queued build has been accepted. The protocol allows any time between the grant and the spawn, so the queue adds no new case. If
the agent dies with the queue, that is like dying before the spawn: the next start hands the builds back. A delete, a deadline or a
host wrongly called down ends a queued build like a spawning one: ``active`` is refused and the guest destroyed.

Asking only when a thread is free would leave the row SCHEDULED. The cell would send the order again and again, and each build would
cost a separate call.

The row of a build may end during the spawn, because its deadline has passed or the host was called down. The cell then sends a
delete or refuses the next accept. The spawn is cancelled and cleaned up without a report.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from compute import failures
from compute.build import Build, Phase, build_of
from compute.driver import Guest, GuestSpec
from compute.work_table import Entries
from objects import errors
from objects.build import BuildOrder, Origin, Report, ReportKind
from objects.instance import Failure, FailureClass
from objects.selection import HostCapacity
from objects.spec import BootSecrets

_BEGUN = (Phase.QUEUED, Phase.SPAWNING)
_REPORTS = {Phase.ACCEPTING: ReportKind.ACCEPT, Phase.REPORTING: ReportKind.ACTIVE, Phase.FAILED: ReportKind.FAILED}


class Builds:
    """The entries from ``begin_build`` to REPORTING, and their reports. Every method is one short step without I/O."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    def begin_build(
        self,
        guest: Guest,
        limits: HostCapacity | None,
        *,
        spec: GuestSpec | None = None,
        wants_secrets: bool = False,
        origin: Origin | None = None,
    ) -> Build | None:
        """Start the attempt once: with its claim, or as failed if there is no room or the agent stops.

        Returns None if this or a later attempt (by fence and attempt) was started before, or a guest exists. ``wants_secrets``: do
        not spawn it without the secrets of the grant. ``origin``: copy this disk.

        The order of a later attempt may overtake the answer to the ``failed`` report that caused it. That report is then done.
        """
        with self._entries as entries:
            earlier = entries.get(guest.uuid)
            number = (guest.fence, guest.attempt)
            if earlier is not None and earlier.phase is Phase.FAILED and (earlier.fence, earlier.attempt) < number:
                entries.forget_build(earlier)
            if guest.uuid in entries or entries.is_barred(guest.uuid, *number):
                return None
            build = entries.enter_build(build_of(guest, Phase.ACCEPTING))
            build.wants_secrets = wants_secrets
            build.spec, build.origin = spec, origin
            refusal = entries.refusal_to_begin()
            if refusal is not None:
                _hand_over(entries, build, refusal)
                return build
            no_room = entries.tracker.claim_resources(guest, limits)
            if no_room is not None:
                build.failure = failures.no_room(no_room, entries.clock())
                build.phase = Phase.FAILED
            return build

    def repeat_failed(self, guest: Guest) -> Build | None:
        """Report an attempt as failed that has already ended here but was ordered again. None: an entry exists.

        Usually the cell has moved on and refuses the report. If its database lost the end of the attempt, this makes it move on
        again.
        """
        with self._entries as entries:
            if guest.uuid in entries or not entries.is_barred(guest.uuid, guest.fence, guest.attempt):
                return None
            build = entries.enter_build(build_of(guest, Phase.FAILED))
            build.failure = failures.order_repeated(entries.clock())
            return build

    def refuse_order(self, order: BuildOrder, failure: Failure) -> Build | None:
        """Report an order as failed that cannot be carried out. None: the instance has an entry or a later attempt."""
        with self._entries as entries:
            number = (order.fence, order.attempt)
            earlier = entries.get(order.instance_uuid)
            if earlier is not None and (earlier.fence, earlier.attempt) == number and earlier.phase is Phase.ACCEPTING:
                entries.forget_build(earlier)  # ``begin_build`` entered it before it failed
            if order.instance_uuid in entries or entries.is_barred(order.instance_uuid, *number):
                return None
            build = Build(
                uuid=order.instance_uuid,
                fence=order.fence,
                attempt=order.attempt,
                builder=entries.builder,
                phase=Phase.FAILED,
                failure=failure,
            )
            return entries.enter_build(build)

    def note_granted(self, build: Build, secrets: BootSecrets | None = None) -> bool:
        """The cell accepted. False: the build was deleted meanwhile, or nothing may begin now and the build is FAILED."""
        with self._entries as entries:
            if not entries.move_build(build, Phase.ACCEPTING, Phase.QUEUED):
                return False
            refusal = entries.refusal_to_begin()
            if refusal is not None:
                _hand_over(entries, build, refusal)
                return False
            build.secrets = secrets
            return True

    def note_refused(self, build: Build) -> bool:
        """Forget the build, because the cell refused the accept. False: it has left ACCEPTING."""
        with self._entries as entries:
            if not entries.is_at(build, Phase.ACCEPTING):
                return False
            entries.forget_build(build)
            return True

    def begin_spawn(self, build: Build, overdue_at: float | None) -> bool:
        """A thread takes the build from the queue. False: it was deleted meanwhile."""
        with self._entries as entries:
            build.overdue_at = overdue_at
            return entries.move_build(build, Phase.QUEUED, Phase.SPAWNING)

    def take_secrets(self, build: Build) -> BootSecrets | None:
        """The secrets for the guest, returned only once and not kept here.

        Raises ``errors.BuildFailed`` if required secrets are missing: the cell's conductor is too old to send them.
        """
        with self._entries:
            secrets, build.secrets = build.secrets, None
            if secrets is None and build.wants_secrets:
                raise errors.BuildFailed("The cell's conductor sent no user data and password with its grant: upgrade it.")
            return secrets

    def end_spawn(self, build: Build, failure: Failure | None) -> bool:
        """The driver returned. True: the guest runs; report it. False: destroy it now."""
        with self._entries as entries:
            build.failure = build.failure or failure  # an earlier time-out caused the driver's error
            unwanted = build.delete_attempt is not None or build.abandoned
            if not unwanted and build.failure is None and build.guest is not None:
                entries.tracker.hold_resources(build.guest)
                build.phase = Phase.REPORTING
                build.spec = None
                return True
            build.phase = Phase.DESTROYING
            if not unwanted and build.failure is not None and build.failure.kind is FailureClass.HOST:
                entries.tracker.build_failed()
            return False

    def note_postponed(self, build: Build, resume_at: Callable[[int], float]) -> None:
        """The driver returned because a shared service is down: destroy now, then wait.

        ``resume_at`` returns when to ask the cell again, given the number of consecutive outages. A time-out, a delete or a stop of
        the agent that came first takes precedence.
        """
        with self._entries:
            build.phase = Phase.DESTROYING
            build.outage = build.failure is None
            build.outages += 1
            build.resume_at = resume_at(build.outages)

    def take_resumed(self, now: float) -> list[Build]:
        """The builds whose wait is over at ``now``; ask the cell about them again. Each is returned once."""
        with self._entries as entries:
            if entries.trouble:
                return []
            due = [build for build in entries if build.phase is Phase.WAITING and build.resume_at <= now]
            for build in due:
                build.phase = Phase.ACCEPTING
            return due

    def get_begun(self, uuid: str) -> Build | None:
        """The build of this uuid, if it was granted and its guest does not run yet."""
        with self._entries as entries:
            build = entries.get(uuid)
            return build if build is not None and build.phase in _BEGUN and not build.abandoned else None

    def accept_again(self, build: Build) -> Report:
        """The ``accept`` report that asks whether the build is still ours. It does not ask for the secrets again."""
        with self._entries as entries:
            return msgspec.structs.replace(entries.make_report(ReportKind.ACCEPT, build), wants_secrets=False)

    def abandon_build(self, build: Build) -> bool:
        """The cell has revoked a granted build: cancel it. False: it had already ended."""
        with self._entries as entries:
            if not entries.is_at(build, *_BEGUN, Phase.WAITING):
                return False
            if build.phase is Phase.SPAWNING:
                build.abandoned = True
                build.cancel.set()
            else:
                entries.forget_build(build)
            return True

    def cancel_overdue(self, now: float, failure: Failure) -> list[Build]:
        """Cancel overdue spawns and return them. ``now``: on the same clock as ``overdue_at``."""
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

    @property
    def current_trouble(self) -> str:
        """Why the hypervisor cannot be used now; empty if it can."""
        with self._entries as entries:
            return entries.trouble

    def pause_builds(self, trouble: str) -> tuple[bool, list[Build]]:
        """The hypervisor cannot be used: begin no builds until ``go_on``. Returns whether this is new, and builds as ``stop``."""
        with self._entries as entries:
            is_new, entries.trouble = not entries.trouble, trouble
            return is_new, _hand_over_waiting(entries)

    def go_on(self) -> bool:
        """The hypervisor can be used again. Returns whether this is new."""
        with self._entries as entries:
            is_new, entries.trouble = bool(entries.trouble), ""
            return is_new

    def stop(self) -> list[Build]:
        """Begin no more builds. Returns the builds that no thread had taken, as FAILED, to be reported, so that other hosts can
        take them.
        """
        with self._entries as entries:
            entries.stopping = True
            return _hand_over_waiting(entries)

    def cancel_all(self) -> None:
        """The drain time-out of a stopping agent is over: cancel every spawn, as failed for this reason."""
        with self._entries as entries:
            for build in entries:
                if build.phase is Phase.SPAWNING and not build.cancel.is_set():
                    build.failure = failures.agent_stopping(entries.clock())
                    build.cancel.set()

    def report_of(self, build: Build) -> Report | None:
        """The report that the entry owes in its phase; None if it owes none."""
        with self._entries as entries:
            kind = _REPORTS.get(build.phase)
            return entries.make_report(kind, build) if kind is not None else None


def _hand_over_waiting(entries: Entries) -> list[Build]:
    """Fail the builds that no thread has taken, and return them."""
    refusal = entries.refusal_to_begin()
    waiting = [build for build in entries if build.phase in (Phase.QUEUED, Phase.WAITING)] if refusal is not None else []
    for build in waiting:
        _hand_over(entries, build, refusal)
    return waiting


def _hand_over(entries: Entries, build: Build, failure: Failure | None) -> None:
    """Nothing may begin now: fail this build, which has not begun, so that the cell gets it back."""
    build.phase = Phase.FAILED
    build.failure = failure
    build.secrets = None
    entries.tracker.release_resources(build.uuid)
