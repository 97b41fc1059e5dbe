"""Guests that run on the host, and what the cell says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from compute.build import Build, Phase, build_of
from compute.driver import Guest
from compute.entries import Entries


class Guests:
    """The entries in REPORTING and RUNNING. Every method is one short step without I/O."""

    def __init__(self, entries: Entries) -> None:
        self.host = entries.host
        self._entries = entries

    def found(self, guest: Guest) -> Build | None:
        """A guest is on the host that no entry knows: count it and report it. None: an entry knows it."""
        with self._entries as entries:
            if guest.uuid in entries:
                return None
            entries.tracker.hold(guest)
            return entries.enter(build_of(guest, Phase.REPORTING))

    def doubted(self, uuid: str) -> Build | None:
        """The cell's records do not confirm a guest of ours: report it once more. None: it is not at rest, or gone."""
        with self._entries as entries:
            build = entries.get(uuid)
            return build if build is not None and entries.move(build, Phase.RUNNING, Phase.REPORTING) else None

    def confirmed(self, build: Build) -> bool:
        """``active`` was accepted."""
        with self._entries as entries:
            build.unknown_since = None
            return entries.move(build, Phase.REPORTING, Phase.RUNNING)

    def rejected(self, build: Build) -> bool:
        """``active`` was refused. True: destroy the guest now."""
        with self._entries as entries:
            return entries.move(build, Phase.REPORTING, Phase.DESTROYING)

    def unknown(self, build: Build, now: float) -> float:
        """The cell has no record of the guest; return for how many seconds it has been saying so."""
        with self._entries:
            if build.unknown_since is None:
                build.unknown_since = now
            return now - build.unknown_since

    def on_record(self, uuids: Collection[str]) -> None:
        """The cell has records of these."""
        with self._entries as entries:
            for build in entries:
                if build.uuid in uuids:
                    build.unknown_since = None

    def kept(self, build: Build) -> None:
        """A guest that the cell has no record of stays, for now."""
        with self._entries as entries:
            entries.move(build, Phase.REPORTING, Phase.RUNNING)

    def unknown_guests(self) -> Counter[str]:
        """How many guests of each node the cell has no record of."""
        with self._entries as entries:
            unknown = [build.guest for build in entries if build.unknown_since is not None]
            return Counter(guest.node for guest in unknown if guest is not None)

    def snapshot(self) -> dict[str, tuple[Phase, Guest | None]]:
        """Phase and guest of every entry, by uuid."""
        with self._entries as entries:
            return {build.uuid: (build.phase, build.guest) for build in entries}
