"""oslo.messaging's RabbitMQ driver, with shorter ways for what is done for every message.

The driver is the library's: what it declares, how it finds a broker again, which errors mean what, and every byte on the wire. It
wraps each message it takes or sends in a dozen layers, though, that serve what does not happen in RPC or hardly ever: a third of
a boot's CPU. Here the usual case goes straight through - a connection that works, an exchange that was declared - and hands over to
the library's own code wherever something is unusual. Publisher confirms, mandatory answers, acknowledgement before the work, the
look for doubled messages, heartbeats and locks are as they were.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
import oslo_messaging as om

from objects.text import one_line
from rpc import agents, failures
from rpc.agents import Confined
from rpc.blocking import Blocking
from rpc.drivers.frames import Delivery
from rpc.drivers.late_answers import LateAnswers
from rpc.drivers.library import amqpdriver, base, common, impl_rabbit, rpc_amqp
from rpc.drivers.rabbit_connection import (
    DEFAULT_USER,
    LONGEST_REFUSED_PAUSE_S,
    REFUSED_PAUSE_S,
    Connection,
    Connections,
    OutgoingMessage,
    decode_envelope,
    listen_until_stopped,
)
from rpc.drivers.refused_messages import RefusedMessage, RefusedMessages
from rpc.drivers.wire import NULL, REPLY_PREFIX, RabbitCall, Reply, make_envelope, read
from rpc.sender import MessageSender
from service.rate_limited_log import RateLimitedLog
from service.retry import keep_trying

LOG = logging.getLogger(__name__)

REMEMBERED_IDS = 16
"""Number of message ids that a listener remembers to find duplicates. The library uses the same number."""

ROOM_WAIT_S = 0.5
"""Seconds that a listener waits for a free thread before it checks whether it must stop, and sends a heartbeat."""

PARTS_LIMIT = 16
"""Maximum number of parts of one answer that wait for the caller. An answer has one or two."""


class Answers:
    """Who waits for which answer. (In place of the library's, whose queues are made of three conditions each.)"""

    def __init__(self) -> None:
        self._waiting: dict[str, queue.SimpleQueue[Reply]] = {}

    def add(self, msg_id: str) -> None:
        self._waiting[msg_id] = queue.SimpleQueue()

    def remove(self, msg_id: str) -> None:
        del self._waiting[msg_id]

    def put(self, reply: Reply) -> None:
        waiting = self._waiting.get(reply.msg_id)
        if waiting is not None and waiting.qsize() < PARTS_LIMIT:  # otherwise the caller has given up
            waiting.put(reply)

    def get(self, msg_id: str, timeout: float | None) -> Reply:
        """Raises om.MessagingTimeout."""
        try:
            return self._waiting[msg_id].get(timeout=timeout)
        except queue.Empty:
            raise om.MessagingTimeout(f"No answer to message {msg_id} in {timeout} s.") from None


class ReplyWaiter(amqpdriver.ReplyWaiter):  # type: ignore[misc]  # the library ships no types
    """Waits for the answers to calls. The driver's own tries again without a pause, and leaves a stack in the log each time."""

    takes_arrivals = True

    def __init__(self, reply_q: str, conn: Any, allowed_remote_exmods: list[str]) -> None:
        self._complaints = RateLimitedLog(LOG)
        super().__init__(reply_q, conn, allowed_remote_exmods)
        self.waiters = Answers()  # no other thread knows this object yet

    def __call__(self, arrival: Delivery) -> None:
        """An answer has come. Raises Unreadable."""
        reply = read(arrival, Reply)
        arrival.acknowledge()
        self.waiters.put(reply)

    def poll(self) -> None:
        """The thread's whole life."""
        listen_until_stopped(self.conn.connection, self._thread_exit_event, self._complaints)

    def ask(self, msg_id: str, timeout: float | None) -> msgspec.Raw:
        """The answer, as JSON. Raises om.MessagingTimeout, and what the answer says is to be raised."""
        end = None if timeout is None else time.monotonic() + timeout
        final = NULL
        while True:
            remaining = None if end is None else max(0.0, end - time.monotonic())
            reply = self.waiters.get(msg_id, remaining)
            if reply.failure:
                raise failures.decode_error(reply.failure)
            if final is NULL or bytes(reply.result) != bytes(NULL):  # one of the parts has it
                final = reply.result
            if reply.ending:
                return final


class RabbitMessage(amqpdriver.AMQPIncomingMessage):  # type: ignore[misc]  # the library ships no types
    """A request that came. ``sender``: as far as the broker vouches for it."""

    def __init__(self, listener: RabbitListener, arrival: Delivery, request: RabbitCall) -> None:
        super().__init__(
            listener, request.request_context, request, request.unique_id, request.msg_id, request.reply_q, None, None, None
        )
        self.server = ""
        """The server whose queue it came from, where a listener has several."""
        self.size = arrival.size
        self.sender = MessageSender(user=arrival.properties.get("user_id"))

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Answer a call. ``failure``: as of sys.exc_info(). Raises errors.Invalid for what no broker would take."""
        if not self.orig_msg_id or not self._is_the_senders(self.reply_q or ""):
            return
        driver = self.listener.driver
        error = None if failure is None else failures.encode_error(failure[1])
        answer = {"result": reply, "failure": error, "ending": True, "_msg_id": self.msg_id, "_unique_id": driver.new_id()}
        driver.answer(self.reply_q, make_envelope(answer))

    def _is_the_senders(self, reply_q: str) -> bool:
        """Whether the queue is one that this sender gets answers from: who asks has no answer sent to somebody else."""
        user = self.sender.user
        return reply_q.startswith(REPLY_PREFIX) if user is None else reply_q.rpartition("_")[0] == agents.reply_prefix(user)[:-1]


class RabbitListener(base.Listener):  # type: ignore[misc]  # the library ships no types
    """Takes the messages of one server, in a thread of its own."""

    takes_arrivals = True

    def __init__(self, driver: RabbitDriver, context: Any) -> None:
        super().__init__(1, None, driver.prefetch_size)
        self.driver = driver
        self._context = context
        self._seen: deque[str] = deque(maxlen=REMEMBERED_IDS)
        self._complaints = RateLimitedLog(LOG)
        self._room: Callable[[int, float], bool] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rabbit-listen", daemon=True)

    def limit(self, prefetch: int, room: Callable[[int, float], bool] | None) -> None:
        """Have at most ``prefetch`` messages of each queue sent ahead, and take one when there is ``room``.

        ``room`` gets the size of a message and for how many seconds to wait. Both before ``start``.
        """
        self._context.connection.limit_prefetch(prefetch)
        self._room = room

    def start(self, on_incoming_callback: Callable[[list[RabbitMessage]], None]) -> None:
        super().start(on_incoming_callback)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._context.connection.stop_consuming()
        if self._thread.is_alive():
            self._thread.join()
        self._context.close()  # prefetched messages return to their queues, for other servers
        super().stop()

    def cleanup(self) -> None:
        self._context.close()

    def __call__(self, arrival: Delivery) -> None:
        """A message has come. Raises Unreadable."""
        self.take_arrival(arrival, "")

    def take_arrival(self, arrival: Delivery, server: str) -> None:
        """A message has come: it is acknowledged before the work, so that none is worked on twice, and never at all if that fails.

        While all threads are at work it waits here, and the others with the broker. Raises Unreadable.
        """
        request = read(arrival, RabbitCall)
        if not self._has_room(arrival.size):
            return
        try:
            arrival.acknowledge()
        except Exception as error:  # noqa: BLE001 - the broker sends it again
            self._complaints(
                str(error), logging.WARNING, "A message could not be acknowledged; the broker delivers it again: %s", error
            )
            return
        if request.unique_id is not None:
            if request.unique_id in self._seen:
                text = "A message that arrived twice is ignored: %s"
                self._complaints("twice", logging.WARNING, text, one_line(request.unique_id, 100))
                return
            self._seen.append(request.unique_id)
        message = RabbitMessage(self, arrival, request)
        message.server = server
        self.on_incoming_callback([message])

    def _has_room(self, size: int) -> bool:
        """Wait for a thread. False: the message is not taken, the broker gives it to another server or sends it again."""
        while self._room is not None and not self._room(size, ROOM_WAIT_S):
            if self._stopping.is_set():
                return False
            try:
                self._context.connection.keep_alive()
            except Exception as error:  # noqa: BLE001 - the connection is lost; the next read raises it
                LOG.debug("A heartbeat could not be sent: %s", error)
                return False
        return True

    def _run(self) -> None:
        listen_until_stopped(self._context.connection, self._stopping, self._complaints)


class ServerQueue:
    """Takes the messages of one of the servers that share a listener."""

    takes_arrivals = True

    def __init__(self, listener: RabbitListener, server: str) -> None:
        self._listener = listener
        self._server = server

    def __call__(self, arrival: Delivery) -> None:
        """A message has come. Raises Unreadable."""
        self._listener.take_arrival(arrival, self._server)


class RabbitDriver(impl_rabbit.RabbitDriver):  # type: ignore[misc]  # the library ships no types
    """The driver."""

    def __init__(self, *arguments: Any, confined: Confined | None = None, **options: Any) -> None:
        """``confined``: the broker's user may use its own queue only."""
        super().__init__(*arguments, **options)
        self._connection_pool: Connections = Connections.with_settings_of(self._connection_pool)
        self.blocking = self._connection_pool.blocking = Blocking()
        self._confined = self._connection_pool.confined = confined
        if confined is not None:
            self.bind_beside(confined.queue, confined.queue)
        self.answers_beside: str | None = None
        """An exchange that answers to calls come through, too. Set before the first call."""
        self._closing = threading.Event()
        self._declaring = RateLimitedLog(LOG)
        self._refused = self._connection_pool.refused = RefusedMessages(self._put_aside)
        self._late = LateAnswers(self._send_answer, self.missing_destination_retry_timeout)
        self._reply_q: str | None = None
        self._numbers = itertools.count()
        self._own = uuid.uuid4().hex

    def new_id(self) -> str:
        """An id that no other message has."""
        return f"{self._own}{next(self._numbers):x}"

    def with_connection(self, use: Callable[[Connection], object], retry: int | None = None) -> None:
        """Call ``use`` with a connection for sending."""
        connections = self._connection_pool
        connection = connections.get(retry=retry)
        try:
            use(connection)
        finally:
            connections.put(connection)

    def answer(self, reply_q: str, body: bytes) -> None:
        """Send an answer. Where its queue is not there it is tried again for a while, in another thread."""
        if not self._send_answer(reply_q, body):
            self._late.add_answer(reply_q, body)

    def _send_answer(self, reply_q: str, body: bytes) -> bool:
        """Whether the queue was there."""
        try:
            self.with_connection(lambda connection: connection.direct_send(reply_q, body))
        except (om.MessageUndeliverable, rpc_amqp.AMQPDestinationNotFound):
            return False
        return True

    def bind_beside(self, queue_name: str, exchange: str) -> None:
        """From the next connection on, bind this queue to this exchange, too."""
        self._connection_pool.beside = {**self._connection_pool.beside, queue_name: exchange}

    def _get_exchange(self, target: Any) -> str:
        """Where a message is sent. A confined user has an exchange for its own queue and one for its conductors."""
        if self._confined is None:
            return str(super()._get_exchange(target))
        return self._confined.queue if _routing_key(target) == self._confined.queue else agents.EXCHANGE

    def _get_reply_queue_name(self) -> str:
        """It begins with the user's name, by which a broker's permissions tell one user's answers from another's."""
        hosts = self._url.hosts
        user = (hosts[0].username if hosts else None) or DEFAULT_USER
        return agents.reply_prefix(user) + str(super()._get_reply_queue_name()).removeprefix(REPLY_PREFIX).replace("_", "-")

    def _put_aside(self, dead: RefusedMessage) -> None:
        if self._confined is not None:
            return  # it may not write to that queue; the log has the complaint
        self.with_connection(lambda connection: connection.put_aside(dead), retry=0)

    def cleanup(self) -> None:
        """Close everything."""
        self._closing.set()
        self._refused.stop()
        self._late.stop()
        super().cleanup()

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
        """Send a call (``wait_for_reply``), a cast or a fan-out, and return the answer to a call as JSON.

        Raises what the library's does, and errors.Invalid for what no broker would take. Nobody asks for signs of life
        (``call_monitor_timeout``) or other options.
        """
        wire = self._wire_message(ctxt, message)
        if not wait_for_reply:
            self._publish_wire(target, wire, timeout, retry, is_persistent=True)
            return None
        msg_id = uuid.uuid4().hex  # not to be guessed: one agent must not answer what another is asked
        wire |= {"_msg_id": msg_id, "_reply_q": self._reply_q or self._get_reply_q(), "_timeout": None}
        waiter = self._waiter
        waiter.listen(msg_id)
        try:
            self._publish_wire(target, wire, timeout, retry, is_persistent=False)
            return waiter.ask(msg_id, timeout)
        finally:
            waiter.unlisten(msg_id)

    def _get_reply_q(self) -> str:
        """The queue that answers come to, made with the first call, with who waits for them."""
        with self._reply_q_lock:
            if self._reply_q is None:
                name = self._get_reply_queue_name()
                if self.answers_beside is not None:
                    self.bind_beside(name, self.answers_beside)
                context = self._get_connection(common.PURPOSE_LISTEN)
                self._waiter = ReplyWaiter(name, context, self._allowed_remote_exmods)
                self._reply_q, self._reply_q_conn = name, context
            return self._reply_q

    def send_each(self, messages: Iterable[tuple[Any, dict[str, Any], dict[str, Any]]], retry: int | None = None) -> None:
        """Cast these, each with its target and context, in one go. Raises what ``send`` does: then some may have gone out."""
        by_exchange: dict[str, list[OutgoingMessage]] = {}
        for target, ctxt, message in messages:
            wire = self._wire_message(ctxt, message)
            by_exchange.setdefault(self._get_exchange(target), []).append(
                OutgoingMessage(_routing_key(target), make_envelope(wire))
            )
        for exchange, casts_of_exchange in by_exchange.items():
            self.with_connection(partial(Connection.post, exchange=exchange, messages=casts_of_exchange, retry=retry), retry)

    def _wire_message(self, ctxt: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
        """The message as it is sent, with an id of its own."""
        return {**message, "_unique_id": self.new_id(), **{f"_context_{key}": value for key, value in ctxt.items()}}

    def _publish_wire(
        self, target: Any, wire: dict[str, Any], timeout: float | None, retry: int | None, *, is_persistent: bool
    ) -> None:
        body = make_envelope(wire)
        if target.fanout:
            self.with_connection(lambda connection: connection.fanout_send(target.topic, decode_envelope(body), retry=retry), retry)
            return
        outgoing, exchange = OutgoingMessage(_routing_key(target), body, is_persistent, timeout), self._get_exchange(target)
        self.with_connection(lambda connection: connection.post(exchange, [outgoing], retry), retry)

    def listen(self, target: Any, batch_size: int, batch_timeout: float | None) -> RabbitListener:
        """Listen for calls and casts to the topic and to this server of it, and for the topic's fan-outs."""
        context = self._get_connection(common.PURPOSE_LISTEN)
        listener = RabbitListener(self, context)
        exchange, server_key = super()._get_exchange(target), f"{target.topic}.{target.server}"
        topics = (server_key,) if self._confined is not None else (target.topic, server_key)
        for topic in topics:
            self._declare_until_allowed(
                partial(context.declare_topic_consumer, exchange_name=exchange, topic=topic, callback=listener)
            )
        if self._confined is None:
            self._declare_until_allowed(partial(context.declare_fanout_consumer, target.topic, listener))
        return listener

    def listen_each(self, topic: str, servers: Iterable[str]) -> RabbitListener:
        """Listen for calls and casts to each of these servers of the topic, on one connection. Not for what any server may take."""
        context = self._get_connection(common.PURPOSE_LISTEN)
        listener = RabbitListener(self, context)
        for server in servers:
            queue = ServerQueue(listener, server)
            exchange, server_key = super()._get_exchange(om.Target(topic=topic)), f"{topic}.{server}"
            self._declare_until_allowed(
                partial(context.declare_topic_consumer, exchange_name=exchange, topic=server_key, callback=queue)
            )
        return listener

    def _declare_until_allowed(self, declare: Callable[[], object]) -> None:
        """Again and again: the broker refuses it while permissions, or exchanges that others declare, are missing.

        Raises om.MessageDeliveryFailure when the driver is closed.
        """

        def log_refusal(error: BaseException) -> None:
            text = "The broker refuses this listener; retrying: %s"
            self._declaring(str(error), logging.WARNING, text, error)

        keep_trying(
            declare,
            first=REFUSED_PAUSE_S,
            longest=LONGEST_REFUSED_PAUSE_S,
            stopping=self._closing,
            failed=log_refusal,
            on=om.MessageDeliveryFailure,
        )


def _routing_key(target: Any) -> str:
    return f"{target.topic}.{target.server}" if target.server else str(target.topic)
