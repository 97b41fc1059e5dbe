"""No message changes without its version: a peer of another release must be able to tell."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from msgspec import inspect

from objects.base import Message
from rpc.codec import all_messages

FINGERPRINTS = {
    "BuildOrder": "1.0-3ba7d6cde9da",
    "BuildOrders": "1.0-f474167ed80d",
    "ComputeNode": "1.0-abf6957af73b",
    "Decision": "1.0-cb1b267df86f",
    "DeleteOrder": "1.0-ff370d215c6d",
    "Failure": "1.0-b6e90bdb2133",
    "FeedEvent": "1.0-2857de777cf1",
    "Holding": "1.0-6bbe86060a48",
    "InstanceSummary": "1.0-cf5536e43be3",
    "Report": "1.0-b579a7adabd1",
    "RequestSpec": "1.0-f67a0416de4d",
    "Selection": "1.0-5b6cc8260f8c",
    "Verdict": "1.0-b0cd99dda340",
}


def fingerprint(message: type[Message]) -> str:
    """The version, and a hash of names, types and defaults of all fields, through everything nested in them."""
    text = msgspec.json.encode(_describe(inspect.type_info(message)))
    return f"{message.VERSION}-{hashlib.sha256(text).hexdigest()[:12]}"


def _describe(node: object) -> object:
    if isinstance(node, inspect.StructType):
        return [node.cls.__name__, sorted(([field.name, _describe_field(field)] for field in node.fields), key=str)]
    if isinstance(node, inspect.EnumType):
        return [node.cls.__name__, sorted(str(member.value) for member in node.cls)]
    if isinstance(node, inspect.Type):  # any other: its kind, what it is made of, and the limits set, if any
        parts = msgspec.structs.asdict(node)
        return [type(node).__name__, {name: _describe(part) for name, part in parts.items() if part is not None}]
    if isinstance(node, (tuple, list)):
        return [_describe(part) for part in node]
    return str(node)


def _describe_field(field: inspect.Field) -> object:
    if field.required:
        return _describe(field.type)
    default = field.default_factory.__name__ if callable(field.default_factory) else repr(field.default)
    return [_describe(field.type), default]


MESSAGES = {message.__name__: message for message in all_messages()}


def test_a_change_in_a_nested_object_changes_the_fingerprint() -> None:
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
        f"the same to it. Then write into FINGERPRINTS:  {name!r}: {found!r},"
    )
