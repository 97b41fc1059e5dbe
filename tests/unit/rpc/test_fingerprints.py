"""No message changes without its version: a peer of another release must be able to tell."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection

import msgspec
import pytest
from msgspec import inspect

from objects.base import Message
from objects.messages_version import V1_0, MessagesVersion
from rpc.backport import CHANGES, VERSIONS, message_version
from rpc.codec import all_messages

FINGERPRINTS = {
    "About": "1.2-4349c324733a",
    "BuildOrder": "1.7-a29c151e7814",
    "BuildOrders": "2.13-96477b0857d3",
    "Capacity": "1.0-d1751b277fd5",
    "Choice": "1.1-b51bc27db72a",
    "ComputeNode": "1.4-416026daa622",
    "ConsoleListener": "1.0-0caf6dbe67a5",
    "ConsolePlace": "1.0-1990074a9fb2",
    "Decision": "1.7-53326aff3060",
    "DeleteOrder": "1.2-7ec3e79f7725",
    "Diagnostics": "1.0-fa222a25ac14",
    "DryRun": "1.5-bb549685df4d",
    "Failure": "1.1-84d533ba651e",
    "FeedEvent": "1.1-b2550ef937ac",
    "Holding": "1.1-1ec0b4b95e88",
    "InstanceSummary": "1.5-f74e66be1af5",
    "Loss": "1.1-c2d7b39f472e",
    "Origin": "1.2-2203eeefc862",
    "Rebalance": "1.0-5f45f2703971",
    "Report": "1.8-12b881f5ed4e",
    "RequestSpec": "2.10-de500f48fca6",
    "Selection": "1.2-ad22e5686de7",
    "TaskOrder": "1.5-55b95bb58efc",
    "UnknownGuest": "1.3-9f2953e88bd5",
    "Verdict": "1.5-468dba4c48a4",
}


OLDER: dict[MessagesVersion, dict[str, str]] = {
    V1_0: {
        "About": "1.1-77af70ec7dbd",
        "BuildOrder": "1.4-e9fb7ac10695",
        "BuildOrders": "2.7-7575841b710d",
        "Choice": "1.0-abf6c6a7fe51",
        "ComputeNode": "1.2-cc90b00b1255",
        "ConsoleListener": "1.0-0caf6dbe67a5",
        "ConsolePlace": "1.0-1990074a9fb2",
        "Decision": "1.3-39ee2d6b4f15",
        "DeleteOrder": "1.2-7ec3e79f7725",
        "Failure": "1.1-84d533ba651e",
        "FeedEvent": "1.1-b2550ef937ac",
        "Holding": "1.1-1ec0b4b95e88",
        "InstanceSummary": "1.3-358d0b3e2b8a",
        "Origin": "1.1-7a2a9caecdcd",
        "Report": "1.6-2ec2096ee9a0",
        "RequestSpec": "2.6-01759eaad9f2",
        "Selection": "1.1-1cfc9cd9b237",
        "TaskOrder": "1.1-ed4df789af48",
        "UnknownGuest": "1.1-c90124cd34eb",
        "Verdict": "1.4-d66b9a857655",
    },
}
"""Fingerprints of all messages in older messages versions that this release writes. Others are new since."""


Left = Collection[tuple[tuple[str, ...], tuple[str, ...]]]
"""Paths of fields that are left out, or of which only these values are."""


def fingerprint(message: type[Message], version: str = "", without: Left = ()) -> str:
    """The version, and a hash of names, types and defaults of all fields, through everything nested in them.

    The names of nested classes are not part of it: they are not on the wire.
    """
    text = msgspec.json.encode([message.__name__, _describe(inspect.type_info(message), without)])
    return f"{version or message.VERSION}-{hashlib.sha256(text).hexdigest()[:12]}"


def _describe(node: object, without: Left = ()) -> object:
    if isinstance(node, inspect.StructType):
        inner = {field.name: [(path[1:], of) for path, of in without if path[0] == field.name] for field in node.fields}
        kept = [field for field in node.fields if ((), ()) not in inner[field.name]]
        return sorted(([field.name, _describe_field(field, inner[field.name])] for field in kept), key=str)
    if isinstance(node, inspect.EnumType):
        return sorted(str(member.value) for member in node.cls if not any(member.value in values for _, values in without))
    if isinstance(node, inspect.Type):  # any other: its kind, what it is made of, and the limits set, if any
        parts = msgspec.structs.asdict(node)
        return [type(node).__name__, {name: _describe(part, without) for name, part in parts.items() if part is not None}]
    if isinstance(node, (tuple, list)):
        return [_describe(part, without) for part in node]
    return str(node)


def _describe_field(field: inspect.Field, without: Left = ()) -> object:
    if field.required:
        return _describe(field.type, without)
    default = field.default_factory.__name__ if callable(field.default_factory) else repr(field.default)
    return [_describe(field.type, without), _without(default, without)]


def _without(default: str, without: Left) -> str:
    """A default that is an object names its fields, too."""
    for path, values in without:
        if path and not values:
            default = re.sub(rf", {path[-1]}=(\w*\(.*?\)|[^,()]+)(?=[,)])", "", default)
    return default


MESSAGES = {message.__name__: message for message in all_messages()}


def test_a_nested_change_changes_the_fingerprint() -> None:
    def outer(*inner_fields: tuple[str, type]) -> type[Message]:
        inner = msgspec.defstruct("Inner", inner_fields)
        return msgspec.defstruct("Outer", [("parts", tuple[inner, ...])], bases=(Message,), frozen=True, kw_only=True)  # type: ignore[valid-type,return-value]  # the type is made here

    same = fingerprint(outer(("a", int)))

    assert same == fingerprint(outer(("a", int)))
    assert (
        len({same, fingerprint(outer(("a", str))), fingerprint(outer(("b", int))), fingerprint(outer(("a", int), ("b", int)))}) == 4
    )


@pytest.mark.parametrize("name", sorted(MESSAGES.keys() | FINGERPRINTS.keys()))
def test_a_message_is_what_its_version_says(name: str) -> None:
    assert name in MESSAGES, f"{name} is gone: peers of older releases may still send it. If none can, remove its fingerprint here."
    found = fingerprint(MESSAGES[name])
    expected = FINGERPRINTS.get(name)

    assert found == expected, (
        f"{name} (in {MESSAGES[name].__module__}), or something nested in it, is no longer what its version was. "
        "Fields added with defaults: raise the minor number of its VERSION. Anything removed, renamed, retyped or required: raise "
        "the major number, and think of the peers that do not know it yet. Each message that nests what changed fails here too: do "
        f"the same to it. Then write into FINGERPRINTS:  {name!r}: {found!r}, and think of older peers: see test_backport.py."
    )


@pytest.mark.parametrize(("version", "name"), [(version, name) for version in OLDER for name in OLDER[version]])
def test_the_changes_lead_back_to_former_messages(version: MessagesVersion, name: str) -> None:
    left = [(change.path, change.values) for change in CHANGES if change.message == name and change.since > version]
    then = message_version(name, MESSAGES[name].VERSION, version)

    assert fingerprint(MESSAGES[name], then, left) == OLDER[version][name], (
        f"Since messages {version}, {name} has other fields than rpc/backport.py says: add what is new to CHANGES, and the older "
        "version to VERSIONS."
    )


def test_only_earlier_messages_have_an_older_version() -> None:
    for version, messages in VERSIONS.items():
        assert messages.keys() <= OLDER.get(version, {}).keys()
