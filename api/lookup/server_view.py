"""A server in the format of the Compute API, in every microversion served."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from api.http import policies
from api.http.call import Call
from api.http.microversions import Microversion
from api.lookup import ports, security_groups
from objects import phase
from objects.flavor import Flavor
from objects.instance import Server
from objects.operation import CALLED_FAILED, OperationKind
from objects.phase import ServerPhase
from objects.port import Port
from objects.spec import RequestSpec, ServerProperties, root_device
from objects.text import hostname_of
from objects.utc import to_utc

Document = dict[str, Any]

STATUSES = {
    ServerPhase.BUILDING: "BUILD",
    ServerPhase.ACTIVE: "ACTIVE",
    ServerPhase.STOPPED: "SHUTOFF",
    ServerPhase.PAUSED: "PAUSED",
    ServerPhase.SUSPENDED: "SUSPENDED",
    ServerPhase.RESCUED: "RESCUE",
    ServerPhase.RESIZING: "RESIZE",
    ServerPhase.MIGRATING: "MIGRATING",
    ServerPhase.VERIFYING: "VERIFY_RESIZE",
    ServerPhase.REVERTING: "REVERT_RESIZE",
    ServerPhase.REBUILDING: "REBUILD",
    ServerPhase.REBOOTING: "REBOOT",
    ServerPhase.HARD_REBOOTING: "HARD_REBOOT",
    ServerPhase.CHANGING_PASSWORD: "PASSWORD",
    ServerPhase.SHELVED: "SHELVED",
    ServerPhase.SHELVED_OFFLOADED: "SHELVED_OFFLOADED",
    ServerPhase.SOFT_DELETED: "SOFT_DELETED",
    ServerPhase.ERROR: "ERROR",
    ServerPhase.DELETED: "DELETED",
}
"""ServerPhase of a server -> status."""
_SHOWN_ALONE = frozenset({"key_name", "config_drive", "host_status", "security_groups"})
"""Fields without a prefix that the answer to a change lacks."""
_STATUSES_WITH_PROGRESS = frozenset({"ACTIVE", "BUILD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "MIGRATING"})
UNKNOWN_STATUS = "UNKNOWN"
"""The status of a server with any other stored state."""

_FLEET = re.compile(
    r": (?:of \d+ hosts (?:none fits|\d+ were left by [^,()]+?(?:, \d+ by [^,()]+?)*)(?: \((.+?)\))?|no host is known yet)"
    r"\.(?=\s|$)"
)
"""The part of a scheduler's message that counts hosts; the group is the last filter's reason."""
_ATTEMPTS = re.compile(r"\s*Attempt \d+ on .*", re.DOTALL)


def summary_document(server: Server, call: Call, *, unknown: bool = False) -> Document:
    """An entry of the short list. ``unknown``: its cell does not answer, and the microversion shows this."""
    if unknown:
        return {"id": server.uuid, "status": "UNKNOWN", "links": call.item_links("servers", server.uuid)}
    return {"id": server.uuid, "name": server.name, "links": call.item_links("servers", server.uuid)}


def detail_document(
    server: Server, spec: RequestSpec | None, call: Call, host_status: str, own_ports: Sequence[Port] = ()
) -> Document:
    """The whole server with its network interfaces. Only administrators see ``host_status``, in versions that have it."""
    properties = server.current_properties(spec.properties if spec is not None else ServerProperties())
    document = summary_document(server, call) | {
        "status": status_of(server),
        "tenant_id": server.project_id,
        "user_id": server.user_id,
        "metadata": properties.metadata,
        "hostId": host_digest(server.project_id, server.host),
        "image": _image_entry(server, spec, call),
        "flavor": _flavor_entry(spec.flavor, call) if spec is not None else {},
        "created": format_iso(server.created_at),
        "updated": format_iso(server.updated_at),
        "addresses": ports.addresses_entry(own_ports),
        "accessIPv4": properties.access_ip_v4,
        "accessIPv6": properties.access_ip_v6,
        "OS-DCF:diskConfig": "AUTO" if properties.auto_disk_config else "MANUAL",
        "OS-EXT-AZ:availability_zone": server.availability_zone or "",
        "OS-EXT-STS:vm_state": _vm_state(server),
        "OS-EXT-STS:task_state": phase.task_of(server),
        "OS-EXT-STS:power_state": phase.power_state_of(server),
        "OS-SRV-USG:launched_at": format_micro(server.launched_at),
        "OS-SRV-USG:terminated_at": format_micro(server.terminated_at),
        "os-extended-volumes:volumes_attached": [],
        "key_name": properties.key_name,
        "config_drive": "True" if properties.config_drive else "",
    }
    if own_ports:  # a group belongs to interfaces
        document["security_groups"] = [{"name": security_groups.DEFAULT}]
    if document["status"] in _STATUSES_WITH_PROGRESS:
        document["progress"] = 0
    if document["status"] == "ERROR" or (document["status"] == "SHUTOFF" and server.task_fault):
        document["fault"] = _fault_entry(server, call)
    _add_newer(document, server, properties, call)
    if call.has_feature(Microversion.PINNED_ZONE):
        document["pinned_availability_zone"] = spec.availability_zone if spec is not None else None
    if call.is_allowed(policies.ATTRIBUTES):
        _add_administrators(document, server, spec, call, host_status)
    return document


def single_document(
    server: Server,
    spec: RequestSpec | None,
    call: Call,
    host_status: str,
    own_ports: Sequence[Port] = (),
    groups: Sequence[str] = (),
) -> Document:
    """The server shown alone: as in a list, with its server group."""
    document = detail_document(server, spec, call, host_status, own_ports)
    return document | {"server_groups": list(groups)} if call.has_feature(Microversion.SERVER_GROUPS) else document


def changed_document(
    server: Server,
    spec: RequestSpec | None,
    call: Call,
    host_status: str,
    own_ports: Sequence[Port] = (),
    groups: Sequence[str] = (),
) -> Document:
    """The server in the answer to a change of it, which had fewer fields than the server shown alone before 2.75."""
    full = single_document(server, spec, call, host_status, own_ports, groups)
    if call.has_feature(Microversion.QUERY_CHECKED):
        return full
    document = {name: value for name, value in full.items() if ":" not in name and name not in _SHOWN_ALONE}
    return document | {"OS-DCF:diskConfig": full["OS-DCF:diskConfig"], "addresses": ports.brief_addresses(own_ports)}


def rebuilt_document(
    server: Server,
    spec: RequestSpec | None,
    call: Call,
    host_status: str,
    own_ports: Sequence[Port] = (),
    groups: Sequence[str] = (),
) -> Document:
    """The server in the answer to a rebuild."""
    document = changed_document(server, spec, call, host_status, own_ports, groups) | {"progress": 0}
    if call.has_feature(Microversion.REBUILD_KEY):
        document["key_name"] = server.current_properties(spec.properties if spec is not None else ServerProperties()).key_name
    if call.has_feature(Microversion.INJECTED_FILES_GONE):
        document["user_data"] = None  # a secret: never shown
        document.pop("OS-EXT-SRV-ATTR:user_data", None)
    return document


def down_document(server: Server, call: Call, spec: RequestSpec | None = None, groups: Sequence[str] = ()) -> Document:
    """A server of a cell that does not answer, as in the Compute API since 2.69: only fields that cannot have changed.

    With its spec as shown alone, without it as in a list.
    """
    document = summary_document(server, call, unknown=True) | {
        "tenant_id": server.project_id,
        "created": format_iso(server.created_at),
    }
    if spec is None:
        return document
    if call.has_feature(Microversion.SERVER_GROUPS):
        document["server_groups"] = list(groups)
    return document | {
        "user_id": server.user_id,
        "image": _image_entry(server, spec, call),
        "flavor": _flavor_entry(spec.flavor, call),
        "OS-EXT-AZ:availability_zone": server.availability_zone or "UNKNOWN",
        "OS-EXT-STS:power_state": 0,
    }


def _add_newer(document: Document, server: Server, properties: ServerProperties, call: Call) -> None:
    if call.has_feature(Microversion.LOCKED):
        document["locked"] = server.locked_by is not None
    if call.has_feature(Microversion.LOCKED_REASON):
        document["locked_reason"] = server.locked_reason
    if call.has_feature(Microversion.DESCRIPTION):
        document["description"] = properties.description
    if call.has_feature(Microversion.TAGS):
        document["tags"] = list(properties.tags)
    if call.has_feature(Microversion.CERTIFICATES):
        document["trusted_image_certificates"] = None
    if call.has_feature(Microversion.HOSTNAME):
        document["OS-EXT-SRV-ATTR:hostname"] = _effective_hostname(server, properties)


def _effective_hostname(server: Server, properties: ServerProperties) -> str:
    return properties.hostname or hostname_of(server.name, server.uuid)


def _add_administrators(document: Document, server: Server, spec: RequestSpec | None, call: Call, host_status: str) -> None:
    properties = server.current_properties(spec.properties if spec is not None else ServerProperties())
    attributes: Document = {
        "host": server.host,
        "hypervisor_hostname": server.node,
        "instance_name": instance_name(server),
    }
    if call.has_feature(Microversion.SERVER_ATTRIBUTES):
        attributes |= {
            "hostname": _effective_hostname(server, properties),
            "reservation_id": reservation_id(server.boot_batch_id or server.batch_id),
            "launch_index": server.launch_index,
            "kernel_id": "",
            "ramdisk_id": "",
            "root_device_name": root_device(spec) if spec is not None else "",
            "user_data": None,  # a secret: never shown, and deleted once the server is built
        }
    document |= {f"OS-EXT-SRV-ATTR:{name}": value for name, value in attributes.items()}
    if call.has_feature(Microversion.HOST_STATUS):
        document["host_status"] = host_status


def instance_name(server: Server) -> str:
    """The name of the server's guest on its host, on libvirt of its domain (docs/libvirt.md)."""
    return f"sc-{server.uuid}"


