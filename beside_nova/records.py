"""What is read of Nova and Placement, as plain records."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

CELL0_UUID = "00000000-0000-0000-0000-000000000000"
SHARING_TRAIT = "MISC_SHARES_VIA_AGGREGATE"
DISABLED_TRAIT = "COMPUTE_STATUS_DISABLED"


class NovaCell(NamedTuple):
    """A row of ``cell_mappings``. ``number``: its id. ``connection``: URL or template of its database, with passwords."""

    number: int
    uuid: str
    name: str
    connection: str
    disabled: bool


class NovaAggregate(NamedTuple):
    """A host aggregate of Nova. ``uuid``: also of the same aggregate in Placement."""

    number: int
    uuid: str
    name: str
    hosts: tuple[str, ...]
    metadata: Mapping[str, str]


class ApiFacts(NamedTuple):
    """What operators have set up. ``homes``: the cell's number by host."""

    cells: tuple[NovaCell, ...]
    homes: Mapping[str, int]
    aggregates: tuple[NovaAggregate, ...]


class NovaNode(NamedTuple):
    """A row of ``compute_nodes``. Sizes in vCPUs, MiB, GiB. ``changed_at``: of its last report, UTC."""

    uuid: str
    host: str
    node: str
    vcpus: int
    memory_mb: int
    local_gb: int
    hypervisor_type: str
    hypervisor_version: int
    supported_instances: str
    stats: str
    host_ip: str
    running_vms: int
    changed_at: datetime


class NovaService(NamedTuple):
    """The ``nova-compute`` of a host. ``seen_at``: of its last heartbeat, UTC."""

    host: str
    disabled: bool
    forced_down: bool
    seen_at: datetime


class InventoryRecord(NamedTuple):
    """What a provider has of one resource class. Capacity is ``(total - reserved) * allocation_ratio``, as in Placement."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float

    @property
    def usable_amount(self) -> float:
        return (self.total - self.reserved) * self.allocation_ratio


class Provider(NamedTuple):
    """A resource provider. ``root``: the number of the root of its tree; its own number if it is one.

    ``inventory`` and ``used``: by resource class. ``consumers``: number of servers and migrations with allocations on it.
    ``aggregates``: UUIDs.
    """

    number: int
    uuid: str
    name: str
    generation: int
    root: int
    inventory: Mapping[str, InventoryRecord]
    used: Mapping[str, int]
    consumers: int
    traits: frozenset[str]
    aggregates: frozenset[str]

    @property
    def is_root(self) -> bool:
        return self.root == self.number


class NovaInstance(NamedTuple):
    """A row of ``instances``. ``cell``: the name of its cell. Times are UTC; ``ended_at`` None: it still exists."""

    uuid: str
    name: str
    project_id: str
    host: str
    node: str
    vm_state: str
    task_state: str
    zone: str
    cell: str
    created_at: datetime | None
    launched_at: datetime | None
    ended_at: datetime | None
    vcpus: int
    memory_mb: int
    disk_gb: int


class NovaGroup(NamedTuple):
    """A server group. ``max_server_per_host``: a rule of anti-affinity."""

    uuid: str
    name: str
    project_id: str
    policy: str
    max_server_per_host: int
    members: tuple[str, ...]


class NovaMigration(NamedTuple):
    """A row of ``migrations``. ``uuid``: also of the consumer that holds the room on its source."""

    uuid: str
    instance_uuid: str
    status: str
