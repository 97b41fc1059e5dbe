"""Send to a topic and get answers or errors of ours back. The typed clients beside this module are what others use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import msgspec
import oslo_messaging as om

from objects import errors
from objects.context import RequestContext
from rpc.arguments import argument_shape
from rpc.drivers.wire import NULL
from rpc.errors import RemoteFault, Timeout
from service import metrics

P = ParamSpec("P")
T = TypeVar("T")


def count_errors(method: Callable[Concatenate[Client, P], T], /) -> Callable[Concatenate[Client, P], T]:
    """Count what it raises of ours, by topic."""

    @functools.wraps(method)
    def counting_call(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(client, *args, **kwargs)
        except errors.SuperconductorError as error:
            metrics.RPC_ERRORS.labels(client.topic, type(error).__name__).inc()
            raise

    return counting_call


class MethodCall(NamedTuple):
    """A method and what it is given, by name."""

    method: str
    arguments: dict[str, object]


class Carrier(Protocol):
    """What a client sends by: a ``Bus``. Its methods are described there."""

    def deliver_message(
        self, target: om.Target, context: RequestContext, message: MethodCall, timeout: float | None = None
    ) -> msgspec.Raw | None: ...

    def deliver_each(self, casts: Sequence[tuple[om.Target, RequestContext, MethodCall]]) -> None: ...


class Client:
    """Calls and casts to one topic of one bus, or to one server of it.

    Every method may raise ``Unreachable``; what else is said there.
    """

    def __init__(self, bus: Carrier, target: om.Target, timeout: float) -> None:
        self._bus = bus
        self._target = target
        self.topic: str = target.topic
        self._timeout = timeout

    def on_server(self, server: str) -> Client:
        """The same for one server of the topic."""
        return Client(self._bus, self._target(server=server), self._timeout)

    @count_errors
    def call(self, context: RequestContext, method: str, returns: type[T], /, **arguments: object) -> T:
        """Ask, and wait for the answer, which must be a ``returns``.

        Raises Timeout if there is none in time, an error of ours if that is the answer, Unsupported if the server does not know the
        method or speaks another version, RemoteFault if it failed for another reason.
        """
        try:
            answer = self._bus.deliver_message(self._target, context, MethodCall(method, arguments), self._timeout)
        except om.MessagingTimeout:
            raise Timeout(f"{self.topic} did not answer {method} within {self._timeout:g} s.") from None
        except om.RemoteError as error:
            raise self._explain_failure(method, error) from None
        try:
            read: T = argument_shape(returns).read(answer or NULL)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise RemoteFault(f"{self.topic} answered {method} with an invalid answer: {error}.") from None
        return read

    @count_errors
    def cast(self, context: RequestContext, method: str, /, **arguments: object) -> None:
        """Send and go on: it may be handled never, once, or late."""
        self._bus.deliver_message(self._target, context, MethodCall(method, arguments))

    @count_errors
    def cast_each(self, casts: Sequence[tuple[RequestContext, str, MethodCall]]) -> None:
        """Send each message to its server of the topic, all in one go, and go on. Where it raises some may have been sent.

        Raises Invalid if one of them is too large for a broker: then none was.
        """
        self._bus.deliver_each([(self._target(server=server), context, message) for context, server, message in casts])

    @count_errors
    def fanout(self, context: RequestContext, method: str, /, **arguments: object) -> None:
        """Send to every server that listens on the topic now, and go on."""
        self._bus.deliver_message(self._target(fanout=True), context, MethodCall(method, arguments))

    def _explain_failure(self, method: str, error: Any) -> errors.SuperconductorError:
        if error.exc_type in ("NoSuchMethod", "UnsupportedVersion"):
            return errors.Unsupported(f"The {self.topic} that answered does not offer {method}: {error.value}.")
        return RemoteFault(f"{self.topic} failed at {method}: {error.exc_type}. Its log says more.")
