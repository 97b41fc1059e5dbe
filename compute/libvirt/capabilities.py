"""What libvirt says of this host and of the guests that it can run, as one frozen record."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from objects import errors
from objects.base import Object

KIB_PER_UNIT = {"b": 1 / 1024, "bytes": 1 / 1024, "KiB": 1, "k": 1, "MiB": 1024, "M": 1024, "GiB": 1024**2, "G": 1024**2}
"""KiB per unit of libvirt's memory sizes; without a unit they are KiB."""

SMALL_PAGE_KIB = {"x86_64": 4, "aarch64": 4, "ppc64le": 64, "s390x": 4, "riscv64": 4}
"""The normal page size in KiB by architecture, if libvirt does not say it; 4 for others."""


class HostCpu(Object, frozen=True, kw_only=True):
    """One logical CPU. ``siblings``: the CPUs of its core, with itself."""

    id: int
    siblings: tuple[int, ...]


class NumaCell(Object, frozen=True, kw_only=True):
    """One NUMA cell of the host. ``pages``: by page size in KiB, how many pages it has in all."""

    id: int
    memory_kib: int
    cpus: tuple[HostCpu, ...] = ()
    pages: dict[int, int] = {}


class MachineFacts(Object, frozen=True, kw_only=True):
    """What guests of one machine type can have. ``name``: the full one, such as ``pc-q35-7.2``.

    ``cpu_modes``: those that libvirt supports for it. ``cpu_models``: usable named models. ``hyperv``: the enlightenments.
    ``firmware``: what libvirt selects by itself: ``bios``, ``efi``.
    """

    name: str
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

    ``virt_types``: ``kvm``, ``qemu``: those that libvirt offers for guests of ``arch``. ``architectures``: those of guests.
    ``machine_types``: every name, and for an alias such as ``pc`` the full name; otherwise itself. ``machines``: what was asked
    about; the first is libvirt's default. ``libvirt_version`` and ``qemu_version``: three digits per part, so 9000000 is 9.0.0.
    ``cpu_features``: as libvirt names them.
    """

    arch: str
    libvirt_version: int
    qemu_version: int
    virt_types: tuple[str, ...]
    architectures: tuple[str, ...]
    machine_types: dict[str, str]
    machines: tuple[MachineFacts, ...]
    cells: tuple[NumaCell, ...] = ()
    cpu_model: str = ""
    cpu_vendor: str = ""
    cpu_features: tuple[str, ...] = ()
    small_page_kib: int = 4
