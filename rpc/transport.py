"""The bus: one oslo.messaging transport with its own configuration, clients and servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import oslo_messaging as om
from oslo_config import cfg
from oslo_messaging.transport import RPCTransport, Transport

from objects import errors
from objects.context import RequestContext
from objects.mask import mask_url
from objects.messages_version import MessagesVersion
from rpc import agents, rabbit
from rpc.agents import Confined
from rpc.blocking import Blocking
from rpc.client import Client, MethodCall
from rpc.codec import shared_codec
from rpc.counting import MessageKind, Observer
from rpc.drivers.embedded import EmbeddedDriver
from rpc.drivers.library import library_metrics, library_tracing
from rpc.drivers.rabbit import RabbitDriver
from rpc.errors import Unreachable
from rpc.failures import ERROR_MODULES
from rpc.loopback_probe import Pulse, PulseEndpoint
from rpc.serializer import Serializer, ServerSerializer
from rpc.server import VERSION, Endpoint, ThreadedServer, TopicServer
from service import metrics as counters

T = TypeVar("T")

EXCHANGE = agents.SHARED_EXCHANGE
CALL_TIMEOUT_S = 60.0
SEND_TIMEOUT_S = 5.0
"""Seconds a broker has to take a message."""
CLOSE_TIMEOUT_S = 10.0


Peers = Callable[[str, str | None], MessagesVersion]


class Bus:
    """One message bus, named by its URL. Nothing is connected before the first client or server uses it.

    ``embedded://NAME/VHOST``: inside this process. Buses of the same name and virtual host are one.

    ``rabbit://...``: RabbitMQ. The query may have any option of the driver; ``rpc.rabbit.DEFAULTS`` are filled in. A process that
    forks must make its buses afterwards.

    Raises Misconfigured for a URL that can never work.

    ``observer`` (see ``rpc.counting``) is told of every message sent; it may be set and unset at any time.
    """

    def __init__(self, url: str, *, name: str = "", observer: Observer | None = None, confined: Confined | None = None) -> None:
        """``confined``: the broker's user of the URL may use its own queue only. The bus inside a process has no users."""
        self.url_masked = mask_url(url)
        self.name = name or self.url_masked
        self.observer = observer
        label = f"{name} ({self.url_masked})" if name else self.url_masked
        self._transport = open_transport(url, confined=confined)
        self._link = (
            None if _is_embedded(url) else rabbit.Link(om.TransportURL.parse(private_conf(), url), label, self._blocking_state())
        )
        self._codec = shared_codec()
        self._serializer = Serializer(self._codec)
        self._server_serializer = ServerSerializer(self._codec)
        self.peers: Peers | None = None
        """What the listeners on a topic know, all of them or one server. None: all are of this release. Set it before anything is
        sent.
        """
        self._servers: list[TopicServer] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"Bus({self.url_masked!r}, name={self.name!r})"

    def _blocking_state(self) -> Blocking:
        driver = self._transport._driver
        return driver.blocking if isinstance(driver, RabbitDriver) else Blocking()

    def find_trouble(self) -> str:
        """Why nothing can be sent, as far as a broker has said so; empty otherwise. May block for seconds."""
        try:
            if self._link is not None:
                self._link.check_blocked()
        except Unreachable as error:
            return str(error)
        return ""

    @property
    def is_embedded(self) -> bool:
        """Whether it is inside this process, and cannot hang."""
        return self._link is None

    @property
    def virtual_host(self) -> str:
        """The virtual host of its URL."""
        return str(self._transport._driver._url.virtual_host or "/")

    def make_client(self, topic: str, *, timeout: float = CALL_TIMEOUT_S) -> Client:
        """A client of a topic whose calls wait up to ``timeout`` seconds for their answer."""
        return Client(self, om.Target(topic=topic), timeout)

    def serve_topic(
        self,
        topic: str,
        server: str,
        endpoints: Sequence[object],
        *,
        threads: int = 4,
        interface: type | None = None,
        shared_name: bool = False,
        from_agents: bool = False,
        apart: Sequence[str] = (),
    ) -> TopicServer:
        """Listen on ``topic`` as ``server`` and let up to ``threads`` threads call the endpoints' methods.

        A method gets the RequestContext and the arguments by name. ``interface`` (a Protocol) says which methods are offered;
        without it, all public ones are. Servers of one topic share what is sent to it. ``shared_name``: several of them may be
        called ``server``. ``threads`` 0: the thread that receives messages handles them itself, for methods that return at once.
        ``from_agents``: the topic is also reached through the exchange of confined users. ``apart``: methods that take longer. They
        run in threads of their own, so that no other message waits for them.
        """
        if from_agents and not self.is_embedded:
            self._transport._driver.bind_beside(topic, agents.EXCHANGE)
        pulse = Pulse(self.make_client(topic).on_server(server), fanout=shared_name, threads=max(1, threads))
        wrapped = [Endpoint(topic, endpoint, interface=interface, under_way=pulse.under_way) for endpoint in endpoints]
        wrapped.append(Endpoint(topic, pulse, interface=PulseEndpoint, under_way=pulse.under_way))
        rpc = self._rpc_server(topic, server, wrapped)
        rpc.in_listener = (
            not threads and not self.is_embedded
        )  # on the embedded bus, messages arrive in the threads of their senders
        rpc.apart = frozenset(apart)
        return self._start_server(TopicServer(rpc, f"{topic}.{server} on {self.name}", threads, self._link, pulse))

    def _rpc_server(self, topic: str, server: str, endpoints: Sequence[Endpoint]) -> Any:
        return om.get_rpc_server(
            self._transport,
            om.Target(topic=topic, server=server),
            endpoints,
            serializer=self._server_serializer,
            access_policy=om.ExplicitRPCAccessPolicy,
            server_cls=ThreadedServer,
        )

    def _start_server(self, server: TopicServer) -> TopicServer:
        self._servers.append(server)
        return server.start()

    def serve_each(self, topic: str, endpoints: Mapping[str, object], *, interface: type, apart: Sequence[str] = ()) -> TopicServer:
        """Listen on ``topic`` as several servers, given by name with their endpoints, on one connection and in one thread.

        That thread handles the messages itself. What is sent to no particular server does not arrive here. There must be a server.
        The rest is as with ``serve_topic``.
        """
        first = next(iter(endpoints))
        if not isinstance(self._transport._driver, RabbitDriver):  # the others listen for one server each
            for server, endpoint in endpoints.items():
                topic_server = self.serve_topic(topic, server, [endpoint], threads=0, interface=interface, apart=apart)
            return topic_server
        pulse = Pulse(self.make_client(topic).on_server(first), fanout=False, threads=1)
        rpc = self._rpc_server(topic, first, [])
        rpc.in_listener, rpc.apart, rpc.servers = True, frozenset(apart), tuple(endpoints)
        for server, endpoint in endpoints.items():
            rpc.dispatcher.add(server, [Endpoint(topic, endpoint, interface=interface, under_way=pulse.under_way)])
        rpc.dispatcher.add(first, [Endpoint(topic, pulse, interface=PulseEndpoint, under_way=pulse.under_way)])
        return self._start_server(TopicServer(rpc, f"{topic} of {len(endpoints)} servers on {self.name}", 0, self._link, pulse))

    def take_answers_of_agents(self) -> None:
        """From the first call on, let answers of agents with broker users of their own arrive, too."""
        if not self.is_embedded:
            self._transport._driver.answers_beside = agents.EXCHANGE

    def deliver_message(
        self, target: om.Target, context: RequestContext, message: MethodCall, timeout: float | None = None
    ) -> msgspec.Raw | None:
        """Have the driver send ``message``, and return the answer that comes within ``timeout`` seconds, as JSON; None: to a cast.

        (What oslo.messaging's RPCClient does, without what it asks its configuration for at each message.) Raises Unreachable, what
        the driver does, and errors.Invalid for what no broker would take.
        """
        is_call = timeout is not None
        kind = MessageKind.CALL if is_call else MessageKind.FANOUT if target.fanout else MessageKind.CAST
        self._count_message(target.topic, message.method, kind)
        call = self._serialize_call(target, context, message)
        retry = None if self._link is None else rabbit.SEND_RETRIES
        send = partial(self._transport._send, *call, wait_for_reply=is_call, timeout=timeout, retry=retry)
        answer: msgspec.Raw | None = self.send(send, SEND_TIMEOUT_S + (timeout or 0.0))
        return answer

    def deliver_each(self, casts: Sequence[tuple[om.Target, RequestContext, MethodCall]]) -> None:
        """Have the driver send these, in one go. Raises as above: where that is Invalid none was sent, else some may have been."""
        for target, _, message in casts:
            self._count_message(target.topic, message.method, MessageKind.CAST)
        messages = [self._serialize_call(*cast) for cast in casts]
        retry = None if self._link is None else rabbit.SEND_RETRIES
        self.send(partial(self._transport._driver.send_each, messages, retry), SEND_TIMEOUT_S)

    def _serialize_call(
        self, target: om.Target, context: RequestContext, message: MethodCall
    ) -> tuple[om.Target, dict[str, Any], dict[str, Any]]:
        serializer, encode = self._serializer, self._codec.encode_value
        peer = None if self.peers is None else partial(self.peers, target.topic, target.server)
        arguments = {name: encode(value, peer) for name, value in message.arguments.items()}
        return target, serializer.serialize_context(context), {"method": message.method, "args": arguments, "version": VERSION}

    def send(self, send: Callable[[], T], timeout: float) -> T:
        """Run one send of a client: in bounded time where a broker could hold it up. Raises Unreachable."""
        if self._closed:
            raise Unreachable(f"The bus {self.name} has been closed.")
        try:
            return send() if self._link is None else self._link.run(send, timeout)
        except Exception:
            if self._closed:  # closing ends the driver's queues: calls in progress fail with various errors
                raise Unreachable(f"The bus {self.name} has been closed.") from None
            raise

    def check_broker(self) -> None:
        """Raise Unreachable unless a broker answers. The bus inside a process always does."""
        if self._link is not None:
            self._link.probe_hosts()

    def check_login(self) -> None:
        """Raise Unreachable unless a broker answers, takes the user, the password and the virtual host of the URL, and messages."""
        if self._link is not None:
            self._link.check_login()

    def _count_message(self, topic: str, method: str, kind: MessageKind) -> None:
        counters.sent(topic, method, kind).inc()
        if self.observer is not None:
            self.observer(topic, method, kind)

    def close(self) -> None:
        """Stop the servers and give up the connections; bounded, whatever the broker does. May be repeated."""
        self._closed = True
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for server in self._servers:
            server.stop(max(0.0, deadline - time.monotonic()))
        if self._link is None:
            self._transport.cleanup()
            return
        self._link.close()
        closing = threading.Thread(target=self._transport.cleanup, name=f"close {self.name}", daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)


