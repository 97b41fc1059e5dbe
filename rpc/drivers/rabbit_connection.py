"""A connection to RabbitMQ as the driver has it, and the pool of those that send: ``rabbit.py`` says why they are ours."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import oslo_messaging as om
from amqp.exceptions import MessageNacked, PreconditionFailed  # type: ignore[import-untyped]  # the library ships no types

from rpc import agents
from rpc.agents import Confined
from rpc.blocking import Blocking
from rpc.drivers import refused_messages, wire
from rpc.drivers.frames import Delivery, frame_handler
from rpc.drivers.library import common, impl_rabbit, pool, rpc_amqp, spec
from rpc.drivers.refused_messages import RefusedMessage, RefusedMessages
from rpc.drivers.wire import Unreadable
from service.rate_limited_log import RateLimitedLog
from service.retry import keep_trying

LOG = logging.getLogger(__name__)

COMPLAINTS = RateLimitedLog(LOG)

SHORTEST_PAUSE_S, BUSY_PAUSE_S = 0.25, 1.0
"""Seconds that a listener waits before it checks whether it must stop: at first (doubled up to what heartbeats allow), and at most
while messages arrive."""

REFUSED_PAUSE_S, LONGEST_REFUSED_PAUSE_S = 0.5, 3.0
"""Seconds that a listener pauses when a broker refuses it, for instance because the virtual host is gone: at first, and at most."""

DEFAULT_USER = "guest"
"""The user that logs in if the URL names none."""

_TRANSIENT, _PERSISTENT = 1, 2
_CONFIRMS = [spec.Basic.Ack, spec.Basic.Nack]
_FINAL = (rpc_amqp.AMQPDestinationNotFound, om.MessageUndeliverable, common.Timeout)
"""Errors of a send that another attempt would meet again."""


def decode_envelope(body: bytes) -> Any:
    """The envelope as the library's own sending wants it."""
    return msgspec.json.decode(body)


class NotificationMessage(dict[str, Any]):
    """A message that came, in the shape that the library gives to its own consumers: those of notifications."""

    def __init__(self, arrival: Delivery) -> None:
        """Raises Unreadable."""
        super().__init__(wire.read(arrival, dict[str, Any]))
        self._arrival = arrival

    def acknowledge(self) -> None:
        self._arrival.acknowledge()

    def requeue(self) -> None:
        self._arrival.requeue()


