"""Where the vCPUs and the memory of a guest go on the host: NUMA cells, dedicated CPUs, huge pages."""

from __future__ import annotations

from objects.base import Object


class TakenMemory(Object, frozen=True, kw_only=True):
    """Memory of one guest in one NUMA cell of the host. ``page_kib``: the page size in KiB."""

    cell: int
    page_kib: int
    memory_mb: int


class Taken(Object, frozen=True, kw_only=True):
    """What one guest keeps from all others: host CPUs for itself, and memory in NUMA cells. Empty for most guests.

    It stands in the metadata of the guest's domain.
    """

    cpus: tuple[int, ...] = ()
    memory: tuple[TakenMemory, ...] = ()
