"""This host: what its hypervisor can do, read once for each connection."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import msgspec

from compute.libvirt import binding
from compute.libvirt.capabilities import HostFacts, host_cpu_xml, machines_to_ask, parse_capabilities
from compute.libvirt.connection import LibvirtConnection
from compute.libvirt.guest_options import GuestSettings
from compute.libvirt.host_resources import node_of, total_disk_gb, total_memory_mb
from compute.machine import booted_at
from objects import errors
from objects.compute_node import ComputeNode

libvirt = binding.load_libvirt()

PROBE = ".direct-io"
"""A file that is made to see whether the file system takes O_DIRECT."""


class Host:
    """The host ``name`` whose guests have their disks in ``instances_path``. Thread-safe."""

    def __init__(self, connection: LibvirtConnection, name: str, guests: GuestSettings, instances_path: Path) -> None:
        self._connection = connection
        self._name = name
        self._guests = guests
        self._path = instances_path
        self.direct_io = _takes_direct_io(instances_path)
        self._lock = threading.Lock()
        self._read_from = 0
        self._facts: HostFacts | None = None

    def read_facts(self) -> HostFacts:
        """What libvirt says of the host; read again after each new connection, as QEMU may have been upgraded."""
        connection, opened = self._connection.get(), self._connection.opened
        with self._lock:
            if self._facts is None or self._read_from != opened:
                with self._connection.errors_as(errors.BuildFailed, "tell what this host can do"):
                    self._facts = self._ask_libvirt(connection)
                self._read_from = opened
            return self._facts

    def read_node(self) -> ComputeNode:
        """The host's only node, with its resources as they are now."""
        facts = self.read_facts()
        memory = total_memory_mb(Path("/proc/meminfo").read_text())
        node = node_of(facts, self._name, self._guests, memory_mb=memory, disk_gb=total_disk_gb(self._path))
        return msgspec.structs.replace(node, booted_at=booted_at())

    def _ask_libvirt(self, connection: Any) -> HostFacts:
        text, virt_type = connection.getCapabilities(), self._guests.virt_type
        machines = machines_to_ask(text, self._guests.machine_type)
        machine_texts = [connection.getDomainCapabilities(None, None, machine, virt_type) for machine in machines]
        cpu = connection.baselineCPU([host_cpu_xml(text)], libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES)
        return parse_capabilities(text, machine_texts, connection.getLibVersion(), connection.getVersion(), cpu)


def _takes_direct_io(folder: Path) -> bool:
    probe = folder / PROBE
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    else:
        os.close(descriptor)
        return True
    finally:
        probe.unlink(missing_ok=True)
