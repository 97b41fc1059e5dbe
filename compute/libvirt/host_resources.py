"""What this host offers to guests: its only node, as the driver reports it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from compute.libvirt.capabilities import HostFacts, NumaCell, cpu_text
from compute.libvirt.guest_options import GuestSettings
from compute.libvirt.guest_properties import DISK_BUSES, VIDEO_MODELS, VIF_MODELS
from objects import errors
from objects.compute_node import ComputeNode
from objects.numa import HostNumaNode

HYPERVISOR_TYPE = "QEMU"
"""libvirt's name, with KVM and without it, which flavors of OpenStack compare with. ``virt_type`` tells them apart."""

DEDICATED_CPUS = "CUSTOM_PCPU"
"""The resource class of host CPUs that one guest has for itself."""

HOST_RESERVED_MB = 512
"""Memory for the host itself, without that of QEMU, if [compute] reserved_memory_mb does not say it."""

_X86_TRAITS = {
    "3dnow": "3DNOW",
    "abm": "ABM",
    "aes": "AESNI",
    "amx-bf16": "AMXBF16",
    "amx-int8": "AMXINT8",
    "amx-tile": "AMXTILE",
    "avx": "AVX",
    "avx2": "AVX2",
    "avx512-vpopcntdq": "AVX512VPOPCNTDQ",
    "avx512bitalg": "AVX512BITALG",
    "avx512bw": "AVX512BW",
    "avx512cd": "AVX512CD",
    "avx512dq": "AVX512DQ",
    "avx512er": "AVX512ER",
    "avx512f": "AVX512F",
    "avx512ifma": "AVX512IFMA",
    "avx512pf": "AVX512PF",
    "avx512vbmi": "AVX512VBMI",
    "avx512vbmi2": "AVX512VBMI2",
    "avx512vl": "AVX512VL",
    "avx512vnni": "AVX512VNNI",
    "bmi1": "BMI",
    "bmi2": "BMI2",
    "f16c": "F16C",
    "fma": "FMA3",
    "fma4": "FMA4",
    "gfni": "AVX512GFNI",
    "mmx": "MMX",
    "mpx": "MPX",
    "pclmuldq": "CLMUL",
    "pdpe1gb": "PDPE1GB",
    "rtm": "TSX",
    "sha-ni": "SHA",
    "sse": "SSE",
    "sse2": "SSE2",
    "pni": "SSE3",
    "sse4.1": "SSE41",
    "sse4.2": "SSE42",
    "sse4a": "SSE4A",
    "ssse3": "SSSE3",
    "stibp": "STIBP",
    "svm": "SVM",
    "tbm": "TBM",
    "vaes": "AVX512VAES",
    "vmx": "VMX",
    "vpclmulqdq": "AVX512VPCLMULQDQ",
    "xop": "XOP",
}
"""Traits of Placement after ``HW_CPU_X86_``, by libvirt's name of the CPU feature."""

_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)


def total_memory_mb(meminfo: str) -> int:
    """MiB of memory that Linux has, from the text of ``/proc/meminfo``. libvirt's ``getInfo`` may count less.

    Raises ``errors.Misconfigured`` for any other text.
    """
    match = _TOTAL.search(meminfo)
    if match is None:
        raise errors.Misconfigured("/proc/meminfo names no MemTotal: the agent of driver libvirt needs Linux.")
    return int(match[1]) // 1024


def total_disk_gb(path: Path) -> int:
    """GiB of the file system of a folder. Raises OSError."""
    disk = os.statvfs(path)
    return disk.f_blocks * disk.f_frsize >> 30


def node_of(
    facts: HostFacts, host: str, settings: GuestSettings, *, memory_mb: int, disk_gb: int, hypervisor_hostname: str = ""
) -> ComputeNode:
    """The node of this host. ``memory_mb`` and ``disk_gb``: all that it has.

    ``reserved_memory_mb`` and ``guest_overhead_mb`` are what the driver proposes.

    Raises ``errors.Misconfigured`` for impossible CPU sets.
    """
    cpus = sorted(cpu.id for cell in facts.cells for cpu in cell.cpus)
    dedicated, shared = settings.split_cpus(tuple(cpus))
    return ComputeNode(
        host=host,
        node=host,
        vcpus=len(shared),
        memory_mb=memory_mb,
        disk_gb=disk_gb,
        reserved_memory_mb=HOST_RESERVED_MB,
        guest_overhead_mb=settings.effective_overhead_mb,
        hypervisor_type=HYPERVISOR_TYPE,
        hypervisor_version=facts.qemu_version,
        resources={DEDICATED_CPUS: len(dedicated)} if dedicated else {},
        attributes=_scheduler_attributes(facts, settings, hypervisor_hostname or host),
        numa_nodes=_numa_nodes(facts, shared, memory_mb) if settings.report_numa_nodes else (),
    )


