"""The filters of a server list, from the names in its query string."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any

import falcon
import msgspec

from api.http import policies
from api.http.call import Call
from api.http.query_parameters import whole_number
from api.http.schemas import METADATA_ITEMS_LIMIT, TAG_LENGTH, TAGS_LIMIT
from api.http.validation import UNSAFE
from db.api.rows import regexes
from objects import errors, text, typed
from objects.phase import SOFT_DELETED, ServerPhase

Filters = dict[str, Any]
"""Fields of ``db.api.servers.listing.ServerQuery``."""

EQUAL = {
    "availability_zone": "availability_zone",
    "flavor": "flavor_id",
    "image": "image_id",
    "key_name": "key_name",
    "locked_by": "locked_by",
    "user_id": "user_id",
}
"""Parameters that must equal one field, with the names of the fields."""

ALIASES = {"display_name": "name", "display_description": "description", "image_ref": "image", "tenant_id": "project_id"}
"""Other names of parameters, each with its main name. If both are given, the main name takes precedence."""

UNSERVED_PROPERTIES = frozenset({"kernel_id", "ramdisk_id"})
"""Properties that no server here has: a filter by one finds nothing."""

NOT_OFFERED = frozenset({
    "access_ip_v4", "access_ip_v6", "auto_disk_config", "block_device_mapping", "created_at", "info_cache", "launched_at",
    "pci_devices", "progress", "root_device_name", "security_groups", "services", "system_metadata", "terminated_at",
})  # fmt: skip
"""Filters that clients know but that are not offered here. They are refused, because ignoring one would make the list wrong."""

KNOWN = (
    EQUAL.keys() | ALIASES.keys() | UNSERVED_PROPERTIES | NOT_OFFERED | {
        "all_tenants", "changes-before", "changes-since", "config_drive", "deleted", "description", "host",
        "hostname", "ip", "ip6", "launch_index", "limit", "locked", "marker", "metadata", "name", "node", "not-tags",
        "not-tags-any", "position", "power_state", "project_id", "reservation_id", "soft_deleted", "sort_dir", "sort_key", "status",
        "tags", "tags-any", "task_state", "uuid", "vm_state",
    }
)  # fmt: skip
"""All parameters of a server list."""

TRUE = frozenset({"", "1", "t", "true", "on", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "off", "n", "no"})
_NOT_ACTIVE = frozenset((ServerPhase.BUILDING, ServerPhase.ERROR, ServerPhase.DELETED))
_OF_ACTIVE = frozenset(ServerPhase) - _NOT_ACTIVE | {ServerPhase.ERROR}
"""The phases of servers that were built: one whose task has failed is in ERROR."""


def value_of(req: falcon.Request, name: str) -> str | None:
    """The value of a parameter, given by its name or its alias; None if it is missing or empty."""
    other = next((alias for alias, known in ALIASES.items() if known == name), None)
    return req.get_param(name) or (req.get_param(other) if other else None) or None


def read_boolean(req: falcon.Request, name: str) -> bool:
    """The value of a boolean parameter; False if it is missing. Raises errors.Invalid."""
    parameter = req.get_param(name)
    word = "0" if parameter is None else parameter.strip().lower()
    if word not in TRUE | _FALSE:
        raise errors.Invalid(f"{name}: {word[:40]!r} is neither true nor false")
    return word in TRUE


def filters_of(req: falcon.Request, call: Call) -> Filters | None:
    """The filters besides state, project and deletion. None if no server can match. Raises errors.Invalid."""
    merged: Filters = {}
    for part in (
        _impossible_filters,
        _equality_filters,
        _state_filters,
        _expression_filters,
        _host_filters,
        _request_filters,
        _tag_filters,
        _metadata_filters,
        _time_filters,
    ):
        more = part(req, call)
        if more is None:
            return None
        merged |= more
    return merged


def phases_of(req: falcon.Request) -> list[set[str] | None]:
    """The phases that the vm, task and power states asked for are possible in; None for what is not asked for.

    ``_state_filters`` has the exact filters. These let the list leave out, or have, deleted servers.
    """
    vm, tasks, powers = (_values_of(req, name) for name in ("vm_state", "task_state", "power_state"))
    return [
        _union_of(vm, lambda name: {name} if name in _NOT_ACTIVE - {ServerPhase.ERROR} else _OF_ACTIVE),
        _union_of(tasks, lambda name: {ServerPhase.BUILDING} if name in ("scheduling", "spawning") else _OF_ACTIVE),
        _union_of(powers, lambda name: {ServerPhase.BUILDING, ServerPhase.ERROR} if name == "0" else _OF_ACTIVE),
    ]


def _union_of(values: tuple[str, ...], possible: Callable[[str], AbstractSet[str]]) -> set[str] | None:
    return {str(phase) for value in values for phase in possible(value)} if values else None


def _values_of(req: falcon.Request, name: str) -> tuple[str, ...]:
    return tuple(value for value in req.get_param_as_list(name) or () if value)


def _state_filters(req: falcon.Request, call: Call) -> Filters:
    filters: Filters = {f"{name}s": values for name in ("vm_state", "task_state") if (values := _values_of(req, name))}
    if values := _values_of(req, "power_state"):
        filters["power_states"] = tuple(int(value) for value in values if value.isdecimal() and len(value) < 4)
    return filters


def _impossible_filters(req: falcon.Request, call: Call) -> Filters | None:
    return None if any(req.get_param(name) for name in UNSERVED_PROPERTIES) else {}


def _equality_filters(req: falcon.Request, call: Call) -> Filters:
    filters: Filters = {field: value for name, field in EQUAL.items() if (value := value_of(req, name))}
    filters["uuids"] = tuple(dict.fromkeys(uuid for uuid in req.get_param_as_list("uuid") or () if uuid))
    wants_soft_deleted = "SOFT_DELETED" in (status.upper() for status in _values_of(req, "status")) or SOFT_DELETED in _values_of(
        req, "vm_state"
    )
    filters["skip_soft_deleted"] = not read_boolean(req, "soft_deleted") and not wants_soft_deleted
    for name in ("config_drive", "locked"):
        if req.get_param(name):
            filters[name] = read_boolean(req, name)
    return filters


def _expression_filters(req: falcon.Request, call: Call) -> Filters:
    filters: Filters = {}
    for name in ("name", "hostname", "description", "ip", "ip6"):
        if expression := value_of(req, name):
            regexes.check_pattern(expression, name)
            filters[name] = expression
    return filters


def _host_filters(req: falcon.Request, call: Call) -> Filters:
    """Filters by host and node are for administrators. For others they are ignored."""
    filters: Filters = {}
    if call.is_allowed(policies.ALL_FILTERS):
        filters |= {name: value for name in ("host", "node") if (value := req.get_param(name))}
    return filters


def _request_filters(req: falcon.Request, call: Call) -> Filters | None:
    """The filters by request and by the server's index in it."""
    filters: Filters = {}
    if value := req.get_param("reservation_id"):
        batch = value.removeprefix("r-")
        filters["batch_id"] = "-".join((batch[:8], batch[8:12], batch[12:16], batch[16:20], batch[20:]))
    if value := req.get_param("launch_index"):
        try:
            filters["launch_index"] = whole_number("launch_index", value)
        except errors.Invalid:
            return None
    return filters


