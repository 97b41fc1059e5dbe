"""Diagnostics of guests from the counters that libvirt has of a domain, by the names that libvirt gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compute.driver import Guest
from compute.libvirt.kept_guest import KeptGuest
from objects.diagnostics import STATES, CpuDiagnostics, Diagnostics, DiskDiagnostics, GuestState, NicDiagnostics

Counters = Mapping[str, Any]
"""Such as ``{"vcpu.maximum": 1, "vcpu.0.time": 7, "net.count": 0}``. Those of a guest that is off or hangs are missing."""


def diagnostics_of(guest: Guest, kept_guest: KeptGuest, counters: Counters, hypervisor: str, *, crashed: bool) -> Diagnostics:
    """``guest``: as it is now, with what is kept of it. ``hypervisor``: the type of its domain."""
    return Diagnostics(
        state=GuestState.CRASHED if crashed else STATES[guest.power],
        hypervisor=hypervisor,
        config_drive=kept_guest.config_drive,
        memory_mb=_mib_or_none(counters.get("balloon.maximum")),
        memory_used_mb=_mib_or_none(counters.get("balloon.current")),
        cpus=tuple(CpuDiagnostics(id=n, time=counters.get(f"vcpu.{n}.time")) for n in range(guest.vcpus)),
        disks=tuple(_disk_diagnostics(counters, n) for n in range(counters.get("block.count", 0))),
        nics=tuple(_nic_diagnostics(counters, n, port.mac) for n, port in enumerate(kept_guest.spec.ports)),
    )


def _mib_or_none(kib: int | None) -> int | None:
    return None if kib is None else kib // 1024


def _disk_diagnostics(counters: Counters, number: int) -> DiskDiagnostics:
    block = f"block.{number}"
    return DiskDiagnostics(
        device=counters[f"{block}.name"],
        read_bytes=counters.get(f"{block}.rd.bytes"),
        read_requests=counters.get(f"{block}.rd.reqs"),
        write_bytes=counters.get(f"{block}.wr.bytes"),
        write_requests=counters.get(f"{block}.wr.reqs"),
        errors_count=counters.get(f"{block}.errors"),
    )


def _nic_diagnostics(counters: Counters, number: int, mac: str) -> NicDiagnostics:
    net = f"net.{number}"
    return NicDiagnostics(
        mac_address=mac,
        device=counters.get(f"{net}.name"),
        rx_octets=counters.get(f"{net}.rx.bytes"),
        rx_packets=counters.get(f"{net}.rx.pkts"),
        rx_errors=counters.get(f"{net}.rx.errs"),
        rx_drop=counters.get(f"{net}.rx.drop"),
        tx_octets=counters.get(f"{net}.tx.bytes"),
        tx_packets=counters.get(f"{net}.tx.pkts"),
        tx_errors=counters.get(f"{net}.tx.errs"),
        tx_drop=counters.get(f"{net}.tx.drop"),
    )
