"""One batch as the engine sees it: amounts, place, group and chance, looked up once."""

from __future__ import annotations

from dataclasses import dataclass, field

from objects.group import Policy, ServerGroup
from objects.spec import RequestSpec
from scheduler.arrays import mixed
from scheduler.members import Members


@dataclass(slots=True)
class Request:
    """What is asked of a host for each instance, and the conditions that hold for the batch.

    ``zone`` is the table's number of the zone asked for (-1: no host is in it; None: any). ``alive_since``: hosts heard of since
    then are up. ``assume_up`` asks what would be if silent hosts were up. ``yielding``: slots held for other members' retries do
    not count, because nothing fits otherwise.
    """

    spec: RequestSpec
    vcpus: int
    memory_mb: int
    disk_gb: int
    seed: int
    zone: int | None = None
    excluded_cells: frozenset[int] = frozenset()
    alive_since: float = 0.0
    assume_up: bool = False
    members: Members = field(default_factory=Members)
    yielding: bool = False
    draws: int = 0

    @property
    def group(self) -> ServerGroup | None:
        return self.spec.group

    @property
    def policy(self) -> Policy | None:
        return self.spec.group.policy if self.spec.group else None

    @property
    def forced(self) -> bool:
        """An administrator named the hosts: only filters that guard the host itself are asked."""
        return bool(self.spec.force_hosts or self.spec.force_nodes)

    def draw(self, among: int) -> int:
        """The next random number below ``among``; the same sequence for the same seed."""
        self.draws += 1
        return mixed(self.seed + self.draws) % among
