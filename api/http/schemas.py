"""JSON schemas of request bodies by microversion: those of the Compute API without the parts that are not offered here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.http.microversions import DEVICE_TAGS, NETWORK_TAGS, Microversion, Version, is_within
from objects.base import INT32_MAX, INT64_MAX
from objects.flavor import DESCRIPTION_LENGTH, EXTRA_SPEC_LENGTH, RXTX_FACTOR_MAX
from objects.group import GroupPolicy
from objects.keypair import KeyType
from objects.quota import RESOURCES
from objects.stored_image import IMAGE_TAG_LENGTH

Schema = dict[str, Any]
Versions = tuple[tuple[Version, Schema], ...]
"""Schemas, each with the first version that has it, the oldest first."""

BOOLEANS: dict[str | bool, bool] = {
    True: True,
    False: False,
    **dict.fromkeys(("True", "TRUE", "true", "1", "ON", "On", "on", "YES", "Yes", "yes"), True),
    **dict.fromkeys(("False", "FALSE", "false", "0", "OFF", "Off", "off", "NO", "No", "no"), False),
}
"""The spellings of booleans in a request."""

METADATA_ITEMS_LIMIT = 128
"""Items of metadata that a server may have."""
TAGS_LIMIT = 50
"""Tags that a server may have."""
TAG_LENGTH = 60
"""Characters that a tag may have."""

CREATE_CHANGES: tuple[Version, ...] = tuple((2, minor) for minor in (1, 19, 32, 33, 37, 42, 52, 57, 63, 67, 74, 90, 94))
"""Versions that changed the body of a create."""

KEYPAIR_CHANGES: tuple[Version, ...] = (
    (2, 1),
    Microversion.KEYPAIR_TYPES.value,
    Microversion.KEYPAIR_USERS.value,
    Microversion.KEYPAIR_IMPORT.value,
)
"""Versions that changed the body of a create of a key pair."""

FLAVOR_CHANGES: tuple[Version, ...] = ((2, 1), Microversion.FLAVOR_DESCRIPTION.value)
"""Versions that changed the body of a create of a flavor."""

QUOTA_CHANGES: tuple[Version, ...] = ((2, 1), Microversion.NETWORK_LIMITS_GONE.value, Microversion.INJECTED_FILES_GONE.value)
"""Versions that changed the body of an update of quotas."""

QUOTA_CLASS_CHANGES: tuple[Version, ...] = ((2, 1), Microversion.NETWORK_CLASSES_GONE.value, Microversion.INJECTED_FILES_GONE.value)

NETWORK_QUOTAS = ("fixed_ips", "floating_ips", "security_group_rules", "security_groups")
INJECTED_QUOTAS = ("injected_file_content_bytes", "injected_file_path_bytes", "injected_files")
"""Quotas of files that a request may have, in the versions that have them."""

PUBLIC_KEY_LENGTH = 8192
"""Characters that a public key may have."""

UPDATE_CHANGES: tuple[Version, ...] = ((2, 1), (2, 19), (2, 90), (2, 94))
"""Versions that changed the body of an update."""

_NAME: Schema = {"type": "string", "format": "name", "minLength": 1, "maxLength": 255}
_BOOLEAN: Schema = {"type": ["boolean", "string"], "enum": list(BOOLEANS)}
_COUNT: Schema = {"type": ["integer", "string"], "pattern": r"^[0-9]{1,9}\Z", "minimum": 1, "maximum": 999999999}
_UUID: Schema = {"type": "string", "format": "uuid"}
_DESCRIPTION: Schema = {"type": ["string", "null"], "maxLength": 255, "format": "printable"}
DISK_CONFIG = "OS-DCF:diskConfig"
_DISK_CONFIG: Schema = {"enum": ["AUTO", "MANUAL"]}
_ACCESS: dict[str, Schema] = {
    "accessIPv4": {"type": "string", "format": "ipv4-or-empty"},
    "accessIPv6": {"type": "string", "format": "ipv6-or-empty"},
}
_NULL: Schema = {"type": "null"}
"""A field whose values are not served."""
NO_DOTS = r"(?!\.{1,2}\Z)"
"""No name that stands in paths is a dot segment: clients and proxies resolve those."""
_TAG: Schema = {"type": "string", "minLength": 1, "maxLength": TAG_LENGTH, "pattern": rf"^{NO_DOTS}[^,/\\]*\Z"}
_TAGS: Schema = {"type": "array", "maxItems": TAGS_LIMIT, "items": _TAG}
_METADATA: Schema = {
    "type": "object",
    "propertyNames": {"pattern": rf"^{NO_DOTS}[a-zA-Z0-9-_:. ]{{1,255}}\Z"},
    "additionalProperties": {"type": "string", "maxLength": 255},
}
_FLAVOR_DESCRIPTION: Schema = _DESCRIPTION | {"maxLength": DESCRIPTION_LENGTH}
_EXTRA_SPECS: Schema = _METADATA | {
    "additionalProperties": {
        "type": ["string", "number"],
        "maxLength": EXTRA_SPEC_LENGTH,
        "minimum": -INT64_MAX,
        "maximum": INT64_MAX,
    }
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
_ATTACHMENT: dict[str, Schema] = {
    "net_id": _UUID,
    "port_id": {"type": ["string", "null"], "format": "uuid"},
    "fixed_ips": {
        "type": "array",
        "minItems": 1,
        "maxItems": 1,
        "items": {
            "type": "object",
            "properties": {"ip_address": {"type": "string", "format": "ip-address"}},
            "required": ["ip_address"],
            "additionalProperties": False,
        },
    },
}
_HINT: Schema = {
    "type": ["string", "array"],
    "maxLength": 255,
    "maxItems": 50,
    "items": {"type": "string", "maxLength": 255},
}
HINT_LENGTH = 4096
"""Characters that one value of a scheduler hint may have."""

_HINTS: Schema = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("group", "same_host", "different_host", "ignore_hosts", "build_near_host_ip", "cidr"), _HINT),
        # clients may send any hint as a list; CreateBody.all_or_nothing gives a clearer error than a schema
        "all_or_nothing": _HINT | {"type": ["boolean", "string", "array"], "items": {"type": ["boolean", "string"]}},
        "query": {
            "type": ["string", "array", "object"],
            "maxLength": HINT_LENGTH,
            "maxItems": 50,
            "items": {"type": "string", "maxLength": HINT_LENGTH},
        },
    },
    # filters of a site may read others, of any type
    "additionalProperties": {"maxLength": 255, "maxItems": 50, "items": {"maxLength": 255}},
}


def hostname_property(version: Version) -> dict[str, Schema]:
    """The field ``hostname_property`` of a server, in versions that have it."""
    if Microversion.HOSTNAME_WITH_DOMAIN.is_in(version):
        return {"hostname": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[a-zA-Z0-9._-]*\Z"}}
    if Microversion.HOSTNAME.is_in(version):
        label = r"^[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]\Z"
        return {"hostname": {"type": "string", "minLength": 2, "maxLength": 63, "pattern": label}}
    return {}


_FILE: Schema = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1, "maxLength": 1023, "format": "printable"},
        "contents": {"type": "string", "format": "base64", "maxLength": 1024**2},
    },
    "required": ["path", "contents"],
    "additionalProperties": False,
}
"""One file to be written in a guest."""
_PERSONALITY: Schema = {"type": "array", "maxItems": 1000, "items": _FILE}
_ADMIN_PASS: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
_USER_DATA: Schema = {"type": "string", "format": "base64", "maxLength": 65535}


def create(version: Version) -> Schema:
    """The body of ``POST /servers``."""
    networks: Schema = {"type": "array", "maxItems": 50, "items": _object_schema(_NETWORK, tag=is_within(NETWORK_TAGS, version))}
    if Microversion.NETWORKS_REQUIRED.is_in(version):
        networks |= {"type": ["array", "string"], "pattern": r"^(auto|none)\Z"}
    device = _BLOCK_DEVICE | {"volume_type": _NULL} if Microversion.VOLUME_TYPE.is_in(version) else _BLOCK_DEVICE
    server: dict[str, Schema] = {
        "name": _NAME,
        "flavorRef": {"type": ["string", "integer"], "minLength": 1, "maxLength": 255},
        "imageRef": {"type": "string", "format": "uuid-or-empty"},
        "block_device_mapping_v2": {
            "type": "array",
            "maxItems": 64,
            "items": _object_schema(device, tag=is_within(DEVICE_TAGS, version)) | {"required": ["source_type"]},
        },
        "networks": networks,
        "availability_zone": _NAME,
        "min_count": _COUNT,
        "max_count": _COUNT,
        "return_reservation_id": _BOOLEAN,
        "metadata": _METADATA,
        "adminPass": _ADMIN_PASS,
        "user_data": _USER_DATA,
        "config_drive": _BOOLEAN,
        "key_name": _NAME,
        "security_groups": {"type": "array", "items": _object_schema({"name": _NAME})},
        DISK_CONFIG: _DISK_CONFIG,
    } | _ACCESS
    required = ["name", "flavorRef"]
    if not Microversion.INJECTED_FILES_GONE.is_in(version):
        server["personality"] = _PERSONALITY
    if Microversion.DESCRIPTION.is_in(version):
        server["description"] = _DESCRIPTION
    if Microversion.TAGS_AT_CREATE.is_in(version):
        server["tags"] = _TAGS
    if Microversion.CERTIFICATES.is_in(version):
        server["trusted_image_certificates"] = _NULL
    if Microversion.REQUESTED_HOST.is_in(version):
        server |= {"host": _HOST, "hypervisor_hostname": _HOST}
    server |= hostname_property(version)
    if Microversion.NETWORKS_REQUIRED.is_in(version):
        required.append("networks")
    return {
        "type": "object",
        "properties": {
            "server": _object_schema(server) | {"required": required},
            "os:scheduler_hints": _HINTS,
            "OS-SCH-HNT:scheduler_hints": _HINTS,
        },
        "required": ["server"],
        "additionalProperties": False,
    }


def server_update_body(version: Version) -> Schema:
    """The body of ``PUT /servers/{id}``."""
    server = {"name": _NAME, DISK_CONFIG: _DISK_CONFIG} | _ACCESS | hostname_property(version)
    if Microversion.DESCRIPTION.is_in(version):
        server["description"] = _DESCRIPTION
    return _single_property("server", _object_schema(server))


def keypair_body(version: Version) -> Schema:
    """The body of ``POST /os-keypairs``."""
    imports = Microversion.KEYPAIR_IMPORT.is_in(version)
    properties: dict[str, Schema] = {
        "name": _NAME | {"pattern": rf"^{NO_DOTS}[A-Za-z0-9_ .@-]+\Z" if imports else r"^[A-Za-z0-9_ -]+\Z"},
        "public_key": {"type": "string", "minLength": 1, "maxLength": PUBLIC_KEY_LENGTH},
    }
    if Microversion.KEYPAIR_TYPES.is_in(version):
        properties["type"] = {"enum": list(KeyType)}
    if Microversion.KEYPAIR_USERS.is_in(version):
        properties["user_id"] = {"type": "string", "minLength": 1, "maxLength": 255}
    return _single_property("keypair", _object_schema(properties) | {"required": ["name", "public_key"] if imports else ["name"]})


def flavor_body(version: Version) -> Schema:
    """The body of ``POST /flavors``."""
    properties: dict[str, Schema] = {
        "name": _NAME,
        "id": {
            "type": ["string", "number", "null"],
            "minLength": 1,
            "maxLength": 255,
            "pattern": rf"^(?! ){NO_DOTS}[a-zA-Z0-9. _-]+(?<! )\Z",
            "minimum": -INT64_MAX,
            "maximum": INT64_MAX,
        },
        "ram": _size_schema(1),
        "vcpus": _size_schema(1),
        "disk": _size_schema(0),
        "OS-FLV-EXT-DATA:ephemeral": _size_schema(0),
        "swap": _size_schema(0),
        "rxtx_factor": {
            "type": ["number", "string"],
            "pattern": r"^[0-9]+(\.[0-9]+)?\Z",
            "exclusiveMinimum": 0,
            "maximum": RXTX_FACTOR_MAX,
        },
        "os-flavor-access:is_public": _BOOLEAN,
    }
    if Microversion.FLAVOR_DESCRIPTION.is_in(version):
        properties["description"] = _FLAVOR_DESCRIPTION
    return _single_property("flavor", _object_schema(properties) | {"required": ["name", "ram", "vcpus", "disk"]})


def flavor_update() -> Schema:
    """The body of ``PUT /flavors/{id}``, from 2.55 on."""
    return _single_property("flavor", _single_property("description", _FLAVOR_DESCRIPTION))


def flavor_access(action: str) -> Schema:
    """The body of ``POST /flavors/{id}/action`` for the action of this name."""
    return _single_property(action, _single_property("tenant", {"type": "string", "minLength": 1, "maxLength": 255}))


_ZONE: Schema = {"type": ["string", "null"], "minLength": 1, "maxLength": 255, "pattern": r"^[^:]*\Z"}


def aggregate_body(*, required: Sequence[str] = ()) -> Schema:
    """The body of ``POST /os-aggregates`` and, with nothing required but one of the two, of ``PUT /os-aggregates/{id}``."""
    body = _object_schema({"name": _NAME, "availability_zone": _ZONE})
    return _single_property("aggregate", body | {"required": list(required), "minProperties": 1})


def aggregate_host(action: str) -> Schema:
    """The body of the actions that add and remove a host."""
    return _single_property(action, _single_property("host", {"type": "string", "pattern": r"^[a-zA-Z0-9-._]{1,255}\Z"}))


def aggregate_metadata(action: str) -> Schema:
    """The body of the action that changes the metadata: null removes a key."""
    keys = {"pattern": r"^[a-zA-Z0-9-_:. ]{1,255}\Z"}
    values = {"type": ["string", "null"], "maxLength": 255}
    return _single_property(
        action, _single_property("metadata", {"type": "object", "propertyNames": keys, "additionalProperties": values})
    )


def extra_specs() -> Schema:
    """The body of ``POST /flavors/{id}/os-extra_specs``."""
    return _single_property("extra_specs", _EXTRA_SPECS)


def extra_spec() -> Schema:
    """The body of ``PUT /flavors/{id}/os-extra_specs/{key}``."""
    return _EXTRA_SPECS | {"minProperties": 1, "maxProperties": 1}


def metadata_body() -> Schema:
    """The body of ``POST`` and ``PUT /servers/{id}/metadata``."""
    return _single_property("metadata", _METADATA)


def metadata_item() -> Schema:
    """The body of ``PUT /servers/{id}/metadata/{key}``."""
    return _single_property("meta", _METADATA | {"minProperties": 1, "maxProperties": 1})


def image_body() -> Schema:
    """The body of ``POST /image/v2/images``. Fields that are not named are properties."""
    count = {"type": "integer", "minimum": 0, "maximum": INT32_MAX}
    known: dict[str, Schema] = {
        "name": {"type": ["string", "null"], "maxLength": 255},
        "disk_format": {"enum": ["raw", "qcow2", None]},
        "container_format": {"enum": ["bare", None]},
        "visibility": {"const": "private"},
        "min_disk": count,
        "min_ram": count,
        "protected": {"const": False},
        "os_hidden": {"const": False},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": IMAGE_TAG_LENGTH}},
    }
    return _METADATA | {"properties": known, "maxProperties": METADATA_ITEMS_LIMIT}


def tags_body() -> Schema:
    """The body of ``PUT /servers/{id}/tags``."""
    return _single_property("tags", _TAGS)


def tag_in_path() -> Schema:
    """The tag in the path of ``PUT /servers/{id}/tags/{tag}``, as an object."""
    return _single_property("tag", _TAG)


CROSS_CELL = "superconductor:cross_cell"
"""A field of the actions that move servers, which the Compute API does not have: the server may leave its cell."""
VERIFY = "superconductor:verify"
"""Another, of ``migrate``: whether the server waits for its user's decision afterwards. True by default, as in the Compute API."""

