"""A flood waits with the broker, and not in the memory of whoever it is for."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator

import pytest

from objects import errors
from objects.context import RequestContext
from rpc import server as serving
from rpc.drivers.frames import MESSAGE_BYTES_LIMIT
from rpc.errors import RemoteFault
from rpc.threads import UNDER_WAY_BYTES, Threads
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.bus import CONTEXT, url_of
from tests.support.poison import POISON_PROPERTIES, Poison, Sender, enveloped
from tests.support.queues import Administrator

PATIENCE = 60.0


class Slow:
    """An endpoint that holds what it is given until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self._lock = threading.Lock()
        self.held = 0
        self.done = 0

    def hold(self, context: RequestContext, text: object = None) -> None:
        with self._lock:
            self.held += 1
        self.released.wait(PATIENCE)
        with self._lock:
            self.held -= 1
            self.done += 1

    def echo(self, context: RequestContext, value: int) -> int:
        return value

    def fail(self, context: RequestContext) -> None:
        raise ValueError("a bug")

    def much(self, context: RequestContext, size: int) -> object:
        return ["x" * size]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    yield from url_of("rabbit")


@pytest.fixture
def bus(url: str) -> Iterator[Bus]:
    bus = Bus(url)
    yield bus
    bus.close()


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:8]}"


def test_messages_beyond_the_threads_wait_with_the_broker(bus: Bus, url: str, topic: str) -> None:
    slow, administrator = Slow(), Administrator(url)
    server = bus.serve_topic(topic, "h1", [slow], threads=4)
    client = bus.make_client(topic, timeout=PATIENCE)
    for _ in range(200):
        client.cast(CONTEXT, "hold")
    assert wait_until(lambda: slow.held == 4, PATIENCE)
    assert administrator.waiting(topic) >= 200 - serving.MIN_PREFETCH - 4
    assert server.find_trouble() == "", "busy is well"
    slow.released.set()
    assert client.call(CONTEXT, "echo", int, value=1) == 1
    assert wait_until(lambda: slow.done == 200, PATIENCE), "each once"
    administrator.close()


def test_messages_prefetched_by_a_stopping_server_move_on(bus: Bus, topic: str) -> None:
    first, second = Slow(), Slow()
    server = bus.serve_topic(topic, "h1", [first], threads=1)
    client = bus.make_client(topic, timeout=PATIENCE)
    for _ in range(10):
        client.cast(CONTEXT, "hold")
    assert wait_until(lambda: first.held == 1, PATIENCE)
    second.released.set()
    bus.serve_topic(topic, "h2", [second], threads=1)
    server.stop(0.1)
    assert wait_until(lambda: second.done == 9, PATIENCE)
    first.released.set()


def test_large_messages_share_a_bound_of_bytes(bus: Bus, topic: str) -> None:
    slow, size = Slow(), 4_000_000
    bus.serve_topic(topic, "h1", [slow], threads=16)
    client = bus.make_client(topic, timeout=PATIENCE)
    for _ in range(12):
        client.cast(CONTEXT, "hold", text="x" * size)
    fit = UNDER_WAY_BYTES // size
    assert wait_until(lambda: slow.held == fit, PATIENCE)
    slow.released.set()
    assert wait_until(lambda: slow.done == 12, PATIENCE)


def test_one_message_exceeding_the_bound_is_handled_alone() -> None:
    threads = Threads(4)
    assert threads.wait_for_room(2 * UNDER_WAY_BYTES, 0)
    released = threading.Event()
    threads.submit(released.wait, PATIENCE, size=2 * UNDER_WAY_BYTES)
    assert not threads.wait_for_room(1, 0.01)
    assert threads.lag > 0
    released.set()
    assert threads.wait_for_room(1, PATIENCE)
    assert threads.lag == 0
    threads.shutdown()


