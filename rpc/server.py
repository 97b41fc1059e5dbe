"""Serve a topic: endpoints wrapped so that errors of ours travel to the caller, and bugs are logged here."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import oslo_messaging as om
from oslo_messaging.rpc.dispatcher import RPCDispatcher
from oslo_messaging.rpc.server import RPCServer

from objects import errors
from objects.context import RequestContext
from rpc.errors import RemoteFault, Unreachable
from rpc.pulse import Pulse
from rpc.rabbit import UNDELIVERED, Link
from rpc.serializer import expected
from rpc.threads import Threads
from service import health, logs, metrics
from service.complaints import Complaints
from service.health import UnderWay

LOG = logging.getLogger(__name__)

ERROR_MODULES = ("objects.errors", "rpc.errors")
"""Where the errors are defined that cross the bus as themselves."""

VERSION = "1.0"
"""Version of all interfaces: what a client asks for, and what a server offers at least."""

START_TIMEOUT = 5.0
RETRY_PAUSE = 1.0


class Endpoint:
    """The methods of one endpoint object as the bus may call them, and no others."""

    target = om.Target(version=VERSION)

    def __init__(self, topic: str, endpoint: object, methods: Iterable[str], under_way: UnderWay | None = None) -> None:
        self._topic = topic
        self._under_way = under_way or UnderWay()
        self._complaints = Complaints(LOG)
        for name in methods:
            setattr(self, name, self._wrap(name, getattr(endpoint, name)))

    def _wrap(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        handled = metrics.HANDLED.labels(self._topic, name)

        @functools.wraps(method)
        def handle(context: RequestContext, **arguments: object) -> object:
            began = time.perf_counter()
            with logs.Bound(context.request_id), self._under_way:
                try:
                    return method(context, **arguments)
                except errors.SuperconductorError as error:
                    self._say(name, error)
                    raise expected(_known(error)) from None
                except Exception as error:
                    LOG.exception("%s.%s failed", self._topic, name)
                    fault = f"{self._topic} failed at {name}: {type(error).__name__}. Its log says more."
                    raise expected(RemoteFault(fault)) from None
                finally:
                    handled.observe(time.perf_counter() - began)

        exposed: Callable[..., object] = om.expose(handle)  # what ExplicitRPCAccessPolicy looks for
        return exposed

    def _say(self, name: str, error: errors.SuperconductorError) -> None:
        """Every refusal, but not for every call that a database is away."""
        text, told = "%s.%s: %s: %s", (self._topic, name, type(error).__name__, error)
        if isinstance(error, errors.DatabaseUnavailable | errors.CellUnavailable):
            self._complaints(f"{name}: {error}", logging.WARNING, text, *told)
        else:
            LOG.info(text, *told)


def methods_of(kind: type) -> list[str]:
    """The public methods of a class: of an endpoint Protocol, those that make the interface."""
    return [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]


def _known(error: errors.SuperconductorError) -> errors.SuperconductorError:
    """The error itself, or if a caller could not know its class, its nearest ancestor that the caller knows."""
    cls = next(cls for cls in type(error).__mro__ if cls.__module__ in ERROR_MODULES)
    return error if cls is type(error) else cls(str(error))


class Dispatcher(RPCDispatcher):  # type: ignore[misc]  # the untyped base is oslo.messaging's
    """Finds what a message calls. (oslo.messaging's makes a thread each time, for callers that want signs of life: ours do not.)"""

    def __init__(self, made: RPCDispatcher) -> None:
        """``made``: by oslo.messaging, with endpoints, serializer and policy."""
        super().__init__(made.endpoints, made.serializer, type(made.access_policy))
        self._plain: dict[str, object] = {}
        for endpoint in reversed(made.endpoints):
            self._plain |= {name: endpoint for name, method in vars(endpoint).items() if hasattr(method, "exposed")}

    def dispatch(self, incoming: Any) -> Any:
        """Raises what the serializers do, NoSuchMethod and UnsupportedVersion."""
        message = incoming.message
        method = message.get("method")
        endpoint = self._plain.get(method)
        if endpoint is None or message.get("version") != VERSION or message.get("namespace") or incoming.client_timeout:
            return super().dispatch(incoming)
        return self._do_dispatch(endpoint, method, incoming.ctxt, message.get("args", {}))


class ThreadedServer(RPCServer):  # type: ignore[misc]  # the untyped base is oslo.messaging's
    """oslo.messaging's server, but for what it does at each message that serves nobody here.

    ``in_listener``: messages are handled by the thread that receives them, one after the other, and those that wait meanwhile stay
    with the broker. For endpoints whose methods return at once.
    """

    in_listener = False

    def __init__(self, transport: Any, target: Any, dispatcher: Any, executor: Any = None) -> None:
        super().__init__(transport, target, Dispatcher(dispatcher), executor)
        self._executor_cls = functools.partial(Threads, thread_name_prefix=f"{target.topic}.{target.server}")

    def _on_incoming(self, incoming: list[Any]) -> None:
        if self.in_listener:
            self._process_incoming(incoming)
        else:
            self._work_executor.submit(self._process_incoming, incoming)

    def _process_incoming(self, incoming: list[Any]) -> None:
        [message] = incoming
        failure: Any = None
        answer = None
        try:
            message.acknowledge()
            answer = self.dispatcher.dispatch(message)
        except om.ExpectedException as error:
            failure = error.exc_info
        except Exception:
            failure = sys.exc_info()
            LOG.exception("Exception during message handling")
        try:
            if failure is None:
                message.reply(answer)
            else:
                message.reply(failure=failure)
        except UNDELIVERED as error:
            LOG.warning("An answer could not be sent, who asked will ask again: %s", error)
        except Exception:
            LOG.exception("Can not send reply for message")
        finally:
            del failure  # its traceback holds this very frame


class Server:
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
    def listening(self) -> bool:
        return self._listening.is_set()

    def check(self) -> None:
        """Raise Unreachable while the broker has not let it listen."""
        if not self.listening:
            raise Unreachable(f"{self.name}: the broker has not let it listen yet; its log, and that of oslo.messaging, say why.")

    def trouble(self) -> str:
        """Why it handles no messages; empty if it does. Raises Unreachable."""
        self.check()
        return self._pulse.trouble()

    def start(self) -> Server:
        """Listen. A broker that is down is waited for in the background, without holding up the caller for long."""
        health.BOARD.watch(self)
        if self._link is None:
            self._listen()
            return self
        threading.Thread(target=self._listen, name=f"listen {self.name}", daemon=True).start()
        if not (self._link.alive() and self._listening.wait(START_TIMEOUT)):
            LOG.warning("%s: the bus cannot be reached; listening begins as soon as it can", self.name)
        return self

    def stop(self, timeout: float = 10.0) -> None:
        """Take no more messages and wait up to ``timeout`` seconds for those that were taken. May be repeated."""
        self._stopping.set()
        health.BOARD.forget(self)
        if not self.listening:
            return
        ending = threading.Thread(target=self._end, name=f"stop {self.name}", daemon=True)  # with a dead broker it may not return
        ending.start()
        ending.join(timeout)
        if ending.is_alive():
            LOG.warning("%s: still at work %.0f s after it was stopped; left behind", self.name, timeout)

    def _listen(self) -> None:
        while self._link is not None and not self._link.alive():
            if self._stopping.wait(RETRY_PAUSE):
                return
        self._rpc.start(override_pool_size=max(1, self._threads))
        self._listening.set()
        if self._stopping.is_set():
            self._end()

    def _end(self) -> None:
        self._rpc.stop()
        self._rpc.wait()
