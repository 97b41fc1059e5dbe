"""The order of a server list, from its query string."""

from __future__ import annotations

import falcon

from api.http import policies
from api.http.call import Call
from api.http.microversions import Microversion
from objects import errors

_TIMES = ("created_at", "updated_at", "launched_at", "terminated_at")
_NUMBERS = ("launch_index", "power_state", "config_drive", "locked")
_CONSTANT = frozenset({"kernel_id", "progress", "ramdisk_id"})
"""Sort keys of the Compute API whose value is the same for all servers here, so they change nothing."""

_NOT_OFFERED = frozenset({"access_ip_v4", "access_ip_v6", "auto_disk_config", "root_device_name"})
"""Sort keys of the Compute API whose values the summaries do not have. They are refused: without one the order is wrong."""

_IGNORED = frozenset({
    "architecture", "cell_name", "cleaned", "default_ephemeral_device", "default_swap_device", "deleted", "deleted_at",
    "disable_terminate", "ephemeral_gb", "ephemeral_key_uuid", "id", "key_data", "launched_on", "memory_mb", "os_type",
    "reservation_id", "root_gb", "shutdown_terminate", "user_data", "vcpus", "vm_mode",
})  # fmt: skip
"""Former sort keys of the Compute API, ignored in versions that do not yet refuse unknown ones."""

_ADMINISTRATORS = frozenset({"host", "node"})


def sort_of(req: falcon.Request, call: Call) -> tuple[tuple[str, str], ...]:
    """Keys of ``db.api.servers.listing`` with their directions. A missing direction is the first one given, or descending.

    Raises errors.Invalid and errors.Forbidden. The database layer refuses unknown keys.
    """
    keys = req.get_param_as_list("sort_key") or ["created_at"]
    directions = req.get_param_as_list("sort_dir") or ["desc"]
    if len(directions) > len(keys):
        raise errors.Invalid("sort_dir: is given more often than sort_key")
    for direction in directions:
        if direction not in ("asc", "desc"):
            raise errors.Invalid(f"sort_dir: {direction[:40]!r} is neither asc nor desc")
    if not call.is_allowed(policies.ALL_FILTERS) and _ADMINISTRATORS.intersection(keys):
        raise errors.Forbidden("sort_key: only an administrator may sort by host or node")
    directions += directions[:1] * (len(keys) - len(directions))
    sort: dict[str, str] = {}
    for key, direction in zip(keys, directions, strict=True):
        if key in _NOT_OFFERED:
            raise errors.Invalid(f"sort_key: lists cannot be sorted by {key}")
        if not _passed_over(key, call):
            sort.setdefault(key, direction)  # a repeated key changes nothing
    return tuple(sort.items()) or (("created_at", directions[0]),)


def kind_of(key: str) -> type:
    """The type of a sort key's values."""
    return float if key in _TIMES else int if key in _NUMBERS else str


def _passed_over(key: str, call: Call) -> bool:
    if key == "locked":
        return not call.has_feature(Microversion.LOCKED_REASON)
    return key in _CONSTANT or (key in _IGNORED and not call.has_feature(Microversion.QUERY_CHECKED))
