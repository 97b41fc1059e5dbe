"""The ``embedded`` driver of oslo.messaging: a bus inside the process, for URLs like ``embedded://cell1/``.

It is registered under the entry point group ``oslo.messaging.drivers``. Host and virtual host of the URL name the broker. Brokers
of different names share nothing. ``embedded_broker.py`` says what a broker promises. Bodies, answers and errors make the same round
trip through JSON as on RabbitMQ, and errors pass the same list of allowed modules, so that what works here works there.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import msgspec
import oslo_messaging as om

from objects.context import RequestContext
from rpc import failures
from rpc.drivers import wire
from rpc.drivers.embedded_broker import BROKERS, Broker, EmbeddedConsumer, EmbeddedQueue, QueuedMessage
from rpc.drivers.library import base  # base classes of drivers
from rpc.sender import LOCAL
from service import metrics
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

NOTIFICATION_WINDOW = 64
"""Number of notifications that a listener may process at once. They are acknowledged afterwards, calls and casts before."""

_SENT: Any = tuple[RequestContext, wire.WireCall]
_NOTIFIED: Any = tuple[dict[str, Any], dict[str, Any]]
"""The type of a message's body."""

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class EmbeddedMessage(base.RpcIncomingMessage):  # type: ignore[misc]  # the untyped base is oslo.messaging's
    """A queued message as oslo.messaging's servers want it: a request, or a notification as plain data."""

    sender = LOCAL

    def __init__(
        self,
        broker: Broker,
        consumer: EmbeddedConsumer,
        queued: QueuedMessage,
        origin: EmbeddedQueue,
        *,
        notification: bool = False,
    ) -> None:
        """Raises Unreadable."""
        context, message = wire.decode_wire(queued.body, _NOTIFIED if notification else _SENT)
        super().__init__(context, message, msg_id="embedded")
        self.size = len(queued.body)
        self._broker, self._consumer, self._queued, self._origin = broker, consumer, queued, origin

    def acknowledge(self) -> None:
        self._broker.acknowledge_message(self._consumer)

    def requeue(self) -> None:
        self._broker.requeue_message(self._consumer, self._origin, self._queued)

    def reply(self, reply: object = None, failure: _ExcInfo | None = None) -> None:
        """Raises errors.Invalid for an answer that is too large."""
        if self._queued.answer is None:
            return
        if failure is not None:
            self._queued.answer(_EmbeddedFailure(failures.encode_error(failure[1])))
            return
        body = msgspec.json.encode(reply)
        wire.check_size(body)
        self._queued.answer(body)

    def heartbeat(self) -> None:
        """Nothing to do: inside one process a caller needs no sign of life from its server."""


class _EmbeddedFailure(str):
    """An exception as JSON text, told apart from a result."""

    __slots__ = ()


class EmbeddedListener(base.Listener):  # type: ignore[misc]  # the untyped base is oslo.messaging's
    """Connects a server of oslo.messaging to its queues. It needs no thread: messages arrive in their senders' threads."""

    def __init__(self, broker: Broker, queues: Iterable[EmbeddedQueue], *, fanout: str | None = None, window: int = 1) -> None:
        """``window`` above 1: of notifications, as many of which may be in work."""
        super().__init__(batch_size=1, batch_timeout=None)
        self._complaints = RateLimitedLog(LOG)
        self._broker, self._queues, self._fanout, self._window = broker, tuple(queues), fanout, window
        self._consumer: EmbeddedConsumer | None = None

    def start(self, on_incoming_callback: Callable[[list[EmbeddedMessage]], None]) -> None:
        super().start(on_incoming_callback)

        def take_message(queued: QueuedMessage, origin: EmbeddedQueue) -> None:
            try:
                incoming = EmbeddedMessage(self._broker, consumer, queued, origin, notification=self._window > 1)
            except wire.Unreadable as error:
                metrics.REFUSED.labels(origin.name, error.kind).inc()
                text = "A message of %d bytes in the queue %s cannot be read and is dropped: %s"
                self._complaints(f"{origin.name}: {error.kind}", logging.WARNING, text, len(queued.body), origin.name, error)
                consumer.unacknowledged -= 1
                return
            on_incoming_callback([incoming])

        self._consumer = consumer = EmbeddedConsumer(take_message, self._window)
        self._broker.subscribe_consumer(consumer, self._queues, self._fanout)

    def stop(self) -> None:
        self.cleanup()
        super().stop()

    def cleanup(self) -> None:
        if self._consumer is not None:
            self._broker.unsubscribe_consumer(self._consumer)


