"""Serve a topic: endpoints wrapped so that errors of ours travel to the caller, and bugs are logged here."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import oslo_messaging as om
from oslo_messaging.rpc.dispatcher import RPCDispatcher
from oslo_messaging.rpc.server import RPCServer

from objects import errors, text
from objects.context import RequestContext
from objects.text import FAULT_SIZE, one_line
from rpc.arguments import signatures_of
from rpc.drivers.rabbit import RabbitListener
from rpc.drivers.wire import WireCall
from rpc.errors import RemoteFault, Unreachable
from rpc.failures import ERROR_MODULES, NAME_SIZE
from rpc.loopback_probe import Pulse
from rpc.rabbit import UNDELIVERED, Link
from rpc.sender import handling_message_of
from rpc.serializer import expected_error
from rpc.threads import Threads
from service import health, logs, metrics
from service.health import UnderWay
from service.rate_limited_log import RateLimitedLog
from service.worker_pool import WorkerPool

LOG = logging.getLogger(__name__)

VERSION = "1.0"
"""Version of all interfaces: a client asks for it, and a server offers at least this."""

START_TIMEOUT_S = 5.0

PREFETCH_PER_THREAD, MIN_PREFETCH = 2, 16
"""Messages of one queue that a broker sends ahead: for each thread of the server, and at least."""

APART_THREADS, APART_QUEUE_LIMIT = 4, 16
"""Threads for the methods that take longer, and how many of their messages may wait for one. Further ones are refused."""

LONGEST_LAG_S = 60.0
"""Seconds for which a message may wait for a thread. Its caller has given up by then."""
LISTEN_RETRY_S = 1.0


class Endpoint:
    """The methods of one endpoint object as the bus may call them, and no others."""

    target = om.Target(version=VERSION)

    def __init__(self, topic: str, endpoint: object, *, interface: type | None = None, under_way: UnderWay | None = None) -> None:
        """``interface`` (a Protocol) says which methods, and of what types their arguments are; without it the endpoint's class."""
        self._topic = topic
        self._under_way = under_way or UnderWay()
        self._complaints = RateLimitedLog(LOG)
        for name, signature in signatures_of(interface or type(endpoint)).items():
            method: Any = self._wrap_method(name, getattr(endpoint, name))
            method.signature = signature
            setattr(self, name, method)

    def _wrap_method(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        handled = metrics.HANDLED.labels(self._topic, name)

        @functools.wraps(method)
        def handle_call(context: RequestContext, **arguments: object) -> object:
            began = time.perf_counter()
            with logs.Bound(context.request_id), self._under_way:
                try:
                    return method(context, **arguments)
                except errors.SuperconductorError as error:
                    self._log_refusal(name, error)
                    raise expected_error(_known_error(error)) from None
                except Exception as error:  # noqa: BLE001 - a bug of the endpoint: logged with its stack, and answered
                    kind, text = f"{name}: {type(error).__name__}", "%s.%s failed"
                    self._complaints(kind, logging.ERROR, text, self._topic, name, exc_info=error)
                    fault = f"{self._topic} failed at {name}: {type(error).__name__}. Its log says more."
                    raise expected_error(RemoteFault(fault)) from None
                finally:
                    handled.observe(time.perf_counter() - began)

        exposed: Callable[..., object] = om.expose(handle_call)  # what ExplicitRPCAccessPolicy looks for
        return exposed

    def _log_refusal(self, name: str, error: errors.SuperconductorError) -> None:
        """Every refusal, but not for every call that a database is away, nor one that can be had as often as somebody likes."""
        text, values = "%s.%s: %s: %s", (self._topic, name, type(error).__name__, error)
        if isinstance(error, errors.DatabaseUnavailable | errors.CellUnavailable):
            self._complaints(f"{name}: {error}", logging.WARNING, text, *values)
        elif isinstance(error, errors.NoValidHost):  # part of the story of a request
            LOG.info(text, *values)
        else:
            self._complaints(f"{name}: {type(error).__name__}", logging.INFO, text, *values)


def _known_error(error: errors.SuperconductorError) -> errors.SuperconductorError:
    """The error itself, or if a caller could not know its class or read its text, the like of it that the caller can."""
    cls = next(cls for cls in type(error).__mro__ if cls.__module__ in ERROR_MODULES)
    message = str(error)
    cleaned = text.one_line(message, text.FAULTS_SIZE)
    return error if cls is type(error) and cleaned == message else cls(cleaned)


class Dispatcher(RPCDispatcher):  # type: ignore[misc]  # the untyped base is oslo.messaging's
    """Finds what a message calls, and gives it arguments of its types. (oslo.messaging's makes a thread for each message.)"""

    def __init__(self, library_dispatcher: RPCDispatcher) -> None:
        """``library_dispatcher``: by oslo.messaging, with endpoints, serializer and policy."""
        super().__init__(library_dispatcher.endpoints, library_dispatcher.serializer, type(library_dispatcher.access_policy))
        self._complaints = RateLimitedLog(LOG)
        self._methods: dict[str, Any] = {}
        for endpoint in reversed(library_dispatcher.endpoints):
            self._methods |= {name: method for name, method in vars(endpoint).items() if hasattr(method, "signature")}
        self._methods_of_servers: dict[tuple[str, str], Any] = {}

    def dispatch(self, incoming: Any) -> Any:
        """Raises om.ExpectedException with the error that is the answer."""
        call: WireCall = incoming.message
        try:
            method = self._find_method(call, getattr(incoming, "server", ""))
            arguments = method.signature.read(call.args)
        except errors.SuperconductorError as error:
            metrics.REFUSED.labels("arguments", type(error).__name__).inc()
            refusal = one_line(f"{call.method}: {error}", FAULT_SIZE)
            self._complaints(f"refused: {type(error).__name__}", logging.WARNING, "Refused a message that calls %s", refusal)
            raise expected_error(error) from None
        with handling_message_of(incoming.sender):
            answer = method(incoming.ctxt, **arguments)
        return self.serializer.serialize_entity(incoming.ctxt, answer)

    def add(self, server: str, endpoints: Iterable[Endpoint]) -> None:
        """Offer the methods of these endpoints to what is sent to this server."""
        for endpoint in endpoints:
            named = {(server, name): method for name, method in vars(endpoint).items() if hasattr(method, "signature")}
            self._methods_of_servers.update(named)

    def _find_method(self, call: WireCall, server: str) -> Any:
        """Raises errors.Unsupported."""
        method = self._methods_of_servers.get((server, call.method)) if server else self._methods.get(call.method)
        if method is None or call.namespace:
            raise errors.Unsupported(f"No method is called {one_line(call.method, NAME_SIZE)} here.")
        if call.version != VERSION:
            raise errors.Unsupported(
                f"Version {one_line(call.version, NAME_SIZE)} of the interface is not supported here; {VERSION} is."
            )
        return method


class ThreadedServer(RPCServer):  # type: ignore[misc]  # the untyped base is oslo.messaging's
    """oslo.messaging's server, but for what it does at each message that serves nobody here.

    ``in_listener``: messages are handled by the thread that receives them, one after the other, and those that wait meanwhile stay
    with the broker. For endpoints whose methods return at once, except those named in ``apart``.
    """

    in_listener = False
    apart: frozenset[str] = frozenset()
    servers: Sequence[str] = ()
    """Several servers of the topic that share this one's connection and its thread; none: it is the only one."""

    def __init__(self, transport: Any, target: Any, dispatcher: Any, executor: Any = None) -> None:
        super().__init__(transport, target, Dispatcher(dispatcher), executor)
        self._complaints = RateLimitedLog(LOG)
        self._apart = WorkerPool(f"{target.topic}.{target.server} apart", APART_THREADS)
        self._executor_cls = functools.partial(Threads, thread_name_prefix=f"{target.topic}.{target.server}")

    @property
    def lag(self) -> float:
        """Seconds since a message waits for a thread; 0 if none does."""
        return 0.0 if self._work_executor is None else float(self._work_executor.lag)

    def _create_listener(self) -> Any:
        if self.servers:
            listener = self.transport._driver.listen_each(self._target.topic, self.servers)
        else:
            listener = super()._create_listener()
        if isinstance(listener, RabbitListener):
            threads = self._work_executor
            prefetch = max(MIN_PREFETCH, PREFETCH_PER_THREAD * threads.limit)
            listener.limit(prefetch, None if self.in_listener else threads.wait_for_room)
        return listener

    def _on_incoming(self, incoming: list[Any]) -> None:
        if self.in_listener:
            self._process_incoming(incoming)
        else:
            self._work_executor.submit(self._process_incoming, incoming, size=incoming[0].size)

    def _process_incoming(self, incoming: list[Any]) -> None:
        """Handle one message, or have it handled apart."""
        self._run_guarded(self._take_message, *incoming)

    def _take_message(self, message: Any) -> None:
        message.acknowledge()
        if message.message.method not in self.apart:
            self._answer_message(message, self.dispatcher.dispatch)
        elif self._apart.waiting_count < APART_QUEUE_LIMIT:
            self._apart.post_call(self._run_guarded, self._answer_message, message, self.dispatcher.dispatch)
        else:
            self._answer_message(message, _too_many)

    def _answer_message(self, message: Any, dispatch: Callable[[Any], Any]) -> None:
        try:
            message.reply(dispatch(message))
        except om.ExpectedException as error:
            message.reply(failure=error.exc_info)
        except errors.Invalid as error:  # the answer is larger than a broker accepts
            message.reply(failure=(RemoteFault, RemoteFault(f"The answer could not be sent: {error}"), None))

    def _run_guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        """Never raises: what went wrong is the answer, or a line in the log."""
        try:
            step(*arguments)
        except UNDELIVERED as error:
            self._complaints(str(error), logging.WARNING, "An answer could not be sent; its caller will ask again: %s", error)
        except Exception as error:  # noqa: BLE001 - a message must not end the thread that handles messages; the error is logged
            self._complaints(type(error).__name__, logging.ERROR, "A message could not be handled", exc_info=error)


def _too_many(message: Any) -> Any:
    """In place of a dispatch."""
    raise expected_error(errors.Conflict(f"{APART_QUEUE_LIMIT} calls of {message.message.method} wait already: try again later."))


class TopicServer:
    """One server of one topic. It listens from ``start`` on, or as soon as its broker can be reached."""

    def __init__(self, rpc: Any, name: str, threads: int, link: Link | None, pulse: Pulse) -> None:
        self.name = name
        self._pulse = pulse
        self._rpc = rpc
        self._threads = threads
        self._link = link
        self._listening = threading.Event()
        self._stopping = threading.Event()

    @property
    def is_listening(self) -> bool:
        return self._listening.is_set()

    def check_listening(self) -> None:
        """Raise Unreachable while the broker has not let it listen."""
        if not self.is_listening:
            raise Unreachable(f"{self.name}: the broker has not let it listen yet; its log, and that of oslo.messaging, say why.")

    def find_trouble(self) -> str:
        """Why it handles no messages; empty if it does. Raises Unreachable."""
        self.check_listening()
        if self._link is not None:
            self._link.check_blocked()
        if (lag := self._rpc.lag) > LONGEST_LAG_S:
            return f"a message has waited for one of {self._threads} threads for {lag:.0f} s: all are busy"
        return self._pulse.find_trouble()

    def start(self) -> TopicServer:
        """Listen. A broker that is down is waited for in the background, without holding up the caller for long."""
        health.BOARD.watch_part(self)
        if self._link is None:
            self._listen_until_up()
            return self
        threading.Thread(target=self._listen_until_up, name=f"listen {self.name}", daemon=True).start()
        if not (self._link.is_alive() and self._listening.wait(START_TIMEOUT_S)):
            LOG.warning("%s: the bus cannot be reached; listening begins when it can be reached", self.name)
        return self

    def stop(self, timeout: float = 10.0) -> None:
        """Take no more messages and wait up to ``timeout`` seconds for those that were taken. May be repeated."""
        self._stopping.set()
        health.BOARD.forget_part(self)
        if not self.is_listening:
            return
        # with a dead broker it may not return
        ending = threading.Thread(target=self._end_server, name=f"stop {self.name}", daemon=True)
        ending.start()
        ending.join(timeout)
        if ending.is_alive():
            LOG.warning("%s did not stop within %.0f s: the process ends without it", self.name, timeout)

    def _listen_until_up(self) -> None:
        while self._link is not None and not self._link.is_alive():
            if self._stopping.wait(LISTEN_RETRY_S):
                return
        try:
            self._rpc.start(override_pool_size=max(1, self._threads))
        except om.MessageDeliveryFailure as error:  # the bus was closed before the broker let it listen
            LOG.info("%s never listened: %s", self.name, error)
            return
        self._listening.set()
        if self._stopping.is_set():
            self._end_server()

    def _end_server(self) -> None:
        self._rpc.stop()
        self._rpc.wait()
