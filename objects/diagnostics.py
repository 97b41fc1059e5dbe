"""What a hypervisor knows of a running guest. Counters begin with the guest's start; None stands for what is not known."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated

import msgspec

from objects.base import INT64_MAX, Message, Object
from objects.task import Power

PARTS_LIMIT = 4096
"""Maximum number of CPUs, disks or interfaces of a guest that are read."""

Count = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
Device = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._:-]{1,64}\Z")]
"""The name of a device, or an address of it."""


class GuestState(enum.StrEnum):
    """As the Compute API has it."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    SHUTDOWN = "shutdown"
    CRASHED = "crashed"
    SUSPENDED = "suspended"


STATES: Mapping[Power, GuestState] = {
    Power.ON: GuestState.RUNNING,
    Power.OFF: GuestState.SHUTDOWN,
    Power.PAUSED: GuestState.PAUSED,
    Power.SUSPENDED: GuestState.SUSPENDED,
    Power.HELD: GuestState.SHUTDOWN,
    Power.INCOMING: GuestState.PENDING,
    Power.RESCUED: GuestState.RUNNING,
}


class CpuDiagnostics(Object, frozen=True, kw_only=True):
    """One virtual CPU. ``time``: nanoseconds that it has run."""

    id: Count
    time: Count | None = None


class DiskDiagnostics(Object, frozen=True, kw_only=True):
    """One disk, by its name in the guest, such as ``vda``."""

    device: Device
    read_bytes: Count | None = None
    read_requests: Count | None = None
    write_bytes: Count | None = None
    write_requests: Count | None = None
    errors_count: Count | None = None


class NicDiagnostics(Object, frozen=True, kw_only=True):
    """One network interface. ``device``: its name on the host, such as ``vnet0``; None while the guest is off."""

    mac_address: Device
    device: Device | None = None
    rx_octets: Count | None = None
    rx_packets: Count | None = None
    rx_errors: Count | None = None
    rx_drop: Count | None = None
    tx_octets: Count | None = None
    tx_packets: Count | None = None
    tx_errors: Count | None = None
    tx_drop: Count | None = None


class Diagnostics(Message, frozen=True, kw_only=True):
    """One guest. ``memory_mb``: MiB that it may use; ``memory_used_mb``: MiB that it has now."""

    state: GuestState
    hypervisor: Device | None = None
    config_drive: bool = False
    memory_mb: Count | None = None
    memory_used_mb: Count | None = None
    cpus: Annotated[tuple[CpuDiagnostics, ...], msgspec.Meta(max_length=PARTS_LIMIT)] | None = None
    disks: Annotated[tuple[DiskDiagnostics, ...], msgspec.Meta(max_length=PARTS_LIMIT)] | None = None
    nics: Annotated[tuple[NicDiagnostics, ...], msgspec.Meta(max_length=PARTS_LIMIT)] | None = None