def reservation_id(batch_id: str) -> str:
    """An ID that all servers of one request share."""
    return f"r-{batch_id.replace('-', '')}"


def format_iso(at: float) -> str:
    """Seconds since the epoch as ``2026-01-31T12:00:00Z``. A time out of range is shown as the nearest valid one."""
    return to_utc(at).strftime("%Y-%m-%dT%H:%M:%SZ")


def tenant_fault(fault: str, call: Call) -> str:
    """The fault without the attempts, which name hosts, and for most callers without numbers of hosts."""
    shown = _ATTEMPTS.sub("", fault)
    return shown if call.sees_fleet else _FLEET.sub(_without_numbers, shown)


def status_of(server: Server) -> str:
    shown = phase.phase_of(server)
    return UNKNOWN_STATUS if shown is None else STATUSES[shown]


def _without_numbers(match: re.Match[str]) -> str:
    return f": {match[1]}." if match[1] else "."


def format_micro(at: float | None) -> str | None:
    """The time with microseconds and without a zone, as some fields of the Compute API have it. None stays None."""
    return None if at is None else to_utc(at).strftime("%Y-%m-%dT%H:%M:%S.%f")


def _vm_state(server: Server) -> str:
    return phase.vm_state_of(server) if phase.phase_of(server) is not None else UNKNOWN_STATUS.lower()


