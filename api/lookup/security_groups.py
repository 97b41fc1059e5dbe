"""The security group of each project: ``default``. Its rules allow everything, because nothing here filters traffic."""

from __future__ import annotations

import uuid
from typing import Any

Document = dict[str, Any]

DEFAULT = "default"
"""The name of the only group of a project."""

_GROUP_OF = uuid.UUID("0b0f4a52-5d0c-4c0e-8d5e-7a1f1c3b9d27")
"""Makes the ID of a group from its project, and those of its rules from the group's."""

_DESCRIPTION = "Allows everything: nothing here filters what reaches a server"


def id_of(project_id: str) -> str:
    """The UUID of the project's group."""
    return str(uuid.uuid5(_GROUP_OF, project_id))


def is_group_name(project_id: str, reference: str) -> bool:
    """Whether this name or ID means the project's group."""
    return reference == DEFAULT or reference == id_of(project_id)


def list_rules(project_id: str) -> list[Document]:
    """Its rules as a network service has them."""
    return [
        {
            "id": str(uuid.uuid5(_GROUP_OF, f"{id_of(project_id)} {direction} {version}")),
            "security_group_id": id_of(project_id),
            "project_id": project_id,
            "tenant_id": project_id,
            "direction": direction,
            "ethertype": version,
            "protocol": None,
            "port_range_min": None,
            "port_range_max": None,
            "remote_ip_prefix": None,
            "remote_group_id": None,
            "remote_address_group_id": None,
            "normalized_cidr": None,
            "belongs_to_default_sg": True,
            "description": "",
            "tags": [],
        }
        for direction in ("egress", "ingress")
        for version in ("IPv4", "IPv6")
    ]


def group_document(project_id: str) -> Document:
    """The group as a network service has it."""
    return {
        "id": id_of(project_id),
        "name": DEFAULT,
        "description": _DESCRIPTION,
        "project_id": project_id,
        "tenant_id": project_id,
        "security_group_rules": list_rules(project_id),
        "stateful": True,
        "shared": False,
        "is_default": True,
        "tags": [],
    }
