"""A connection to RabbitMQ as the driver has it, and the pool of those that send: see ``rpc.driver`` for why they are ours."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import oslo_messaging as om
from amqp import spec  # type: ignore[import-untyped]  # the library ships no types
from amqp.exceptions import MessageNacked  # type: ignore[import-untyped]  # likewise
from oslo_messaging._drivers import amqp, common, impl_rabbit, pool

from service.complaints import Complaints

LOG = logging.getLogger(__name__)

SHORTEST_PAUSE, BUSY_PAUSE = 0.25, 1.0
"""Seconds that who listens waits before he looks whether he is to stop: at first, doubled up to what heartbeats allow; and at most
where messages come."""

REFUSED_PAUSE, LONGEST_PAUSE = 0.5, 3.0
"""Seconds that who listens pauses when a broker refuses him, as it does where the virtual host is gone; doubled from the first."""

ENVELOPE = "2.0"
"""The version of the library's envelope."""

_TRANSIENT, _PERSISTENT = 1, 2
_CONFIRMS = [spec.Basic.Ack, spec.Basic.Nack]
_FINAL = (amqp.AMQPDestinationNotFound, om.MessageUndeliverable, common.Timeout)
"""What a send may raise that no other attempt would mend."""


def envelope(message: dict[str, Any]) -> bytes:
    """The message as it is on the wire: JSON within JSON, as oslo.messaging has it."""
    text = msgspec.json.encode(message).decode()
    return msgspec.json.encode({"oslo.version": ENVELOPE, "oslo.message": text})


def opened(body: bytes) -> Any:
    """The envelope as the library's own sending wants it."""
    return msgspec.json.decode(body)


class Taken(dict[str, Any]):
    """A message that came, in the shape that the library gives to who consumes."""

    def __init__(self, delivered: Any) -> None:
        """Raises KeyError, TypeError and ValueError for what does not look as usual."""
        outer = msgspec.json.decode(delivered.body)
        if outer["oslo.version"] != ENVELOPE:
            raise ValueError(outer["oslo.version"])
        super().__init__(msgspec.json.decode(outer["oslo.message"]))
        self._delivered = delivered

    def acknowledge(self) -> None:
        self._delivered.channel.basic_ack(self._delivered.delivery_tag)

    def requeue(self) -> None:
        self._delivered.channel.basic_reject(self._delivered.delivery_tag, requeue=True)


class Consumer(impl_rabbit.Consumer):  # type: ignore[misc]  # the library ships no types
    """Who takes messages of one queue. (The library's reads JSON twice in Python, by way of two registries.)"""

    def _callback(self, message: Any) -> None:
        if not self.rabbit_stream_fanout:
            try:
                taken = Taken(message)
            except (KeyError, TypeError, ValueError):  # from another sender than ours: the library knows more kinds
                pass
            else:
                try:
                    self.callback(taken)
                except Exception:
                    LOG.exception("A message could not be taken, it is skipped")
                    message.channel.basic_reject(message.delivery_tag, requeue=False)
                return
        super()._callback(message)


class Letter(NamedTuple):
    """A message on its way to a topic, or an answer to its queue. ``timeout``: seconds until the broker forgets it.

    ``kept``: a durable queue writes it down, for the case that the broker is restarted. What somebody waits for,
    and asks for again, need not be: that costs the broker less.
    """

    topic: str
    body: bytes
    kept: bool = True
    timeout: float | None = None