def host_digest(project_id: str, host: str | None) -> str:
    """A digest that is equal for servers of one project on one host, and does not reveal the host."""
    return hashlib.sha224((project_id + host).encode()).hexdigest() if host else ""


def _image_entry(server: Server, spec: RequestSpec | None, call: Call) -> Document | str:
    spec_image_id = spec.image.id if spec is not None and spec.image is not None else None
    image_id = server.image_id or spec_image_id
    return {"id": image_id, "links": [call.bookmark_link("images", image_id)]} if image_id else ""


def _flavor_entry(flavor: Flavor, call: Call) -> Document:
    if not call.has_feature(Microversion.FLAVOR_EMBEDDED):
        return {"id": flavor.flavor_id, "links": [call.bookmark_link("flavors", flavor.flavor_id)]}
    document: Document = {
        "original_name": flavor.name,
        "vcpus": flavor.vcpus,
        "ram": flavor.memory_mb,
        "disk": flavor.root_gb,
        "ephemeral": flavor.ephemeral_gb,
        "swap": flavor.swap_mb,
    }
    if flavor.is_public or call.is_allowed(policies.PRIVATE_FLAVORS):
        document["extra_specs"] = flavor.extra_specs
    return document


def _fault_entry(server: Server, call: Call) -> Document:
    called_failed = server.operation is not None and server.operation.kind is OperationKind.FAIL
    message = server.fault or (CALLED_FAILED if called_failed else server.task_fault) or "The build failed."
    if not call.is_allowed(policies.ATTRIBUTES):
        message = tenant_fault(message, call)
    return {"code": 500, "created": format_iso(server.updated_at), "message": message}
