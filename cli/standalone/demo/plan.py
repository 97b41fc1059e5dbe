"""What the demo builds and what must come of it. Everything is a function of the plan, so a resumed run expects the same."""

from __future__ import annotations

import enum
from typing import Any

from compute.simulated import METADATA_KEY
from objects import errors
from objects.base import Object

PROJECT = "demo"
IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"


class ExpectedOutcome(enum.StrEnum):
    """What must come of every server of an item."""

    ACTIVE = "active"
    CANNOT_FIT = "cannot fit"
    ABORTED = "aborted"
    EXHAUSTED = "attempts exhausted"
    DELETED = "deleted"


class FlavorPlan(Object, frozen=True, kw_only=True):
    """MiB of memory, GiB of disk."""

    name: str
    vcpus: int
    ram: int
    disk: int


class HostPlan(Object, frozen=True, kw_only=True):
    """One simulated host; ``failure_rate`` of its builds fail, the same ones in every run."""

    name: str
    cell: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    failure_rate: float = 0.0


class GroupPlan(Object, frozen=True, kw_only=True):
    name: str
    policy: str


class Item(Object, frozen=True, kw_only=True):
    """One POST: ``count`` servers called ``name`` (``name-1`` and so on where there are several).

    Those that are to be deleted are so ``delete_after`` seconds from when they were accepted: queued, staged, building or running.
    """

    name: str
    flavor: str
    outcome: ExpectedOutcome = ExpectedOutcome.ACTIVE
    count: int = 1
    zone: str | None = None
    group: str | None = None
    simulated: str | None = None
    delete_after: float = 0.0

    def server_names(self) -> list[str]:
        """The names its servers get; no two items share one."""
        return [self.name] if self.count == 1 else [f"{self.name}-{number + 1}" for number in range(self.count)]

    def boot_body(self, group_uuids: dict[str, str]) -> dict[str, Any]:
        """The body of ``POST /servers``."""
        server: dict[str, Any] = {
            "name": self.name,
            "flavorRef": self.flavor,
            "imageRef": IMAGE,
            "min_count": self.count,
            "max_count": self.count,
        }
        if self.zone:
            server["availability_zone"] = self.zone
        if self.simulated:
            server["metadata"] = {METADATA_KEY: self.simulated}
        body: dict[str, Any] = {"server": server}
        if self.group:
            body["os:scheduler_hints"] = {"group": group_uuids[self.group]}
        return body


CELLS = ("cell1", "cell2")

HOSTS_PER_CELL = 12
"""Hosts in each cell, unless a deployment has another number."""

MIN_HOSTS_PER_CELL = 8
"""Hosts in each cell that have room for all that is to become ACTIVE."""

SPAWN_DELAY_S = (0.2, 1.0)
"""Seconds that a spawn takes on a simulated host, at least and at most."""

FLAVORS = (
    FlavorPlan(name="demo.tiny", vcpus=1, ram=512, disk=5),
    FlavorPlan(name="demo.small", vcpus=1, ram=2048, disk=20),
    FlavorPlan(name="demo.medium", vcpus=2, ram=4096, disk=40),
    FlavorPlan(name="demo.large", vcpus=4, ram=8192, disk=80),
    FlavorPlan(name="demo.giant", vcpus=8, ram=1048576, disk=80),
)

GROUPS = tuple(GroupPlan(name=f"together-{n}", policy="affinity") for n in (1, 2, 3)) + tuple(
    GroupPlan(name=f"apart-{n}", policy="anti-affinity") for n in (1, 2, 3, 4)
)

_SIZES = ((16, 65536, 1000), (24, 98304, 1500), (32, 131072, 2000), (48, 196608, 3000))


