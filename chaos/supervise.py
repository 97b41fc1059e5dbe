"""What systemd would do: a member whose master has ended is started again."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

from deploy.local.processes import Started
from deploy.local.region import Region
from deploy.local.shape import Member
from service.periodic import wait_until

CHECK_INTERVAL_S = 1.0
"""Seconds between two looks."""
ORPHAN_WAIT_S = 3.0
"""Seconds that workers without a master have to end in order."""


class Supervisor:
    """Looks after the members from ``start`` to ``stop``. A member that is held is left alone."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._members = region.notes.shape.list_members()
        self._held: set[str] = set()
        self._killed: set[str] = set()
        self._started: dict[str, Started] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._restart_missing, name="supervisor", daemon=True)
        self.restarts: Counter[str] = Counter()
        self.fell: list[str] = []
        """Members whose master ended although nobody had killed it, with the last lines of their logs."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    @contextlib.contextmanager
    def hold_member(self, member: str) -> Iterator[None]:
        """While inside, the member is not started again. Whoever holds it kills it."""
        self._held.add(member)
        self._killed.add(member)
        try:
            yield
        finally:
            self._held.discard(member)

    def wait_complete(self, patience: float) -> bool:
        """Wait until every master runs, those that were started here serve, and nothing is started any more."""
        return wait_until(self._all_serve, patience, pause=CHECK_INTERVAL_S)

    def missing_members(self) -> list[str]:
        """The members that do not serve."""
        led = self._region.table.members_with_master()
        late = {name for name, one in list(self._started.items()) if not one.is_ready}
        return [member.name for member in self._members if member.name not in led or member.name in late]

    def is_serving(self, member: str) -> bool:
        """Whether this member was started here and serves."""
        one = self._started.get(member)
        return one is not None and one.exit_status is None and one.is_ready

    def _all_serve(self) -> bool:
        return not self.missing_members()

    def _restart_missing(self) -> None:
        while not self._stopped.wait(CHECK_INTERVAL_S):
            led = self._region.table.members_with_master()
            for member in self._members:
                if member.name not in led and member.name not in self._held:
                    self._start_again(member)

    def _start_again(self, member: Member) -> None:
        if member.name in self._killed:
            self._killed.discard(member.name)
        else:
            words = self._region.folder.log_of(member).read_text(errors="replace").splitlines()[-12:]
            self.fell.append("\n".join([f"{member.name} ended by itself:", *(f"    {line}" for line in words)]))
        self._region.table.stop([member], ORPHAN_WAIT_S)
        self._started[member.name] = self._region.table.start(member)
        self.restarts[member.name] += 1