SERVICE_ACTION_CHANGES: tuple[Version, ...] = ((2, 1), Microversion.FORCED_DOWN.value)
"""Versions that changed the body of an action on a service."""

_REASON: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "format": "printable"}


def service_action(version: Version) -> Schema:
    """The body of ``PUT /os-services/{action}`` before 2.53."""
    properties = {"host": _HOST, "binary": {"type": "string", "minLength": 1, "maxLength": 255}, "disabled_reason": _REASON}
    if Microversion.FORCED_DOWN.is_in(version):
        properties["forced_down"] = _BOOLEAN
    return _object_schema(properties) | {"required": ["host", "binary"]}


def service_change() -> Schema:
    """The body of ``PUT /os-services/{service_id}`` from 2.53 on."""
    return _object_schema({"status": {"enum": ["enabled", "disabled"]}, "disabled_reason": _REASON, "forced_down": _BOOLEAN})


def host_change() -> Schema:
    """The body of ``PUT /os-hosts/{host}``."""
    value = {"enum": [word for way in ("enable", "disable") for word in (way, way.capitalize(), way.upper())]}
    return _object_schema({"status": value, "maintenance_mode": value}) | {"minProperties": 1}


def force_complete() -> Schema:
    """The body of ``POST /servers/{id}/migrations/{id}/action``."""
    return _object_schema({"force_complete": _NULL}) | {"required": ["force_complete"]}


