"""The capacity and usage of the host: the final check against over-commit."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from compute.driver import Guest
from objects import numa
from objects.amounts import Amounts
from objects.base import Object
from objects.compute_node import ComputeNode
from objects.selection import HostCapacity


class NodeClaim(Object, frozen=True, kw_only=True):
    """The resources that a guest, or a build under way, takes of its node."""

    node: str
    takes: Amounts
    spawned: bool = False


@dataclass(slots=True)
class NodeUsage:
    """The sum of some claims on one node, updated incrementally: a full host answers as fast as an empty one."""

    claims: int = 0
    vcpus: int = 0
    memory_mb: int = 0
    disk_gb: int = 0
    resources: dict[str, int] = field(default_factory=dict)

    def add_claim(self, takes: Amounts, sign: int = 1) -> None:
        """Add one claim, or with ``sign`` -1 subtract one."""
        self.claims += sign
        self.vcpus += sign * takes.vcpus
        self.memory_mb += sign * takes.memory_mb
        self.disk_gb += sign * takes.disk_gb
        for name, amount in takes.resources.items():
            remaining = self.resources.get(name, 0) + sign * amount
            if remaining:
                self.resources[name] = remaining
            else:
                self.resources.pop(name, None)


class ResourceTracker:
    """Counts guests and builds under way per node. Every method is one short step under one lock, without I/O.

    A claim is tested against the lower of the order's limits and the node's own capacity. A scheduler computed the limits earlier,
    from what it then knew of this host; only this check can prevent an over-commit.
    """

    def __init__(self, nodes: Sequence[ComputeNode], half_life: float = 600.0, clock: Callable[[], float] = time.monotonic) -> None:
        """``half_life``: seconds after which a failed build counts half in ``failed_builds``, so that a repaired host is used
        again.

        ``clock``: seconds; only differences matter.
        """
        self._lock = threading.Lock()
        self._half_life = half_life
        self._clock = clock
        self._nodes = {node.node: node for node in nodes}
        self._claims: dict[str, NodeClaim] = {}
        self._used: defaultdict[str, NodeUsage] = defaultdict(NodeUsage)
        """By node, the sum of all claims."""
        self._spawned: defaultdict[str, NodeUsage] = defaultdict(NodeUsage)
        """By node, the sum of the claims whose guest runs."""
        self._failed = 0.0
        self._failed_at = 0.0

    def set_nodes(self, nodes: Sequence[ComputeNode]) -> None:
        """The host's nodes now. Claims stay, also on a node that has less or is gone."""
        with self._lock:
            self._nodes = {node.node: node for node in nodes}

    def claim_resources(self, guest: Guest, limits: HostCapacity | None = None) -> str | None:
        """Take the guest's resources. If they are refused, take nothing and return the reason as one sentence."""
        with self._lock:
            node = self._nodes.get(guest.node)
            if node is None:
                return f"This host has no node {guest.node!r}."
            claim = NodeClaim(node=guest.node, takes=guest.taken_amounts)
            used = self._used[guest.node]
            refusal = _refusal_text(claim.takes, used, _with_guests(node, used.claims + 1).total_capacity, limits)
            if refusal is None:
                self._replace_claim(guest.uuid, claim)
            return refusal

    def hold_resources(self, guest: Guest) -> None:
        """Count a running guest. It is always recorded, even if the node is then over-committed."""
        with self._lock:
            self._replace_claim(guest.uuid, NodeClaim(node=guest.node, takes=guest.taken_amounts, spawned=True))

    def release_resources(self, uuid: str) -> None:
        """Release the resources of this uuid, if any."""
        with self._lock:
            self._replace_claim(uuid, None)

    def build_failed(self) -> None:
        """Remember that a spawn failed by this host's fault."""
        with self._lock:
            now = self._clock()
            self._failed = self._failed_by(now) + 1.0
            self._failed_at = now

    @property
    def has_failed(self) -> bool:
        """Whether failed builds count, which changes with time alone."""
        with self._lock:
            return self._failed_by(self._clock()) >= 0.5  # less is rounded to none

    def report_nodes(self, queued_builds: int) -> list[ComputeNode]:
        """The nodes as reported to the scheduler. Usage counts running guests only; the claims count builds under way.

        Failed builds are rounded to whole numbers, so that their decay alone is not a change every few seconds.
        """
        with self._lock:
            failed = float(round(self._failed_by(self._clock())))
            return [self._stats_of(node, queued_builds, failed) for node in self._nodes.values()]

    def _stats_of(self, node: ComputeNode, queued_builds: int, failed_builds: float) -> ComputeNode:
        used = self._spawned[node.node]
        return msgspec.structs.replace(
            _with_guests(node, used.claims),
            vcpus_used=used.vcpus,
            memory_mb_used=used.memory_mb,
            disk_gb_used=used.disk_gb,
            resources_used=dict(sorted(numa.without_nodes(used.resources).items())),
            running_vms=used.claims,
            queued_builds=queued_builds,
            failed_builds=failed_builds,
        )

    def _replace_claim(self, uuid: str, claim: NodeClaim | None) -> None:
        """Set the claim of this uuid; None removes it."""
        before = self._claims.pop(uuid, None)
        for one, sign in ((before, -1), (claim, 1)):
            if one is not None:
                self._used[one.node].add_claim(one.takes, sign)
                if one.spawned:
                    self._spawned[one.node].add_claim(one.takes, sign)
        if claim is not None:
            self._claims[uuid] = claim

    def _failed_by(self, now: float) -> float:
        return float(self._failed * 0.5 ** (max(0.0, now - self._failed_at) / self._half_life))


def _with_guests(node: ComputeNode, guests: int) -> ComputeNode:
    """The node with this many guests, for each of which its hypervisor takes memory too."""
    if not node.guest_overhead_mb:
        return node
    return msgspec.structs.replace(node, reserved_memory_mb=node.reserved_memory_mb + guests * node.guest_overhead_mb)


def _refusal_text(wanted_amounts: Amounts, used: NodeUsage, offered: HostCapacity, limits: HostCapacity | None) -> str | None:
    """Why a guest does not fit, with every resource that is short. A resource that the guest does not use is never short."""
    limits = limits or offered
    rows: list[tuple[str, int, int, float]] = [
        ("vCPUs", used.vcpus, wanted_amounts.vcpus, min(offered.vcpus, limits.vcpus)),
        ("MiB of memory", used.memory_mb, wanted_amounts.memory_mb, min(offered.memory_mb, limits.memory_mb)),
        ("GiB of disk", used.disk_gb, wanted_amounts.disk_gb, min(offered.disk_gb, limits.disk_gb)),
    ]
    for name, want in wanted_amounts.resources.items():
        most = offered.resources.get(name, 0)
        rows.append((name, _used_of(name, used), want, min(most, limits.resources.get(name, most))))
    short = [f"{name} ({have:g} used + {want:g} > {most:g})" for name, have, want, most in rows if want and have + want > most]
    return f"No room for {', '.join(short)}." if short else None


def _used_of(name: str, used: NodeUsage) -> int:
    """What is used of a resource class. On a NUMA node, guests that are tied to none count too: they may use any."""
    node = numa.node_of_class(name)
    if node is None:
        return used.resources.get(name, 0)
    resource_index = numa.class_names(node).index(name)
    tied = sum(used.resources.get(numa.class_names(number)[resource_index], 0) for number in range(numa.HOST_NODES_LIMIT))
    return used.resources.get(name, 0) + max((used.vcpus, used.memory_mb)[resource_index] - tied, 0)
