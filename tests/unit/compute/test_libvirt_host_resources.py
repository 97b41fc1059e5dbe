"""What a host with libvirt offers, and the memory that its hypervisor takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from compute.driver import Guest
from compute.libvirt.capabilities import HostFacts
from compute.libvirt.guest_options import GuestSettings
from compute.libvirt.host_resources import node_of, total_disk_gb, total_memory_mb, traits_of
from compute.tracker import ResourceTracker
from objects import errors, stats
from tests.support.libvirt_facts import emulating, server

QEMU = GuestSettings(virt_type="qemu")


def test_the_recorded_host() -> None:
    node = node_of(emulating(), "h1", QEMU, memory_mb=24105, disk_gb=99, hypervisor_hostname="h1.example.org")
    assert (node.vcpus, node.memory_mb, node.disk_gb, node.resources) == (2, 24105, 99, {})
    assert (node.hypervisor_type, node.hypervisor_version) == ("QEMU", 7002022)
    assert (node.reserved_memory_mb, node.guest_overhead_mb) == (512, 100)
    assert node.attributes["supported_instances"] == [["x86_64", "qemu", "hvm"], ["i686", "qemu", "hvm"]]
    assert node.attributes["cpu_info"]["topology"] == {"cells": 1, "cores": 2, "threads": 1}
    assert node.attributes["hypervisor_hostname"] == "h1.example.org"
    stats.check_stats(stats.clean_stats(node))


def test_dedicated_cpus_are_a_resource_class() -> None:
    settings = GuestSettings(cpu_dedicated_set="1-3,5-7")
    node = node_of(server(), "h1", settings, memory_mb=16384, disk_gb=99)
    assert (node.vcpus, node.resources, node.guest_overhead_mb) == (2, {"CUSTOM_PCPU": 6}, 64)
    assert ["x86_64", "kvm", "hvm"] in node.attributes["supported_instances"]
    with pytest.raises(errors.Misconfigured, match="no CPU 8"):
        node_of(server(), "h1", GuestSettings(cpu_dedicated_set="8"), memory_mb=1, disk_gb=1)


def test_traits_are_of_the_cpu_that_guests_get() -> None:
    emulated, real = {*traits_of(emulating(), QEMU)}, {*traits_of(server(), GuestSettings())}
    assert not any(name.startswith("HW_CPU_X86") for name in emulated)
    assert {"HW_CPU_X86_AVX2", "HW_CPU_X86_SSE2", "HW_CPU_X86_AESNI", "HW_CPU_HYPERTHREADING"} <= real
    assert {"COMPUTE_FIRMWARE_UEFI", "COMPUTE_SECURITY_UEFI_SECURE_BOOT"} <= real - emulated
    assert {"COMPUTE_STORAGE_BUS_VIRTIO", "COMPUTE_NET_VIF_MODEL_E1000E", "COMPUTE_GRAPHICS_MODEL_VGA"} <= emulated & real
    assert "HW_CPU_X86_AVX2" not in traits_of(server(), GuestSettings(cpu_features=("-avx2",)))
    assert "HW_CPU_X86_AVX2" not in traits_of(server(), GuestSettings(cpu_mode="custom", cpu_models=("EPYC",)))


def test_sizes_of_this_machine(tmp_path: Path) -> None:
    assert total_memory_mb("MemTotal:       24683960 kB\nMemFree: 1 kB\n") == 24105
    assert total_disk_gb(tmp_path) >= 0
    with pytest.raises(errors.Misconfigured, match="names no MemTotal"):
        total_memory_mb("")


def test_each_guest_takes_memory_for_its_hypervisor_too() -> None:
    def guest(uuid: str, memory_mb: int) -> Guest:
        return Guest(uuid=uuid, name="", node="h", fence=1, attempt=1, builder="", vcpus=1, memory_mb=memory_mb, disk_gb=1)

    node = node_of(emulating(), "h", QEMU, memory_mb=2048, disk_gb=99)
    tracker = ResourceTracker([msgspec.structs.replace(node, cpu_allocation_ratio=4.0)])
    tracker.hold_resources(guest("a", 512))
    assert tracker.claim_resources(guest("b", 825)) == "No room for MiB of memory (512 used + 825 > 1336)."
    assert tracker.claim_resources(guest("b", 824)) is None
    assert tracker.report_nodes(0)[0].reserved_memory_mb == 612
    tracker.release_resources("a")
    assert tracker.report_nodes(0)[0].reserved_memory_mb == 512


def test_numa_nodes_are_reported_on_request() -> None:
    def nodes(facts: HostFacts, **changes: Any) -> list[tuple[int, int]]:
        node = node_of(facts, "h1", GuestSettings(**changes), memory_mb=16384, disk_gb=99)
        stats.check_stats(node)
        return [(each.vcpus, each.memory_mb) for each in node.numa_nodes]

    assert nodes(server()) == []
    assert nodes(server(), report_numa_nodes=True) == [(4, 8192), (4, 8192)]
    assert nodes(server(), report_numa_nodes=True, cpu_dedicated_set="0-2") == [(1, 8192), (4, 8192)]
    assert nodes(emulating(), report_numa_nodes=True) == [(2, 16384)]
