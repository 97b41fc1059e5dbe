"""What stands on the wire, and how it is read: an envelope of JSON with a message of JSON in it, as oslo.messaging has it.

Every reader here checks before it believes: size, type and encoding first, then the envelope, then the message, each against a
type. So a hostile message costs one pass over its bytes. Arguments stay raw until the types of the method that they are for are
known (``rpc.arguments``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from objects import errors, typed
from objects.context import RequestContext
from objects.text import one_line
from rpc.drivers.frames import MESSAGE_BYTES_LIMIT, Delivery

T = TypeVar("T")

ENVELOPE = "2.0"
"""The version of oslo.messaging's envelope."""

CONTENT_TYPE, ENCODING = "application/json", "utf-8"

CONTEXT_SIZE = 1024
"""Bytes of UTF-8 that one text of a request context may have. A longer text is cut: no decision depends on it."""

REPLY_PREFIX = "reply_"
"""Prefix of the names of reply queues. An answer goes to no other queue, whatever a message asks for."""

_Id = Annotated[str, msgspec.Meta(max_length=255)]
_EMPTY = msgspec.Raw(b"{}")
NULL = msgspec.Raw(b"null")
"""The answer of a method that returns nothing."""


class Unreadable(Exception):
    """A message that nobody can read. ``kind`` is a word or two for metrics and complaints, the text says more."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {one_line(detail, 300)}")
        self.kind = kind


class _Envelope(msgspec.Struct):
    version: str = msgspec.field(name="oslo.version")
    message: str = msgspec.field(name="oslo.message")


class WireCall(msgspec.Struct, kw_only=True):
    """What is called, by a cast or a call. ``args``: the arguments by name, as JSON."""

    method: _Id
    args: msgspec.Raw = _EMPTY
    version: _Id = "1.0"
    namespace: _Id | None = None


class RabbitCall(WireCall, kw_only=True):
    """The same as it goes over RabbitMQ: with ids, where an answer goes, and the request context."""

    unique_id: _Id | None = msgspec.field(name="_unique_id", default=None)
    msg_id: _Id | None = msgspec.field(name="_msg_id", default=None)
    reply_q: _Id | None = msgspec.field(name="_reply_q", default=None)
    request_id: str = msgspec.field(name="_context_request_id")
    project_id: str = msgspec.field(name="_context_project_id", default="")
    user_id: str = msgspec.field(name="_context_user_id", default="")
    is_admin: bool = msgspec.field(name="_context_is_admin", default=False)
    machine: str = msgspec.field(name="_context_machine", default="")

    @property
    def request_context(self) -> RequestContext:
        """In whose name."""
        return RequestContext(
            request_id=one_line(self.request_id, CONTEXT_SIZE),
            project_id=one_line(self.project_id, CONTEXT_SIZE),
            user_id=one_line(self.user_id, CONTEXT_SIZE),
            is_admin=self.is_admin,
            machine=one_line(self.machine, CONTEXT_SIZE),
        )


class Reply(msgspec.Struct, kw_only=True):
    """An answer, or a part of one: it is complete with the part that is ``ending``."""

    msg_id: _Id = msgspec.field(name="_msg_id")
    result: msgspec.Raw = NULL
    failure: str | None = None
    ending: bool = False


def make_envelope(message: Mapping[str, Any]) -> bytes:
    """The message as it is sent. Raises errors.Invalid where no broker would take it."""
    text = msgspec.json.encode(message).decode()
    body = msgspec.json.encode({"oslo.version": ENVELOPE, "oslo.message": text})
    check_size(body)
    return body


def check_size(body: bytes) -> None:
    """Raises errors.Invalid for a body that no broker would take, instead of losing the connection over it."""
    if len(body) > MESSAGE_BYTES_LIMIT:
        raise errors.Invalid(f"A message of {len(body)} bytes is too large for the bus: the limit is {MESSAGE_BYTES_LIMIT} bytes.")


def read(arrival: Delivery, kind: type[T]) -> T:
    """The message in its envelope. Raises Unreadable, whatever was sent."""
    _check_arrival(arrival)
    outer = decode_wire(arrival.body, _Envelope)
    if outer.version != ENVELOPE:
        raise Unreadable("version of the envelope", outer.version)
    return decode_wire(outer.message, kind)


def decode_wire(text: bytes | str, kind: type[T]) -> T:
    """JSON as a ``kind``. Raises Unreadable."""
    try:
        return typed.decode_json(text, kind)
    except RecursionError:
        raise Unreadable("depth", "nested too deeply") from None
    except msgspec.ValidationError as error:
        raise Unreadable("shape", str(error)) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise Unreadable("JSON", str(error)) from None


def _check_arrival(arrival: Delivery) -> None:
    if arrival.size > MESSAGE_BYTES_LIMIT:
        raise Unreadable("size", f"{arrival.size} bytes, the limit is {MESSAGE_BYTES_LIMIT}")
    if arrival.unparsed:
        raise Unreadable("properties", arrival.unparsed)
    properties = arrival.properties
    if properties.get("content_type") != CONTENT_TYPE:
        raise Unreadable("content type", repr(properties.get("content_type")))
    if str(properties.get("content_encoding")).lower() != ENCODING:
        raise Unreadable("content encoding", repr(properties.get("content_encoding")))
    if (headers := properties.get("application_headers")) and "compression" in headers:
        raise Unreadable("compression", repr(headers["compression"]))