def _numa_nodes(facts: HostFacts, shared: Collection[int], memory_mb: int) -> tuple[HostNumaNode, ...]:
    """The NUMA nodes in the order of the host's cells. If there is only one, libvirt may not say how much memory it has."""
    return tuple(
        HostNumaNode(
            vcpus=sum(cpu.id in shared for cpu in cell.cpus),
            memory_mb=cell.memory_kib // 1024 if len(facts.cells) > 1 else memory_mb,
        )
        for cell in facts.cells
    )


def _scheduler_attributes(facts: HostFacts, settings: GuestSettings, hostname: str) -> dict[str, Any]:
    """What the scheduler's filters compare, in the names that OpenStack's flavors and images use."""
    cpus = [cpu for cell in facts.cells for cpu in cell.cpus]
    threads = max((len(cpu.siblings) for cpu in cpus), default=1)
    cores = len({cpu.siblings for cpu in cpus})
    return {
        "arch": facts.arch,
        "virt_type": settings.virt_type,
        "libvirt_version": facts.libvirt_version,
        "hypervisor_hostname": hostname,
        "supported_instances": _supported_instances(facts, settings),
        "cpu_info": {
            "arch": facts.arch,
            "vendor": facts.cpu_vendor,
            "model": facts.cpu_model,
            "features": sorted(facts.cpu_features),
            "topology": {"cells": len(facts.cells), "cores": cores, "threads": threads},
        },
        "numa_cells": [_cell_attributes(cell) for cell in facts.cells],
        "traits": traits_of(facts, settings),
    }


def _supported_instances(facts: HostFacts, settings: GuestSettings) -> list[list[str]]:
    """Architecture, hypervisor and VM mode of images. An image made for ``qemu`` also runs on KVM."""
    kinds = dict.fromkeys([settings.virt_type, "qemu"])
    architectures = ["x86_64", "i686"] if facts.arch == "x86_64" else [facts.arch]
    return [[arch, kind, "hvm"] for arch in architectures for kind in kinds]


def _cell_attributes(cell: NumaCell) -> dict[str, Any]:
    pages = [{"size_kib": size, "total": count} for size, count in sorted(cell.pages.items())]
    cpus = cpu_text([cpu.id for cpu in cell.cpus])
    return {"id": cell.id, "cpus": cpus, "memory_mb": cell.memory_kib // 1024, "pages": pages}


def traits_of(facts: HostFacts, settings: GuestSettings) -> list[str]:
    """The host's traits, in Placement's names. Those of the CPU are of the one that guests get."""
    machines = facts.machines
    buses = {bus for machine in machines for bus in machine.disk_buses} & {*DISK_BUSES}
    videos = {model for machine in machines for model in machine.video_models} & {*VIDEO_MODELS}
    traits = {"COMPUTE_NODE", "COMPUTE_IMAGE_TYPE_QCOW2", "COMPUTE_IMAGE_TYPE_RAW", f"HW_ARCH_{facts.arch.upper()}"}
    traits |= {f"COMPUTE_STORAGE_BUS_{bus.upper()}" for bus in buses}
    traits |= {f"COMPUTE_NET_VIF_MODEL_{model.upper()}" for model in VIF_MODELS}
    traits |= {f"COMPUTE_GRAPHICS_MODEL_{model.upper()}" for model in videos}
    if facts.arch == "x86_64":
        traits.add("COMPUTE_FIRMWARE_BIOS")
    if any("efi" in machine.firmware for machine in machines):
        traits.add("COMPUTE_FIRMWARE_UEFI")
        if any(machine.secure_boot and "efi" in machine.firmware for machine in machines):
            traits.add("COMPUTE_SECURITY_UEFI_SECURE_BOOT")
    if any(len(cpu.siblings) > 1 for cell in facts.cells for cpu in cell.cpus):
        traits.add("HW_CPU_HYPERTHREADING")
    return sorted(traits | _cpu_traits(facts, settings))


def _cpu_traits(facts: HostFacts, settings: GuestSettings) -> set[str]:
    """Only guests that get the host's CPU have its features."""
    if settings.virt_type != "kvm" or settings.effective_cpu_mode not in ("host-model", "host-passthrough", "maximum"):
        return set()
    removed: Sequence[str] = [name.removeprefix("-") for name in settings.cpu_features if name.startswith("-")]
    have = {name for name in facts.cpu_features if name not in removed}
    return {f"HW_CPU_X86_{_X86_TRAITS[name]}" for name in have & _X86_TRAITS.keys()} if facts.arch == "x86_64" else set()
