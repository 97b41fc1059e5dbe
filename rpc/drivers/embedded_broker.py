"""The broker inside the process that ``embedded://`` buses meet at: named queues, their consumers, and nothing else.

What it promises, which is what RabbitMQ does with queues that have been declared:

* A message for a topic goes to one of the topic's consumers: to the one with the least waiting, in rotation among equals.
* A message for a topic and server goes to that server's own queue. A fan-out message goes to every consumer there is now.
* A queue keeps messages while it has no consumer, even one that never had any; beyond ``QUEUE_LENGTH_LIMIT`` it drops its oldest. A
  message that expires before a consumer takes it (its caller has given up) is dropped.
* A consumer is handed one message at a time that it has not begun to work on. Up to ``PREFETCH`` more are set aside for it;
  those go back to their queues when it unsubscribes. Messages handed over are gone for good, as on a real bus.
* The broker exists while somebody has it open, and its queues with it.

Nobody polls and nobody is woken in vain: the sender's thread hands a message over, or the thread that has just begun on one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

LOG = logging.getLogger(__name__)

QUEUE_LENGTH_LIMIT = 10_000
"""Number of messages kept in a queue without consumers."""

PREFETCH = 32
"""Number of messages reserved for one consumer."""


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """One message on its way: its body, where an answer goes, and when (by ``time.monotonic``) nobody waits for it any more."""

    body: bytes
    answer: Callable[[object], None] | None = None
    expires: float = float("inf")


@dataclass(eq=False, slots=True)
class EmbeddedQueue:
    """Letters that no consumer has room for, and the consumers in the order of their turns."""

    name: str
    messages: deque[QueuedMessage] = field(default_factory=deque)
    consumers: deque[EmbeddedConsumer] = field(default_factory=deque)

    def next_consumer(self) -> EmbeddedConsumer | None:
        """The consumer with the least waiting that has room; it goes to the end of the rotation."""
        best = min(self.consumers, key=lambda consumer: consumer.waiting_count, default=None)
        if best is None or best.waiting_count >= PREFETCH:
            return None
        self.consumers.remove(best)
        self.consumers.append(best)
        return best


@dataclass(eq=False, slots=True)
class EmbeddedConsumer:
    """One listener. ``take`` gets each message, with its queue; at most ``window`` are with it unacknowledged."""

    take: Callable[[QueuedMessage, EmbeddedQueue], None]
    window: int = 1
    queues: tuple[EmbeddedQueue, ...] = ()
    inbox: deque[tuple[QueuedMessage, EmbeddedQueue]] = field(default_factory=deque)
    unacknowledged: int = 0

    @property
    def waiting_count(self) -> int:
        return len(self.inbox) + self.unacknowledged


class Broker:
    """The queues of one (host, virtual host). All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, EmbeddedQueue] = {}
        self._bindings: dict[str, tuple[EmbeddedQueue, ...]] = {}
        self._fanouts: dict[str, list[EmbeddedQueue]] = {}

    def send(self, key: str, message: QueuedMessage) -> None:
        """Put ``message`` into every queue bound to ``key``: that of the same name, and pools bound to it besides."""
        with self._lock:
            for queue in self._bindings.get(key) or (self._declare_binding(key, key),):
                self._put_message(queue, message)

    def fanout_message(self, topic: str, message: QueuedMessage) -> None:
        """Give a copy to every consumer that is subscribed to the topic's fan-out now."""
        with self._lock:
            for queue in self._fanouts.get(topic, ()):
                self._put_message(queue, message)

    def declare_queue(self, key: str, name: str | None = None) -> EmbeddedQueue:
        """Return the queue called ``name`` (default: as the key), bound to ``key``."""
        with self._lock:
            self._declare_binding(key, key)
            return self._declare_binding(key, name or key)

    def subscribe_consumer(self, consumer: EmbeddedConsumer, queues: Iterable[EmbeddedQueue], fanout: str | None = None) -> None:
        """Let ``consumer`` have what is in ``queues`` and comes into them, and what is fanned out to the topic ``fanout``."""
        with self._lock:
            consumer.queues = tuple(queues)
            if fanout is not None:
                fanout_queue = EmbeddedQueue(f"{fanout}_fanout")
                self._fanouts.setdefault(fanout, []).append(fanout_queue)
                consumer.queues += (fanout_queue,)
            for queue in consumer.queues:
                queue.consumers.appendleft(consumer)
                self._pump_queue(queue)

    def unsubscribe_consumer(self, consumer: EmbeddedConsumer) -> None:
        """Hand nothing more to ``consumer``; what was set aside for it goes to others or back to its queue. May be repeated."""
        with self._lock:
            queues, consumer.queues = consumer.queues, ()
            for queue in queues:
                queue.consumers.remove(consumer)
            for owned in self._fanouts.values():
                owned[:] = [queue for queue in owned if queue not in queues]
            while consumer.inbox:
                message, queue = consumer.inbox.pop()
                queue.messages.appendleft(message)
            for queue in queues:
                self._pump_queue(queue)

    def acknowledge_message(self, consumer: EmbeddedConsumer) -> None:
        """``consumer`` has begun on (or is done with) one message it was handed: it may have the next."""
        with self._lock:
            consumer.unacknowledged -= 1
            self._feed_consumer(consumer)
            for queue in consumer.queues:
                if queue.messages:
                    self._pump_queue(queue)

    def requeue_message(self, consumer: EmbeddedConsumer, queue: EmbeddedQueue, message: QueuedMessage) -> None:
        """``consumer`` gives back one message it was handed. It goes to the end of its queue, so that others are not held up."""
        self.acknowledge_message(consumer)
        with self._lock:
            self._put_message(queue, message)

    def _declare_binding(self, key: str, name: str) -> EmbeddedQueue:
        queue = self._queues.setdefault(name, EmbeddedQueue(name))
        bound = self._bindings.get(key, ())
        if queue not in bound:
            self._bindings[key] = (*bound, queue)
        return queue

    def _put_message(self, queue: EmbeddedQueue, message: QueuedMessage) -> None:
        queue.messages.append(message)
        self._pump_queue(queue)
        if len(queue.messages) > QUEUE_LENGTH_LIMIT:
            queue.messages.popleft()
            LOG.warning("%s holds %d unread messages: its oldest is dropped", queue.name, QUEUE_LENGTH_LIMIT)

    def _pump_queue(self, queue: EmbeddedQueue) -> None:
        """Set messages aside for consumers as long as there are messages and consumers with room."""
        while queue.messages and (consumer := queue.next_consumer()):
            consumer.inbox.append((queue.messages.popleft(), queue))
            self._feed_consumer(consumer)

    def _feed_consumer(self, consumer: EmbeddedConsumer) -> None:
        """Hand messages over as far as the window allows. The lock is held, so ``take`` must be quick and not call back."""
        while consumer.inbox and consumer.unacknowledged < consumer.window:
            message, queue = consumer.inbox.popleft()
            if message.expires < time.monotonic():
                continue
            consumer.unacknowledged += 1
            consumer.take(message, queue)


class Brokers:
    """The brokers that are open in this process, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], tuple[Broker, int]] = {}

    def open(self, name: tuple[str, str]) -> Broker:
        """Return the broker of this name; the first to ask makes it."""
        with self._lock:
            broker, users = self._open.get(name) or (Broker(), 0)
            self._open[name] = broker, users + 1
            return broker

    def close(self, name: tuple[str, str]) -> None:
        """Give up one ``open``; with the last, the broker and all it holds is forgotten."""
        with self._lock:
            broker, users = self._open.pop(name)
            if users > 1:
                self._open[name] = broker, users - 1

    def list_open(self) -> list[tuple[str, str]]:
        with self._lock:
            return list(self._open)


BROKERS = Brokers()
"""The only shared module state: it stands for the network, and a URL selects one of its brokers."""
