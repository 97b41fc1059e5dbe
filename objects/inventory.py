"""What hosts offer, what is claimed of it, and which group holds which host: the records that plans and claims share."""

from __future__ import annotations

from objects.base import Object
from objects.selection import Selection


class Inventory(Object, frozen=True, kw_only=True):
    """One ``(host, node)`` in the ledger of claims. Capacities are with allocation ratios applied and what is reserved taken off.

    ``generation`` rises with every change; ``writer`` and ``sequence`` say which process made the last one, in its own count.
    vCPUs, MiB, GiB; ``resources`` by custom resource class. ``instances`` counts claims. Used may exceed capacity: a move records a
    fact.
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


class Slot(Object, frozen=True, kw_only=True):
    """A member of a server group on a host. ``held``: an alternate kept free until the member's build ends."""

    group_uuid: str
    instance_uuid: str
    host: str
    held: bool = False


class Placement(Object, frozen=True, kw_only=True):
    """One instance on one inventory, with the answer to be given for it.

    ``held``: hosts of alternates that its strict group holds for it.
    """

    instance_uuid: str
    inventory_id: int
    selections: tuple[Selection, ...]
    held: tuple[str, ...] = ()


class Standing(Object, frozen=True, kw_only=True):
    """How the requests of one batch stand when their claims are to be made.

    ``kept``: they have a claim, whose answer is given again. ``needed``: no claim yet, or one that is to be replaced. ``gone``: no
    longer leased under the fence given, so nothing may be written for them.
    """

    kept: dict[str, tuple[Selection, ...]] = {}
    needed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
