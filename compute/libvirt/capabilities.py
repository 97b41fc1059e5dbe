"""What libvirt says of this host and of the guests that it can run, as one frozen record."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

import msgspec

from objects import errors
from objects.base import Object

MAX_CPUS = 8192
"""CPU numbers are below this: the limit of Linux."""

_CPUS = re.compile(r"(\^?)([0-9]{1,5})(?:-([0-9]{1,5}))?")
_KIB_PER_UNIT = {"b": 1 / 1024, "bytes": 1 / 1024, "KiB": 1, "k": 1, "MiB": 1024, "M": 1024, "GiB": 1024**2, "G": 1024**2}


class HostCpu(Object, frozen=True, kw_only=True):
    """One logical CPU. ``siblings``: the CPUs of its core, with itself."""

    id: int
    siblings: tuple[int, ...]


class NumaCell(Object, frozen=True, kw_only=True):
    """One NUMA cell of the host. ``pages``: by page size in KiB, how many pages it has in all."""

    id: int
    memory_kib: int
    cpus: tuple[HostCpu, ...] = ()
    pages: dict[int, int] = msgspec.field(default_factory=dict)


class MachineFacts(Object, frozen=True, kw_only=True):
    """What guests of one machine type can have. ``name``: the full one, such as ``pc-q35-7.2``.

    ``virt_type``: ``kvm`` or ``qemu``. ``cpu_modes``: those that libvirt supports. ``cpu_models``: the named models that this host
    can run. ``hyperv``: enlightenments for Windows. ``firmware``: what libvirt selects by itself: ``bios``, ``efi``.
    """

    name: str
    arch: str
    virt_type: str
    max_vcpus: int
    firmware: tuple[str, ...] = ()
    secure_boot: bool = False
    cpu_modes: tuple[str, ...] = ()
    cpu_models: tuple[str, ...] = ()
    disk_buses: tuple[str, ...] = ()
    video_models: tuple[str, ...] = ()
    rng_models: tuple[str, ...] = ()
    graphics: tuple[str, ...] = ()
    hyperv: tuple[str, ...] = ()


class HostFacts(Object, frozen=True, kw_only=True):
    """A host and its hypervisor.

    ``virt_types``: ``kvm``, ``qemu``: those that libvirt offers for guests of ``arch``. ``machine_types``: the full name by every
    name, so ``pc-q35-7.2`` by ``q35`` and by itself. ``machines``: those that libvirt was asked about; the first is its default.
    ``libvirt_version`` and ``qemu_version``: three digits per part, so 9000000 is 9.0.0. ``cpu_features``: in libvirt's names.
    """

    arch: str
    libvirt_version: int
    qemu_version: int
    virt_types: tuple[str, ...]
    machine_types: dict[str, str]
    machines: tuple[MachineFacts, ...]
    cells: tuple[NumaCell, ...] = ()
    cpu_model: str = ""
    cpu_vendor: str = ""
    cpu_features: tuple[str, ...] = ()
    small_page_kib: int = 4

    def machine_facts(self, name: str = "") -> MachineFacts:
        """The facts of a machine type; of its family, if libvirt was not asked about that very one. Empty: libvirt's default.

        Raises ``errors.BuildFailed`` if this host has no such machine type.
        """
        if not name:
            return self.machines[0]
        full = self.machine_types.get(name)
        if full is None:
            raise errors.BuildFailed(f"This host has no machine type {name[:80]!r}.")
        same = [candidate for candidate in self.machines if candidate.name == full]
        kin = [candidate for candidate in self.machines if _family_of(candidate.name) == _family_of(full)]
        return (same or kin or list(self.machines))[0]


def machines_to_ask(capabilities: str, machine_type: str = "") -> list[str | None]:
    """The machine types to call ``getDomainCapabilities`` for, with the host's architecture. None: libvirt's default, the first."""
    root = _parse_xml(capabilities)
    known = _machine_types(root, _arch_of(root))
    names: list[str | None] = [None]
    names += [name for name in dict.fromkeys([machine_type, "pc", "q35", "virt"]) if name in known]
    return names


def host_cpu_xml(capabilities: str) -> str:
    """The host's CPU, to call ``baselineCPU`` for with the flag ``VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES``."""
    cpu = _parse_xml(capabilities).find("host/cpu")
    return "" if cpu is None else ET.tostring(cpu, encoding="unicode")


def parse_capabilities(
    capabilities: str, domain_capabilities: Sequence[str], libvirt_version: int, qemu_version: int, expanded_cpu: str = ""
) -> HostFacts:
    """The facts from ``getCapabilities()`` and one ``getDomainCapabilities()`` per machine type, the default one first.

    ``expanded_cpu``: the answer of ``baselineCPU`` for ``host_cpu_xml``. Without it, features that the CPU's model implies are
    missing.

    Raises ``errors.Misconfigured`` if libvirt runs no guests of this host's architecture, or for XML that is none of libvirt's.
    """
    root = _parse_xml(capabilities)
    arch = _arch_of(root)
    guest = _guest_element(root, arch)
    machines = {facts.name: facts for facts in map(_parse_machine, domain_capabilities)}
    if guest is None or not machines:
        raise errors.Misconfigured(f"libvirt offers no guests of this host's architecture, {arch}: install its QEMU.")
    cells = tuple(_parse_cell(cell) for cell in root.iterfind("host/topology/cells/cell")) or (_only_cell(root),)
    features = [*root.iterfind("host/cpu/feature")]
    if expanded_cpu:
        features += [
            element for element in _parse_xml(expanded_cpu).iterfind("feature") if element.get("policy", "require") == "require"
        ]
    sizes = [int(page.get("size", "4")) for page in root.iterfind("host/cpu/pages")]
    return HostFacts(
        arch=arch,
        libvirt_version=libvirt_version,
        qemu_version=qemu_version,
        virt_types=tuple(domain.get("type", "") for domain in guest.iterfind("arch/domain")),
        machine_types=_machine_types(root, arch),
        machines=tuple(machines.values()),
        cells=cells,
        cpu_model=root.findtext("host/cpu/model", ""),
        cpu_vendor=root.findtext("host/cpu/vendor", ""),
        cpu_features=tuple(sorted({feature.get("name", "") for feature in features})),
        small_page_kib=min(sizes, default=4),
    )


