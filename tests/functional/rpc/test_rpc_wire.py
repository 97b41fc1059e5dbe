"""Our driver and oslo.messaging's own understand each other: as in an upgrade, where some processes still have the older one."""

from __future__ import annotations

from collections.abc import Iterator

import oslo_messaging as om
import pytest
from oslo_messaging.transport import RPCTransport

from objects import errors
from objects.context import RequestContext
from rpc import rabbit
from rpc.client import MethodCall
from rpc.codec import Codec
from rpc.drivers.frames import MESSAGE_BYTES_LIMIT
from rpc.failures import ERROR_MODULES
from rpc.serializer import Serializer, ServerSerializer
from rpc.server import Endpoint
from rpc.transport import EXCHANGE, Bus, private_conf
from service.periodic import wait_until
from tests.support.bus import CONTEXT, FaultProxy, url_of

PATIENCE = 90.0
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
    yield from url_of("rabbit")


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
    bus.serve_topic("topic", "h1", [parrot])
    target = om.Target(topic="topic", version="1.0")
    client = om.get_rpc_client(stock, target, serializer=Serializer(Codec()), timeout=PATIENCE)
    for to in (client, client.prepare(server="h1")):
        assert to.call(CONTEXT, "echo", value=MESSAGE) == [CONTEXT.request_id, MESSAGE]
    client.prepare(fanout=True).cast(CONTEXT, "hear", text="all")
    client.cast(CONTEXT, "hear", text="one")
    with pytest.raises(errors.Conflict):
        client.call(CONTEXT, "fail")
    with pytest.raises(errors.Unsupported, match="vanish"):
        client.call(CONTEXT, "vanish")
    assert client.prepare(call_monitor_timeout=10).call(CONTEXT, "echo", value=1) == [CONTEXT.request_id, 1]
    bus.close()
    assert sorted(parrot.heard) == ["all", "one"]


def test_our_client_calls_the_librarys_server(url: str, stock: RPCTransport) -> None:
    parrot = Parrot()
    server = om.get_rpc_server(
        stock,
        om.Target(topic="topic", server="h1"),
        [Endpoint("topic", parrot)],
        serializer=ServerSerializer(Codec()),
        access_policy=om.ExplicitRPCAccessPolicy,
    )
    server.start()
    bus = Bus(url)
    client = bus.make_client("topic", timeout=PATIENCE)
    for to in (client, client.on_server("h1")):
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
    server = bus.serve_topic("topic", "h1", [parrot], threads=0)
    client = bus.make_client("topic", timeout=PATIENCE)
    for number in range(20):
        client.cast(CONTEXT, "hear", text=str(number))
    assert client.call(CONTEXT, "echo", list[object], value=1) == [CONTEXT.request_id, 1]
    assert parrot.heard == [str(number) for number in range(20)], "one after the other"
    assert not server.find_trouble()
    bus.close()


def test_many_casts_go_together_to_their_servers(url: str) -> None:
    bus = Bus(url)
    parrots = {name: Parrot() for name in ("h1", "h2")}
    for name, parrot in parrots.items():
        bus.serve_topic("topic", name, [parrot], threads=0)
    client = bus.make_client("topic", timeout=PATIENCE)
    for rounds in range(3):  # the first declares the exchange
        client.cast_each([(CONTEXT, f"h{n % 2 + 1}", MethodCall("hear", {"text": f"{rounds}-{n}"})) for n in range(50)])
        client.fanout(CONTEXT, "hear", text="all")  # by the library, over the same connection
        client.cast_each([])
    expected = {name: [[f"{r}-{n}" for n in range(50) if n % 2 == odd] for r in range(3)] for odd, name in enumerate(parrots)}
    for name, parrot in parrots.items():
        assert wait_until(lambda parrot=parrot: len(parrot.heard) == 78, PATIENCE)  # type: ignore[misc]  # bound now
        assert [text for text in parrot.heard if text != "all"] == [text for texts in expected[name] for text in texts], "in order"
    bus.close()


def test_casts_sent_together_survive_connection_loss_exactly_once(url: str) -> None:
    """The pooled connection has died unnoticed: all of them are sent again over another."""
    served, proxy = Bus(url), FaultProxy(url)
    parrot = Parrot()
    served.serve_topic("topic", "h1", [parrot], threads=0)
    bus = Bus(proxy.url)
    client = bus.make_client("topic", timeout=PATIENCE)
    client.cast_each([(CONTEXT, "h1", MethodCall("hear", {"text": f"0-{n}"})) for n in range(5)])
    proxy.cut()
    proxy.restore()
    client.cast_each([(CONTEXT, "h1", MethodCall("hear", {"text": f"1-{n}"})) for n in range(5)])
    texts = [f"{r}-{n}" for r in range(2) for n in range(5)]
    assert wait_until(lambda: len(parrot.heard) >= len(texts), PATIENCE)
    assert parrot.heard == texts
    bus.close()
    served.close()
    proxy.close()


def test_a_too_large_cast_stops_its_companions(url: str) -> None:
    bus, parrot = Bus(url), Parrot()
    bus.serve_topic("topic", "h1", [parrot], threads=0)
    client = bus.make_client("topic", timeout=PATIENCE)
    with pytest.raises(errors.Invalid):
        client.cast_each(
            [(CONTEXT, "h1", MethodCall("hear", {"text": text})) for text in ("small", "x" * (MESSAGE_BYTES_LIMIT + 1))]
        )
    assert client.on_server("h1").call(CONTEXT, "echo", list[object], value=1) == [CONTEXT.request_id, 1]
    assert parrot.heard == []
    bus.close()
