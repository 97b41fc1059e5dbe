"""What an endpoint is called with has the types that its methods say, or the caller is told in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from objects import errors
from objects.base import Number
from objects.build import DeleteOrder
from objects.context import RequestContext
from rpc.arguments import ITEMS_LIMIT, Ids, Name, Shape, Signature, signatures_of
from rpc.cell_conductor import CellConductorEndpoint
from rpc.codec import Codec, shared_codec
from rpc.compute import ComputeEndpoint
from rpc.scheduler import SchedulerEndpoint
from rpc.super_conductor import SuperConductorEndpoint

ORDER = DeleteOrder(instance_uuid="i1", attempt=1)
WRAPPED = Codec([DeleteOrder]).encode_value(ORDER)


class Endpoint:
    def plain(self, context: RequestContext, host: Name, number: Number, share: float, yes: bool = False) -> None: ...

    def ids(self, context: RequestContext, uuids: Ids) -> None: ...

    def messages(
        self,
        context: RequestContext,
        orders: Sequence[DeleteOrder],
        one: DeleteOrder | None = None,
        by: dict[str, DeleteOrder] | None = None,
    ) -> None: ...

    def anything(self, context: RequestContext, value: object) -> None: ...


def read(method: str, **arguments: object) -> dict[str, Any]:
    return Signature(method, getattr(Endpoint, method), shared_codec()).read(msgspec.json.encode(arguments))


def test_arguments_of_the_right_types_arrive_unchanged() -> None:
    assert read("plain", host="h1", number=3, share=1) == {"host": "h1", "number": 3, "share": 1.0}
    assert read("plain", host="h1", number=3, share=0.5, yes=True)["yes"] is True
    assert read("ids", uuids=["a", "b"]) == {"uuids": ["a", "b"]}
    assert read("messages", orders=[WRAPPED], one=WRAPPED, by={"x": WRAPPED}) == {
        "orders": [ORDER],
        "one": ORDER,
        "by": {"x": ORDER},
    }
    assert read("messages", orders=[], one=None) == {"orders": [], "one": None}
    assert read("anything", value=[WRAPPED, {"a": 1}]) == {"value": [ORDER, {"a": 1}]}


GOOD = {"host": "h1", "number": 1, "share": 1.0}


@pytest.mark.parametrize(
    "bad",
    [
        {"host": 0},
        {"host": ["h1"]},
        {"host": None},
        {"host": {"$ne": ""}},
        {"host": ""},
        {"host": "h1 "},
        {"host": "h1\n"},
        {"host": "h\0"},
        {"host": "' OR 1=1 --"},
        {"host": "h" * 256},
        {"number": "1"},
        {"number": 1.5},
        {"number": True},
        {"number": 2**63},
        {"number": None},
        {"share": "much"},
        {"yes": 1},
    ],
)
def test_another_type_is_refused_in_one_line(bad: dict[str, object]) -> None:
    with pytest.raises(errors.Invalid, match=next(iter(bad))) as refused:
        read("plain", **{**GOOD, **bad})
    assert "\n" not in str(refused.value)


def test_a_wrong_number_of_arguments_is_refused() -> None:
    with pytest.raises(errors.Invalid, match="number"):
        read("plain", host="h1", share=1.0)
    with pytest.raises(errors.Unsupported, match="newer"):
        read("plain", **GOOD, newer=1)


@pytest.mark.parametrize("uuids", ["abc", ["a", 1], ["a b"], [["a"]], ["a"] * (ITEMS_LIMIT + 1), {"a": 1}])
def test_a_list_of_something_else_is_refused(uuids: object) -> None:
    with pytest.raises(errors.Invalid):
        read("ids", uuids=uuids)


@pytest.mark.parametrize(
    "bad",
    [
        {**WRAPPED, "$message": "Report"},
        {**WRAPPED, "$message": "Comet\n\x1b[31m"},
        {**WRAPPED, "version": "2.0"},
        {**WRAPPED, "fields": {"instance_uuid": 5, "attempt": 1}},
        {**WRAPPED, "fields": None},
    ],
)
def test_another_message_is_unsupported(bad: dict[str, Any]) -> None:
    for kind in ("messages", "one"):
        with pytest.raises(errors.Unsupported) as refused:
            read("messages", orders=[bad] if kind == "messages" else [], one=bad if kind == "one" else None)
        assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "text", [b"", b"[", b"1", b"null", b"[]", b'{"uuids": ' + b"[" * 5000, b'{"uuids": ["\\ud800"]}', b'{"uuids": ["\xff"]}']
)
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(errors.Invalid):
        Signature("ids", Endpoint.ids, shared_codec()).read(text)


@pytest.mark.parametrize("interface", [CellConductorEndpoint, ComputeEndpoint, SchedulerEndpoint, SuperConductorEndpoint])
def test_every_argument_of_an_interface_has_a_type(interface: type) -> None:
    for signature in signatures_of(interface).values():
        kinds = {field.name: field.type for field in msgspec.structs.fields(signature._struct)}
        assert Any not in kinds.values(), kinds


def test_answers_are_read_by_their_type() -> None:
    shape = Shape(list[list[DeleteOrder]], shared_codec())
    assert shape.read(msgspec.json.encode([[WRAPPED], []])) == [[ORDER], []]
    with pytest.raises(msgspec.ValidationError):
        shape.read(b'[{"a": 1}]')
