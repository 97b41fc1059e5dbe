"""Records that plans and claims share: the capacity of hosts, the claims on it, and the hosts that server groups hold."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from objects.base import Object
from objects.selection import Selection


class Inventory(Object, frozen=True, kw_only=True):
    """One ``(host, node)`` in the ledger of claims. Capacities exclude reserved amounts and include allocation ratios.

    ``generation`` rises with every change. ``writer`` and ``sequence`` identify the process that made the last one, and its count.
    ``service_event``: a scheduler chooses the host only if it has read the cell's feed up to this event.
    vCPUs, MiB, GiB; ``resources`` by custom resource class. ``instances`` counts claims. Usage may exceed capacity, because a move
    is always recorded.
    """

    id: int
    host: str
    node: str
    cell_uuid: str
    generation: int
    cap_vcpus: float
    cap_memory_mb: float
    cap_disk_gb: float
    used_vcpus: int = 0
    used_memory_mb: int = 0
    used_disk_gb: int = 0
    instances: int = 0
    writer: int = 0
    sequence: int = 0
    cap_resources: dict[str, int] = {}
    used_resources: dict[str, int] = {}
    service_event: int = 0


Amounts = tuple[dict[str, int], dict[str, int]]
"""Of custom resource classes: capacity and usage, by the names of classes."""


class InventoryColumns(NamedTuple):
    """Inventories by column: lists of equal length of what ``Inventory`` calls so.

    ``resources``: by id, of those that have custom resource classes.
    """

    id: list[int]
    host: list[str]
    node: list[str]
    generation: list[int]
    cap_vcpus: list[float]
    cap_memory_mb: list[float]
    cap_disk_gb: list[float]
    used_vcpus: list[int]
    used_memory_mb: list[int]
    used_disk_gb: list[int]
    instances: list[int]
    service_event: list[int]
    resources: dict[int, Amounts]

    @classmethod
    def of_rows(cls, rows: Sequence[Inventory]) -> InventoryColumns:
        """These inventories by column."""
        resources = {row.id: (row.cap_resources, row.used_resources) for row in rows if row.cap_resources or row.used_resources}
        lists: Any = {name: list(map(attrgetter(name), rows)) for name in cls._fields if name != "resources"}
        return cls(resources=resources, **lists)


class Slot(Object, frozen=True, kw_only=True):
    """A member of a server group on a host. ``held``: an alternate kept free until the member's build ends.

    ``moving``: of a body that users do not see, because its server moves or is deleted. Only where placements read it.
    ``fault_domain``: members of different ones are on different racks; None: of none.
    """

    group_uuid: str
    instance_uuid: str
    host: str
    held: bool = False
    moving: bool = False
    fault_domain: str | None = None


class GroupSlots(Object, frozen=True, kw_only=True):
    """The slots of one server group, as placements need them: a group may have thousands.

    ``slots``: some of them, with their instances. Of all others only the hosts are known: ``placed`` of members, ``held`` of
    alternates, a line for each slot. ``in_domains``: fault domain and host of each of these others that is in one.
    """

    group_uuid: str
    slots: tuple[Slot, ...] = ()
    placed: str = ""
    held: str = ""
    in_domains: tuple[tuple[str, str], ...] = ()


class Placement(Object, frozen=True, kw_only=True):
    """One instance on one inventory, with the selections to return for it.

    ``held``: hosts of alternates that its strict group holds for it.
    """

    instance_uuid: str
    inventory_id: int
    selections: tuple[Selection, ...]
    held: tuple[str, ...] = ()


class Standing(Object, frozen=True, kw_only=True):
    """The state of a batch's requests when their claims are made.

    ``kept``: they have a claim, whose selections are returned again. ``needed``: they have no claim, or one to be replaced.
    ``gone``: they are no longer leased under the given fence, so nothing may be written for them.
    """

    kept: dict[str, tuple[Selection, ...]] = {}
    needed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
