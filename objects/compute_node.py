"""Hosts, their nodes and the services on them, as a cell records them."""

from __future__ import annotations

from typing import Any, ClassVar

from objects.base import Message, Object
from objects.selection import HostCapacity


class ComputeNode(Message, frozen=True, kw_only=True):
    """What one hypervisor node offers and what its agent counts as used: vCPUs, MiB, GiB.

    The field names are the ``stats`` of ``update_resource_stats``. ``*_used`` is the agent's own count over all guests on the node,
    whether our records know them or not. ``resources`` and ``resources_used`` are the same by custom resource class, whose names
    are ``CUSTOM_`` and then A-Z, 0-9 and _. ``reported_at`` is when it counted, in seconds since the epoch by its own clock, 0 if
    it does not say: it tells the order of the reports on one node, and nothing else.
    """

    VERSION: ClassVar[str] = "1.1"

    host: str
    node: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    vcpus_used: int = 0
    memory_mb_used: int = 0
    disk_gb_used: int = 0
    cpu_allocation_ratio: float = 4.0
    ram_allocation_ratio: float = 1.0
    disk_allocation_ratio: float = 1.0
    reserved_memory_mb: int = 0
    reserved_disk_gb: int = 0
    running_vms: int = 0
    queued_builds: int = 0
    hypervisor_type: str = ""
    hypervisor_version: int = 0
    failed_builds: float = 0.0
    attributes: dict[str, Any] = {}
    reported_at: float = 0.0
    resources: dict[str, int] = {}
    resources_used: dict[str, int] = {}

    @property
    def capacity(self) -> HostCapacity:
        """What the node may hold in all: what is reserved taken off first, then the allocation ratio, as Placement has it."""
        return HostCapacity(
            vcpus=self.vcpus * self.cpu_allocation_ratio,
            memory_mb=max(0, self.memory_mb - self.reserved_memory_mb) * self.ram_allocation_ratio,
            disk_gb=max(0, self.disk_gb - self.reserved_disk_gb) * self.disk_allocation_ratio,
            resources={name: amount for name, amount in self.resources.items() if amount},
        )


class Service(Object, frozen=True, kw_only=True):
    """One process of a role. ``report_count`` rises with every heartbeat: readers judge by their own clock when it last rose.

    ``stopping``: its last heartbeat said that it takes no more orders. ``last_seen`` and ``started_at`` are of the database's
    clock, as is all they may be compared with. ``release``, ``messages``, ``pid``: what its process said of itself, if it did.
    ``identified``: whether the broker showed the process to be the host's when it started; None: it did not introduce itself.
    """

    uuid: str
    host: str
    binary: str
    report_count: int
    last_seen: float
    disabled: bool = False
    disabled_reason: str | None = None
    forced_down: bool = False
    version: int = 1
    stopping: bool = False
    release: str | None = None
    messages: str | None = None
    pid: int | None = None
    started_at: float | None = None
    identified: bool | None = None

    @property
    def is_shared(self) -> bool:
        """Whether it has introduced itself, and the broker did not show it to be the host's: others could speak for it."""
        return self.release is not None and not self.identified
