"""What is written for a peer of an older release says the same there, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from objects import errors
from objects.base import INT64_MAX, Message
from objects.messages_version import KNOWN, SPAN, V1_0, MessagesVersion, Span, span_of, version_for, version_of
from objects.task import DriveChanges, NewImage, Power, TaskArgs, TaskKind, TaskOrder
from rpc.backport import CHANGES, FieldChange
from rpc.codec import Codec, all_messages

CODEC = Codec()
MESSAGES = {message.__name__: message for message in all_messages()}
ORDER = TaskOrder(instance_uuid="i1", fence=1, attempt=1, number=4, kind=TaskKind.REBUILD, power=Power.ON)


TEXT = st.text(st.characters(codec="ascii"), max_size=5)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Objects of a kind with values in all fields."""
    return st.builds(kind, **{field.name: of(inspect.type_info(field.type)) for field in msgspec.structs.fields(kind)})


def of(info: Any) -> st.SearchStrategy[Any]:
    """What a field of this type may hold; text for any that holds text or anything."""
    make = STRATEGIES.get(type(info))
    return TEXT if make is None else make(info)


def whole_number(info: Any) -> st.SearchStrategy[int]:
    low, high = (-INT64_MAX if info.ge is None else info.ge), (INT64_MAX if info.le is None else info.le)
    return st.integers(max(low, -INT64_MAX), min(high, INT64_MAX))


STRATEGIES: dict[type, Callable[[Any], st.SearchStrategy[Any]]] = {
    inspect.StructType: lambda info: st.deferred(lambda: values(info.cls)),
    inspect.EnumType: lambda info: st.sampled_from(list(info.cls)),
    inspect.LiteralType: lambda info: st.sampled_from(info.values),
    inspect.UnionType: lambda info: st.one_of(*map(of, info.types)),
    inspect.VarTupleType: lambda info: st.lists(of(info.item_type), max_size=2).map(tuple),
    inspect.TupleType: lambda info: st.tuples(*map(of, info.item_types)),
    inspect.DictType: lambda info: st.dictionaries(of(info.key_type), of(info.value_type), max_size=2),
    inspect.BoolType: lambda info: st.booleans(),
    inspect.NoneType: lambda info: st.none(),
    inspect.IntType: whole_number,
    inspect.FloatType: lambda info: st.floats(min_value=info.ge, max_value=info.le, allow_nan=False, allow_infinity=False),
    inspect.StrType: lambda info: st.from_regex(info.pattern) if info.pattern else TEXT,
}


def over_the_wire(value: Message, version: MessagesVersion) -> tuple[Message, dict[str, Any]]:
    wire = msgspec.json.decode(msgspec.json.encode(CODEC.encode_value(value, lambda: version)))
    decoded = CODEC.decode_value(wire)
    assert isinstance(decoded, Message)
    return decoded, wire


@pytest.mark.parametrize("version", KNOWN)
@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_every_message_survives_every_version_or_is_refused(name: str, version: MessagesVersion) -> None:
    changes = [change for change in CHANGES if change.message == name and change.since > version]

    @given(values(MESSAGES[name]))
    def check(value: Message) -> None:
        whole = msgspec.json.decode(msgspec.json.encode(value))
        lost = [change for change in changes if is_lost(change, whole)]
        if lost:
            with pytest.raises(errors.PeerTooOld, match=lost[0].carries):
                over_the_wire(value, version)
            return
        decoded, wire = over_the_wire(value, version)
        for change in changes:
            if not change.values:
                for inner, before in zip(*(at(fields, change.path[:-1]) for fields in (wire["fields"], whole)), strict=True):
                    if inner is None:
                        continue
                    assert change.path[-1] not in inner
                    inner |= {name: before[name] for name in change.path[-1:] if name in before}  # defaults may be left out
        assert wire["fields"] == whole
        if not changes:
            assert decoded == msgspec.convert(whole, type(value))

    check()


def is_lost(change: FieldChange, whole: Any) -> bool:
    found = at(whole, change.path)
    return bool(set(found) & set(change.values)) if change.values else bool(change.carries) and found != [change.nothing]


def at(fields: Any, path: tuple[str, ...]) -> list[Any]:
    """All that is at this path: of a list, what is there in each element. None: it is not there."""
    found = [fields]
    for part in path:
        inner = [None if each is None else each.get(part) for each in found]
        found = flat(inner)
    return found


def flat(found: list[Any]) -> list[Any]:
    return [one for each in found for one in (flat(each) if isinstance(each, list) else [each])]


def test_an_older_peer_receives_its_known_version() -> None:
    assert CODEC.encode_value(ORDER, lambda: V1_0)["version"] == "1.1"
    assert "drive" not in CODEC.encode_value(ORDER, lambda: V1_0)["fields"]["args"]
    assert CODEC.encode_value(ORDER)["version"] == TaskOrder.VERSION


def test_a_rebuild_changing_the_drive_suggests_a_remedy() -> None:
    order = msgspec.structs.replace(ORDER, args=TaskArgs(drive=DriveChanges(has_secrets=True)))

    with pytest.raises(errors.PeerTooOld, match=r"needs .* 1\.1; .* knows 1\.0: upgrade it"):
        CODEC.encode_value([order], lambda: V1_0)
    assert CODEC.encode_value([order])


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": TaskKind.CRASH_DUMP},
        {"kind": TaskKind.INTERFACES},
        {"power": Power.RESCUED},
        {"args": TaskArgs(image=NewImage(name="i", owner="p"))},
    ],
)
def test_what_an_older_agent_cannot_read_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(errors.PeerTooOld, match=r"needs a host of messages 1\.1"):
        CODEC.encode_value(msgspec.structs.replace(ORDER, **changes), lambda: V1_0)


def test_a_peer_without_versions_is_not_queried() -> None:
    def unknown() -> MessagesVersion:
        raise errors.CellUnavailable("its records cannot be read")

    assert CODEC.encode_value({"batch_ids": ["b1", "b2"]}, unknown) == {"batch_ids": ["b1", "b2"]}


@pytest.mark.parametrize(
    ("text", "span"),
    [
        (None, Span(V1_0, V1_0)),
        ("", Span(V1_0, V1_0)),
        ("1.0", Span(V1_0, V1_0)),
        ("1.0-1.1", SPAN),
        ("1.3-2.10", Span(MessagesVersion(1, 3), MessagesVersion(2, 10))),
        ("1.0-x", Span(V1_0, V1_0)),
    ],
)
def test_a_record_says_what_its_process_knows(text: str | None, span: Span) -> None:
    assert span_of(text) == span


def test_the_newest_common_version_is_spoken() -> None:
    assert version_for(span_of("1.0")) == V1_0
    assert version_for(SPAN) == SPAN.newest
    assert version_for(span_of("1.0-9.9")) == SPAN.newest


def test_a_version_that_nobody_writes_is_refused() -> None:
    assert version_of("1.0") == V1_0
    with pytest.raises(errors.Invalid, match=r"1\.7.*1\.0, 1\.1"):
        version_of("1.7")
