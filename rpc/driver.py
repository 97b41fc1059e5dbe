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

import oslo_messaging as om
from oslo_messaging._drivers import amqp, amqpdriver, base, common, impl_rabbit

from rpc.connection import Connection, Connections, Letter, envelope, listen, opened
from service.complaints import Complaints

LOG = logging.getLogger(__name__)

DOUBLES = 16
"""Messages whose ids a listener remembers. The driver's own figure."""


class Answers:
    """Who waits for which answer. (In place of the library's, whose queues are made of three conditions each.)"""

    def __init__(self) -> None:
        self._waiting: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}

    def add(self, msg_id: str) -> None:
        self._waiting[msg_id] = queue.SimpleQueue()

    def remove(self, msg_id: str) -> None:
        del self._waiting[msg_id]

    def put(self, msg_id: str, answer: dict[str, Any]) -> None:
        waiting = self._waiting.get(msg_id)
        if waiting is not None:  # else who asked has given up
            waiting.put(answer)

    def get(self, msg_id: str, timeout: float | None) -> dict[str, Any]:
        """Raises om.MessagingTimeout."""
        try:
            return self._waiting[msg_id].get(timeout=timeout)
        except queue.Empty:
            raise om.MessagingTimeout(f"No answer to message {msg_id} in {timeout} s.") from None


class ReplyWaiter(amqpdriver.ReplyWaiter):  # type: ignore[misc]  # the library ships no types
    """Waits for the answers to calls. The driver's own tries again without a pause, and leaves a stack in the log each time."""

    def __init__(self, reply_q: str, conn: Any, allowed_remote_exmods: list[str]) -> None:
        self._complaints = Complaints(LOG)
        super().__init__(reply_q, conn, allowed_remote_exmods)
        self.waiters = Answers()  # nobody has been told of this object yet

    def poll(self) -> None:
        """The thread's whole life."""
        listen(self.conn.connection, self._thread_exit_event.is_set, self._complaints)

    def ask(self, msg_id: str, timeout: float | None) -> Any:
        """The answer. Raises om.MessagingTimeout, and what the answer says is to be raised."""
        end = None if timeout is None else time.monotonic() + timeout
        final = None
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            answer, ending = self._process_reply(self.waiters.get(msg_id, left))
            final = answer if answer is not None else final
            if ending:
                break
        if isinstance(final, Exception):
            raise final
        return final


class Incoming(amqpdriver.AMQPIncomingMessage):  # type: ignore[misc]  # the library ships no types
    """A message that came."""

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Answer a call. The library goes on from where the asker's queue is not there (any more)."""
        if not self.orig_msg_id:
            return
        if failure is None and self._obsolete_reply_queues.reply_q_valid(self.reply_q, self.msg_id):
            driver = self.listener.driver
            answer = {"result": reply, "failure": None, "ending": True, "_msg_id": self.msg_id, "_unique_id": driver.new_id()}
            try:
                driver.with_connection(lambda connection: connection.direct_send(self.reply_q, envelope(answer)))
            except (om.MessageUndeliverable, amqp.AMQPDestinationNotFound):
                pass
            else:
                return
        super().reply(reply, failure)


class Listener(base.Listener):  # type: ignore[misc]  # the library ships no types
    """Takes the messages of one server, in a thread of its own."""

    def __init__(self, driver: Driver, context: Any) -> None:
        super().__init__(1, None, driver.prefetch_size)
        self.driver = driver
        self._context = context
        self._seen: deque[str] = deque(maxlen=DOUBLES)
        self._gone = amqpdriver.ObsoleteReplyQueuesCache()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rabbit-listen", daemon=True)

    def start(self, on_incoming_callback: Callable[[list[Incoming]], None]) -> None:
        super().start(on_incoming_callback)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._context.connection.stop_consuming()
        if self._thread.is_alive():
            self._thread.join()
        super().stop()

    def cleanup(self) -> None:
        self._context.close()

    def __call__(self, message: Any) -> None:
        """A message has come: it is acknowledged first, so that no message is worked on twice, and never at all if that fails."""
        try:
            message.acknowledge()
        except Exception as error:  # noqa: BLE001 - the broker sends it again
            LOG.warning("Discarding RPC request due to failed acknowledge: %s", error)
            return
        unique_id = message.pop("_unique_id", None)
        if unique_id is not None:
            if unique_id in self._seen:
                LOG.warning("ignoring duplicate message %s", unique_id)
                return
            self._seen.append(unique_id)
        msg_id, reply_q = message.pop("_msg_id", None), message.pop("_reply_q", None)
        timeout = message.pop("_timeout", None)
        context = {key[9:]: message.pop(key) for key in list(message) if key.startswith("_context_")}
        incoming = Incoming(self, context, message, unique_id, msg_id, reply_q, timeout, self._gone, None)
        self.on_incoming_callback([incoming])

    def _run(self) -> None:
        listen(self._context.connection, self._stopping.is_set, Complaints(LOG))


