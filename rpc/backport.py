"""Write a message for a peer of an older release.

Newer messages only have more fields (``objects/base.py``), which an older peer ignores. So a field that it does not know is left
out if that loses nothing: it says nothing, or the older release did without it. Otherwise the message is refused with what to do,
because the peer would do something else than it was told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from objects import errors
from objects.base import Object
from objects.messages_version import KNOWN, V1_0, V1_1, MessagesVersion
from objects.task import DriveChanges, Power, TaskKind

VERSIONS: Mapping[MessagesVersion, Mapping[str, str]] = {
    V1_0: {
        "About": "1.1",
        "BuildOrder": "1.4",
        "BuildOrders": "2.7",
        "Choice": "1.0",
        "ComputeNode": "1.2",
        "Decision": "1.3",
        "InstanceSummary": "1.3",
        "Origin": "1.1",
        "Report": "1.6",
        "RequestSpec": "2.6",
        "Selection": "1.1",
        "TaskOrder": "1.1",
        "UnknownGuest": "1.1",
        "Verdict": "1.4",
    },
    V1_1: {},
}
"""The versions of messages in each messages version, where they differ from the next one's. The last one is this release's."""


class FieldChange(Object, frozen=True, kw_only=True):
    """A field that a message has since a messages version. ``path``: its names, from the message inwards and through lists.

    ``carries``: what an older peer would leave out, if the field is not ``nothing`` (as on the wire). Empty: the older release did
    without it, so the field can be left out whatever it says. ``values``: the field is older, and these are its new values; they
    are what must not be lost.
    """

    since: MessagesVersion
    message: str
    path: tuple[str, ...]
    nothing: Any = None
    carries: str = ""
    values: tuple[str, ...] = ()

    def is_lossy(self, fields: Mapping[str, Any]) -> bool:
        """Whether a peer that does not know this change would do something else than this message says."""
        values = [inner.get(self.path[-1], self.nothing) for inner in objects_at(fields, self.path[:-1])]
        if self.values:
            return any(value in self.values for value in values)
        return bool(self.carries) and any(value != self.nothing for value in values)


IMAGE_SIZES = ("disk_gb", "min_disk", "min_ram")
RESCUED = (Power.RESCUED.value,)
NEW_TASKS = tuple(
    kind.value for kind in (TaskKind.IMAGE, TaskKind.RESCUE, TaskKind.PASSWORD, TaskKind.CRASH_DUMP, TaskKind.INTERFACES)
)

CHANGES = (
    FieldChange(since=V1_1, message="About", path=("machine",)),
    FieldChange(since=V1_1, message="BuildOrders", path=("spec", "flavor", "rxtx_factor")),
    FieldChange(since=V1_1, message="ComputeNode", path=("booted_at",)),
    FieldChange(since=V1_1, message="RequestSpec", path=("flavor", "rxtx_factor")),
    FieldChange(since=V1_1, message="BuildOrder", path=("origin", "image_hash")),
    FieldChange(since=V1_1, message="BuildOrders", path=("orders", "origin", "image_hash")),
    FieldChange(since=V1_1, message="BuildOrders", path=("spec", "image", "hash_value")),
    FieldChange(since=V1_1, message="BuildOrders", path=("spec", "move", "image_hash")),
    FieldChange(since=V1_1, message="InstanceSummary", path=("task_stored",)),
    FieldChange(since=V1_1, message="Origin", path=("image_hash",)),
    FieldChange(since=V1_1, message="Report", path=("stored",)),
    FieldChange(since=V1_1, message="Report", path=("last_task",)),
    FieldChange(since=V1_1, message="Report", path=("power",)),
    FieldChange(since=V1_1, message="RequestSpec", path=("image", "hash_value")),
    FieldChange(since=V1_1, message="RequestSpec", path=("move", "image_hash")),
    FieldChange(since=V1_1, message="TaskOrder", path=("args", "image_hash")),
    *(FieldChange(since=V1_1, message="BuildOrders", path=("spec", "image", name), nothing=0) for name in IMAGE_SIZES),
    *(FieldChange(since=V1_1, message="RequestSpec", path=("image", name), nothing=0) for name in IMAGE_SIZES),
    FieldChange(since=V1_1, message="ComputeNode", path=("numa_nodes",)),
    FieldChange(since=V1_1, message="Choice", path=("selections", "limits", "numa_nodes")),
    FieldChange(since=V1_1, message="Selection", path=("limits", "numa_nodes")),
    FieldChange(since=V1_1, message="BuildOrder", path=("limits", "numa_nodes")),
    FieldChange(since=V1_1, message="BuildOrders", path=("orders", "limits", "numa_nodes")),
    FieldChange(
        since=V1_1,
        message="TaskOrder",
        path=("args", "drive"),
        nothing=msgspec.to_builtins(DriveChanges()),
        carries="A rebuild that changes the config drive",
    ),
    FieldChange(since=V1_1, message="BuildOrders", path=("spec", "group", "max_server_per_rack")),
    FieldChange(since=V1_1, message="RequestSpec", path=("group", "max_server_per_rack"), carries="A server group with racks"),
    FieldChange(since=V1_1, message="BuildOrders", path=("spec", "rechecks_claims")),
    FieldChange(since=V1_1, message="RequestSpec", path=("rechecks_claims",), nothing=False, carries="A hold"),
    FieldChange(since=V1_1, message="Decision", path=("pairs",)),
    FieldChange(since=V1_1, message="Decision", path=("largest_flavor",)),
    FieldChange(since=V1_1, message="Decision", path=("basis",)),
    FieldChange(since=V1_1, message="Decision", path=("unread_hints",)),
    FieldChange(since=V1_1, message="TaskOrder", path=("args", "image"), carries="An image of a server"),
    FieldChange(since=V1_1, message="TaskOrder", path=("args", "ports")),
    FieldChange(since=V1_1, message="TaskOrder", path=("kind",), values=NEW_TASKS, carries="Such a task"),
    FieldChange(since=V1_1, message="TaskOrder", path=("power",), values=RESCUED, carries="A rescue"),
    FieldChange(since=V1_1, message="BuildOrder", path=("power",), values=RESCUED, carries="A rescue"),
    FieldChange(since=V1_1, message="BuildOrders", path=("orders", "power"), values=RESCUED, carries="A rescue"),
    FieldChange(since=V1_1, message="InstanceSummary", path=("power",), values=RESCUED, carries="A rescue"),
    FieldChange(since=V1_1, message="UnknownGuest", path=("power",)),
    FieldChange(since=V1_1, message="UnknownGuest", path=("server_uuid",)),
    FieldChange(since=V1_1, message="UnknownGuest", path=("project_id",)),
    FieldChange(since=V1_1, message="UnknownGuest", path=("user_id",)),
    FieldChange(since=V1_1, message="UnknownGuest", path=("ports",)),
    FieldChange(since=V1_1, message="UnknownGuest", path=("last_task",)),
    FieldChange(since=V1_1, message="Verdict", path=("later",)),  # an older agent drops a task that is refused, and gets it again
)
"""What stands beside a changed fingerprint in ``tests/unit/rpc/test_fingerprints.py``."""

CHANGED = frozenset(change.message for change in CHANGES)
"""The messages that differ between messages versions."""


def message_version(name: str, current: str, version: MessagesVersion) -> str:
    """The version of a message in a messages version. ``current``: the one that it has now."""
    return next((VERSIONS[known][name] for known in KNOWN if known >= version and name in VERSIONS[known]), current)


def backport_fields(name: str, fields: dict[str, Any], version: MessagesVersion) -> dict[str, Any]:
    """``fields`` of a message, as on the wire, without those that this messages version does not have. They are changed in place.

    Raises errors.PeerTooOld if that would lose something.
    """
    for change in CHANGES:
        if change.message == name and change.since > version:
            if change.is_lossy(fields):
                needed = f"{change.carries} needs a host of messages {change.since}; its agent knows {version}: upgrade it."
                raise errors.PeerTooOld(needed)
            if not change.values:
                for inner in objects_at(fields, change.path[:-1]):
                    inner.pop(change.path[-1], None)
    return fields


def objects_at(inner: Any, path: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The objects at this path; of a list, those of each element. Nothing where an optional one is missing."""
    if isinstance(inner, (list, tuple)):
        for one in inner:
            yield from objects_at(one, path)
    elif path:
        yield from objects_at(inner[path[0]], path[1:])
    elif inner is not None:
        yield inner