class BorderConsumer(impl_rabbit.Consumer):  # type: ignore[misc]  # the library ships no types
    """Takes the messages of one queue, and lets none of them end the connection.

    A callback with ``takes_arrivals`` gets each as an Arrival, any other as the library's own consumers do.
    """

    refused: RefusedMessages

    def declare(self, conn: Connection) -> None:
        """Declare the queue, and bind it to its exchanges. A confined user declares only what is its own.

        A queue that exists with other settings is replaced where nothing is lost by it; else the log says what to do. Raises as the
        library does.
        """
        if conn.confined is not None and self.exchange_name:
            self.exchange.no_declare = True
        try:
            super().declare(conn)
        except PreconditionFailed as error:
            if not self._removed_unused(conn):
                text = "%s. Delete the queue, and it is declared again: rabbitmqctl -p VHOST delete_queue %s"
                COMPLAINTS(f"declare {self.queue_name}", logging.ERROR, text, error, self.queue_name)
            raise
        beside = conn.beside.get(self.queue_name)
        if beside is not None:
            conn.channel.exchange_declare(exchange=beside, type="topic", durable=True, auto_delete=False)
            self.queue.bind_to(beside, self.routing_key or self.queue_name, channel=conn.channel)

    def _declare_fallback_nondurable(self, err: Exception, conn: Any, consumer_arguments: object) -> None:
        """The library would do with a queue that is lost with its broker, which newer brokers refuse."""
        raise err

    def _removed_unused(self, conn: Any) -> bool:
        """Whether the queue was empty and without consumers, and is gone."""
        try:
            with contextlib.closing(conn.connection.channel()) as channel:
                channel.queue_delete(self.queue_name, if_unused=True, if_empty=True)
        except Exception as error:  # noqa: BLE001 - in use, not empty, not permitted, or of a kind that cannot tell: it stays
            LOG.debug("The queue %s is not replaced: %s", self.queue_name, error)
            return False
        LOG.warning("The queue %s had other settings. It was empty and unused: it is declared again", self.queue_name)
        return True

    def _callback(self, arrival: Delivery) -> None:
        if self.rabbit_stream_fanout:
            self._note_offset(arrival)
        try:
            self.callback(arrival if getattr(self.callback, "takes_arrivals", False) else NotificationMessage(arrival))
        except Exception as error:  # noqa: BLE001 - otherwise the broker delivers it again and again
            self._refuse_arrival(arrival, error)

    def _refuse_arrival(self, arrival: Delivery, error: Exception) -> None:
        """Take it from its queue in any case: a message that fails once fails every time."""
        kind = error.kind if isinstance(error, Unreadable) else type(error).__name__
        self.refused(arrival, self.queue_name, kind, str(error))
        if arrival.settled:
            return
        try:
            arrival.acknowledge()
        except Exception as lost:  # noqa: BLE001 - the connection is lost: the broker delivers the message again
            LOG.debug("A refused message could not be acknowledged: %s", lost)

    def _note_offset(self, arrival: Delivery) -> None:
        """Where to go on in a stream after a reconnect, as the library has it."""
        offset = (arrival.properties.get("application_headers") or {}).get("x-stream-offset")
        if isinstance(offset, int):
            self.next_stream_offset = offset + 1


class OutgoingMessage(NamedTuple):
    """A message on its way to a topic, or an answer to its queue. ``timeout``: seconds until the broker forgets it.

    ``kept``: a durable queue writes it down, for the case that the broker is restarted. What somebody waits for,
    and asks for again, need not be: that costs the broker less.
    """

    topic: str
    body: bytes
    kept: bool = True
    timeout: float | None = None
    headers: dict[str, Any] | None = None


