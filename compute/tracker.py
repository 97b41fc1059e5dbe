"""What the host can hold, and what it holds: the last word against over-commit."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from compute.driver import Guest
from objects.base import Object
from objects.compute_node import ComputeNode
from objects.selection import Limits

FAILURE_HALF_LIFE = 600.0
"""Seconds after which a failed build weighs half in ``failed_builds``: a host that was mended is not shunned for ever."""


class Claim(Object, frozen=True, kw_only=True):
    """What one guest, or one build on its way to a guest, takes of its node."""

    node: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    spawned: bool = False


class ResourceTracker:
    """Counts guests and builds under way per node. Every method is one short step under one lock, without I/O.

    A claim is tested against the order's limits AND the node's own capacity, whichever is less: limits were computed from what some
    scheduler knew of this host some time ago, and this host is where an over-commit would hurt.
    """

    def __init__(self, nodes: Sequence[ComputeNode]) -> None:
        self._lock = threading.Lock()
        self._nodes = {node.node: node for node in nodes}
        self._claims: dict[str, Claim] = {}
        self._failed = 0.0
        self._failed_at = 0.0

    def claim(self, guest: Guest, limits: Limits | None = None) -> str | None:
        """Take the guest's resources; or return, as one sentence, why they are refused, and take nothing."""
        with self._lock:
            node = self._nodes.get(guest.node)
            if node is None:
                return f"This host has no node {guest.node!r}."
            refusal = _refusal(guest, self._used(guest.node), node.capacity, limits)
            if refusal is None:
                self._claims[guest.uuid] = _claim_of(guest, spawned=False)
            return refusal

    def hold(self, guest: Guest) -> None:
        """Count a guest that runs: always recorded, over-full or not, because it is a fact."""
        with self._lock:
            self._claims[guest.uuid] = _claim_of(guest, spawned=True)

    def release(self, uuid: str) -> None:
        """Give back what this uuid took, if anything."""
        with self._lock:
            self._claims.pop(uuid, None)

    def build_failed(self, now: float) -> None:
        """Remember that a spawn failed by this host's fault. ``now``: any clock in seconds, the same as for ``stats``."""
        with self._lock:
            self._failed = self._failed_by(now) + 1.0
            self._failed_at = now

    def stats(self, queued_builds: int, now: float) -> list[ComputeNode]:
        """The nodes as the scheduler should know them. Used is what guests take; a build under way is the claims' to count."""
        with self._lock:
            failed = float(round(self._failed_by(now)))
            return [self._stats_of(node, queued_builds, failed) for node in self._nodes.values()]

    def _stats_of(self, node: ComputeNode, queued_builds: int, failed_builds: float) -> ComputeNode:
        spawned = [claim for claim in self._claims.values() if claim.node == node.node and claim.spawned]
        return msgspec.structs.replace(
            node,
            vcpus_used=sum(claim.vcpus for claim in spawned),
            memory_mb_used=sum(claim.memory_mb for claim in spawned),
            disk_gb_used=sum(claim.disk_gb for claim in spawned),
            running_vms=len(spawned),
            queued_builds=queued_builds,
            failed_builds=failed_builds,
        )

    def _used(self, node: str) -> Limits:
        claims = [claim for claim in self._claims.values() if claim.node == node]
        return Limits(
            vcpus=sum(claim.vcpus for claim in claims),
            memory_mb=sum(claim.memory_mb for claim in claims),
            disk_gb=sum(claim.disk_gb for claim in claims),
        )

    def _failed_by(self, now: float) -> float:
        return float(self._failed * 0.5 ** (max(0.0, now - self._failed_at) / FAILURE_HALF_LIFE))


def _refusal(guest: Guest, used: Limits, offered: Limits, limits: Limits | None) -> str | None:
    """Why the guest does not fit, naming everything that is short."""
    limits = limits or offered
    rows = (
        ("vCPUs", used.vcpus, guest.vcpus, min(offered.vcpus, limits.vcpus)),
        ("MiB of memory", used.memory_mb, guest.memory_mb, min(offered.memory_mb, limits.memory_mb)),
        ("GiB of disk", used.disk_gb, guest.disk_gb, min(offered.disk_gb, limits.disk_gb)),
    )
    short = [f"{name} ({have:g} used + {want:g} > {most:g})" for name, have, want, most in rows if have + want > most]
    return f"No room for {', '.join(short)}." if short else None


def _claim_of(guest: Guest, *, spawned: bool) -> Claim:
    return Claim(node=guest.node, vcpus=guest.vcpus, memory_mb=guest.memory_mb, disk_gb=guest.disk_gb, spawned=spawned)