NETWORK_EVENTS = ("network-changed", "network-vif-plugged", "network-vif-unplugged", "network-vif-deleted")
EXTERNAL_EVENTS: tuple[tuple[Version, tuple[str, ...]], ...] = (
    ((2, 1), NETWORK_EVENTS),
    ((2, 51), ("volume-extended",)),
    ((2, 76), ("power-update",)),
    ((2, 82), ("accelerator-request-bound",)),
    ((2, 93), ("volume-reimaged",)),
)
"""What other services may tell, each with the version that added it."""
TAGGED_EVENTS = ("volume-extended", "power-update", "accelerator-request-bound")
"""Events that need a tag."""


def external_events(version: Version) -> Schema:
    """The body of ``POST /os-server-external-events``."""
    names = [name for since, added in EXTERNAL_EVENTS if since <= version for name in added]
    event = {
        "name": {"enum": names},
        "server_uuid": _UUID,
        "status": {"enum": ["failed", "completed", "in-progress"]},
        "tag": {"type": "string", "maxLength": 255},
    }
    items = _object_schema(event) | {"required": ["name", "server_uuid"]}
    return _single_property("events", {"type": "array", "minItems": 1, "maxItems": 1000, "items": items})


REMOTE_CONSOLE_CHANGES: tuple[Version, ...] = ((2, 1), Microversion.WEB_MKS.value)
"""Versions that changed the body of a request for a remote console."""


