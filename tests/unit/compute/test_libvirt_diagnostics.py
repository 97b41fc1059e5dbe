"""Diagnostics from the counters of libvirt, as it names them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from compute.driver import Guest, GuestSpec
from compute.libvirt.diagnostics import diagnostics_of
from compute.libvirt.kept_guest import KeptGuest
from objects.diagnostics import CpuDiagnostics, Diagnostics, DiskDiagnostics, GuestState, NicDiagnostics
from objects.flavor import Flavor
from objects.port import Port
from objects.task import Power

FLAVOR = Flavor(flavor_id="1", name="small", vcpus=2, memory_mb=512)
MACS = ("fa:16:3e:00:00:01", "fa:16:3e:00:00:02")
GUEST = Guest(uuid="u", name="n", node="h", fence=1, attempt=1, builder="h:a", vcpus=2, memory_mb=512, disk_gb=1)
COUNTERS = {
    "state.state": 1,
    "balloon.current": 262144,
    "balloon.maximum": 524288,
    "vcpu.current": 2,
    "vcpu.maximum": 2,
    "vcpu.0.state": 1,
    "vcpu.0.time": 3210,
    "vcpu.1.state": 0,
    "net.count": 2,
    "net.1.name": "vnet7",
    "net.1.rx.bytes": 10,
    "net.1.rx.pkts": 11,
    "net.1.rx.errs": 12,
    "net.1.rx.drop": 13,
    "net.1.tx.bytes": 20,
    "net.1.tx.pkts": 21,
    "net.1.tx.errs": 22,
    "net.1.tx.drop": 23,
    "block.count": 2,
    "block.0.name": "vda",
    "block.0.rd.reqs": 1,
    "block.0.rd.bytes": 512,
    "block.0.wr.reqs": 2,
    "block.0.wr.bytes": 1024,
    "block.1.name": "sda",
}


def read(counters: dict[str, Any], power: Power = Power.ON, *, crashed: bool = False) -> Diagnostics:
    ports = tuple(Port(network_id="n1", network="blue", mac=mac, physical_network="lab") for mac in MACS)
    spec = GuestSpec(project_id="p", user_id="u", flavor=FLAVOR, hostname="n", ports=ports)
    kept = KeptGuest(guest=GUEST, spec=spec, host="h", config_drive=True)
    return diagnostics_of(msgspec.structs.replace(GUEST, power=power), kept, counters, "kvm", crashed=crashed)


def test_each_counter_has_its_place() -> None:
    first, second = MACS
    rx = {"rx_octets": 10, "rx_packets": 11, "rx_errors": 12, "rx_drop": 13}
    tx = {"tx_octets": 20, "tx_packets": 21, "tx_errors": 22, "tx_drop": 23}
    assert read(COUNTERS) == Diagnostics(
        state=GuestState.RUNNING,
        hypervisor="kvm",
        config_drive=True,
        memory_mb=512,
        memory_used_mb=256,
        cpus=(CpuDiagnostics(id=0, time=3210), CpuDiagnostics(id=1)),
        disks=(
            DiskDiagnostics(device="vda", read_bytes=512, read_requests=1, write_bytes=1024, write_requests=2),
            DiskDiagnostics(device="sda"),
        ),
        nics=(NicDiagnostics(mac_address=first), NicDiagnostics(mac_address=second, device="vnet7", **rx, **tx)),
    )


@pytest.mark.parametrize(
    ("power", "crashed", "state"),
    [
        (Power.OFF, False, "shutdown"),
        (Power.OFF, True, "crashed"),
        (Power.PAUSED, False, "paused"),
        (Power.SUSPENDED, False, "suspended"),
    ],
)
def test_a_guest_without_counters_has_a_state(power: Power, crashed: bool, state: str) -> None:
    found = read({}, power, crashed=crashed)
    assert (found.state, found.memory_mb, found.disks) == (state, None, ())
    assert found.cpus == (CpuDiagnostics(id=0), CpuDiagnostics(id=1))
