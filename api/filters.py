"""The filters of a server list, from the names in its query string."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import falcon
import msgspec

from api import policies
from api.call import Call
from api.numbers import whole_number
from api.validation import UNSAFE
from db.api import regexes
from objects import errors, text, typed

Filters = dict[str, Any]
"""Fields of ``db.api.listing.ServerQuery``."""

EQUAL = {
    "availability_zone": "availability_zone",
    "flavor": "flavor_id",
    "image": "image_id",
    "key_name": "key_name",
    "user_id": "user_id",
}
"""Parameters that must equal one field, with the names of the fields."""

ALIASES = {"display_name": "name", "display_description": "description", "image_ref": "image", "tenant_id": "project_id"}
"""Other names of parameters, each with its main name. If both are given, the main name takes precedence."""

EMPTY_HERE = frozenset({
    "access_ip_v4", "access_ip_v6", "ip", "ip6", "kernel_id", "locked_by", "ramdisk_id", "root_device_name",
})  # fmt: skip
"""Properties that no server here has: a filter by one finds nothing."""

NOT_OFFERED = frozenset({
    "auto_disk_config", "block_device_mapping", "created_at", "info_cache", "launched_at", "pci_devices", "progress",
    "security_groups", "services", "system_metadata", "terminated_at",
})  # fmt: skip
"""Filters that clients know but that are not offered here. They are refused, because ignoring one would make the list wrong."""

KNOWN = (
    EQUAL.keys() | ALIASES.keys() | EMPTY_HERE | NOT_OFFERED | {
        "all_tenants", "changes-before", "changes-since", "config_drive", "deleted", "description", "host", "launch_index", "limit",
        "locked", "marker", "metadata", "name", "node", "not-tags", "not-tags-any", "position", "power_state", "project_id",
        "reservation_id", "soft_deleted", "sort_dir", "sort_key", "status", "tags", "tags-any", "task_state", "uuid", "vm_state",
    }
)  # fmt: skip
"""All parameters of a server list."""

TRUE = frozenset({"", "1", "t", "true", "on", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "off", "n", "no"})
_POWER = {"1": ("active",), "0": ("building", "error")}
_TASKS = {"scheduling": False, "spawning": True}
_TAGS_LIMIT, _TAG_LENGTH, _METADATA_KEYS_LIMIT = 50, 60, 128


def value_of(req: falcon.Request, name: str) -> str | None:
    """The value of a parameter, given by its name or its alias; None if it is missing or empty."""
    other = next((alias for alias, known in ALIASES.items() if known == name), None)
    return req.get_param(name) or (req.get_param(other) if other else None) or None


def boolean(req: falcon.Request, name: str) -> bool:
    """The value of a boolean parameter; False if it is missing. Raises errors.Invalid."""
    given = req.get_param(name)
    word = "0" if given is None else given.strip().lower()
    if word not in TRUE | _FALSE:
        raise errors.Invalid(f"{name}: {word[:40]!r} is neither true nor false")
    return word in TRUE


def filters_of(req: falcon.Request, call: Call) -> Filters | None:
    """The filters besides state, project and deletion. None if no server can match. Raises errors.Invalid."""
    found: Filters = {}
    for part in (_impossible, _plain, _expressions, _places, _request, _tags, _metadata, _times):
        more = part(req, call)
        if more is None:
            return None
        found |= more
    return found


def states_of(req: falcon.Request, names: str, states: dict[str, tuple[str, ...]]) -> set[str] | None:
    """The states that the values of a parameter stand for; None if it is missing."""
    given = [value for value in req.get_param_as_list(names) or () if value]
    return {state for value in given for state in states.get(value, ())} if given else None


def power_states(req: falcon.Request) -> set[str] | None:
    return states_of(req, "power_state", _POWER)


def vm_states(req: falcon.Request) -> set[str] | None:
    return states_of(req, "vm_state", {state: (state,) for state in ("active", "building", "deleted", "error")})


def task_states(req: falcon.Request) -> set[str] | None:
    return states_of(req, "task_state", dict.fromkeys(_TASKS, ("building",)))


def _impossible(req: falcon.Request, call: Call) -> Filters | None:
    for name in ("ip", "ip6"):
        if given := req.get_param(name):
            regexes.check(given, name)
    if any(req.get_param(name) for name in EMPTY_HERE) or boolean(req, "locked") or boolean(req, "soft_deleted"):
        return None
    return {}


def _plain(req: falcon.Request, call: Call) -> Filters:
    found: Filters = {field: given for name, field in EQUAL.items() if (given := value_of(req, name))}
    found["uuids"] = tuple(dict.fromkeys(uuid for uuid in req.get_param_as_list("uuid") or () if uuid))
    if req.get_param("config_drive"):
        found["config_drive"] = boolean(req, "config_drive")
    return found


def _expressions(req: falcon.Request, call: Call) -> Filters:
    found: Filters = {}
    for name in ("name", "description"):
        if given := value_of(req, name):
            regexes.check(given, name)
            found[name] = given
    return found


def _places(req: falcon.Request, call: Call) -> Filters:
    """Filters by host and node are for administrators. For others they are ignored."""
    found: Filters = {}
    if call.may(policies.ALL_FILTERS):
        found |= {name: given for name in ("host", "node") if (given := req.get_param(name))}
    tasks = {_TASKS[task] for task in req.get_param_as_list("task_state") or () if task in _TASKS}
    if len(tasks) == 1:
        found["placed"] = tasks.pop()
    return found


def _request(req: falcon.Request, call: Call) -> Filters | None:
    """The filters by request and by the server's index in it."""
    found: Filters = {}
    if given := req.get_param("reservation_id"):
        batch = given.removeprefix("r-")
        found["batch_id"] = "-".join((batch[:8], batch[8:12], batch[12:16], batch[16:20], batch[20:]))
    if given := req.get_param("launch_index"):
        try:
            found["launch_index"] = whole_number("launch_index", given)
        except errors.Invalid:
            return None
    return found


