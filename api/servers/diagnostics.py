"""``/servers/{id}/diagnostics``: what the hypervisor knows of the guest of a server."""

from __future__ import annotations

import time
from typing import Any

import falcon
import msgspec

from api.http import call as calls
from api.http.call import send_json
from api.http.microversions import Microversion
from api.lookup.guest_asker import GuestAsker
from objects.base import Object
from objects.diagnostics import Diagnostics
from objects.instance import Server

DRIVER = "libvirt"
"""The Compute API knows the drivers of Nova only, and Nova's simulated one has this name too. ``hypervisor`` is the true one."""


class ServerDiagnostics:
    """In one form for all hypervisors since 2.48; before, as Nova's driver for libvirt has it."""

    def __init__(self, asker: GuestAsker) -> None:
        self._asker = asker

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        call = calls.get_call(req)
        server = self._asker.find_server(call, server_id)
        diagnostics = self._asker.get_diagnostics(call, server.uuid)
        send_json(
            resp,
            _standard_document(diagnostics, server)
            if call.has_feature(Microversion.STANDARD_DIAGNOSTICS)
            else _free_document(diagnostics),
        )


def _standard_document(diagnostics: Diagnostics, server: Server) -> dict[str, Any]:
    """``uptime`` is that of the server, as in Nova: in seconds since its first start."""
    return {
        "state": diagnostics.state,
        "driver": DRIVER,
        "hypervisor": diagnostics.hypervisor,
        "hypervisor_os": None,
        "uptime": None if server.launched_at is None else max(0, int(time.time() - server.launched_at)),
        "config_drive": diagnostics.config_drive,
        "num_cpus": _count_of(diagnostics.cpus),
        "num_disks": _count_of(diagnostics.disks),
        "num_nics": _count_of(diagnostics.nics),
        "cpu_details": [{"id": cpu.id, "time": cpu.time, "utilisation": None} for cpu in diagnostics.cpus or ()],
        "disk_details": [_without_device(disk) for disk in diagnostics.disks or ()],
        "nic_details": [_without_device(nic) | {"rx_rate": None, "tx_rate": None} for nic in diagnostics.nics or ()],
        "memory_details": {"maximum": diagnostics.memory_mb, "used": diagnostics.memory_used_mb},
    }


def _free_document(diagnostics: Diagnostics) -> dict[str, int]:
    """Only what is known. Memory in KiB."""
    values = {"memory": _to_kib(diagnostics.memory_mb), "memory-actual": _to_kib(diagnostics.memory_used_mb)}
    values |= {f"cpu{cpu.id}_time": cpu.time for cpu in diagnostics.cpus or ()}
    for disk in diagnostics.disks or ():
        values |= {
            f"{disk.device}_read": disk.read_bytes,
            f"{disk.device}_read_req": disk.read_requests,
            f"{disk.device}_write": disk.write_bytes,
            f"{disk.device}_write_req": disk.write_requests,
            f"{disk.device}_errors": disk.errors_count,
        }
    for nic in diagnostics.nics or ():
        values |= {
            f"{nic.device}_rx": nic.rx_octets,
            f"{nic.device}_rx_packets": nic.rx_packets,
            f"{nic.device}_rx_errors": nic.rx_errors,
            f"{nic.device}_rx_drop": nic.rx_drop,
            f"{nic.device}_tx": nic.tx_octets,
            f"{nic.device}_tx_packets": nic.tx_packets,
            f"{nic.device}_tx_errors": nic.tx_errors,
            f"{nic.device}_tx_drop": nic.tx_drop,
        }
    return {name: value for name, value in values.items() if value is not None}


def _count_of(parts: tuple[Object, ...] | None) -> int | None:
    return None if parts is None else len(parts)


def _without_device(part: Object) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(part).items() if name != "device"}


def _to_kib(mib: int | None) -> int | None:
    return None if mib is None else mib * 1024
