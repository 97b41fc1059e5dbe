"""What the processes say of their health while faults come, and that all of them are well when the faults are over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from chaos.watcher import Watcher
from cli.standalone.demo.verdict import Violation
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

    def wait_settled(self, patience: float) -> list[Violation]:
        """Wait ``patience`` seconds at most until every process says that it is well; those that do not."""
        health_by_member: Mapping[str, MemberHealth] = {}

        def all_well() -> bool:
            nonlocal health_by_member
            health_by_member = health.ask_members(self._notes)
            return all(member_health.state is State.WELL for member_health in health_by_member.values())

        wait_until(all_well, patience, pause=1.0)
        return unwell_members(health_by_member)

    def watch_once(self) -> None:
        self.said.update(member_health.state for member_health in health.ask_members(self._notes).values())


def unwell_members(health_by_member: Mapping[str, MemberHealth]) -> list[Violation]:
    """A violation for each process that does not say that it is well."""
    return [
        Violation(message=f"{name} is {member_health.state} although all faults have ended", story=member_health.troubles)
        for name, member_health in health_by_member.items()
        if member_health.state is not State.WELL
    ]
