"""What the processes say of their health while faults come, and that all of them are well when the faults are over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from chaos.judge import Violation
from chaos.watcher import Watcher
from deploy.local import health
from deploy.local.folder import Notes
from deploy.local.health import MemberHealth, State
from service.periodic import wait_until

WATCH_INTERVAL_S = 5.0
"""Seconds between two looks at all of them: a monitoring looks as often."""


class Watch(Watcher):
    """Asks every process again and again, from ``start`` to ``stop``."""

    def __init__(self, notes: Notes) -> None:
        super().__init__("watch", WATCH_INTERVAL_S)
        self._notes = notes
        self.said: Counter[State] = Counter()
        """What was answered, one for each process and look."""

    def settled(self, patience: float) -> list[Violation]:
        """Wait ``patience`` seconds at most until every process says that it is well; those that do not."""
        found: Mapping[str, MemberHealth] = {}

        def all_well() -> bool:
            nonlocal found
            found = health.look(self._notes)
            return all(told.state is State.WELL for told in found.values())

        wait_until(all_well, patience, pause=1.0)
        return unwell(found)

    def look(self) -> None:
        self.said.update(told.state for told in health.look(self._notes).values())


def unwell(found: Mapping[str, MemberHealth]) -> list[Violation]:
    """A violation for each process that does not say that it is well."""
    return [
        Violation(what=f"{name} is {told.state} although all faults have ended", story=told.troubles)
        for name, told in found.items()
        if told.state is not State.WELL
    ]
