"""Hosts, their nodes and their services, as a cell records them."""

from __future__ import annotations

from typing import Any, ClassVar

from objects import numa
from objects.base import Message, Object
from objects.numa import HostNumaNode
from objects.selection import HostCapacity


class ComputeNode(Message, frozen=True, kw_only=True):
    """The capacity of one hypervisor node, and the usage counted by its agent: vCPUs, MiB, GiB.

    The field names are the ``stats`` of ``update_resource_stats``. ``*_used`` is the agent's count over all guests on the node,
    whether the cell has records of them or not. ``resources`` and ``resources_used`` are the same by custom resource class; its
    name is ``CUSTOM_`` followed by A-Z, 0-9 and _. ``reported_at``: when the agent counted, in seconds since the epoch by its own
    clock; 0: unknown. It only orders the reports on one node. ``guest_overhead_mb``: MiB that the hypervisor takes for each guest
    beside the guest's memory; in a report, ``reserved_memory_mb`` contains it for the guests that run. ``booted_at``: when the
    machine was started, in seconds since the epoch by its own clock; 0: unknown. ``numa_nodes``: those that servers are to be tied
    to, in the order of their numbers; empty: servers are tied to none.
    """

    VERSION: ClassVar[str] = "1.4"

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
    guest_overhead_mb: int = 0
    booted_at: float = 0.0
    numa_nodes: tuple[HostNumaNode, ...] = ()

    @property
    def total_capacity(self) -> HostCapacity:
        """The node's total capacity: the reserved amount is subtracted first, then the allocation ratio applied, as in
        Placement.
        """
        vcpus = self.vcpus * self.cpu_allocation_ratio
        memory_mb = max(0, self.memory_mb - self.reserved_memory_mb) * self.ram_allocation_ratio
        resources = {name: amount for name, amount in self.resources.items() if amount}
        if self.numa_nodes:
            resources |= {
                name: amount for name, amount in numa.offered_by_class(self.numa_nodes, vcpus, memory_mb).items() if amount
            }
        return HostCapacity(
            vcpus=vcpus,
            memory_mb=memory_mb,
            disk_gb=max(0, self.disk_gb - self.reserved_disk_gb) * self.disk_allocation_ratio,
            resources=resources,
        )


class Service(Object, frozen=True, kw_only=True):
    """One process of a role. ``report_count`` rises with every heartbeat: readers note by their own clock when it last rose.

    ``stopping``: its last heartbeat said that it takes no more orders. ``last_seen`` and ``started_at`` are times of the database's
    clock; compare them only with that clock. ``release``, ``messages``, ``pid``: reported by its process, if at all.
    ``identified``: whether the broker confirmed at start that the process is the host's; None: it did not introduce itself.
    ``machine``: the ID of the machine that runs as the host, with its name; None: its agent is of an older release. ``refused``: a
    stored ``objects.machine.RefusedMachine``.
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
    machine: str | None = None
    machine_name: str | None = None
    refused: str | None = None

    @property
    def is_shared(self) -> bool:
        """Whether it has introduced itself without the broker's confirmation that it is the host's: others could impersonate
        it.
        """
        return self.release is not None and not self.identified