class EmbeddedDriver(base.BaseDriver):  # type: ignore[misc]  # the untyped base is oslo.messaging's
    """The driver. Its constructor's shape is oslo.messaging's."""

    def __init__(
        self, conf: Any, url: Any, default_exchange: str | None = None, allowed_remote_exmods: Sequence[str] | None = None
    ) -> None:
        super().__init__(conf, url, default_exchange, allowed_remote_exmods)
        self._name = (str(url.hosts[0].hostname) if url.hosts else "", url.virtual_host or "")
        self._broker = BROKERS.open(self._name)
        self._listeners: weakref.WeakSet[EmbeddedListener] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False

    def require_features(self, requeue: bool = True) -> None:
        """All of them are there."""

    def send(  # noqa: PLR0913, RUF100 - oslo.messaging's signature
        self,
        target: Any,
        ctxt: dict[str, Any],
        message: dict[str, Any],
        wait_for_reply: bool | None = None,
        timeout: float | None = None,
        call_monitor_timeout: float | None = None,
        retry: int | None = None,
        transport_options: Any = None,
    ) -> Any:
        """Send a call (``wait_for_reply``), cast, fan-out or notification: everything that is sent passes here.

        Raises MessagingTimeout if the answer takes longer than ``timeout`` seconds, and what the server raised.
        """
        if self._closed:
            raise om.MessageDeliveryFailure("This bus has been closed.")
        body = msgspec.json.encode((ctxt, message))
        wire.check_size(body)
        if not wait_for_reply:
            self._deliver_message(target, QueuedMessage(body))
            return None
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        expires = float("inf") if timeout is None else time.monotonic() + timeout
        self._deliver_message(target, QueuedMessage(body, answers.put, expires))
        try:
            answer = answers.get(timeout=timeout)
        except queue.Empty:
            raise om.MessagingTimeout(f"No answer from topic {target.topic} within {timeout} s.") from None
        if isinstance(answer, _EmbeddedFailure):
            raise failures.decode_error(str(answer))
        return msgspec.Raw(answer)

    def send_each(self, messages: Iterable[tuple[Any, dict[str, Any], dict[str, Any]]], retry: int | None = None) -> None:
        """Cast several messages, each with its target and context."""
        for target, ctxt, message in messages:
            self.send(target, ctxt, message)

    def _deliver_message(self, target: Any, queued: QueuedMessage) -> None:
        if target.fanout:
            self._broker.fanout_message(target.topic, queued)
        else:
            self._broker.send(self._routing_key(target, target.server), queued)

    def send_notification(
        self, target: Any, ctxt: dict[str, Any], message: dict[str, Any], version: float, retry: int | None = None
    ) -> None:
        """Send a notification; the target's topic ends in its priority."""
        self.send(target, ctxt, message)

    def listen(self, target: Any, batch_size: int, batch_timeout: float | None) -> EmbeddedListener:
        """Listen for calls and casts to the topic and to this server of it, and for the topic's fan-outs."""
        queues = [self._broker.declare_queue(self._routing_key(target, server)) for server in (target.server, None)]
        return self._add_listener(queues, fanout=target.topic)

    def listen_for_notifications(
        self, targets_and_priorities: Iterable[tuple[Any, str]], pool: str | None, batch_size: int, batch_timeout: float | None
    ) -> EmbeddedListener:
        """Listen for notifications. Listeners of one pool share them; each pool gets all. Batches are of one."""
        queues = [
            self._broker.declare_queue(f"{self._routing_key(target)}.{priority}", pool)
            for target, priority in targets_and_priorities
        ]
        return self._add_listener(list(dict.fromkeys(queues)), window=NOTIFICATION_WINDOW)

    def cleanup(self) -> None:
        """Close: stop listening, refuse to send, and forget the broker if nobody else has it open."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for listener in list(self._listeners):
                listener.cleanup()
        BROKERS.close(self._name)

    def _add_listener(self, queues: Iterable[EmbeddedQueue], *, fanout: str | None = None, window: int = 1) -> EmbeddedListener:
        listener = EmbeddedListener(self._broker, queues, fanout=fanout, window=window)
        with self._lock:
            self._listeners.add(listener)
        return listener

    def _routing_key(self, target: Any, server: str | None = None) -> str:
        """The routing key, in which the exchange has its part: unlike RabbitMQ's, queues of two exchanges never mix."""
        key = f"{target.exchange or self._default_exchange}/{target.topic}"
        return f"{key}.{server}" if server else key
