"""Tasks of a running guest: take the order, ask the cell, carry out, report.

The agent asks its cell before it acts (``begin``), so a doubled or late order of an earlier task does nothing, and after a restart
the cell decides whether the task may be repeated. An order that comes while the driver carries out another task is dropped: the
cell sends it again.

A hold is like a destroy: another body of the server may only run once it is done. So it is repeated until it is, and never reported
as failed. The agent asks again before each try, because the hold may not be in force any more.

A task that met a hypervisor that is down is tried again like that, unless it may be carried out once only, and may have been.

A guest may also have lost its power, because its host did. Then the agent *restores* it: it asks in the same way about a task that
is done, and reports nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from compute.build import Build, Phase, Work
from compute.driver import Guest
from compute.work_table import Entries
from objects.build import Report, ReportKind
from objects.instance import Failure
from objects.spec import BootSecrets
from objects.task import Power, TaskKind, TaskOrder

_REPLACEABLE = (Phase.REPORTING, Phase.ASKING, Phase.GRANTED, Phase.RETRYING, Phase.FINISHING)


class Tasks:
    """The entries from ASKING to FINISHING, and their reports. Every method is one short step without I/O."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    def take_order(self, order: TaskOrder, *, restores: bool = False) -> Build | None:
        """Take the order; ask the cell now. None: do not ask now, or not at all. ``restores``: see above.

        A later task replaces one that no driver carries out: the cell has given that one up, or heard how it ended. If the guest is
        not confirmed yet, ``note_confirmed`` says when to ask.
        """
        with self._entries as entries:
            build = entries.get(order.instance_uuid)
            if build is None or entries.stopping or entries.trouble:
                return None
            if (build.fence, build.attempt) != (order.fence, order.attempt):
                return None
            is_later = build.work is None or build.work.order.number < order.number
            if build.phase is not Phase.RUNNING and not (build.phase in _REPLACEABLE and is_later):
                return None
            build.work = Work(order=order, restores=restores)
            if build.phase is Phase.REPORTING:
                return None
            build.phase = Phase.ASKING
            return build

    def is_passed(self, order: TaskOrder) -> bool:
        """Whether the guest has had a later task than that of the order: the cell's database was restored."""
        with self._entries as entries:
            build = entries.get(order.instance_uuid)
            return build is not None and build.guest is not None and order.number < build.guest.last_task

    def noted(self, build: Build, number: int) -> None:
        """The driver keeps this number with the guest."""
        with self._entries:
            if build.guest is not None:
                build.guest = msgspec.structs.replace(build.guest, last_task=number)

    def note_confirmed(self, build: Build) -> bool:
        """The cell has confirmed the guest. True: a task waited for that; ask the cell now."""
        with self._entries as entries:
            return build.work is not None and not entries.stopping and entries.move_build(build, Phase.RUNNING, Phase.ASKING)

    def note_granted(self, build: Build, number: int, secrets: BootSecrets | None = None) -> bool:
        """The cell lets the agent carry out this task. False: the guest is deleted meanwhile, or the agent stops.

        ``secrets``: those that came with the grant, for a rebuild.
        """
        with self._entries as entries:
            work = build.work
            if work is None or not self._is_at(build, Phase.ASKING, number):
                return False
            if entries.stopping:
                _end_task(build)
                return False
            work.secrets = secrets
            build.phase = Phase.GRANTED
            return True

    def note_refused(self, build: Build, number: int) -> bool:
        """The cell refused the task: it is not in force any more. False: the entry has left ASKING."""
        with self._entries:
            if not self._is_at(build, Phase.ASKING, number):
                return False
            _end_task(build)
            return True

    def note_postponed(self, build: Build, number: int, resume_at: float) -> bool:
        """The cell cannot decide about the task yet: ask again at ``resume_at``. False: the entry has left ASKING, or is let go."""
        with self._entries as entries:
            if not self._is_at(build, Phase.ASKING, number):
                return False
            if entries.stopping:
                _end_task(build)
                return False
            build.phase, build.resume_at = Phase.RETRYING, resume_at
            return True

    def start(self, build: Build) -> Work | None:
        """A thread carries out the task. None: it was dropped meanwhile."""
        with self._entries as entries:
            return build.work if entries.move_build(build, Phase.GRANTED, Phase.WORKING) else None

    def end_work(
        self, build: Build, work: Work, failure: Failure | None, retry_at: Callable[[int], float], *, again: bool = False
    ) -> bool:
        """The driver returned. True: report what the entry owes. False: a delete came meanwhile; destroy the guest now.

        ``retry_at`` returns when to try a hold again, given the number of tries so far. ``again``: the hypervisor was down, so this
        was no try.
        """
        with self._entries:
            work.secrets = None
            if failure is None and build.guest is not None:
                build.guest = guest_after(build.guest, work.order)
            if build.delete_attempt is not None:
                build.phase = Phase.DESTROYING
                return False
            if failure is not None and (again or is_hold(work.order)):
                work.tries += not again
                build.phase = Phase.RETRYING
                build.resume_at = retry_at(work.tries)
            elif work.restores:
                _end_task(build)
            else:
                work.failure = failure
                build.phase = Phase.FINISHING
            return True

    def take_resumed(self, now: float) -> list[Build]:
        """The tasks whose pause is over at ``now``; ask the cell about them again. Each is returned once."""
        with self._entries as entries:
            if entries.trouble:
                return []
            due = [build for build in entries if build.phase is Phase.RETRYING and build.resume_at <= now]
            for build in due:
                build.phase = Phase.ASKING
            return due

    def note_answered(self, build: Build, number: int) -> None:
        """The cell has heard how the task ended: whatever its answer, the task is over here."""
        with self._entries:
            if self._is_at(build, Phase.FINISHING, number):
                _end_task(build)

    def stop(self) -> None:
        """The agent stops: drop the tasks that no thread carries out. The next start gets their orders again."""
        with self._entries as entries:
            for build in entries:
                if build.phase in (Phase.GRANTED, Phase.RETRYING):
                    _end_task(build)

    def report_of(self, build: Build) -> Report | None:
        """The report that the entry owes in its phase, in the name of this start of the agent; None if it owes none."""
        with self._entries as entries:
            work = build.work
            if work is None or build.phase not in (Phase.ASKING, Phase.FINISHING):
                return None
            kind = ReportKind.BEGIN
            if build.phase is Phase.FINISHING:
                kind = ReportKind.DONE if work.failure is None else ReportKind.TASK_FAILED
            report = entries.make_report(kind, build)
            about = {"builder": entries.builder, "failure": work.failure, "task": work.order.number, "restores": work.restores}
            about["wants_secrets"] = kind is ReportKind.BEGIN and work.order.kind.has_secrets
            return msgspec.structs.replace(report, **about, stored=work.stored if kind is ReportKind.DONE else None)

    def _is_at(self, build: Build, phase: Phase, number: int) -> bool:
        """Whether the entry is in this phase of this task. The caller holds the lock."""
        return self._entries.is_at(build, phase) and build.work is not None and build.work.order.number == number


def _end_task(build: Build) -> None:
    build.phase = Phase.RUNNING
    build.work = None


def is_hold(order: TaskOrder) -> bool:
    """Whether the guest must be off so that another body of its server may run."""
    return order.kind is TaskKind.POWER and order.power is Power.HELD


def guest_after(guest: Guest, order: TaskOrder) -> Guest:
    """The guest once this task is carried out."""
    match order.kind:
        case TaskKind.REBOOT:
            return msgspec.structs.replace(guest, power=Power.ON)
        case TaskKind.REBUILD:
            image = {"image_id": order.args.image_id, "image_hash": order.args.image_hash} if order.args.image_id else {}
            return msgspec.structs.replace(guest, power=order.power, **image)
        case TaskKind.POWER | TaskKind.SEND | TaskKind.SNAPSHOT | TaskKind.RESCUE:
            return msgspec.structs.replace(guest, power=order.power)
        case TaskKind.INTERFACES:
            return msgspec.structs.replace(guest, power=order.power, macs=tuple(port.mac for port in order.args.ports))
        case TaskKind.IMAGE | TaskKind.PASSWORD | TaskKind.CRASH_DUMP:
            return guest