class Connection(impl_rabbit.Connection):  # type: ignore[misc]  # the library ships no types
    """One connection, for sending or for listening."""

    blocking: Blocking
    """Told when the broker blocks this connection. Set before anything is sent."""
    confined: Confined | None = None
    """The queues of a user that may use only its own; None for a user with all permissions."""
    beside: Mapping[str, str] = MappingProxyType({})
    """Exchanges that queues are bound to besides the one of all topics, by queue."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._confirming: Any = None
        """The channel on which publisher confirms are on."""
        self._returned: Exception | None = None
        """The error if the last message was returned, because no queue takes it."""
        self._dead_letters_on: Any = None
        """The channel that the dead-letter queue was declared on."""
        self.refused: RefusedMessages
        """Receives messages that cannot be read. Set before the connection listens."""
        self._pause = SHORTEST_PAUSE_S
        self.rabbit_qos_prefetch_count = 0
        self.blocking = Blocking()
        super().__init__(*arguments, **options)

    def ensure_connection(self) -> None:
        """Connect, so that deliveries are read by ``rpc.drivers.frames``."""
        self.connection.transport_options["frame_handler"] = frame_handler
        super().ensure_connection()

    def ensure(
        self,
        method: Callable[[], object],
        retry: int | None = None,
        recoverable_error_callback: Callable[[Exception], object] | None = None,
        error_callback: Callable[[Exception], object] | None = None,
        timeout_is_error: bool = True,
    ) -> object:
        """Do it. What goes wrong is the library's to judge: it is raised once more where that catches it, as its first attempt."""
        if self.channel is None or self._initial_pid != os.getpid():
            return super().ensure(method, retry, recoverable_error_callback, error_callback, timeout_is_error)
        try:
            return method()
        except _FINAL:
            raise
        except Exception as error:  # noqa: BLE001 - raised again below
            failed: list[Exception] = [error]

        def go_on() -> object:
            if failed:
                raise failed.pop()
            return method()

        return super().ensure(go_on, retry, recoverable_error_callback, error_callback, timeout_is_error)

    def _on_connection_blocked(self, reason: str) -> None:
        super()._on_connection_blocked(reason)
        self.blocking.note_blocked()

    def _on_connection_unblocked(self) -> None:
        super()._on_connection_unblocked()
        self.blocking.note_unblocked()

    # -- sending --------------------------------------------------------------------------------------------------------

    def post(self, exchange: str, messages: Sequence[OutgoingMessage], retry: int | None) -> None:
        """Send each to whoever listens on its topic; if it fails, some may have gone out."""
        if exchange not in self._declared_exchanges and self.confined is None:
            for outgoing in messages:
                self.topic_send(exchange, outgoing.topic, decode_envelope(outgoing.body), outgoing.timeout, retry)
            return
        with self._connection_lock:
            self.ensure(partial(self._put_all, exchange, messages), retry=retry)

    def direct_send(self, msg_id: str, msg: bytes) -> None:
        """Send an answer to the queue ``msg_id``. Raises om.MessageUndeliverable where there is no such queue.

        A confined user may not send to queues: its answers take the exchange that callers of agents have bound theirs to.
        """
        exchange = "" if self.confined is None else agents.EXCHANGE
        outgoing = OutgoingMessage(topic=msg_id, body=msg, kept=False)
        with self._connection_lock:
            self.ensure(partial(self._publish_confirmed, exchange, outgoing, self.direct_mandatory_flag))

    def put_aside(self, dead: RefusedMessage) -> None:
        """Put a refused message into the dead-letter queue."""
        with self._connection_lock:
            self.ensure(partial(self._put_aside, dead), retry=0)

    def _put_aside(self, dead: RefusedMessage) -> None:
        channel = self.channel
        if channel is not self._dead_letters_on:
            channel.queue_declare(
                queue=refused_messages.QUEUE, durable=True, auto_delete=False, arguments=refused_messages.ARGUMENTS
            )
            self._dead_letters_on = channel
        self._publish_confirmed("", OutgoingMessage(topic=refused_messages.QUEUE, body=dead.body, headers=dead.headers))

    def on_return(self, exception: Exception, exchange: str, routing_key: str, message: Any) -> None:
        """The message sent last has come back. An error here would leave its confirmation to be taken for the next message's."""
        self._returned = om.MessageUndeliverable(exception, exchange, routing_key, message)

    def _put_all(self, exchange: str, messages: Sequence[OutgoingMessage]) -> None:
        """The first by itself, which tells how the broker numbers what the channel publishes; the others without a wait between."""
        first, *others = messages
        number = self._publish_confirmed(exchange, first)
        for outgoing in others:
            self._publish_once(exchange, outgoing)
        missing, refused = set(range(number + 1, number + 1 + len(others))), False
        while missing:
            method, upto, multiple = self._next_confirmation()
            missing.difference_update(range(number, upto + 1) if multiple else (upto,))
            refused |= method == spec.Basic.Nack
        if refused:  # raised when no other confirmation is outstanding: the next message would take it for its own
            raise MessageNacked

    def _publish_confirmed(self, exchange: str, outgoing: OutgoingMessage, mandatory: bool = False) -> int:
        """Publish, and wait until the broker has confirmed it: what ``basic_publish`` of a confirming channel does.

        That first looks whether the broker has blocked the connection, which here is read while the confirmation is waited for.
        Returns the broker's number of it. Raises MessageNacked, and om.MessageUndeliverable if it is mandatory and no queue has it.
        """
        self._returned = None
        channel = self.channel
        if channel is not self._confirming:
            channel.confirm_select()
            self._confirming = channel
        self._publish_once(exchange, outgoing, mandatory)
        method, number, _ = self._next_confirmation()
        if method == spec.Basic.Nack:
            raise MessageNacked
        if self._returned is not None:
            raise self._returned
        return number

    def _next_confirmation(self) -> tuple[Any, int, bool]:
        """The next one: Ack or Nack, the number of the message, and whether it is said of all before it, too."""
        received: list[Any] = []
        self.channel.wait(_CONFIRMS, callback=lambda *arguments: received.extend(arguments))
        self.blocking.note_unblocked()
        method, number, multiple, *_ = received
        return method, number, multiple

    def _publish_once(self, exchange: str, outgoing: OutgoingMessage, mandatory: bool = False) -> None:
        channel = self.channel
        properties: dict[str, Any] = {"delivery_mode": _PERSISTENT if outgoing.kept else _TRANSIENT, **self._sender_property()}
        if outgoing.timeout is not None:
            properties["expiration"] = str(int(outgoing.timeout * 1000))
        message = channel.prepare_message(outgoing.body, 0, wire.CONTENT_TYPE, wire.ENCODING, outgoing.headers or {}, properties)
        channel.send_method(spec.Basic.Publish, "Bssbb", (0, exchange, outgoing.topic, mandatory, False), message)

    def _sender_property(self) -> dict[str, str]:
        """The property that the broker compares with the login. A login by a certificate has a name that is not known here."""
        return {} if self.login_method == "EXTERNAL" else {"user_id": self.connection.userid or DEFAULT_USER}

    def _set_current_channel(self, new_channel: Any) -> None:
        """As the library does, and have its own sending name the sender as well."""
        before = self.channel
        super()._set_current_channel(new_channel)
        if new_channel is not None and new_channel != before:
            self._producer.publish = partial(self._producer.publish, **self._sender_property())

    # -- listening ------------------------------------------------------------------------------------------------------

    def declare_consumer(self, consumer: Any) -> object:
        """Have the consumer take what comes; from then on it is one of ours.

        Queues of answers and fan-outs are durable, with an expiry. RabbitMQ 4.3 refuses others, unless only the connection that
        declared them may use them, and such a queue could not be had back after a reconnect. Their messages are not kept.
        """
        consumer.__class__ = BorderConsumer
        consumer.durable = consumer.durable or not consumer.rabbit_stream_fanout
        consumer.refused = self.refused
        return super().declare_consumer(consumer)

    def limit_prefetch(self, count: int) -> None:
        """Have the broker send at most so many messages of each queue ahead, or as few as the URL says."""
        prefetch_before = self.rabbit_qos_prefetch_count
        self.rabbit_qos_prefetch_count = min(prefetch_before, count) if prefetch_before > 0 else count
        self.ensure(lambda: self._set_qos(self.channel))

    def keep_alive(self) -> None:
        """Give the broker a sign of life while nothing is read. Raises what a broken connection does."""
        self.channel.connection.send_heartbeat()

    def listen(self) -> None:
        """Handle what comes, each message in its consumer's callback, until ``stop_consuming``; return also now and then.

        Raises what the library's ``consume`` does.
        """
        self.ensure(self._handle_arrivals, recoverable_error_callback=self._begin_anew, error_callback=self._begin_anew)

    def _handle_arrivals(self) -> None:
        if not self.connection.connected:
            self.connection.maybe_switch_next()  # as the library does: the host may never come back
            raise self.connection.recoverable_connection_errors[0]
        while self._new_tags:
            for consumer, tag in self._consumers.items():
                if tag in self._new_tags:
                    consumer.consume(self, tag=tag)
                    self._new_tags.remove(tag)
        sock = self.channel.connection.sock
        usual = sock.gettimeout()
        try:
            self._take_until_silent(sock)
        finally:
            with contextlib.suppress(OSError):  # it may be closed by now
                sock.settimeout(usual)

    def _take_until_silent(self, sock: Any) -> None:
        """Until nothing comes for a while. The socket's time-out is set when it changes, and not for each frame of each message,
        which is what one that is given to ``drain_events`` costs."""
        sock.settimeout(self._pause)
        while not self._consume_loop_stopped:
            try:
                self.channel.connection.drain_events()
            except TimeoutError:
                if self._heartbeat_supported_and_enabled():
                    self._heartbeat_check()
                self._pause = min(self._pause * 2, self._poll_timeout)
                return
            except self.connection.channel_errors as error:
                if error.code == 406 and error.method_name == "Basic.ack":
                    raise self.connection.recoverable_channel_errors[0] from None
                raise
            if self._pause > BUSY_PAUSE_S:
                self._pause = BUSY_PAUSE_S
                sock.settimeout(BUSY_PAUSE_S)

    def _begin_anew(self, error: Exception) -> None:
        if not isinstance(error, common.Timeout):
            self._new_tags = set(self._consumers.values())


