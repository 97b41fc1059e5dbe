"""One batch as the engine sees it: amounts, cells and zone by number, group members, and the random seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar

from objects import numa
from objects.group import GroupPolicy, ServerGroup
from objects.spec import RequestSpec
from scheduler.framework.members import NOBODY, Members
from scheduler.table.arrays import Ints, mix_bits
from scheduler.table.named_rows import NamedRows
from scheduler.table.numa import NodePart

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
"""Fields of a spec that filters and weighers use, and that most requests leave out."""
CONDITIONS = (*OPTIONAL, "founding")
"""What ``applies_when`` may name: these fields, and that the request is for the first members of an affinity group."""

UNPACKED_POLICIES = frozenset(GroupPolicy) - {GroupPolicy.ANTI_AFFINITY}
"""Policies of groups that packing would thwart: soft ones are outweighed, and an affinity group needs a host with room for all."""

_optional = attrgetter(*OPTIONAL)


@dataclass(slots=True)
class Request:
    """What each instance needs of a host, and the conditions of the whole batch. Cells and zones are numbers of the table.

    ``vcpus``, ``memory_mb`` (MiB), ``disk_gb`` (GiB): what each instance claims. ``resources``: amounts by custom resource class.
    ``zone``: the zone asked for; -1: no host is in it; None: any.
    ``only_cell``: the only cell it may go to; -1: an unknown cell; None: any. ``source_cell``: the cell of a server that is moved.
    ``alive_since``: hosts heard of since then (monotonic clock) are up.
    ``companions``: how many other members of its affinity group will follow it.
    ``in_cells``: servers of the batch placed so far, by cell. ``nodes``: the NUMA nodes of each, in order; None: they had no room.
    ``places``: hosts of the servers that hints name, by uuid.

    Assumptions, to find out why a request is refused:

    ``returning_cells``: treat all hosts of these cells as up. ``unheard_cells``: the same, but for hosts whose agents are stopping.
    ``any_cell``: treat all cells as enabled.
    ``yielding``: ignore slots held for retries of other members, and let members of an affinity group be on several hosts.
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
    returning_cells: frozenset[int] = frozenset()
    unheard_cells: frozenset[int] = frozenset()
    any_cell: bool = False
    members: Members = NOBODY
    companions: int = 0
    yielding: bool = False
    draws: int = 0
    in_cells: dict[int, int] = field(default_factory=dict)
    nodes: list[tuple[int, ...] | None] = field(default_factory=list)
    places: Mapping[str, str] = field(default_factory=dict)
    _memory: dict[object, Any] = field(default_factory=dict)

    @property
    def server_group(self) -> ServerGroup | None:
        return self.spec.group

    @property
    def group_policy(self) -> GroupPolicy | None:
        return self.spec.group.policy if self.spec.group else None

    @property
    def has_soft_policy(self) -> bool:
        """Whether its group has a policy that only weighs."""
        return self.group_policy is not None and not self.group_policy.is_strict

    @property
    def founds_group(self) -> bool:
        """Whether it asks for the first members of an affinity group: all later members must join them."""
        return self.group_policy is GroupPolicy.AFFINITY and not self.members.any_placed

    @property
    def racks_limited(self) -> bool:
        """Whether its group limits the members per rack."""
        return self.spec.group is not None and self.spec.group.max_server_per_rack is not None

    @property
    def is_split(self) -> bool:
        """Whether members of its affinity group are on several hosts because some of them are moving."""
        return (
            self.group_policy is GroupPolicy.AFFINITY
            and self.members.moving > 0
            and len(self.members.counts_by_host(with_held=False)) > 1
        )

    def rows_with_members(self, named: NamedRows, least: int = 1) -> Ints:
        """The rows, in order, of hosts with at least so many members of its group. Held slots count unless it is ``yielding``."""
        return self.members.rows_with_members(named, least, with_held=not self.yielding)

    @property
    def wants_alternates(self) -> bool:
        """Whether its servers get alternates.

        Members of an affinity group get none, because they must stay together. Members that keep to racks get none, because held
        racks are too few for the others.
        """
        return self.spec.max_attempts > 1 and self.group_policy is not GroupPolicy.AFFINITY and not self.spec.keeps_to_racks

    @property
    def node_part(self) -> NodePart:
        """What each instance takes of each NUMA node that it is divided over."""
        specs, image = self.spec.flavor.extra_specs, self.spec.image
        if numa.FLAVOR_KEY not in specs and (image is None or numa.IMAGE_KEY not in image.properties):
            return NodePart(1, self.vcpus, self.memory_mb)
        key = "part", self.vcpus, self.memory_mb
        node_part: NodePart | None = self._memory.get(key)
        if node_part is None:
            nodes = numa.requested_nodes(specs, image.properties if image is not None else {}, self.vcpus, self.memory_mb)
            self._memory[key] = node_part = NodePart.divide_over(nodes, self.vcpus, self.memory_mb)
        return node_part

    @property
    def is_forced(self) -> bool:
        """Whether an administrator named the hosts: then only filters with ``guards_host`` run."""
        return bool(self.spec.force_hosts or self.spec.force_nodes)

    @property
    def optional_fields(self) -> tuple[bool, ...]:
        """Which of the CONDITIONS hold."""
        return (*map(bool, _optional(self.spec)), self.founds_group)

    def remember_result(self, key: object, make: Callable[[], T]) -> T:
        """The result of ``make()``, cached by ``key``. It cannot become stale: a request is used only while the table is locked."""
        if key not in self._memory:
            self._memory[key] = make()
        answer: T = self._memory[key]
        return answer

    def draw_below(self, among: int) -> int:
        """The next random number below ``among``; the same sequence for the same seed."""
        self.draws += 1
        return mix_bits(self.seed + self.draws) % among
