"""JSON schemas of request bodies by microversion: those of the Compute API without the parts that are not offered here."""

from __future__ import annotations

from typing import Any

from api.microversions import DEVICE_TAGS, NETWORK_TAGS, Since, Version, within
from objects.base import INT32_MAX
from objects.quota import RESOURCES

Schema = dict[str, Any]

BOOLEANS: dict[str | bool, bool] = {
    True: True,
    False: False,
    **dict.fromkeys(("True", "TRUE", "true", "1", "ON", "On", "on", "YES", "Yes", "yes"), True),
    **dict.fromkeys(("False", "FALSE", "false", "0", "OFF", "Off", "off", "NO", "No", "no"), False),
}
"""The spellings of booleans in a request."""

CREATE_CHANGES: tuple[Version, ...] = ((2, 1), (2, 19), (2, 32), (2, 33), (2, 37), (2, 42), (2, 52))
"""Versions that changed the body of a create."""

_NAME: Schema = {"type": "string", "format": "name", "minLength": 1, "maxLength": 255}
_BOOLEAN: Schema = {"type": ["boolean", "string"], "enum": list(BOOLEANS)}
_COUNT: Schema = {"type": ["integer", "string"], "pattern": r"^[0-9]{1,9}\Z", "minimum": 1, "maximum": 999999999}
_UUID: Schema = {"type": "string", "format": "uuid"}
_TAG: Schema = {"type": "string", "minLength": 1, "maxLength": 60, "pattern": r"^[^,/]*\Z"}
_METADATA: Schema = {
    "type": "object",
    "propertyNames": {"pattern": r"^[a-zA-Z0-9-_:. ]{1,255}\Z"},
    "additionalProperties": {"type": "string", "maxLength": 255},
}
_BLOCK_DEVICE: dict[str, Schema] = {
    "uuid": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[a-zA-Z0-9._-]*\Z"},
    "source_type": {"enum": ["image", "blank"]},
    "destination_type": {"enum": ["local"]},
    "boot_index": {"type": ["integer", "string", "null"], "pattern": r"^-?[0-9]{1,9}\Z"},
    "delete_on_termination": _BOOLEAN,
    "volume_size": {"type": ["integer", "string"], "pattern": r"^0*[1-9][0-9]{0,8}\Z", "minimum": 1, "maximum": 2147483647},
    "device_name": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[a-zA-Z0-9._/-]*\Z"},
    "guest_format": {"type": "string", "maxLength": 255},
    "device_type": {"type": "string", "maxLength": 255},
    "disk_bus": {"type": "string", "maxLength": 255},
}
_NETWORK: dict[str, Schema] = {
    "uuid": _UUID,
    "port": {"type": ["string", "null"], "format": "uuid"},
    "fixed_ip": {"type": "string", "format": "ip-address"},
}
_HINT: Schema = {
    "type": ["string", "array"],
    "maxLength": 255,
    "maxItems": 50,
    "items": {"type": "string", "maxLength": 255},
}
_HINTS: Schema = {
    "type": "object",
    "properties": {
        # clients may send any hint as a list; CreateBody.all_or_nothing gives a clearer error than a schema
        "all_or_nothing": _HINT | {"type": ["boolean", "string", "array"], "items": {"type": ["boolean", "string"]}},
        "query": _HINT | {"maxLength": 4096, "items": {"type": "string", "maxLength": 4096}},
    },
    "additionalProperties": _HINT,
}


def create(version: Version) -> Schema:
    """The body of ``POST /servers``."""
    networks: Schema = {"type": "array", "maxItems": 50, "items": _object(_NETWORK, tag=within(NETWORK_TAGS, version))}
    if Since.NETWORKS_REQUIRED.holds(version):
        networks |= {"type": ["array", "string"], "pattern": r"^(auto|none)\Z"}
    server: dict[str, Schema] = {
        "name": _NAME,
        "flavorRef": {"type": ["string", "integer"], "minLength": 1, "maxLength": 255},
        "imageRef": {"type": "string", "format": "uuid-or-empty"},
        "block_device_mapping_v2": {
            "type": "array",
            "maxItems": 64,
            "items": _object(_BLOCK_DEVICE, tag=within(DEVICE_TAGS, version)) | {"required": ["source_type"]},
        },
        "networks": networks,
        "availability_zone": _NAME,
        "min_count": _COUNT,
        "max_count": _COUNT,
        "return_reservation_id": _BOOLEAN,
        "metadata": _METADATA,
        "adminPass": {"type": "string", "minLength": 1, "maxLength": 255},
        "user_data": {"type": "string", "format": "base64", "maxLength": 65535},
        "config_drive": _BOOLEAN,
        "key_name": _NAME,
        "security_groups": {"type": "array", "items": _object({"name": _NAME})},
        "OS-DCF:diskConfig": {"enum": ["AUTO", "MANUAL"]},
    }
    required = ["name", "flavorRef"]
    if Since.DESCRIPTION.holds(version):
        server["description"] = {"type": ["string", "null"], "maxLength": 255, "format": "printable"}
    if Since.TAGS_AT_CREATE.holds(version):
        server["tags"] = {"type": "array", "maxItems": 50, "items": _TAG}
    if Since.NETWORKS_REQUIRED.holds(version):
        required.append("networks")
    return {
        "type": "object",
        "properties": {
            "server": _object(server) | {"required": required},
            "os:scheduler_hints": _HINTS,
            "OS-SCH-HNT:scheduler_hints": _HINTS,
        },
        "required": ["server"],
        "additionalProperties": False,
    }


def quota_update() -> Schema:
    """The body of ``PUT /os-quota-sets/{project}``."""
    limit: Schema = {"type": ["integer", "string"], "pattern": r"^(-1|[0-9]{1,10})\Z", "minimum": -1, "maximum": INT32_MAX}
    quota_set = _object(dict.fromkeys(RESOURCES, limit) | {"force": _BOOLEAN})
    return _object({"quota_set": quota_set}) | {"required": ["quota_set"]}


def _object(properties: dict[str, Schema], *, tag: bool = False) -> Schema:
    properties = properties | {"tag": _TAG} if tag else properties
    return {"type": "object", "properties": properties, "additionalProperties": False}
