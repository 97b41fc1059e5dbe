"""Messages as no process of ours sends them, put onto a broker directly."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import amqp  # type: ignore[import-untyped]  # the library ships no types

from rpc.transport import EXCHANGE

DEEP = 100_000

POISON_PROPERTIES = {"content_type": "application/json", "content_encoding": "utf-8"}
"""What our own messages have."""

CONTEXT = {"_context_request_id": "req-poison"}


class Poison(NamedTuple):
    """A body and its properties; ``key``: another routing key than the queue's, as a fan-out exchange takes any."""

    body: bytes
    properties: Mapping[str, Any] = {}
    key: bytes = b""


def enveloped(message: object, version: object = "2.0") -> bytes:
    inner = message if isinstance(message, str) else json.dumps(message)
    return json.dumps({"oslo.version": version, "oslo.message": inner}).encode()


def corpus() -> Iterator[tuple[str, Poison]]:
    """One of each kind that we could think of, by name."""
    call = {"method": "ping", "args": {"token": "x"}, "version": "1.0", **CONTEXT}
    good = enveloped(call)
    bodies = {
        "nothing": b"",
        "no JSON": b"{",
        "no text": b"\xff\xfe\x00",
        "a number": b"1",
        "a list": b"[]",
        "deep": b"[" * 1200,
        "very deep": b"[" * DEEP + b"]" * DEEP,
        "deep in an object": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        "no envelope": json.dumps(call).encode(),
        "an envelope of a later version": enveloped(call, "3.0"),
        "a version that is none": enveloped(call, [2, 0]),
        "an envelope without a message": b'{"oslo.version": "2.0"}',
        "a message that is no text": b'{"oslo.version": "2.0", "oslo.message": {}}',
        "a message that is no object": enveloped("[]"),
        "a message that is no JSON": enveloped("{"),
        "a deep message": enveloped("[" * DEEP),
        "deep arguments": enveloped(json.dumps(call)[:-1] + ', "args": ' + "[" * DEEP + "]" * DEEP + "}"),
        "arguments 900 deep": enveloped({**call, "method": "holdings", "args": {"host": _nested(900)}}),
        "half a surrogate": enveloped(json.dumps({**call, "method": "X"}).replace('"X"', '"\\ud800"')),
        "no method": enveloped({**CONTEXT, "args": {}}),
        "a method that is none": enveloped({**call, "method": None}),
        "a method that is not there": enveloped({**call, "method": "vanish"}),
        "a private method": enveloped({**call, "method": "__init__"}),
        "a long method": enveloped({**call, "method": "m" * 1_000_000}),
        "arguments that are no object": enveloped({**call, "args": [1]}),
        "arguments that are nothing": enveloped({**call, "args": None}),
        "an argument too many": enveloped({**call, "args": {"token": "x", "more": 1}}),
        "an argument too few": enveloped({**call, "args": {}}),
        "an argument of another type": enveloped({**call, "args": {"token": {"$message": "Report"}}}),
        "a message of a type that is none": enveloped({**call, "args": {"token": {"$message": [], "version": 0, "fields": 0}}}),
        "another version": enveloped({**call, "version": "7.3"}),
        "a version of numbers": enveloped({**call, "version": 1.0}),
        "a namespace": enveloped({**call, "namespace": "other"}),
        "no context": enveloped({key: value for key, value in call.items() if key not in CONTEXT}),
        "a context of another type": enveloped({**call, "_context_request_id": ["r"]}),
        "a context that nobody knows": enveloped({**call, "_context_domain": {"id": 1}}),
        "a context that writes to terminals": enveloped({**call, "_context_request_id": "\x1b[31m\nreq"}),
        "a long context": enveloped({**call, "_context_user_id": "u" * 1_000_000}),
        "ids of another type": enveloped({**call, "_unique_id": 1, "_msg_id": {}, "_reply_q": []}),
        "a reply queue that is not there": enveloped({**call, "_msg_id": "m", "_reply_q": "reply_gone"}),
        "a reply queue that is another": enveloped({**call, "_msg_id": "m", "_reply_q": "compute.h1"}),
        "a reply queue with half a surrogate": enveloped({**call, "_msg_id": "m", "_reply_q": "reply_\udcff"}),
        "a time-out that asks for signs of life": enveloped({**call, "_timeout": 0.001}),
        "numbers beyond all types": enveloped(json.dumps(call).replace('"x"', "1e999")),
        "a number of 5,000 digits": enveloped(json.dumps(call).replace('"x"', "9" * 5000)),
        "an answer": enveloped({"_msg_id": "nobody", "result": 1, "failure": None, "ending": True}),
        "an answer of another type": enveloped({"_msg_id": 1, "result": 1, "failure": 3, "ending": "yes"}),
        "an answer with a failure that is none": enveloped({"_msg_id": "nobody", "failure": "{", "ending": True}),
        "an answer without an id": enveloped({"result": 1, "ending": True}),
    }
    for name, body in bodies.items():
        yield name, Poison(body, {"content_type": "application/json", "content_encoding": "utf-8"})
    plain = POISON_PROPERTIES
    properties: dict[str, tuple[bytes, dict[str, Any]]] = {
        "no properties": (good, {}),
        "pickle": (b"cos\nsystem\n(S'true'\ntR.", {**plain, "content_type": "application/x-python-serialize"}),
        "YAML": (b"!!python/object/apply:os.system ['true']", {**plain, "content_type": "application/x-yaml"}),
        "MsgPack": (b"\x81\xa1a\x01", {**plain, "content_type": "application/x-msgpack"}),
        "a content type of blanks": (good, {**plain, "content_type": " "}),
        "an encoding that takes long": (b"a-" * 200_000, {**plain, "content_encoding": "punycode"}),
        "an encoding that is none": (good, {**plain, "content_encoding": "rot13"}),
        "UTF-16": (good.decode().encode("utf-16"), {**plain, "content_encoding": "utf-16"}),
        "a compressed body": (
            zlib.compress(b"[" * 50_000_000),
            {**plain, "application_headers": {"compression": "application/x-gzip"}},
        ),
        "headers of all kinds": (good, {**plain, "application_headers": {"a": [1, None, {"b": True}], "x-death": "yes"}}),
        "deep headers": (good, {**plain, "application_headers": {"a": _nested(400)}}),
    }
    for name, (body, given) in properties.items():
        yield name, Poison(body, given)
    yield "a routing key that is no text", Poison(good, plain, b"\xff\xfe")


