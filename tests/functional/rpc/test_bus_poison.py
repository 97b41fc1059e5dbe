"""No message can silence a topic: what cannot be read is set aside, and the next one is answered."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator

import pytest

from objects.context import RequestContext
from rpc.drivers import refused_messages
from rpc.drivers.frames import MESSAGE_BYTES_LIMIT
from rpc.transport import Bus
from service import metrics
from service.periodic import wait_until
from tests.support.bus import CONTEXT, url_of
from tests.support.poison import Poison, Sender, corpus, enveloped

PATIENCE = 60.0
TOPIC = "topic"
POISONS = dict(corpus())


class Parrot:
    def echo(self, context: RequestContext, value: int) -> int:
        return value


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    yield from url_of("rabbit")


@pytest.fixture(scope="module", params=[4, 0], ids=["threads", "in the listener"])
def bus(url: str, request: pytest.FixtureRequest) -> Iterator[Bus]:
    bus = Bus(url)
    bus.serve_topic(TOPIC, "h1", [Parrot()], threads=request.param)
    yield bus
    bus.close()


@pytest.fixture(scope="module")
def sender(url: str) -> Iterator[Sender]:
    sender = Sender(url)
    yield sender
    sender.close()


def answers(bus: Bus) -> None:
    client = bus.make_client(TOPIC, timeout=PATIENCE)
    assert client.call(CONTEXT, "echo", int, value=1) == 1
    assert client.on_server("h1").call(CONTEXT, "echo", int, value=2) == 2


@pytest.mark.parametrize("name", POISONS)
def test_a_poisoned_message_silences_no_topic(bus: Bus, sender: Sender, name: str) -> None:
    answers(bus)
    for queue in (TOPIC, f"{TOPIC}.h1", f"{TOPIC}_fanout", str(bus._transport._driver._reply_q)):
        sender.send(queue, POISONS[name])
    answers(bus)
    assert sender.queues([TOPIC, f"{TOPIC}.h1"]) == {TOPIC: 0, f"{TOPIC}.h1": 0}


def test_a_too_large_message_is_dropped_on_arrival(bus: Bus, sender: Sender) -> None:
    sender.send(TOPIC, Poison(b"[" * (MESSAGE_BYTES_LIMIT + 1), {"content_type": "application/json", "content_encoding": "utf-8"}))
    answers(bus)


def test_properties_the_library_cannot_parse_break_no_connection(bus: Bus, sender: Sender) -> None:
    """A header table with a value of a kind that py-amqp does not know, and a content type that is no text."""
    for raw in (_table(b"\x01aA\x00\x00\x00\x00"), _table(b"\x01aT" + b"\xff" * 8), struct.pack(">HB", 0x8000, 2) + b"\xff\xfe"):
        message = _Raw(enveloped({"method": "echo"}), raw)
        sender.channel._basic_publish(message, exchange="superconductor", routing_key=TOPIC)
    answers(bus)


def test_a_refused_message_is_dead_lettered_with_reason(url: str, sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus(url)
    bus.serve_topic("other", "h1", [Parrot()])
    before = metrics.REFUSED.labels("other", "depth")._value.get()
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            sender.send("other", Poison(b'{"a":' * 2000, {"content_type": "application/json", "content_encoding": "utf-8"}))
        assert wait_until(lambda: metrics.REFUSED.labels("other", "depth")._value.get() == before + 20, PATIENCE)
    found: list[tuple[dict[str, object], bytes]] = []

    def arrived() -> bool:
        found.extend(letter for letter in sender.dead_letters(refused_messages.QUEUE) if letter[0]["queue"] == "other")
        return len(found) == 20

    assert wait_until(arrived, PATIENCE)
    headers, body = found[0]
    assert body == b'{"a":' * 2000
    assert "depth" in str(headers["reason"])
    said = [record.getMessage() for record in caplog.records if "other" in record.getMessage()]
    assert len(said) == 1, "one line for all of them"
    assert "\n" not in said[0]
    bus.close()


def test_a_message_jamming_older_servers_is_set_aside(url: str, sender: Sender) -> None:
    Bus(url).serve_topic("jammed", "h1", [Parrot()]).stop()
    for name in ("very deep", "pickle", "an encoding that takes long"):
        sender.send("jammed", POISONS[name])
    bus = Bus(url)
    bus.serve_topic("jammed", "h1", [Parrot()])
    assert bus.make_client("jammed", timeout=PATIENCE).call(CONTEXT, "echo", int, value=1) == 1
    assert wait_until(lambda: sender.queues(["jammed"]) == {"jammed": 0}, PATIENCE)
    bus.close()


class _Raw:
    """A message whose properties are these bytes."""

    def __init__(self, body: bytes, properties: bytes) -> None:
        self.body = body
        self.properties: dict[str, object] = {}
        self._raw = properties

    def _serialize_properties(self) -> bytes:
        return self._raw


def _table(entries: bytes) -> bytes:
    return struct.pack(">HI", 0x2000, len(entries)) + entries