class Connection(impl_rabbit.Connection):  # type: ignore[misc]  # the library ships no types
    """One connection, for sending or for listening."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._confirming: Any = None
        """The channel that was told to confirm what is published."""
        self._pause = SHORTEST_PAUSE
        super().__init__(*arguments, **options)

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
        except Exception as error:  # noqa: BLE001 - raised again, in a moment
            failed: list[Exception] = [error]

        def go_on() -> object:
            if failed:
                raise failed.pop()
            return method()

        return super().ensure(go_on, retry, recoverable_error_callback, error_callback, timeout_is_error)

    # -- sending --------------------------------------------------------------------------------------------------------

    def post(self, exchange: str, letters: Sequence[Letter], retry: int | None) -> None:
        """Send each to whoever listens on its topic; if it fails, some may have gone out."""
        if exchange not in self._declared_exchanges:
            for letter in letters:
                self.topic_send(exchange, letter.topic, opened(letter.body), letter.timeout, retry)
            return
        with self._connection_lock:
            self.ensure(partial(self._put_all, exchange, letters), retry=retry)

    def direct_send(self, msg_id: str, msg: Any) -> None:
        """Send an answer to the queue ``msg_id``. Raises om.MessageUndeliverable where there is no such queue."""
        body = msg if isinstance(msg, bytes) else msgspec.json.encode(msg)
        letter = Letter(topic=msg_id, body=body, kept=False)
        with self._connection_lock:
            self.ensure(partial(self._put, "", letter, self.direct_mandatory_flag))

    def _put_all(self, exchange: str, letters: Sequence[Letter]) -> None:
        """The first by itself, which tells how the broker numbers what the channel publishes; the others without a wait between."""
        first, *others = letters
        number = self._put(exchange, first)
        for letter in others:
            self._emit(exchange, letter)
        missing, refused = set(range(number + 1, number + 1 + len(others))), False
        while missing:
            method, upto, multiple = self._confirmation()
            missing.difference_update(range(number, upto + 1) if multiple else (upto,))
            refused |= method == spec.Basic.Nack
        if refused:  # said when no other confirmation is on its way, which the next message could take for its own
            raise MessageNacked

    def _put(self, exchange: str, letter: Letter, mandatory: bool = False) -> int:
        """Publish, and wait until the broker has confirmed it: what ``basic_publish`` of a confirming channel does.

        That first looks whether the broker has blocked the connection, which here is read while the confirmation is waited for.
        Returns the broker's number of it. Raises MessageNacked.
        """
        channel = self.channel
        if channel is not self._confirming:
            channel.confirm_select()
            self._confirming = channel
        self._emit(exchange, letter, mandatory)
        method, number, _ = self._confirmation()
        if method == spec.Basic.Nack:
            raise MessageNacked
        return number

    def _confirmation(self) -> tuple[Any, int, bool]:
        """The next one: Ack or Nack, the number of the message, and whether it is said of all before it, too."""
        said: list[Any] = []
        self.channel.wait(_CONFIRMS, callback=lambda *arguments: said.extend(arguments))
        method, number, multiple, *_ = said
        return method, number, multiple

    def _emit(self, exchange: str, letter: Letter, mandatory: bool = False) -> None:
        channel = self.channel
        properties: dict[str, Any] = {"delivery_mode": _PERSISTENT if letter.kept else _TRANSIENT}
        if letter.timeout is not None:
            properties["expiration"] = str(int(letter.timeout * 1000))
        message = channel.prepare_message(letter.body, 0, "application/json", "utf-8", {}, properties)
        channel.send_method(spec.Basic.Publish, "Bssbb", (0, exchange, letter.topic, mandatory, False), message)

    # -- listening ------------------------------------------------------------------------------------------------------

    def declare_consumer(self, consumer: Any) -> object:
        """Have the consumer take what comes; from then on it is one of ours."""
        consumer.__class__ = Consumer
        return super().declare_consumer(consumer)

    def listen(self) -> None:
        """Handle what comes, each message in its consumer's callback, until ``stop_consuming``; return also now and then.

        Raises what the library's ``consume`` does.
        """
        self.ensure(self._drain, recoverable_error_callback=self._begin_anew, error_callback=self._begin_anew)

    def _drain(self) -> None:
        if not self.connection.connected:
            self.connection.maybe_switch_next()  # as the library does: the host may be dead for good
            raise self.connection.recoverable_connection_errors[0]
        while self._new_tags:
            for consumer, tag in self._consumers.items():
                if tag in self._new_tags:
                    consumer.consume(self, tag=tag)
                    self._new_tags.remove(tag)
        sock = self.channel.connection.sock
        usual = sock.gettimeout()
        try:
            self._take(sock)
        finally:
            with contextlib.suppress(OSError):  # it may be closed by now
                sock.settimeout(usual)

    def _take(self, sock: Any) -> None:
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
            if self._pause > BUSY_PAUSE:
                self._pause = BUSY_PAUSE
                sock.settimeout(BUSY_PAUSE)

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

    @classmethod
    def like(cls, made: Any) -> Connections:
        """An empty pool with the settings of one that the library has made."""
        return cls(made.conf, made._max_size, made._min_size, made._item_ttl, made.url, Connection)

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
        """Give back one."""
        with self._cond:
            self._items.append((Idle(self._item_ttl), item))
            self._cond.notify()


def listen(connection: Connection, stopping: Callable[[], bool], complaints: Complaints) -> None:
    """A listening thread's whole life: whatever goes wrong, it tries again, and says so now and then."""
    pause = REFUSED_PAUSE
    while not stopping():
        try:
            connection.listen()
        except Exception as error:  # noqa: BLE001 - callers give up by themselves, and who sends keeps what he owes in rows
            complaints(str(error), logging.WARNING, "Nothing is heard from the broker, trying again and again: %s", error)
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        else:
            pause = REFUSED_PAUSE