def remote_console(version: Version) -> Schema:
    """The body of ``POST /servers/{id}/remote-consoles``."""
    mks = Microversion.WEB_MKS.is_in(version)
    protocols = ["vnc", "spice", "serial", "rdp", *(["mks"] if mks else [])]
    types = ["novnc", "xvpvnc", "spice-html5", "serial", "rdp-html5", *(["webmks"] if mks else [])]
    properties: dict[str, Schema] = {"protocol": {"enum": protocols}, "type": {"enum": types}}
    return _single_property("remote_console", _object_schema(properties) | {"required": ["protocol", "type"]})


def console_action(*types: str) -> Versions:
    """The value of an action that asks for a console of one of these types."""
    return _action_versions(((2, 1), {"type": {"enum": list(types)}}), required=["type"])


SERVER_GROUP_CHANGES: tuple[Version, ...] = ((2, 1), Microversion.SOFT_GROUPS.value, Microversion.GROUP_RULES.value)
"""Versions that changed the body of a new server group."""

_POSITIVE: Schema = {"type": ["integer", "string"], "pattern": r"^0*[1-9][0-9]{0,8}\Z", "minimum": 1, "maximum": INT32_MAX}


def server_group(version: Version) -> Schema:
    """The body of ``POST /os-server-groups``."""
    policy: Schema = {
        "enum": [
            str(group_policy) for group_policy in GroupPolicy if group_policy.is_strict or Microversion.SOFT_GROUPS.is_in(version)
        ]
    }
    properties: dict[str, Schema] = {"name": _NAME}
    if Microversion.GROUP_RULES.is_in(version):
        properties |= {
            "policy": policy,
            "rules": _object_schema({"max_server_per_host": _POSITIVE, "max_server_per_rack": _POSITIVE}),
        }
    else:
        properties["policies"] = {"type": "array", "items": policy, "minItems": 1, "maxItems": 1}
    required = ["name", "policy" if Microversion.GROUP_RULES.is_in(version) else "policies"]
    return _single_property("server_group", _object_schema(properties) | {"required": required})