def _tags(req: falcon.Request, call: Call) -> Filters:
    found: Filters = {}
    for name in ("tags", "tags-any", "not-tags", "not-tags-any"):
        given = tuple(dict.fromkeys(tag for tag in (req.get_param(name) or "").split(",") if tag))
        if len(given) > _TAGS_LIMIT or any(len(tag) > _TAG_LENGTH for tag in given):
            raise errors.Invalid(f"{name}: takes {_TAGS_LIMIT} tags of {_TAG_LENGTH} characters at most")
        found[name.replace("-", "_")] = given
    return found


def _metadata(req: falcon.Request, call: Call) -> Filters:
    given = req.get_param("metadata")
    if not given:
        return {}
    try:
        pairs = typed.decode(given, dict[str, str])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise errors.Invalid('metadata: is not a JSON object of strings, like {"role": "web"}') from error
    if len(pairs) > _METADATA_KEYS_LIMIT:
        raise errors.Invalid(f"metadata: takes {_METADATA_KEYS_LIMIT} keys at most")
    if not all(map(text.is_safe, (*pairs, *pairs.values()))):
        raise errors.Invalid(f"metadata: {UNSAFE}")
    return {"metadata": tuple(pairs.items())}


def _times(req: falcon.Request, call: Call) -> Filters:
    since, before = _time(req, "changes-since"), _time(req, "changes-before")
    if since is not None and before is not None and since > before:
        raise errors.Invalid("changes-since: must not be later than changes-before")
    return {"changed_since": since, "changed_before": before}


def _time(req: falcon.Request, name: str) -> float | None:
    given = req.get_param(name)
    if not given:
        return None
    try:
        at = datetime.fromisoformat(given.strip().replace(" ", "+"))  # an unescaped plus sign arrives as a space
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise errors.Invalid(f"{name}: {given[:40]!r} is not a time like 2026-01-31T12:00:00Z") from error
