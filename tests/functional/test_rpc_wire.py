"""Our driver and oslo.messaging's own understand each other: as in an upgrade, where some processes still have the older one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import oslo_messaging as om
import pytest
from oslo_messaging.transport import RPCTransport

from objects import errors
from objects.context import RequestContext
from rpc import rabbit
from rpc.codec import Codec
from rpc.serializer import Serializer, ServerSerializer
from rpc.server import ERROR_MODULES, Endpoint
from rpc.transport import EXCHANGE, Bus, private_conf
from tests.support.bus import CONTEXT, rabbit_url

PATIENCE = 30.0
MESSAGE = {"text": "ünïcode \u2603 \U0001f600", "number": 1.5, "more": [None, True, {"k": "v"}]}


class Parrot:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def echo(self, context: RequestContext, value: object) -> object:
        return [context.request_id, value]

    def fail(self, context: RequestContext) -> None:
        raise errors.Conflict("taken")

    def hear(self, context: RequestContext, text: str) -> None:
        self.heard.append(text)


@pytest.fixture
def url() -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(rabbit_url())
        except LookupError as why:
            pytest.skip(str(why))


@pytest.fixture
def stock(url: str) -> Iterator[RPCTransport]:
    """A transport with the driver as the library ships it."""
    conf = private_conf()
    parsed = om.TransportURL.parse(conf, url)
    conf.set_default("control_exchange", EXCHANGE)
    rabbit.fill_in(parsed)
    transport = om.get_rpc_transport(conf, url=parsed, allowed_remote_exmods=list(ERROR_MODULES))
    yield transport
    transport.cleanup()


def test_the_librarys_client_calls_our_server(url: str, stock: RPCTransport) -> None:
    bus, parrot = Bus(url), Parrot()
    bus.serve("topic", "h1", [parrot])
    target = om.Target(topic="topic", version="1.0")
    client = om.get_rpc_client(stock, target, serializer=Serializer(Codec()), timeout=PATIENCE)
    for to in (client, client.prepare(server="h1")):
        assert to.call(CONTEXT, "echo", value=MESSAGE) == [CONTEXT.request_id, MESSAGE]
    client.prepare(fanout=True).cast(CONTEXT, "hear", text="all")
    client.cast(CONTEXT, "hear", text="one")
    with pytest.raises(errors.Conflict):
        client.call(CONTEXT, "fail")
    with pytest.raises(om.RemoteError, match="NoSuchMethod"):
        client.call(CONTEXT, "vanish")
    assert client.prepare(call_monitor_timeout=10).call(CONTEXT, "echo", value=1) == [CONTEXT.request_id, 1]
    bus.close()
    assert sorted(parrot.heard) == ["all", "one"]


def test_our_client_calls_the_librarys_server(url: str, stock: RPCTransport) -> None:
    parrot = Parrot()
    server = om.get_rpc_server(
        stock,
        om.Target(topic="topic", server="h1"),
        [Endpoint("topic", parrot, ["echo", "fail", "hear"])],
        serializer=ServerSerializer(Codec()),
        access_policy=om.ExplicitRPCAccessPolicy,
    )
    server.start()
    bus = Bus(url)
    client = bus.client("topic", timeout=PATIENCE)
    for to in (client, client.on("h1")):
        assert to.call(CONTEXT, "echo", list[object], value=MESSAGE) == [CONTEXT.request_id, MESSAGE]
    client.fanout(CONTEXT, "hear", text="all")
    client.cast(CONTEXT, "hear", text="one")
    with pytest.raises(errors.Conflict, match="taken"):
        client.call(CONTEXT, "fail", type(None))
    with pytest.raises(errors.Unsupported):
        client.call(CONTEXT, "vanish", type(None))
    server.stop()
    server.wait()
    bus.close()
    assert sorted(parrot.heard) == ["all", "one"]


def test_the_thread_that_listens_may_handle_messages_itself(url: str) -> None:
    bus, parrot = Bus(url), Parrot()
    server = bus.serve("topic", "h1", [parrot], threads=0)
    client = bus.client("topic", timeout=PATIENCE)
    for number in range(20):
        client.cast(CONTEXT, "hear", text=str(number))
    assert client.call(CONTEXT, "echo", list[object], value=1) == [CONTEXT.request_id, 1]
    assert parrot.heard == [str(number) for number in range(20)], "one after the other"
    assert not server.trouble()
    bus.close()