def action_body(name: str, value: Schema) -> Schema:
    """The body of ``POST /servers/{id}/action`` for the action of this name."""
    return _single_property(name, value)


def quota_update(version: Version) -> Schema:
    """The body of ``PUT /os-quota-sets/{project}``."""
    limits = _limit_properties(network=not Microversion.NETWORK_LIMITS_GONE.is_in(version), version=version)
    return _single_property("quota_set", _object_schema(limits | {"force": _BOOLEAN}))


def quota_class_update(version: Version) -> Schema:
    """The body of ``PUT /os-quota-class-sets/{class}``."""
    limits = _limit_properties(network=not Microversion.NETWORK_CLASSES_GONE.is_in(version), version=version)
    return _single_property("quota_class_set", _object_schema(limits))


def _limit_properties(*, network: bool, version: Version) -> dict[str, Schema]:
    """Limits by name."""
    limit: Schema = {"type": ["integer", "string"], "pattern": r"^(-1|[0-9]{1,10})\Z", "minimum": -1, "maximum": INT32_MAX}
    names = [*RESOURCES, "key_pairs", "metadata_items", "server_groups", "server_group_members"]
    names += NETWORK_QUOTAS if network else ()
    names += () if Microversion.INJECTED_FILES_GONE.is_in(version) else INJECTED_QUOTAS
    return dict.fromkeys(names, limit)