def _tag_filters(req: falcon.Request, call: Call) -> Filters:
    filters: Filters = {}
    for name in ("tags", "tags-any", "not-tags", "not-tags-any"):
        tags = tuple(dict.fromkeys(tag for tag in (req.get_param(name) or "").split(",") if tag))
        if len(tags) > TAGS_LIMIT or any(len(tag) > TAG_LENGTH for tag in tags):
            raise errors.Invalid(f"{name}: takes {TAGS_LIMIT} tags of {TAG_LENGTH} characters at most")
        filters[name.replace("-", "_")] = tags
    return filters


def _metadata_filters(req: falcon.Request, call: Call) -> Filters:
    value = req.get_param("metadata")
    if not value:
        return {}
    try:
        pairs = typed.decode_json(value, dict[str, str])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise errors.Invalid('metadata: is not a JSON object of strings, like {"role": "web"}') from error
    if len(pairs) > METADATA_ITEMS_LIMIT:
        raise errors.Invalid(f"metadata: takes {METADATA_ITEMS_LIMIT} keys at most")
    if not all(map(text.is_safe, (*pairs, *pairs.values()))):
        raise errors.Invalid(f"metadata: {UNSAFE}")
    return {"metadata": tuple(pairs.items())}


def _time_filters(req: falcon.Request, call: Call) -> Filters:
    since, before = period_of(req)
    return {"changed_since": since, "changed_before": before}


def period_of(req: falcon.Request, *, has_end: bool = True) -> tuple[float | None, float | None]:
    """``changes-since`` and ``changes-before``, in seconds since the epoch. ``has_end``: this version has the second.

    Raises errors.Invalid.
    """
    since, before = time_of(req, "changes-since"), time_of(req, "changes-before") if has_end else None
    if since is not None and before is not None and since > before:
        raise errors.Invalid("changes-since: must not be later than changes-before")
    return since, before


def time_of(req: falcon.Request, name: str) -> float | None:
    """The time in a parameter, in seconds since the epoch; None if it is missing. Raises errors.Invalid."""
    value = req.get_param(name)
    if not value:
        return None
    try:
        at = datetime.fromisoformat(value.strip().replace(" ", "+"))  # an unescaped plus sign arrives as a space
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise errors.Invalid(f"{name}: {value[:40]!r} is not a time like 2026-01-31T12:00:00Z") from error
