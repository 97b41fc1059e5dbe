"""What the broker of the embedded bus promises about queues and consumers."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter

import pytest

from rpc.drivers import embedded_broker as module
from rpc.drivers.embedded_broker import Broker, Brokers, EmbeddedConsumer, EmbeddedQueue, QueuedMessage
from tests.support.threads import run_threads


class Reader:
    """A consumer that notes what it is handed, and acknowledges when told to (or at once)."""

    def __init__(self, broker: Broker, *keys: str, fanout: str | None = None, window: int = 1) -> None:
        self.broker = broker
        self.read: list[str] = []
        self.handed: list[tuple[QueuedMessage, EmbeddedQueue]] = []
        self.consumer = EmbeddedConsumer(self._take, window)
        broker.subscribe_consumer(self.consumer, [broker.declare_queue(key) for key in keys], fanout)

    def _take(self, letter: QueuedMessage, queue: EmbeddedQueue) -> None:
        self.read.append(letter.body.decode())
        self.handed.append((letter, queue))

    def acknowledge(self, times: int = 1) -> None:
        for _ in range(times):
            self.broker.acknowledge_message(self.consumer)

    def stop(self) -> None:
        self.broker.unsubscribe_consumer(self.consumer)


def send(broker: Broker, key: str, *bodies: str) -> None:
    for body in bodies:
        broker.send(key, QueuedMessage(body.encode()))


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_consumers_of_a_topic_take_turns() -> None:
    broker = Broker()
    readers = [Reader(broker, "topic") for _ in range(3)]

    for number in numbers(9):
        send(broker, "topic", number)
        for reader in readers:
            if reader.read and reader.read[-1] == number:
                reader.acknowledge()

    assert [len(reader.read) for reader in readers] == [3, 3, 3]
    assert sorted(body for reader in readers for body in reader.read) == numbers(9)


def test_a_burst_is_spread_evenly_before_work_begins() -> None:
    broker = Broker()
    first, second = Reader(broker, "topic"), Reader(broker, "topic")

    send(broker, "topic", *numbers(40))
    for reader in (first, second):
        reader.acknowledge(20)

    assert (len(first.read), len(second.read)) == (20, 20)


def test_an_occupied_consumer_does_not_block_idle_ones() -> None:
    broker = Broker()
    busy, idle = Reader(broker, "topic"), Reader(broker, "topic")

    for number in numbers(10):
        send(broker, "topic", number)
        if idle.consumer.unacknowledged:
            idle.acknowledge()

    assert len(busy.read) == 1
    assert len(idle.read) >= 8


def test_a_consumer_gets_the_next_message_on_beginning() -> None:
    broker = Broker()
    reader = Reader(broker, "topic")

    send(broker, "topic", "a", "b", "c")
    assert reader.read == ["a"]
    reader.acknowledge()
    assert reader.read == ["a", "b"]
    reader.acknowledge(2)
    assert reader.read == ["a", "b", "c"]


def test_a_wider_window_gives_a_consumer_more() -> None:
    broker = Broker()
    reader = Reader(broker, "topic", window=3)

    send(broker, "topic", *numbers(5))

    assert reader.read == numbers(3)


def test_a_message_to_one_server_waits_for_it() -> None:
    broker = Broker()
    other = Reader(broker, "topic", "topic.h2")

    send(broker, "topic.h1", "x")
    assert other.read == []

    assert Reader(broker, "topic", "topic.h1").read == ["x"]


def test_a_topic_stores_messages_before_anybody_listens() -> None:
    broker = Broker()

    send(broker, "topic", "a", "b")
    reader = Reader(broker, "topic")
    reader.acknowledge()

    assert reader.read == ["a", "b"]


def test_a_full_queue_drops_its_oldest_and_reports(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    with caplog.at_level(logging.WARNING):
        send(broker, "topic", *numbers(module.QUEUE_LENGTH_LIMIT + 2))

    assert Reader(broker, "topic").read == ["2"]
    assert "topic" in caplog.text


def test_a_fanout_reaches_present_consumers_only() -> None:
    broker = Broker()
    there = [Reader(broker, fanout="topic"), Reader(broker, fanout="topic")]
    elsewhere = Reader(broker, fanout="other")

    broker.fanout_message("topic", QueuedMessage(b"x"))
    later = Reader(broker, fanout="topic")

    assert [reader.read for reader in there] == [["x"], ["x"]]
    assert later.read == elsewhere.read == []


def test_messages_of_leaving_consumers_move_in_order() -> None:
    broker = Broker()
    leaving = Reader(broker, "topic")
    send(broker, "topic", *numbers(5))
    staying = Reader(broker, "topic")

    leaving.stop()
    staying.acknowledge(4)

    assert leaving.read == ["0"]
    assert staying.read == ["1", "2", "3", "4"]


def test_messages_of_the_last_consumer_wait_in_order() -> None:
    broker = Broker()
    leaving = Reader(broker, "topic", "topic.h1", fanout="topic")
    send(broker, "topic", "a", "b", "c")
    send(broker, "topic.h1", "d")
    broker.fanout_message("topic", QueuedMessage(b"e"))

    leaving.stop()
    leaving.stop()
    send(broker, "topic", "f")
    leaving.acknowledge()
    following = Reader(broker, "topic", "topic.h1", fanout="topic")
    following.acknowledge(4)

    assert leaving.read == ["a"]
    assert following.read == ["b", "c", "f", "d"]


def test_a_message_nobody_awaits_is_not_delivered() -> None:
    broker = Broker()
    broker.send("topic", QueuedMessage(b"late", expires=0.0))
    send(broker, "topic", "good")

    assert Reader(broker, "topic").read == ["good"]


def test_a_returned_message_goes_to_the_queue_end() -> None:
    broker = Broker()
    reader = Reader(broker, "topic")
    send(broker, "topic", "a", "b")

    letter, queue = reader.handed[0]
    broker.requeue_message(reader.consumer, queue, letter)
    reader.acknowledge()

    assert reader.read == ["a", "b", "a"]


def test_every_pool_shares_all_messages_among_its_members() -> None:
    broker = Broker()
    pools = {name: [Reader(broker), Reader(broker)] for name in ("audit", "billing")}
    for name, readers in pools.items():
        for reader in readers:
            broker.subscribe_consumer(reader.consumer, [broker.declare_queue("topic.info", name)])

    send(broker, "topic.info", "a", "b")

    assert {name: sorted(body for reader in readers for body in reader.read) for name, readers in pools.items()} == {
        "audit": ["a", "b"],
        "billing": ["a", "b"],
    }


def test_no_message_is_lost_or_doubled_among_consumers() -> None:
    broker = Broker()
    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def live(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            reader = Reader(broker, "topic")
            for _ in range(rng.randrange(20)):
                if reader.consumer.unacknowledged:
                    reader.acknowledge()
            reader.stop()
            with lock:
                counts.update(reader.read)

    def speak(name: int) -> None:
        send(broker, "topic", *(f"{name}:{number}" for number in range(500)))

    threads = [threading.Thread(target=live, args=(n,)) for n in range(4)]
    threads += [threading.Thread(target=speak, args=(n,)) for n in range(4)]
    run_threads(threads)
    last = Reader(broker, "topic")
    while last.consumer.unacknowledged:
        last.acknowledge()
    counts.update(last.read)

    assert set(counts.values()) == {1}
    assert len(counts) == 2000


def test_brokers_of_one_name_are_one_while_open() -> None:
    brokers = Brokers()
    name = ("cell1", "")
    first, second = brokers.open(name), brokers.open(name)
    assert first is second
    assert brokers.open(("cell1", "other")) is not first

    brokers.close(name)
    assert brokers.open(name) is first
    brokers.close(name)
    brokers.close(name)

    assert brokers.list_open() == [("cell1", "other")]
    assert brokers.open(name) is not first
