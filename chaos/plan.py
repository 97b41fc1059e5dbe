"""The load: what is asked for, when, and what must come of it. A function of its seed."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from cli.standalone.demo.boots import IMAGE, Act, Expected, FlavorPlan, GroupPlan, PlannedBoot
from compute.simulated import SpawnOutcome
from objects.group import GroupPolicy

PROJECT = "chaos"
MISSING_IMAGE = "70a599e0-31e7-49b7-b260-868f441e862c"
"""No image: real hosts cannot build from it."""


SMALL = FlavorPlan(name="chaos.small", vcpus=1, ram=64)
LARGE = FlavorPlan(name="chaos.large", vcpus=2, ram=128)
GIANT = FlavorPlan(name="chaos.giant", vcpus=1, ram=1 << 30)
"""On no host is there room for it."""
FLAVORS = (SMALL, LARGE, GIANT)


class Boot(PlannedBoot, frozen=True, kw_only=True):
    """A boot ``at`` seconds after the load began. ``repeats``: its POST is sent again once it was answered.

    On real hosts no script can make it fail: only ``image`` can.
    """

    number: int
    at: float
    flavor: FlavorPlan = SMALL
    repeats: bool = False

    @property
    def request_name(self) -> str:
        return f"chaos-{self.number}"


SCRIPTED = (
    (SpawnOutcome.FAIL, Expected.EXHAUSTED),
    (SpawnOutcome.ERROR, Expected.EXHAUSTED),
    (SpawnOutcome.POLICY, Expected.EXHAUSTED),
    (SpawnOutcome.HANG, Expected.EXHAUSTED),
    (SpawnOutcome.ABORT, Expected.ABORTED),
)
PASSING = (SpawnOutcome.FAIL, SpawnOutcome.ERROR, SpawnOutcome.POLICY)
"""What another host does not do: such a boot is retried in its cell."""
BAD_HOSTS_PER_CELL = 2
"""Hosts of each cell on which it fails: one less than the attempts there are."""
GROUP_SIZE_LIMITS = {GroupPolicy.AFFINITY: 6, GroupPolicy.ANTI_AFFINITY: 3}
"""Servers of one group. Of three that must be apart, a retry finds a free host in the cell even while others are down."""


def plan_boots(seed: int, rate: float, duration: float, cells: Sequence[Sequence[str]], *, real: bool = False) -> tuple[Boot, ...]:
    """``rate`` requests a second, at random moments, over ``duration`` seconds. ``cells``: the names of the hosts of each.

    ``real``: the hosts are no simulated ones, so that no script can tell them what to do.
    """
    # Apart from the schedule of faults: another choice of faults leaves the load as it is.
    chance = random.Random(f"load {seed}")
    moments = sorted(chance.uniform(0.0, duration) for _ in range(max(1, round(rate * duration))))
    groups = _Groups()
    planned = (_plan_boot(chance, number, at, groups, cells) for number, at in enumerate(moments))
    return tuple(_as_unscripted(boot) if real else boot for boot in planned)


def _as_unscripted(boot: Boot) -> Boot:
    """The same for real hosts: what must fail on all hosts has no image. What fails on some only is an ordinary boot there."""
    fails = boot.simulated is not None and boot.expected in (Expected.EXHAUSTED, Expected.ABORTED)
    if not fails:
        return msgspec.structs.replace(boot, simulated=None)
    return msgspec.structs.replace(boot, simulated=None, image=MISSING_IMAGE, expected=Expected.ABORTED)


class _Groups:
    """Groups, each given out until it is full."""

    def __init__(self) -> None:
        self._group_count = 0
        self._open: dict[GroupPolicy, tuple[GroupPlan, int]] = {}

    def take_group(self, policy: GroupPolicy, count: int) -> GroupPlan:
        """A group of this policy with room for ``count`` more."""
        group, members = self._open.get(policy, (None, 0))
        if group is None or members + count > GROUP_SIZE_LIMITS[policy]:
            self._group_count += 1
            group, members = GroupPlan(name=f"group-{self._group_count}", policy=policy), 0
        self._open[policy] = (group, members + count)
        return group


def _plan_boot(chance: random.Random, number: int, at: float, groups: _Groups, cells: Sequence[Sequence[str]]) -> Boot:
    values: dict[str, Any] = {"number": number, "at": round(at, 3), "repeats": chance.random() < 0.1}
    kind = chance.random()
    if kind < 0.06:
        outcome, expected = chance.choice(SCRIPTED)
        values |= {"simulated": str(outcome), "expected": expected}
    elif kind < 0.08:
        values |= {"flavor": GIANT, "expected": Expected.NO_VALID_HOST}
    elif kind < 0.22:
        policy = chance.choice(list(GROUP_SIZE_LIMITS))
        count = chance.randint(1, GROUP_SIZE_LIMITS[policy] // 2)
        values |= {"count": count, "group": groups.take_group(policy, count)}
    elif kind < 0.30:
        bad = (host for hosts in cells for host in chance.sample(list(hosts), min(BAD_HOSTS_PER_CELL, len(hosts) - 1)))
        values |= {"simulated": f"{chance.choice(PASSING)}:{','.join(bad)}"}
    elif kind < 0.34:
        bad = (host for hosts in cells for host in chance.sample(list(hosts), 1))
        values |= {"count": chance.randint(2, 6), "all_or_nothing": True, "expected": Expected.TOGETHER}
        return Boot(**values, simulated=f"{SpawnOutcome.ABORT}:{','.join(bad)}")
    elif kind < 0.49:
        values |= {"count": chance.randint(2, 8), "flavor": chance.choice((SMALL, LARGE))}
    else:
        values |= {"flavor": chance.choice((SMALL, LARGE))}
    if chance.random() < 0.35:
        values |= {"deletes": chance.randint(1, values.get("count", 1)), "delete_after": round(chance.expovariate(1 / 6.0), 3)}
    if "expected" not in values and chance.random() < 0.4:
        values["acts"] = _plan_acts(chance)
    return Boot(**values)


CROSS_CELL = {"superconductor:cross_cell": True}
ACTS: tuple[tuple[str, Any], ...] = (
    ("os-stop", None),
    ("os-start", None),
    ("reboot", {"type": "HARD"}),
    ("migrate", {"superconductor:verify": False}),
    ("migrate", CROSS_CELL),
    ("os-migrateLive", {"host": None, "block_migration": True}),
    ("os-migrateLive", {"host": None, "block_migration": True} | CROSS_CELL),
    ("shelve", None),
    ("resize", {"flavorRef": LARGE.name} | CROSS_CELL),
    ("resize", {"flavorRef": SMALL.name}),
    ("confirmResize", None),
    ("revertResize", None),
    ("rebuild", {"imageRef": IMAGE}),
)
"""What is done to servers, whatever they are at: what they are not ready for is refused."""


UNSHELVE_AFTER_S = 8.0
"""Seconds after which a server is unshelved, if it is shelved by then."""


def _plan_acts(chance: random.Random) -> tuple[Act, ...]:
    after, acts = 0.0, []
    for _ in range(chance.randint(1, 6)):
        after += round(chance.expovariate(1 / 5.0), 3)
        name, value = chance.choice(ACTS)
        if name == "rebuild":  # an image of its own, which shows whether the disk is the new one
            value = {"imageRef": str(uuid.UUID(int=chance.getrandbits(128), version=4))}
        acts.append(Act(after=after, name=name, value=value))
        if name == "shelve":
            acts.append(Act(after=after + UNSHELVE_AFTER_S, name="unshelve"))
    return tuple(acts)


def groups_of(planned: Sequence[Boot]) -> tuple[GroupPlan, ...]:
    """Every group that the boots name, once."""
    return tuple({boot.group.name: boot.group for boot in planned if boot.group is not None}.values())


def images_of(planned: Sequence[Boot]) -> tuple[str, ...]:
    """Every image that servers are made from, once."""
    rebuilt = (act.value["imageRef"] for boot in planned for act in boot.acts if act.name == "rebuild")
    return tuple(dict.fromkeys((IMAGE, *rebuilt)))


def vcpus_of(planned: Sequence[Boot]) -> int:
    """Virtual CPUs of everything together."""
    return sum(boot.count * boot.flavor.vcpus for boot in planned if boot.expected is not Expected.NO_VALID_HOST)


def memory_of(planned: Sequence[Boot]) -> int:
    """MiB of everything together."""
    return sum(boot.count * boot.flavor.ram for boot in planned if boot.expected is not Expected.NO_VALID_HOST)