def plan_hosts(per_cell: int = HOSTS_PER_CELL) -> tuple[HostPlan, ...]:
    """``per_cell`` for each cell, in four sizes; every third from the fourth is flaky, none of those in a zone.

    Raises ``errors.Invalid`` for so few that the workload would not fit.
    """
    if per_cell < MIN_HOSTS_PER_CELL:
        raise errors.Invalid(f"The demo needs {MIN_HOSTS_PER_CELL} hosts or more in each cell; there are {per_cell}.")
    plans = []
    for cell in CELLS:
        for number in range(1, per_cell + 1):
            vcpus, memory, disk = _SIZES[number % len(_SIZES)]
            if number == per_cell:  # the attic: hosts too small for a crowd
                vcpus, memory, disk = 4, 8192, 200
            rate = 0.3 if number % 3 == 1 and 4 <= number < per_cell else 0.0
            name = f"{cell}-host{number}"
            plans.append(HostPlan(name=name, cell=cell, vcpus=vcpus, memory_mb=memory, disk_gb=disk, failure_rate=rate))
    return tuple(plans)


def plan_zones(per_cell: int = HOSTS_PER_CELL) -> dict[str, tuple[str, ...]]:
    """The hosts of each zone."""
    return {
        "north": tuple(f"{cell}-host{number}" for cell in CELLS for number in (1, 2, 3)),
        "attic": tuple(f"{cell}-host{per_cell}" for cell in CELLS),
    }


def plan_items() -> tuple[Item, ...]:
    """About 500 servers: singles, multi-creates, groups, the impossible, the unlucky and the unwanted."""
    singles = [Item(name=f"web-{n}", flavor=("demo.tiny", "demo.small", "demo.medium")[n % 3]) for n in range(120)]
    zoned = [Item(name=f"north-{n}", flavor="demo.small", zone="north") for n in range(20)]
    crowds = [
        Item(name="batch-a", flavor="demo.tiny", count=100),
        Item(name="batch-b", flavor="demo.small", count=60),
        Item(name="batch-c", flavor="demo.medium", count=40),
        Item(name="batch-d", flavor="demo.tiny", count=50),
        Item(name="batch-e", flavor="demo.large", count=20),
    ]
    together = [Item(name=f"pair-{n}", flavor="demo.tiny", count=4, group=f"together-{n}", zone="north") for n in (1, 2, 3)]
    apart = [Item(name=f"quorum-{n}", flavor="demo.small", count=5, group=f"apart-{n}") for n in (1, 2, 3)]
    impossible = [
        Item(name="giant", flavor="demo.giant", outcome=ExpectedOutcome.CANNOT_FIT),
        Item(name="attic-crowd", flavor="demo.large", count=6, zone="attic", outcome=ExpectedOutcome.CANNOT_FIT),
        Item(name="too-far-apart", flavor="demo.tiny", count=7, group="apart-4", zone="north", outcome=ExpectedOutcome.CANNOT_FIT),
    ]
    unlucky = [
        *(Item(name=f"abort-{n}", flavor="demo.tiny", simulated="abort", outcome=ExpectedOutcome.ABORTED) for n in range(4)),
        *(Item(name=f"fail-{n}", flavor="demo.tiny", simulated="fail", outcome=ExpectedOutcome.EXHAUSTED) for n in range(3)),
        Item(name="hang", flavor="demo.tiny", simulated="hang", outcome=ExpectedOutcome.EXHAUSTED),
    ]
    unwanted = [
        *(Item(name=f"gone-{n}", flavor="demo.small", outcome=ExpectedOutcome.DELETED, delete_after=n * 0.1) for n in range(16)),
        Item(name="gone-batch", flavor="demo.tiny", count=10, outcome=ExpectedOutcome.DELETED, delete_after=0.3),
        Item(name="gone-hang", flavor="demo.tiny", simulated="hang", outcome=ExpectedOutcome.DELETED, delete_after=1.0),
    ]
    # the long ones first, the rest interleaved, as tenants do
    rest = [*singles, *zoned, *crowds, *together, *apart, *impossible, *unwanted]
    stride = 7
    mixed = [item for offset in range(stride) for item in rest[offset::stride]]
    return (*unlucky, *mixed)


def total_servers() -> int:
    """Servers in all."""
    return sum(item.count for item in plan_items())
