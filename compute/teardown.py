"""How entries end: by a delete, by a completed destroy, or by the answer to a ``failed`` report."""

from __future__ import annotations

from compute import failures
from compute.build import Build, Phase
from compute.work_table import ANY_FENCE, Entries
from objects.build import Report, ReportKind


class Ends:
    """The entries in DESTROYING, and those in FAILED when their report is answered. Every method is one short step without I/O."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    def delete(self, uuid: str, attempt: int, fence: int = 0) -> Build | None:
        """End what runs for this uuid, unless it is of a later attempt. ``fence`` 0: any fence.

        Returns the entry to destroy now. None if the entry is later, or if the thread that spawns or destroys it, or carries out
        its task, will finish the delete.
        """
        with self._entries as entries:
            build = entries.get(uuid)
            if build is None:
                build = Build(uuid=uuid, fence=fence, attempt=attempt, builder=entries.builder, phase=Phase.RUNNING)
                entries.enter_build(build)
            elif (build.fence, build.attempt) > (fence or build.fence, attempt):
                return None
            entries.bar_attempt(uuid, fence or build.fence or ANY_FENCE, attempt)
            build.delete_attempt = attempt
            build.cancel.set()
            if build.phase in (Phase.SPAWNING, Phase.WORKING, Phase.DESTROYING):
                return None
            build.phase = Phase.DESTROYING
            return build

    def hand_back(self, uuid: str, fence: int, attempt: int, builder: str) -> Build | None:
        """The cell has a build here without a guest or an entry: destroy what may be left of it, and report it failed."""
        with self._entries as entries:
            if uuid in entries:
                return None
            build = Build(uuid=uuid, fence=fence, attempt=attempt, builder=builder, phase=Phase.DESTROYING)
            build.failure = failures.agent_restarted(entries.clock())
            return entries.enter_build(build)

    def report_destroyed(self, build: Build) -> Report | None:
        """Nothing is left of the guest: release its claim, and return the report that is due: ``gone``, ``failed`` or None.

        If it waits for a shared service, it keeps its claim and no report is due.
        """
        with self._entries as entries:
            if not entries.is_at(build, Phase.DESTROYING):
                return None
            if build.delete_attempt is not None:
                entries.forget_build(build)
                return entries.make_report(ReportKind.GONE, build, attempt=build.delete_attempt)
            if build.abandoned:
                entries.forget_build(build)
                return None
            if build.outage:
                build.outage = False
                build.failure = entries.refusal_to_begin()
                if build.failure is None:
                    build.phase = Phase.WAITING
                    return None
            entries.tracker.release_resources(build.uuid)
            if build.failure is not None:
                build.phase = Phase.FAILED
                return entries.make_report(ReportKind.FAILED, build)
            entries.forget_build(build)
            return None

    def not_destroyed(self, build: Build) -> None:
        """The driver failed to destroy it: keep the entry and its claim for a retry."""
        with self._entries:
            build.stuck = True

    def take_stuck(self) -> list[Build]:
        """The entries whose destroy must be retried, once the hypervisor can be used. Each is returned once."""
        with self._entries as entries:
            if entries.trouble:
                return []
            stuck = [build for build in entries if build.stuck]
            for build in stuck:
                build.stuck = False
            return stuck

    def note_settled(self, build: Build) -> None:
        """``failed`` was answered: whatever the answer, this attempt has ended here."""
        with self._entries as entries:
            if entries.is_at(build, Phase.FAILED):
                entries.forget_build(build)