class Sender:
    """Puts messages onto one virtual host, as somebody does who has its password and no good in mind."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = amqp.Connection(
            f"{parts.hostname}:{parts.port or 5672}",
            userid=unquote(parts.username or "guest"),
            password=unquote(parts.password or "guest"),
            virtual_host=unquote(parts.path[1:]) or "/",
        )
        self._connection.connect()
        self.channel = self._connection.channel()

    def send(self, queue: str, poison: Poison) -> None:
        """To a topic's queue, a server's, a reply queue, or (``TOPIC_fanout``) to a fan-out exchange."""
        message = amqp.Message(poison.body, **poison.properties)
        fanout = queue.endswith("_fanout")
        exchange = queue if fanout else "" if queue.startswith("reply_") else EXCHANGE
        self.channel.basic_publish(message, exchange=exchange, routing_key=poison.key if fanout and poison.key else queue)

    def queues(self, names: list[str]) -> dict[str, int]:
        """How many messages wait in each."""
        return {name: self.channel.queue_declare(name, passive=True).message_count for name in names}

    def dead_letters(self, queue: str) -> list[tuple[dict[str, Any], bytes]]:
        """Take all that are in a dead-letter queue: headers and bodies."""
        found = []
        while (message := self.channel.basic_get(queue, no_ack=True)) is not None:
            body = message.body
            found.append((message.headers, body if isinstance(body, bytes) else body.encode()))
        return found

    def close(self) -> None:
        with contextlib.suppress(amqp.AMQPError):  # such as that a queue which it consumed was deleted
            self._connection.close()


def _nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made