def cpu_list(text: str) -> tuple[int, ...]:
    """The numbers of a CPU set such as ``0-3,6``, where ``^2`` removes one. Raises ValueError."""
    cpu_ids, removed = set[int](), set[int]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _CPUS.fullmatch(part)
        numbers = range(int(match[2]), int(match[3] or match[2]) + 1) if match else range(0)
        if match is None or not numbers or numbers[-1] >= MAX_CPUS:
            raise ValueError(f"{part!r} is not a range of CPUs")
        (removed if match[1] else cpu_ids).update(numbers)
    return tuple(sorted(cpu_ids - removed))


def cpu_text(cpus: Sequence[int]) -> str:
    """The CPU set as text, such as ``0-3,6``."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _parse_xml(text: str) -> ET.Element:
    try:
        return ET.fromstring(text)  # noqa: S314 - libvirt wrote it
    except ET.ParseError as error:
        raise errors.Misconfigured(f"libvirt's capabilities cannot be read: {error}") from None


def _arch_of(root: ET.Element) -> str:
    return root.findtext("host/cpu/arch", "")


def _guest_element(root: ET.Element, arch: str) -> ET.Element | None:
    guests = [guest for guest in root.iterfind("guest") if guest.findtext("os_type") == "hvm"]
    return next(
        (guest for guest in guests if any(arch_element.get("name") == arch for arch_element in guest.iterfind("arch"))), None
    )


def _machine_types(root: ET.Element, arch: str) -> dict[str, str]:
    guest = _guest_element(root, arch)
    machines = guest.iterfind("arch/machine") if guest is not None else ()
    return {machine.text: machine.get("canonical", machine.text) for machine in machines if machine.text}


def _parse_machine(text: str) -> MachineFacts:
    root = _parse_xml(text)
    vcpu = root.find("vcpu")
    modes = {mode.get("name", ""): mode for mode in root.iterfind("cpu/mode") if mode.get("supported") == "yes"}
    custom = modes.get("custom")
    models = custom.iterfind("model") if custom is not None else ()
    return MachineFacts(
        name=root.findtext("machine", ""),
        arch=root.findtext("arch", ""),
        virt_type=root.findtext("domain", ""),
        max_vcpus=int(vcpu.get("max", "1")) if vcpu is not None else 1,
        firmware=_enum_values(root, "os/enum[@name='firmware']"),
        secure_boot="yes" in _enum_values(root, "os/loader/enum[@name='secure']"),
        cpu_modes=tuple(modes),
        cpu_models=tuple(model.text for model in models if model.text and model.get("usable") != "no"),
        disk_buses=_enum_values(root, "devices/disk/enum[@name='bus']"),
        video_models=_enum_values(root, "devices/video/enum[@name='modelType']"),
        rng_models=_enum_values(root, "devices/rng/enum[@name='model']"),
        graphics=_enum_values(root, "devices/graphics/enum[@name='type']"),
        hyperv=_enum_values(root, "features/hyperv/enum[@name='features']"),
    )


def _enum_values(root: ET.Element, path: str) -> tuple[str, ...]:
    enum = root.find(path)
    return tuple(value.text for value in enum.iterfind("value") if value.text) if enum is not None else ()


def _parse_cell(cell: ET.Element) -> NumaCell:
    memory = cell.find("memory")
    amount, unit = (int(memory.text or 0), memory.get("unit", "KiB")) if memory is not None else (0, "KiB")
    cpus = [cpu for cpu in cell.iterfind("cpus/cpu") if cpu.get("id")]
    return NumaCell(
        id=int(cell.get("id", "0")),
        memory_kib=int(amount * _KIB_PER_UNIT.get(unit, 1)),
        cpus=tuple(HostCpu(id=int(cpu.get("id", "0")), siblings=_siblings_of(cpu)) for cpu in cpus),
        pages={int(page.get("size", "0")): int(page.text or 0) for page in cell.iterfind("pages")},
    )


def _only_cell(root: ET.Element) -> NumaCell:
    """The CPUs of a host whose libvirt reports no cells."""
    topology = root.find("host/cpu/topology")
    counts = [int(topology.get(part, "1")) for part in ("sockets", "dies", "cores", "threads")] if topology is not None else [1]
    return NumaCell(id=0, memory_kib=0, cpus=tuple(HostCpu(id=cpu, siblings=(cpu,)) for cpu in range(math.prod(counts))))


def _siblings_of(cpu: ET.Element) -> tuple[int, ...]:
    """A CPU that is off has no siblings."""
    return cpu_list(cpu.get("siblings", cpu.get("id", "0")))


def _family_of(machine: str) -> str:
    """``pc-q35`` of ``pc-q35-7.2``, ``pc-i440fx`` of ``pc-i440fx-7.2``, ``virt`` of ``virt-7.2``."""
    return machine.rpartition("-")[0] or machine