def user_of(url: str) -> str | None:
    """The broker's user of a bus URL; None where it names none, or is no URL of a broker."""
    try:
        hosts = om.TransportURL.parse(private_conf(), url).hosts
    except (om.InvalidTransportURL, cfg.Error, ValueError):
        return None  # opening the URL reports what is wrong with it
    return hosts[0].username if hosts else None


def open_transport(url: str, kind: type[Transport] = RPCTransport, confined: Confined | None = None) -> Any:
    """Return an oslo.messaging transport for ``url``: for RPC, or given NotificationTransport, for notifications.

    The drivers are made directly rather than through their entry points: so a checkout that was never installed works the same, and
    RabbitMQ's is ours (``rpc.drivers.rabbit``). Raises Misconfigured.
    """
    conf = private_conf()
    modules = list(ERROR_MODULES)
    try:
        if not url.startswith(("embedded://", "rabbit://")):
            raise errors.Misconfigured(f"The bus URL {mask_url(url)} must begin with rabbit:// or embedded://.")
        parsed = om.TransportURL.parse(conf, url)
        if _is_embedded(url):
            return kind(EmbeddedDriver(conf, parsed, EXCHANGE, modules))
        conf.set_default("control_exchange", EXCHANGE)  # an option that parsing the URL has registered
        rabbit.fill_in(parsed)
        rabbit.check_options(parsed)
        return kind(RabbitDriver(conf, parsed, EXCHANGE, modules, confined=confined))
    except (om.InvalidTransportURL, cfg.Error, ValueError, RuntimeError) as error:
        raise errors.Misconfigured(f"The bus URL {mask_url(url)} cannot be used: {mask_url(str(error))}.") from None


def private_conf() -> Any:
    """A configuration of our own for oslo.messaging, which reads no file and no command line.

    oslo.messaging registers the options of its tracing and metrics only with the global configuration, but looks them up in the one
    it was given, and fails at the first call if they are missing.
    """
    conf = cfg.ConfigOpts()
    conf([], project="superconductor", default_config_files=[], default_config_dirs=[])
    conf.register_opts(library_tracing.oslo_messaging_tracing, group="oslo_messaging_tracing")
    conf.register_opts(library_metrics.oslo_messaging_metrics, group="oslo_messaging_metrics")
    return conf


def _is_embedded(url: str) -> bool:
    return url.startswith("embedded://")