class Driver(impl_rabbit.RabbitDriver):  # type: ignore[misc]  # the library ships no types
    """The driver."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._connection_pool: Connections = Connections.like(self._connection_pool)
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
        """Send a call (``wait_for_reply``), a cast or a fan-out. Raises what the library's does."""
        if call_monitor_timeout or transport_options:
            return super().send(target, ctxt, message, wait_for_reply, timeout, call_monitor_timeout, retry, transport_options)
        wire = self._wire(ctxt, message)
        if not wait_for_reply:
            self._publish(target, wire, timeout, retry, kept=True)
            return None
        msg_id = wire["_unique_id"]
        wire |= {"_msg_id": msg_id, "_reply_q": self._reply_q or self._get_reply_q(), "_timeout": None}
        waiter = self._waiter
        waiter.listen(msg_id)
        try:
            self._publish(target, wire, timeout, retry, kept=False)
            return waiter.ask(msg_id, timeout)
        finally:
            waiter.unlisten(msg_id)

    def _get_reply_q(self) -> str:
        """The queue that answers come to, made with the first call, with who waits for them."""
        with self._reply_q_lock:
            if self._reply_q is None:
                name, context = self._get_reply_queue_name(), self._get_connection(common.PURPOSE_LISTEN)
                self._waiter = ReplyWaiter(name, context, self._allowed_remote_exmods)
                self._reply_q, self._reply_q_conn = name, context
            return self._reply_q

    def send_each(self, messages: Iterable[tuple[Any, dict[str, Any], dict[str, Any]]], retry: int | None = None) -> None:
        """Cast these, each with its target and context, in one go. Raises what ``send`` does: then some may have gone out."""
        letters: dict[str, list[Letter]] = {}
        for target, ctxt, message in messages:
            wire = self._wire(ctxt, message)
            letters.setdefault(self._get_exchange(target), []).append(Letter(_topic(target), envelope(wire)))
        for exchange, some in letters.items():
            self.with_connection(partial(Connection.post, exchange=exchange, letters=some, retry=retry), retry)

    def _wire(self, ctxt: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
        """The message as it is sent, with an id of its own."""
        return {**message, "_unique_id": self.new_id(), **{f"_context_{key}": value for key, value in ctxt.items()}}

    def _publish(self, target: Any, wire: dict[str, Any], timeout: float | None, retry: int | None, *, kept: bool) -> None:
        body = envelope(wire)
        if target.fanout:
            self.with_connection(lambda connection: connection.fanout_send(target.topic, opened(body), retry=retry), retry)
            return
        letter, exchange = Letter(_topic(target), body, kept, timeout), self._get_exchange(target)
        self.with_connection(lambda connection: connection.post(exchange, [letter], retry), retry)

    def listen(self, target: Any, batch_size: int, batch_timeout: float | None) -> Listener:
        """Listen for calls and casts to the topic and to this server of it, and for the topic's fan-outs."""
        context = self._get_connection(common.PURPOSE_LISTEN)
        listener = Listener(self, context)
        exchange = self._get_exchange(target)
        for topic in (target.topic, f"{target.topic}.{target.server}"):
            context.declare_topic_consumer(exchange_name=exchange, topic=topic, callback=listener)
        context.declare_fanout_consumer(target.topic, listener)
        return listener


def _topic(target: Any) -> str:
    return f"{target.topic}.{target.server}" if target.server else str(target.topic)