def test_a_server_with_delayed_messages_reports_being_unwell(bus: Bus, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    server = bus.serve_topic(topic, "h1", [slow], threads=2)
    for _ in range(5):
        bus.make_client(topic).cast(CONTEXT, "hold")
    assert wait_until(lambda: slow.held == 2, PATIENCE)
    monkeypatch.setattr(serving, "LONGEST_LAG_S", 0.0)
    assert wait_until(lambda: "2 threads" in server.find_trouble(), PATIENCE)
    slow.released.set()
    assert wait_until(lambda: slow.done == 5, PATIENCE)
    assert wait_until(lambda: server.find_trouble() == "", PATIENCE)


@pytest.mark.parametrize("threads", [4, 0], ids=["threads", "in the listener"])
def test_a_topic_answers_after_floods_and_logs_briefly(
    bus: Bus, url: str, topic: str, caplog: pytest.LogCaptureFixture, threads: int
) -> None:
    bus.serve_topic(topic, "h1", [Slow()], threads=threads)
    sender = Sender(url)
    junk = [
        Poison(b"[" * 2000, POISON_PROPERTIES),
        Poison(enveloped({"method": "echo", "args": {"value": "x"}, "_context_request_id": "r"}), POISON_PROPERTIES),
        Poison(enveloped({"method": "fail", "args": {}, "_context_request_id": "r"}), POISON_PROPERTIES),
        Poison(enveloped({"method": "vanish", "args": {}, "_context_request_id": "r"}), POISON_PROPERTIES),
    ]
    with caplog.at_level(logging.INFO):
        for number in range(2000):
            sender.send(topic, junk[number % len(junk)])
        assert bus.make_client(topic, timeout=PATIENCE).call(CONTEXT, "echo", int, value=1) == 1
    ours = [record for record in caplog.records if record.name.startswith("rpc.")]
    assert 0 < len(ours) < 20, [record.getMessage() for record in ours]
    sender.close()


def test_an_answer_exceeding_the_broker_errors_its_caller(bus: Bus, topic: str) -> None:
    bus.serve_topic(topic, "h1", [Slow()])
    client = bus.make_client(topic, timeout=PATIENCE)
    with pytest.raises(RemoteFault, match="could not be sent"):
        client.call(CONTEXT, "much", list[str], size=MESSAGE_BYTES_LIMIT)
    assert client.call(CONTEXT, "much", list[str], size=3) == ["xxx"]


def test_messages_with_wrong_reply_queues_block_no_thread(bus: Bus, url: str, topic: str) -> None:
    bus.serve_topic(topic, "h1", [Slow()], threads=1)
    sender = Sender(url)
    call = {"method": "echo", "args": {"value": 1}, "_context_request_id": "r", "_msg_id": "m"}
    for number in range(300):
        sender.send(topic, Poison(enveloped({**call, "_reply_q": f"reply_{number}"}), POISON_PROPERTIES))
    assert bus.make_client(topic, timeout=10).call(CONTEXT, "echo", int, value=1) == 1
    sender.close()


def test_an_answer_finds_its_queue_once_it_exists(bus: Bus, url: str, topic: str) -> None:
    sender, administrator = Sender(url), Administrator(url)
    bus.serve_topic(topic, "h1", [Slow()], threads=1)
    call = {"method": "echo", "args": {"value": 7}, "_context_request_id": "r", "_msg_id": "m", "_reply_q": "reply_later"}
    sender.send(topic, Poison(enveloped(call), POISON_PROPERTIES))
    assert bus.make_client(topic, timeout=PATIENCE).call(CONTEXT, "echo", int, value=1) == 1
    sender.channel.queue_declare("reply_later", durable=True, auto_delete=False)
    assert wait_until(lambda: administrator.waiting("reply_later") == 1, PATIENCE)
    sender.close()
    administrator.close()


def test_a_differing_queue_is_replaced_or_named(url: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    sender, administrator, bus = Sender(url), Administrator(url), Bus(url)
    for name in (topic, f"{topic}.h1"):
        sender.channel.queue_declare(name, durable=True, auto_delete=False, arguments={"x-max-length": 5})
    sender.channel.basic_consume(f"{topic}.h1")  # in use: it stays until somebody deletes it
    bus.serve_topic(topic, "h1", [Slow()])
    assert wait_until(lambda: f"delete_queue {topic}.h1" in caplog.text, PATIENCE)
    administrator.delete([f"{topic}.h1"])
    assert wait_until(lambda: administrator.consumers(f"{topic}.h1") > 0, PATIENCE)
    assert bus.make_client(topic, timeout=PATIENCE).on_server("h1").call(CONTEXT, "echo", int, value=1) == 1
    bus.close()
    administrator.close()
    sender.close()


def test_a_server_refuses_what_its_url_cannot_have(url: str) -> None:
    with pytest.raises(errors.Misconfigured, match="kombu_compression"):
        Bus(f"{url}?kombu_compression=gzip")
