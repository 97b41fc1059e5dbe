"""oslo.messaging's own RabbitMQ driver, for bus URLs with ``?plain_driver=true``.

The bytes on the wire are the same, so processes with either driver work together. This one takes nothing of ours into the library:
it is slower, and free of what a release of oslo.messaging may change. It also lacks what ours adds. The broker's word on who sent a
message is not read, so agents cannot have broker users of their own. A message that nobody can read is not put aside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import oslo_messaging as om

from objects import typed
from objects.context import RequestContext
from objects.text import FAULTS_SIZE, clean
from rpc import failures
from rpc.drivers import wire
from rpc.drivers.library import base, impl_rabbit
from rpc.sender import UNKNOWN
from service import metrics
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

REMOTE = "_Remote"
"""The suffix that the library adds to the class name of an error from a server."""


class PlainMessage(base.RpcIncomingMessage):  # type: ignore[misc]  # the library ships no types
    """A request that came, as our servers read it."""

    sender = UNKNOWN
    size = 0

    def __init__(self, incoming: Any) -> None:
        """Raises Unreadable."""
        try:
            context = typed.convert(incoming.ctxt, RequestContext)
        except msgspec.ValidationError as error:
            raise wire.Unreadable("request context", str(error)) from None
        super().__init__(context, wire.decode(msgspec.json.encode(incoming.message), wire.WireCall), incoming.msg_id)
        self._incoming = incoming

    def acknowledge(self) -> None:
        self._incoming.acknowledge()

    def requeue(self) -> None:
        self._incoming.requeue()

    def heartbeat(self) -> None:
        self._incoming.heartbeat()

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Answer a call. ``failure``: as of sys.exc_info()."""
        self._incoming.reply(reply, failure)


class PlainListener(base.Listener):  # type: ignore[misc]  # the library ships no types
    """The library's listener, with its messages as our servers read them."""

    def __init__(self, library: Any) -> None:
        super().__init__(library.batch_size, library.batch_timeout, library.prefetch_size)
        self._library = library
        self._complaints = RateLimitedLog(LOG)

    def start(self, on_incoming_callback: Callable[[list[PlainMessage]], None]) -> None:
        super().start(on_incoming_callback)
        self._library.start(self._take)

    def stop(self) -> None:
        self._library.stop()
        super().stop()

    def cleanup(self) -> None:
        self._library.cleanup()

    def _take(self, arrived: list[Any]) -> None:
        for incoming in arrived:
            try:
                message = PlainMessage(incoming)
            except wire.Unreadable as error:
                metrics.REFUSED.labels("plain_driver", error.kind).inc()
                self._complaints(error.kind, logging.WARNING, "A message cannot be read and is dropped: %s", error)
                incoming.acknowledge()
            else:
                self.on_incoming_callback([message])


class PlainDriver(base.BaseDriver):  # type: ignore[misc]  # the library ships no types
    """The library's driver behind the seams of ours."""

    def __init__(self, conf: Any, url: Any, default_exchange: str, allowed_remote_exmods: list[str]) -> None:
        super().__init__(conf, url, default_exchange, allowed_remote_exmods)
        self._library = impl_rabbit.RabbitDriver(conf, url, default_exchange, allowed_remote_exmods)
        self.answers_beside: str | None = None
        """Not used: agents with broker users of their own cannot answer a process with this driver."""

    def require_features(self, requeue: bool = False) -> None:
        """Raises NotImplementedError as the library's does."""
        self._library.require_features(requeue=requeue)

    def bind_beside(self, queue_name: str, exchange: str) -> None:
        """Nothing is bound: agents with broker users of their own cannot reach a process with this driver."""

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
    ) -> msgspec.Raw | None:
        """Send a call (``wait_for_reply``), a cast or a fan-out, and return the answer to a call as JSON.

        Raises what the library's does, and errors.Invalid for what no broker would take. Nobody asks for signs of life
        (``call_monitor_timeout``) or other options.
        """
        wire.envelope(message)
        try:
            answer = self._library.send(
                target, ctxt, message, wait_for_reply, timeout, call_monitor_timeout, retry, transport_options
            )
        except om.RemoteError as error:
            raise _bounded(error) from None
        except Exception as error:
            if not type(error).__name__.endswith(REMOTE):
                raise
            error.__class__ = type(error).__mro__[1]  # the library makes a class for each error that a server has sent
            raise failures.decode(failures.encode(error)) from None
        return msgspec.Raw(msgspec.json.encode(answer)) if wait_for_reply else None

    def send_each(self, messages: Iterable[tuple[Any, dict[str, Any], dict[str, Any]]], retry: int | None = None) -> None:
        """Cast these, each with its target and context. Raises what ``send`` does: Invalid before any is sent."""
        every = list(messages)
        for _, _, message in every:
            wire.envelope(message)
        for target, ctxt, message in every:
            self._library.send(target, ctxt, message, retry=retry)

    def send_notification(
        self, target: Any, ctxt: dict[str, Any], message: dict[str, Any], version: float, retry: int | None = None
    ) -> None:
        """Send a notification; the target's topic ends in its priority."""
        self._library.send_notification(target, ctxt, message, version, retry)

    def listen(self, target: Any, batch_size: int, batch_timeout: float | None) -> PlainListener:
        """Listen for calls and casts to the topic and to this server of it, and for the topic's fan-outs."""
        return PlainListener(self._library.listen(target, batch_size, batch_timeout))

    def listen_for_notifications(
        self, targets_and_priorities: Iterable[tuple[Any, str]], pool: str | None, batch_size: int, batch_timeout: float | None
    ) -> Any:
        """The library's own listener."""
        return self._library.listen_for_notifications(targets_and_priorities, pool, batch_size, batch_timeout)

    def cleanup(self) -> None:
        """Close everything."""
        self._library.cleanup()


def _bounded(error: Any) -> Exception:
    """A failure that is none of ours, as text that is safe to show."""
    remote: Exception = om.RemoteError(clean(error.exc_type, failures.NAME_SIZE), clean(str(error.value), FAULTS_SIZE))
    return remote
