"""Guests that run on the host, and the cell's answers about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from compute.build import AT_TASK, Build, Phase, build_of
from compute.driver import Guest
from compute.work_table import Entries
from objects import builder_digest
from objects.build import Holding, Report, ReportKind
from objects.instance import Failure, FailureClass, State

STOPPED = "The guest has stopped: its own system or its host stopped it."
"""Why a guest is off, if the driver does not know."""


class Guests:
    """The entries in REPORTING and RUNNING. Every method is one short step without I/O."""

    def __init__(self, entries: Entries) -> None:
        self.host = entries.host
        self._entries = entries

    def count_found(self, guest: Guest) -> Build | None:
        """Count and report a guest on the host that has no entry. None: it has an entry."""
        with self._entries as entries:
            if guest.uuid in entries:
                return None
            entries.tracker.hold_resources(guest)
            return entries.enter_build(build_of(guest, Phase.REPORTING))

    def report_again(self, uuid: str) -> Build | None:
        """Report a guest again that the cell's records do not confirm. None: it is not in RUNNING, or gone."""
        with self._entries as entries:
            build = entries.get(uuid)
            return build if build is not None and entries.move_build(build, Phase.RUNNING, Phase.REPORTING) else None

    def is_built(self, uuid: str) -> bool:
        """Whether the guest was built, rather than being built."""
        with self._entries as entries:
            build = entries.get(uuid)
            return build is not None and build.phase in (Phase.REPORTING, Phase.RUNNING, *AT_TASK)

    def note_confirmed(self, build: Build) -> bool:
        """``active`` was accepted."""
        with self._entries as entries:
            build.unknown_since, build.unaccounted = None, ""
            build.confirmed = True
            return entries.move_build(build, Phase.REPORTING, Phase.RUNNING)

    def note_rejected(self, build: Build) -> bool:
        """``active`` was refused. True: destroy the guest now."""
        with self._entries as entries:
            return entries.move_build(build, Phase.REPORTING, Phase.DESTROYING)

    def report_stopped(self, guest: Guest, number: int) -> Report | None:
        """Report a guest that is off. ``number``: of its latest task on record. None: it has another task, or is gone."""
        with self._entries as entries:
            build = entries.get(guest.uuid)
            if build is None or build.phase is not Phase.RUNNING:
                return None
            reason = guest.off_reason or STOPPED
            failure = Failure(kind=FailureClass.HOST, error="GuestStopped", message=reason, at=entries.clock())
            return msgspec.structs.replace(entries.make_report(ReportKind.POWER, build), task=number, failure=failure)

    def note_unknown(self, build: Build, now: float) -> float:
        """The cell has no record of the guest; return for how many seconds it has said so."""
        with self._entries:
            if build.unknown_since is None:
                build.unknown_since = now
            return now - build.unknown_since

    def on_record(self, holdings: Mapping[str, Holding]) -> None:
        """The cell has records of these instances on this host."""
        with self._entries as entries:
            for build in entries:
                if build.uuid in holdings:
                    build.unknown_since = None
                if build.guest is not None and is_record_of(holdings.get(build.uuid), build.guest, State.ACTIVE):
                    build.unaccounted = ""

    def keep_unaccounted(self, build: Build, reason: str) -> bool:
        """Keep a guest that the cell's records do not account for. True: this is a new ``reason``."""
        with self._entries as entries:
            first, build.unaccounted = build.unaccounted != reason, reason
            entries.move_build(build, Phase.REPORTING, Phase.RUNNING)
            return first

    def list_unaccounted(self) -> list[tuple[Guest, str]]:
        """The guests that the cell's records do not account for, each with the reason, sorted by uuid."""
        with self._entries as entries:
            unaccounted_guests = [
                (build.guest, build.unaccounted) for build in entries if build.guest is not None and build.unaccounted
            ]
        return sorted(unaccounted_guests, key=lambda pair: pair[0].uuid)

    def unknown_guests(self) -> Counter[str]:
        """By node, the number of guests that the cell's records do not account for."""
        return Counter(guest.node for guest, _ in self.list_unaccounted())

    def read_phases(self) -> dict[str, tuple[Phase, Guest | None]]:
        """Phase and guest of every entry, by uuid."""
        with self._entries as entries:
            return {build.uuid: (build.phase, build.guest) for build in entries}


def is_record_of(record: Holding | None, guest: Guest, state: State) -> bool:
    """Whether the record is of this very guest, in this state. A guest that is being deleted counts as confirmed.

    A delete of an earlier attempt does not cover the guest: the cell has to say that it covers this one too. A record that does
    not know the guest's latest task is of a restored database, and learns it.
    """
    if record is None:
        return False
    if record.state == State.DELETING and (record.fence, record.attempt) >= (guest.fence, guest.attempt):
        return True
    same = (record.fence, record.attempt) == (guest.fence, guest.attempt)
    same = same and record.task_number >= guest.last_task
    return same and record.state == state and builder_digest.is_same(record.builder, guest.builder, guest.uuid)
