"""Write a message for a peer of an older release.

Newer messages only have more fields (``objects/base.py``), which an older peer ignores. So a field that it does not know is left
out if that loses nothing: it says nothing, or the older release did without it. Otherwise the message is refused with what to do,
because the peer would do something else than it was told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from objects import errors
from objects.base import Object
from objects.messages_version import KNOWN, REBUILT_DRIVES, V1_0, V1_1, MessagesVersion
from objects.task import DriveChanges

VERSIONS: Mapping[MessagesVersion, Mapping[str, str]] = {
    V1_0: {"BuildOrders": "2.7", "ComputeNode": "1.2", "RequestSpec": "2.6", "TaskOrder": "1.1"},
    V1_1: {},
}
"""The versions of messages in each messages version, where they differ from the next one's. The last one is this release's."""


class FieldChange(Object, frozen=True, kw_only=True):
    """A field that a message has since a messages version. ``path``: its names, from the message inwards.

    ``carries``: what an older peer would leave out, if the field is not ``nothing`` (as on the wire). Empty: the older release did
    without it, so the field can be left out whatever it says.
    """

    since: MessagesVersion
    message: str
    path: tuple[str, ...]
    nothing: Any = None
    carries: str = ""


CHANGES = (
    FieldChange(since=V1_1, message="BuildOrders", path=("spec", "flavor", "rxtx_factor")),
    FieldChange(since=V1_1, message="ComputeNode", path=("booted_at",)),
    FieldChange(since=V1_1, message="RequestSpec", path=("flavor", "rxtx_factor")),
    FieldChange(
        since=REBUILT_DRIVES,
        message="TaskOrder",
        path=("args", "drive"),
        nothing=msgspec.to_builtins(DriveChanges()),
        carries="A rebuild that changes the config drive",
    ),
)
"""What stands beside a changed fingerprint in ``tests/unit/rpc/test_fingerprints.py``."""

CHANGED = frozenset(change.message for change in CHANGES)
"""The messages that differ between messages versions."""


def message_version(name: str, current: str, version: MessagesVersion) -> str:
    """The version of a message in a messages version. ``current``: the one that it has now."""
    return next((VERSIONS[known][name] for known in KNOWN if known >= version and name in VERSIONS[known]), current)


def backport(name: str, fields: dict[str, Any], version: MessagesVersion) -> dict[str, Any]:
    """``fields`` of a message, as on the wire, without those that this messages version does not have. They are changed in place.

    Raises errors.PeerTooOld if that would lose something.
    """
    for change in CHANGES:
        if change.message == name and change.since > version:
            _leave_out(change, fields, version)
    return fields


def _leave_out(change: FieldChange, fields: dict[str, Any], version: MessagesVersion) -> None:
    inner: Any = fields
    for part in change.path[:-1]:
        inner = inner[part]
    value = inner.pop(change.path[-1], change.nothing)
    if change.carries and value != change.nothing:
        raise errors.PeerTooOld(f"{change.carries} needs a host of messages {change.since}; its agent knows {version}: upgrade it.")
