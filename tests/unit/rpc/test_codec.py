"""Messages keep their meaning across the bus, and what cannot be understood is refused with both versions named."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest

from objects import errors
from objects.base import Message, Object
from objects.build import BuildOrder, BuildOrders, Report, ReportKind
from objects.flavor import Flavor
from objects.instance import Failure, FailureClass
from objects.selection import HostCapacity
from objects.spec import RequestSpec
from rpc.codec import Codec, all_messages


class Note(Message, frozen=True, kw_only=True):
    text: str
    tags: tuple[str, ...] = ()


class Note11(Note, frozen=True, kw_only=True):
    VERSION: ClassVar[str] = "1.1"
    colour: str = "white"


SPEC = RequestSpec(
    batch_id="b",
    request_id="r",
    project_id="p",
    user_id="u",
    name="web",
    flavor=Flavor(flavor_id="1", name="small", vcpus=1, memory_mb=512),
    scheduler_hints={"group": ("g1",)},
    fences={"i1": 3},
)
ORDER = BuildOrder(
    instance_uuid="i1",
    name="web-1",
    host="h",
    node="n",
    fence=3,
    attempt=1,
    limits=HostCapacity(vcpus=4.0, memory_mb=8.5, disk_gb=100),
)
REPORT = Report(
    kind=ReportKind.FAILED,
    instance_uuid="i1",
    host="h",
    fence=3,
    attempt=1,
    builder="h:1",
    failure=Failure(kind=FailureClass.HOST, error="Boom", message="it broke", at=1.5),
)


def over_the_wire(codec: Codec, value: object) -> Any:
    return codec.decode_value(msgspec.json.decode(msgspec.json.encode(codec.encode_value(value))))


@pytest.mark.parametrize("message", [SPEC, ORDER, REPORT, BuildOrders(spec=SPEC, orders=(ORDER, ORDER))])
def test_a_message_arrives_as_it_was(message: Message) -> None:
    assert over_the_wire(Codec(), message) == message


def test_messages_nest_anywhere_and_sequences_become_lists() -> None:
    value = {"answer": [[ORDER], []], "pair": ("h", 1), "nothing": None, "share": 0.5, "yes": True, "kind": ReportKind.ACTIVE}

    arrived = over_the_wire(Codec(), value)

    assert arrived == {"answer": [[ORDER], []], "pair": ["h", 1], "nothing": None, "share": 0.5, "yes": True, "kind": "active"}


class Loose(Object, frozen=True, kw_only=True):
    """An object, but no message: it has no version of its own."""

    text: str


@pytest.mark.parametrize("value", [{1, 2}, b"x", object(), Loose(text="x"), [{"a": {1}}], {1: "x"}, {"$message": "Selection"}])
def test_a_value_without_bus_form_fails_at_sending(value: object) -> None:
    with pytest.raises(TypeError, match="cannot cross the bus"):
        Codec().encode_value(value)


def test_every_message_of_the_project_is_known() -> None:
    known = {message.__name__ for message in all_messages()}

    assert {"RequestSpec", "Selection", "Report", "Verdict", "Holding", "ComputeNode", "DeleteOrder", "FeedEvent"} <= known
    assert "Note" not in known, "messages defined by tests must not get into the project's registry"


def test_two_messages_of_one_name_are_refused() -> None:
    class Other(Message, frozen=True, kw_only=True):
        pass

    Other.__name__ = "Note"

    with pytest.raises(TypeError, match="Note"):
        Codec([Note, Other])


def encoded_as(name: str, message: Message) -> Any:
    encoded = Codec([type(message)]).encode_value(message)
    return {**encoded, "$message": name}


def test_fields_of_a_newer_minor_version_are_ignored() -> None:
    newer = encoded_as("Note", Note11(text="hello", tags=("a",), colour="red"))
    assert newer["version"] == "1.1"

    assert Codec([Note]).decode_value(newer) == Note(text="hello", tags=("a",))


def test_fields_missing_in_older_versions_get_defaults() -> None:
    older = encoded_as("Note11", Note(text="hello"))

    assert Codec([Note11]).decode_value(older) == Note11(text="hello", colour="white")


@pytest.mark.parametrize("version", ["2.0", "0.9", "10.0", "", "None"])
def test_another_major_version_is_refused_naming_both(version: str) -> None:
    foreign = {**encoded_as("Note", Note(text="hello")), "version": version}

    with pytest.raises(errors.Unsupported, match=rf"Note .*{version}.* 1\.0"):
        Codec([Note]).decode_value(foreign)


def test_an_unknown_message_is_refused_by_name() -> None:
    with pytest.raises(errors.Unsupported, match=r"Comet 1\.0"):
        Codec([Note]).decode_value({"$message": "Comet", "version": "1.0", "fields": {}})


@pytest.mark.parametrize("fields", [{}, {"text": 5}, None, "text"])
def test_misfitting_fields_are_refused_with_the_place(fields: object) -> None:
    with pytest.raises(errors.Unsupported, match=r"Note 1\.0 cannot be read"):
        Codec([Note]).decode_value([{"$message": "Note", "version": "1.0", "fields": fields}])


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, -(2**63) - 1])
@pytest.mark.parametrize("field", ["fence", "attempt"])
def test_a_number_too_large_for_databases_is_refused(field: str, number: int) -> None:
    encoded = Codec().encode_value(REPORT)
    encoded["fields"][field] = number

    with pytest.raises(errors.Unsupported, match=rf"Report .* cannot be read .*{field}"):
        Codec().decode_value(encoded)
