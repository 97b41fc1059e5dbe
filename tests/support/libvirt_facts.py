"""Hosts as libvirt 9.0 describes them: one recorded, with QEMU 7.2 and two CPUs, and variants of it made by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec

from compute.libvirt import capabilities
from compute.libvirt.capabilities import HostCpu, HostFacts, NumaCell

RECORDED = Path(__file__).parents[1] / "unit" / "compute" / "libvirt_xml"


def recorded(name: str) -> str:
    """A recorded answer of libvirt."""
    return (RECORDED / f"{name}.xml").read_text()


def emulating() -> HostFacts:
    """The recorded host: one cell with CPUs 0 and 1, no huge pages, no UEFI, no KVM for guests."""
    domains = [recorded("domain-pc"), recorded("domain-q35")]
    return capabilities.parse_capabilities(recorded("capabilities"), domains, 9_000_000, 7_002_022, recorded("baseline-cpu"))


def server() -> HostFacts:
    """A server with KVM, UEFI and two cells of 8 GiB, each with two cores of two threads: 0 to 3, 4 to 7. Of each cell's memory,
    2 GiB are huge pages of 2 MiB and 2 GiB of 1 GiB.
    """
    pages = {4: 2**20, 2048: 1024, 1048576: 2}
    cells = []
    for cell in (0, 1):
        cores = [(4 * cell, 4 * cell + 1), (4 * cell + 2, 4 * cell + 3)]
        cpus = tuple(HostCpu(id=cpu, siblings=core) for core in cores for cpu in core)
        cells.append(NumaCell(id=cell, memory_kib=8 * 2**20, cpus=cpus, pages=pages))
    facts = emulating()
    changes = {
        "firmware": ("bios", "efi"),
        "cpu_modes": ("host-model", "host-passthrough", "maximum", "custom"),
        "hyperv": ("relaxed", "vapic", "spinlocks", "vpindex"),
        "virt_type": "kvm",
    }
    machines = tuple(msgspec.structs.replace(machine, secure_boot="q35" in machine.name, **changes) for machine in facts.machines)
    return msgspec.structs.replace(facts, virt_types=("qemu", "kvm"), machines=machines, cells=tuple(cells))
