"""What the demo builds and what must come of it. Everything is a function of the plan, so a resumed run expects the same."""

from __future__ import annotations

from cli.standalone.demo.boots import Expected, FlavorPlan, GroupPlan, PlannedBoot
from cli.standalone.demo.site import HostPlan
from objects import errors
from objects.group import GroupPolicy

PROJECT = "demo"


class Item(PlannedBoot, frozen=True, kw_only=True):
    """One POST, by whose name a resumed run finds its servers."""

    name: str

    @property
    def request_name(self) -> str:
        return self.name


CELLS = ("cell1", "cell2")

HOSTS_PER_CELL = 12
"""Hosts in each cell, unless a deployment has another number."""

MIN_HOSTS_PER_CELL = 8
"""Hosts in each cell that have room for all that is to become ACTIVE."""

SPAWN_DELAY_S = (0.2, 1.0)
"""Seconds that a spawn takes on a simulated host, at least and at most."""

TINY = FlavorPlan(name="demo.tiny", vcpus=1, ram=512, disk=5)
SMALL = FlavorPlan(name="demo.small", vcpus=1, ram=2048, disk=20)
MEDIUM = FlavorPlan(name="demo.medium", vcpus=2, ram=4096, disk=40)
LARGE = FlavorPlan(name="demo.large", vcpus=4, ram=8192, disk=80)
GIANT = FlavorPlan(name="demo.giant", vcpus=8, ram=1048576, disk=80)
FLAVORS = (TINY, SMALL, MEDIUM, LARGE, GIANT)

TOGETHER = tuple(GroupPlan(name=f"together-{n}", policy=GroupPolicy.AFFINITY) for n in (1, 2, 3))
APART = tuple(GroupPlan(name=f"apart-{n}", policy=GroupPolicy.ANTI_AFFINITY) for n in (1, 2, 3, 4))
GROUPS = TOGETHER + APART

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
    singles = [Item(name=f"web-{n}", flavor=(TINY, SMALL, MEDIUM)[n % 3]) for n in range(120)]
    zoned = [Item(name=f"north-{n}", flavor=SMALL, zone="north") for n in range(20)]
    crowds = [
        Item(name="batch-a", flavor=TINY, count=100),
        Item(name="batch-b", flavor=SMALL, count=60),
        Item(name="batch-c", flavor=MEDIUM, count=40),
        Item(name="batch-d", flavor=TINY, count=50),
        Item(name="batch-e", flavor=LARGE, count=20),
    ]
    together = [Item(name=f"pair-{n + 1}", flavor=TINY, count=4, group=group, zone="north") for n, group in enumerate(TOGETHER)]
    apart = [Item(name=f"quorum-{n + 1}", flavor=SMALL, count=5, group=group) for n, group in enumerate(APART[:3])]
    impossible = [
        Item(name="giant", flavor=GIANT, expected=Expected.NO_VALID_HOST),
        Item(name="attic-crowd", flavor=LARGE, count=6, zone="attic", expected=Expected.NO_VALID_HOST),
        Item(name="too-far-apart", flavor=TINY, count=7, group=APART[3], zone="north", expected=Expected.NO_VALID_HOST),
    ]
    unlucky = [
        *(Item(name=f"abort-{n}", flavor=TINY, simulated="abort", expected=Expected.ABORTED) for n in range(4)),
        *(Item(name=f"fail-{n}", flavor=TINY, simulated="fail", expected=Expected.EXHAUSTED) for n in range(3)),
        Item(name="hang", flavor=TINY, simulated="hang", expected=Expected.EXHAUSTED),
    ]
    unwanted = [
        *(Item(name=f"gone-{n}", flavor=SMALL, deletes=1, delete_after=n * 0.1) for n in range(16)),
        Item(name="gone-batch", flavor=TINY, count=10, deletes=10, delete_after=0.3),
        Item(name="gone-hang", flavor=TINY, simulated="hang", deletes=1, delete_after=1.0),
    ]
    # the long ones first, the rest interleaved, as tenants do
    rest = [*singles, *zoned, *crowds, *together, *apart, *impossible, *unwanted]
    stride = 7
    mixed = [item for offset in range(stride) for item in rest[offset::stride]]
    return (*unlucky, *mixed)


def total_servers() -> int:
    """Servers in all."""
    return sum(item.count for item in plan_items())