def _size_schema(least: int) -> Schema:
    """A size of a flavor."""
    return {"type": ["integer", "string"], "pattern": r"^[0-9]{1,10}\Z", "minimum": least, "maximum": INT32_MAX}


def _single_property(name: str, schema: Schema) -> Schema:
    """An object with this one property."""
    return _object_schema({name: schema}) | {"required": [name]}


def _object_schema(properties: dict[str, Schema], *, tag: bool = False) -> Schema:
    properties = properties | {"tag": _TAG} if tag else properties
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _action_versions(*versions: tuple[Version, dict[str, Schema]], required: Sequence[str] = (), null: bool = False) -> Versions:
    """The value of an action by the first versions that have these properties."""
    kind = {"type": ["object", "null"]} if null else {}
    return tuple(
        (since, _object_schema(properties) | kind | ({"required": list(required)} if required else {}))
        for since, properties in versions
    )


_HOST: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[A-Za-z0-9._-]+\Z"}
_MOVE: dict[str, Schema] = {CROSS_CELL: _BOOLEAN}
_FLAVOR_REF: Schema = {"type": ["string", "integer"], "minLength": 1, "maxLength": 255}

ANYTHING: Schema = {}
"""The value of actions that read none: the Compute API allows every value, and clients send null, ``{}`` or an empty text."""
NO_VALUE: Versions = (((2, 1), ANYTHING),)
"""The value of actions that read none in any version."""
LOCK: Versions = (
    ((2, 1), ANYTHING),
    (
        Microversion.LOCKED_REASON.value,
        _object_schema({"locked_reason": {"type": "string", "minLength": 1, "maxLength": 255}}) | {"type": ["object", "null"]},
    ),
)
"""The value of the action ``lock``."""
REBOOT = _action_versions(((2, 1), {"type": {"enum": ["HARD", "Hard", "hard", "SOFT", "Soft", "soft"]}}), required=["type"])
RESIZE = _action_versions(((2, 1), {"flavorRef": _FLAVOR_REF, DISK_CONFIG: _DISK_CONFIG} | _MOVE), required=["flavorRef"])
MIGRATE = _action_versions(((2, 1), {"host": _HOST | {"type": ["string", "null"]}, VERIFY: _BOOLEAN} | _MOVE), null=True)
"""With a host in all versions: the Compute API has it since 2.56."""
_EVACUATION: dict[str, Schema] = {"host": _HOST, "adminPass": _ADMIN_PASS} | _MOVE
EVACUATE = _action_versions(
    ((2, 1), _EVACUATION | {"onSharedStorage": _BOOLEAN}),
    ((2, 14), _EVACUATION),
    ((2, 29), _EVACUATION | {"force": _BOOLEAN}),
    (Microversion.FORCE_GONE.value, _EVACUATION),
)
CONSOLE_OUTPUT = _action_versions(
    (
        (2, 1),
        {"length": {"type": ["integer", "string", "null"], "pattern": r"^(-1|[0-9]{1,9})\Z", "minimum": -1, "maximum": INT32_MAX}},
    )
)
_LIVE: dict[str, Schema] = {"host": _HOST | {"type": ["string", "null"]}, "block_migration": {"enum": [*BOOLEANS, "auto"]}} | _MOVE
LIVE_MIGRATE = _action_versions(
    ((2, 1), _LIVE | {"block_migration": _BOOLEAN, "disk_over_commit": _BOOLEAN}),
    ((2, 25), _LIVE),
    ((2, 30), _LIVE | {"force": _BOOLEAN}),
    (Microversion.FORCE_GONE.value, _LIVE),
    required=["host", "block_migration"],
)
UNSHELVE: Versions = (
    ((2, 1), ANYTHING),
    (
        Microversion.UNSHELVE_ZONE.value,
        _object_schema({"availability_zone": _NAME}) | {"type": ["object", "null"], "required": ["availability_zone"]},
    ),
    (
        Microversion.UNSHELVE_HOST.value,
        _object_schema({"availability_zone": _NAME | {"type": ["string", "null"]}, "host": _HOST}) | {"type": ["object", "null"]},
    ),
)
_IMAGE: dict[str, Schema] = {"name": _NAME, "metadata": _METADATA}
CREATE_IMAGE = _action_versions(((2, 1), _IMAGE), required=["name"])
CREATE_BACKUP = _action_versions(
    (
        (2, 1),
        _IMAGE
        | {
            "backup_type": {"type": "string", "maxLength": 255, "format": "printable"},
            "rotation": {"type": ["integer", "string"], "pattern": r"^[0-9]{1,9}\Z", "minimum": 0, "maximum": INT32_MAX},
        },
    ),
    required=["name", "backup_type", "rotation"],
)
RESCUE = _action_versions(((2, 1), {"adminPass": _ADMIN_PASS, "rescue_image_ref": _UUID}), null=True)
INTERFACE_ATTACHMENT: Versions = (
    ((2, 1), _object_schema({"interfaceAttachment": _object_schema(_ATTACHMENT)})),
    (Microversion.ATTACHED_TAGS.value, _object_schema({"interfaceAttachment": _object_schema(_ATTACHMENT, tag=True)})),
)
"""The body of ``POST /servers/{id}/os-interface``. It may be empty."""
PORT_FIELDS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "admin_state_up": ((True,), "a port carries traffic while a running server has it"),
    "allowed_address_pairs": (([],), "nothing filters the addresses that a server sends from, so none need be allowed"),
    "binding:host_id": (("",), "a port goes with its server, which the scheduler places"),
    "binding:profile": (({},), "there are no profiles"),
    "binding:vnic_type": (("normal",), "normal is the only type"),
    "device_id": (("",), "a server takes a port: name the port when you boot it, or attach it with os-interface"),
    "device_owner": (("",), "a server takes a port: name the port when you boot it, or attach it with os-interface"),
    "dns_name": (("",), "there are no names of ports; the guest has the name of its server"),
    "extra_dhcp_opts": (([],), "DHCP is served by the networks of the hosts, if at all"),
    "mac_address": ((), "a port has the MAC of its address"),
    "port_security_enabled": ((False,), "nothing filters what a port sends and receives"),
    "qos_policy_id": ((), "there are no policies of quality"),
}
"""Fields of a port of which only one value holds here, besides null: those values, and why another one is refused."""
_TEXT_OR_NULL: Schema = {"type": ["string", "null"], "maxLength": 255}
_PORT_TAGS: Schema = {
    "type": "array",
    "maxItems": 50,
    "items": {"type": "string", "minLength": 1, "maxLength": 255},
}
_FIXED_IPS: Schema = {
    "type": ["array", "null"],
    "maxItems": 2,
    "items": _object_schema({"subnet_id": _UUID, "ip_address": {"type": "string", "format": "ip-address"}}),
}
_PORT: dict[str, Schema] = {
    "name": _TEXT_OR_NULL,
    "description": _TEXT_OR_NULL,
    "security_groups": {"type": ["array", "null"], "maxItems": 50, "items": {"type": "string", "maxLength": 255}},
    **{name: {} for name in PORT_FIELDS},
}
_NEW_PORT = _PORT | {
    "network_id": _UUID,
    "project_id": _NAME,
    "tenant_id": _NAME,
    "fixed_ips": _FIXED_IPS,
    "tags": _PORT_TAGS,
}
NEW_PORT = _single_property("port", _object_schema(_NEW_PORT) | {"required": ["network_id"]})
"""The body of ``POST /network/v2.0/ports``."""
PORT_CHANGES = _single_property("port", _object_schema(_PORT))
PORT_TAGS = _single_property("tags", _PORT_TAGS)
SECURITY_GROUP = _action_versions(((2, 1), {"name": _NAME}), required=["name"])
CRASH_DUMP: Versions = (((2, 1), _NULL),)
CHANGE_PASSWORD = _action_versions(((2, 1), {"adminPass": _ADMIN_PASS}), required=["adminPass"])
RESET_STATE = _action_versions(((2, 1), {"state": {"enum": ["active", "error"]}}), required=["state"])
_REBUILD: dict[str, Schema] = {
    "imageRef": _UUID,
    DISK_CONFIG: _DISK_CONFIG,
    "preserve_ephemeral": _BOOLEAN,
    "name": _NAME,
    "metadata": _METADATA,
    "adminPass": _ADMIN_PASS,
} | _ACCESS
_FILES = {"personality": _PERSONALITY}
_REBUILD_DESCRIBED = _REBUILD | {"description": _DESCRIPTION}
_REBUILD_WITH_KEY = _REBUILD_DESCRIBED | {"key_name": _NAME | {"type": ["string", "null"]}}
_REBUILD_WITH_USER_DATA = _REBUILD_WITH_KEY | {"user_data": _USER_DATA | {"type": ["string", "null"]}}
_REBUILD_NEWER = _REBUILD_WITH_USER_DATA | {"trusted_image_certificates": _NULL}
REBUILD = _action_versions(
    ((2, 1), _REBUILD | _FILES),
    (Microversion.DESCRIPTION.value, _REBUILD_DESCRIBED | _FILES),
    (Microversion.REBUILD_KEY.value, _REBUILD_WITH_KEY | _FILES),
    (Microversion.INJECTED_FILES_GONE.value, _REBUILD_WITH_USER_DATA),
    (Microversion.CERTIFICATES.value, _REBUILD_NEWER),
    (Microversion.HOSTNAME.value, _REBUILD_NEWER | hostname_property(Microversion.HOSTNAME.value)),
    (Microversion.HOSTNAME_WITH_DOMAIN.value, _REBUILD_NEWER | hostname_property(Microversion.HOSTNAME_WITH_DOMAIN.value)),
    required=["imageRef"],
)
