"""One batch as the engine sees it: amounts, place, group and chance, looked up once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar

from objects.group import GroupPolicy, ServerGroup
from objects.spec import RequestSpec
from scheduler.plan.members import NOBODY, Members
from scheduler.table.arrays import mixed

T = TypeVar("T")

OPTIONAL = (
    "flavor.extra_specs",
    "image",
    "group",
    "ignore_hosts",
    "force_hosts",
    "force_nodes",
    "requested_destination",
    "move",
    "scheduler_hints",
    "excluded_cells",
    "excluded_hosts",
)
"""Fields of a spec that filters and weighers heed, and that most requests leave out."""

_optional = attrgetter(*OPTIONAL)


@dataclass(slots=True)
class Request:
    """What is asked of a host for each instance, and the conditions that hold for the batch.

    ``vcpus``, ``memory_mb`` and ``disk_gb`` are what is claimed; ``resources`` are amounts by custom resource class.
    ``zone`` is the table's number of the zone asked for (-1: no host is in it; None: any). ``alive_since``: hosts heard of since
    then are up. ``assume_up`` asks what would be if silent hosts were up, ``unheard_cells`` (numbers of the table) what would
    be if those of these cells were, ``any_cell`` what would be if all cells were enabled. ``yielding`` asks what would be if slots
    held for other members' retries did not count, and members on several hosts were no hindrance. ``only_cell`` (a number of the
    table, -1: never heard of) is the one cell it is kept to, ``source_cell`` that of a server which is moved. ``companions``: so
    many members of its affinity group will follow it. ``in_cells`` counts the servers of the batch by the number of their cell.
    ``places`` are the hosts of the servers that hints name, by uuid.
    """

    spec: RequestSpec
    vcpus: int
    memory_mb: int
    disk_gb: int
    seed: int
    resources: Mapping[str, int] = field(default_factory=dict)
    zone: int | None = None
    excluded_cells: frozenset[int] = frozenset()
    only_cell: int | None = None
    source_cell: int | None = None
    alive_since: float = 0.0
    assume_up: bool = False
    unheard_cells: frozenset[int] = frozenset()
    any_cell: bool = False
    members: Members = NOBODY
    companions: int = 0
    yielding: bool = False
    draws: int = 0
    in_cells: dict[int, int] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    _memory: dict[object, Any] = field(default_factory=dict)

    @property
    def group(self) -> ServerGroup | None:
        return self.spec.group

    @property
    def policy(self) -> GroupPolicy | None:
        return self.spec.group.policy if self.spec.group else None

    @property
    def founding(self) -> bool:
        """An affinity group of which nobody is anywhere yet: all its members will be where the first one is."""
        return self.policy is GroupPolicy.AFFINITY and not self.members.counts(with_held=False)

    @property
    def split(self) -> bool:
        """An affinity group whose members are on several hosts for the time being."""
        return self.policy is GroupPolicy.AFFINITY and len(self.members.counts(with_held=False)) > 1

    @property
    def forced(self) -> bool:
        """An administrator named the hosts: only filters that guard the host itself are asked."""
        return bool(self.spec.force_hosts or self.spec.force_nodes)

    @property
    def shape(self) -> tuple[bool, ...]:
        """Which of the OPTIONAL fields it has."""
        return tuple(map(bool, _optional(self.spec)))

    def remembered(self, key: object, make: Callable[[], T]) -> T:
        """What ``make`` returned when it was first asked for ``key``. A request lives under one hold of the table's lock."""
        if key not in self._memory:
            self._memory[key] = make()
        answer: T = self._memory[key]
        return answer

    def draw(self, among: int) -> int:
        """The next random number below ``among``; the same sequence for the same seed."""
        self.draws += 1
        return mixed(self.seed + self.draws) % among