class Idle:
    """Since when a connection has been in the pool. (The library's own does much more.)"""

    __slots__ = ("_until",)

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def expired(self) -> bool:
        return time.monotonic() > self._until


class Connections(pool.ConnectionPool):  # type: ignore[misc]  # the library ships no types
    """The connections for sending."""

    _closed = False
    blocking: Blocking
    refused: RefusedMessages
    """Receives messages that cannot be read."""
    confined: Confined | None = None
    beside: Mapping[str, str] = MappingProxyType({})
    """Given to each connection: see there."""

    @classmethod
    def with_settings_of(cls, library_pool: Any) -> Connections:
        """An empty pool with the settings of one that the library has made."""
        return cls(
            library_pool.conf, library_pool._max_size, library_pool._min_size, library_pool._item_ttl, library_pool.url, Connection
        )

    def create(self, purpose: str = common.PURPOSE_SEND, retry: int | None = None) -> Connection:
        connection: Connection = super().create(purpose, retry)
        connection.refused, connection.confined, connection.beside, connection.blocking = (
            self.refused,
            self.confined,
            self.beside,
            self.blocking,
        )
        return connection

    def get(self, retry: int | None = None) -> Connection:
        """One that is free, the one last used first; else a new one, or as soon as one is given back."""
        if len(self._items) <= self._min_size:  # none of them expires
            try:
                _, free = self._items.pop()
            except IndexError:
                pass
            else:
                return free  # type: ignore[no-any-return]  # from the untyped base
        return super().get(retry)  # type: ignore[no-any-return]  # likewise

    def put(self, item: Connection) -> None:
        """Give back one. Where all are closed it is, too: in use it was in nobody's reach."""
        with self._cond:
            if not self._closed:
                self._items.append((Idle(self._item_ttl), item))
                self._cond.notify()
                return
        _close(item)

    def empty(self) -> None:
        """Close all that are free, and from now on each that is given back."""
        with self._cond:
            self._closed = True
        for item in self.iter_free():
            _close(item)


def _close(connection: Connection) -> None:
    try:
        connection.close()
    except Exception as error:  # noqa: BLE001 - it is not used any more, and others must still be closed
        LOG.debug("A connection could not be closed: %s", error)


def listen_until_stopped(connection: Connection, stopping: threading.Event, complaints: RateLimitedLog) -> None:
    """A listening thread's whole life: whatever goes wrong, it tries again, and says so now and then."""

    def log_failure(error: BaseException) -> None:  # callers time out, and senders keep their work in rows
        complaints(str(error), logging.WARNING, "The broker cannot be heard; retrying: %s", error)

    while not stopping.is_set():
        try:
            keep_trying(
                connection.listen, first=REFUSED_PAUSE_S, longest=LONGEST_REFUSED_PAUSE_S, stopping=stopping, failed=log_failure
            )
        except Exception as error:  # noqa: BLE001 - the end of listening
            LOG.debug("Listening ends: %s", error)
