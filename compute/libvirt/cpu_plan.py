"""Where the vCPUs and the memory of a guest go on the host: NUMA cells, dedicated CPUs, huge pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

from compute.libvirt.capabilities import HostFacts, NumaCell
from compute.libvirt.guest_options import GuestSettings
from compute.libvirt.guest_properties import GuestProperties, NumaNode
from objects import errors
from objects.base import Object

MAX_PLACINGS = 1000
"""How many ways to put the guest's NUMA nodes on the host's cells are tried."""


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


class PlacedNode(Object, frozen=True, kw_only=True):
    """One NUMA node of a guest on a cell of the host. ``pins``: the host CPUs of each vCPU. ``page_kib``: 0 for normal pages."""

    vcpus: tuple[int, ...]
    memory_mb: int
    cell: int
    page_kib: int
    pins: dict[int, tuple[int, ...]]


class CpuPlan(Object, frozen=True, kw_only=True):
    """A guest on the host's CPUs. ``nodes``: empty if nothing ties it to a cell; then it runs on ``shared``.

    ``shared``: the host CPUs of all its vCPUs, empty for any. ``numa``: whether the guest sees the nodes. ``emulator``: the host
    CPUs of QEMU's own threads.
    """

    nodes: tuple[PlacedNode, ...] = ()
    numa: bool = False
    shared: tuple[int, ...] = ()
    emulator: tuple[int, ...] = ()
    taken: Taken = Taken()


def plan_cpus(
    properties: GuestProperties,
    vcpus: int,
    memory_mb: int,
    host: HostFacts,
    settings: GuestSettings,
    others: Iterable[Taken],
    numa_nodes: Sequence[int] = (),
) -> CpuPlan:
    """Put a guest on the host's CPUs and cells. ``others``: what the other guests have taken. ``numa_nodes``: the host's cells that
    it is tied to, by their order; empty: any.

    Raises ``errors.BuildFailed`` if this host cannot take it so.
    """
    online = tuple(sorted(cpu.id for cell in host.cells for cpu in cell.cpus))
    dedicated, shared = settings.split_cpus(online)
    taken = list(others)
    counted = bool(numa_nodes)  # the agent has counted the memory of these nodes
    if not (properties.dedicated_cpus or properties.numa_nodes or properties.page_size or numa_nodes):
        if not shared:
            raise errors.BuildFailed("All CPUs of this host are in its [libvirt] cpu_dedicated_set.")
        return CpuPlan(shared=shared if dedicated or settings.cpu_shared_set else ())
    if properties.dedicated_cpus and not dedicated:
        raise errors.BuildFailed("This host has no dedicated CPUs: its [libvirt] cpu_dedicated_set is empty.")
    nodes = properties.numa_nodes or (NumaNode(vcpus=tuple(range(vcpus)), memory_mb=memory_mb),)
    used = {cpu for guest_taken in taken for cpu in guest_taken.cpus}
    free = {cpu for cpu in dedicated if cpu not in used}
    refusal = f"This host has {len(host.cells)} NUMA cells, the guest needs {len(nodes)}."
    for number, cells in enumerate(permutations(_allowed_cells(host, nodes, numa_nodes), len(nodes))):
        if number >= MAX_PLACINGS:
            break
        try:
            placed = [
                _place_node(properties, node, cell, free, shared, taken, host, counted=counted)
                for node, cell in zip(nodes, cells, strict=True)
            ]
            return _finish_plan(properties, placed, cells, free, shared if settings.cpu_shared_set else ())
        except _Full as full:
            refusal = str(full)
    raise errors.BuildFailed(refusal)


def _allowed_cells(host: HostFacts, nodes: Sequence[NumaNode], numa_nodes: Sequence[int]) -> Sequence[NumaCell]:
    """The cells that the guest may be on. Raises ``errors.BuildFailed``."""
    if not numa_nodes:
        return host.cells
    if len(nodes) != len(numa_nodes) or len({(len(node.vcpus), node.memory_mb) for node in nodes}) > 1:
        raise errors.BuildFailed(f"The guest is tied to {len(numa_nodes)} NUMA nodes of this host, and asks for other ones.")
    if max(numa_nodes) >= len(host.cells):
        raise errors.BuildFailed(f"This host has no NUMA node {max(numa_nodes)}, which the guest is tied to.")
    return [host.cells[number] for number in numa_nodes]


class _Full(Exception):
    """A cell of the host cannot take a node of the guest; the text says why."""


def _place_node(
    properties: GuestProperties,
    node: NumaNode,
    cell: NumaCell,
    free: set[int],
    shared: Sequence[int],
    taken: Sequence[Taken],
    host: HostFacts,
    *,
    counted: bool,
) -> tuple[PlacedNode, set[int]]:
    """The node on this cell, and the CPUs that it takes for itself. ``counted``: there is enough memory in normal pages."""
    normal = properties.page_size in ("", "small", str(host.small_page_kib))
    page_kib = 0 if normal and counted else _page_size(properties.page_size, node, cell, taken, host.small_page_kib)
    pinned = tuple(cpu.id for cpu in cell.cpus if cpu.id in shared)
    pins = dict.fromkeys(node.vcpus, pinned)
    reserved: set[int] = set()
    if properties.dedicated_cpus:
        cpus, reserved = _pick_dedicated(properties.thread_policy, len(node.vcpus), cell, free)
        pins = {vcpu: (cpu,) for vcpu, cpu in zip(node.vcpus, cpus, strict=True)}
    elif not pinned:
        raise _Full(f"NUMA cell {cell.id} has no shared CPUs.")
    placed = PlacedNode(vcpus=node.vcpus, memory_mb=node.memory_mb, cell=cell.id, page_kib=page_kib, pins=pins)
    return placed, reserved


def _finish_plan(
    properties: GuestProperties,
    placed: Sequence[tuple[PlacedNode, set[int]]],
    cells: Sequence[NumaCell],
    free: set[int],
    shared: tuple[int, ...],
) -> CpuPlan:
    nodes = tuple(node for node, _ in placed)
    reserved = {cpu for _, cpus in placed for cpu in cpus}
    emulator = tuple(sorted({cpu for node in nodes for cpus in node.pins.values() for cpu in cpus}))
    if properties.emulator_threads == "share" and shared:
        emulator = shared
    elif properties.emulator_threads == "isolate":
        unused_cpus = [cpu.id for cell in cells for cpu in cell.cpus if cpu.id in free - reserved]
        if not unused_cpus:
            raise _Full("The cells of the guest have no dedicated CPU left for QEMU's own threads.")
        emulator = (unused_cpus[0],)
        reserved |= {unused_cpus[0]}
    memory = tuple(TakenMemory(cell=node.cell, page_kib=node.page_kib, memory_mb=node.memory_mb) for node in nodes)
    taken = Taken(cpus=tuple(sorted(reserved)), memory=memory)
    return CpuPlan(nodes=nodes, numa=bool(properties.numa_nodes), emulator=emulator, taken=taken)


def _pick_dedicated(policy: str, count: int, cell: NumaCell, free: set[int]) -> tuple[list[int], set[int]]:
    """Dedicated CPUs of the cell for this many vCPUs, and all that nobody else may use then.

    Whole cores come first, so that no two guests share one while there are others. ``isolate``: one CPU of each core, and its
    siblings stay idle. ``require``: whole cores with several threads only.
    """
    cores = sorted({cpu.siblings for cpu in cell.cpus}, key=min)
    unused_by_core = [tuple(cpu for cpu in core if cpu in free) for core in cores]
    whole_cores = [core for core, unused in zip(cores, unused_by_core, strict=True) if core == unused]
    if policy == "isolate":
        chosen = whole_cores[:count]
        cpus, reserved = [core[0] for core in chosen], {cpu for core in chosen for cpu in core}
    elif policy == "require":
        chosen = [core for core in whole_cores if len(core) > 1]
        cpus = [cpu for core in chosen for cpu in core][:count]
        reserved = {cpu for core in chosen if {*core} & {*cpus} for cpu in core}
    else:
        partly = [unused for core, unused in zip(cores, unused_by_core, strict=True) if unused and core != unused]
        # Whole cores for whole groups of vCPUs, and what remains of cores for the rest, so that cores are not broken needlessly.
        cpus = _fill_cores(count, whole_cores, partly)
        reserved = {*cpus}
    if len(cpus) < count:
        which = {"isolate": "free cores", "require": "free CPUs on whole cores of several threads"}.get(
            policy, "free dedicated CPUs"
        )
        raise _Full(f"NUMA cell {cell.id} has {len(cpus)} {which}, the guest needs {count}.")
    return cpus, reserved


def _fill_cores(count: int, whole_cores: Sequence[tuple[int, ...]], partly: Sequence[tuple[int, ...]]) -> list[int]:
    cpus = list[int]()
    rest = list[tuple[int, ...]]()
    for core in whole_cores:
        if len(cpus) + len(core) <= count:
            cpus += core
        else:
            rest.append(core)
    for core in (*partly, *rest):
        cpus += core[: count - len(cpus)]
    return cpus


def _page_size(requested: str, node: NumaNode, cell: NumaCell, taken: Sequence[Taken], small: int) -> int:
    """The page size in KiB for this node's memory on this cell; 0: normal pages. ``large`` and ``any`` prefer the largest."""
    if requested in ("", "small", str(small)):
        _check_memory(node, cell, taken, small)
        return 0
    huge = sorted((size for size in cell.pages if size != small), reverse=True)
    for size in huge if requested in ("large", "any") else [int(requested)]:
        used = sum(
            memory.memory_mb for guest in taken for memory in guest.memory if (memory.cell, memory.page_kib) == (cell.id, size)
        )
        have_mb = cell.pages.get(size, 0) * size // 1024
        if node.memory_mb * 1024 % size == 0 and have_mb - used >= node.memory_mb:
            return size
    if requested == "any":
        _check_memory(node, cell, taken, small)
        return 0
    sizes = "large" if requested == "large" else f"{requested} KiB"
    raise _Full(f"NUMA cell {cell.id} has not enough free pages ({sizes}) for {node.memory_mb} MiB.")


def _check_memory(node: NumaNode, cell: NumaCell, taken: Sequence[Taken], small: int) -> None:
    used = sum(memory.memory_mb for guest in taken for memory in guest.memory if memory.cell == cell.id and not memory.page_kib)
    huge_kib = sum(size * count for size, count in cell.pages.items() if size != small)
    have_mb = (cell.memory_kib - huge_kib) // 1024
    if used + node.memory_mb > have_mb:
        raise _Full(
            f"NUMA cell {cell.id} has {have_mb - used} of {have_mb} MiB for guests that are tied to it, not {node.memory_mb}."
        )
