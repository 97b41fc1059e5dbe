"""``?plain_driver=true`` in a bus URL: the library's own driver under the same clients, servers and roles.

Clients and servers are tried with it in ``test_rpc_bus.py`` and ``test_rpc_clients.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from objects import errors
from objects.context import RequestContext
from rpc.agents import Confined
from rpc.client import MethodCall
from rpc.drivers.frames import MESSAGE_BYTES_LIMIT
from rpc.drivers.plain import PlainDriver
from rpc.drivers.rabbit import RabbitDriver
from rpc.notifier import Notifier
from rpc.transport import Bus
from service.notifications import NotificationSettings
from service.periodic import wait_until
from tests.support.bus import CONTEXT, rabbit_url
from tests.support.ground import Ground
from tests.support.notified import Listener
from tests.support.world import World

PATIENCE = 30.0
HOSTS = {"cell1": ["a1", "a2"], "cell2": ["b1"]}


class Parrot:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def echo(self, context: RequestContext, value: object) -> object:
        return value

    def hear(self, context: RequestContext, text: str) -> None:
        self.heard.append(text)


class PlainGround(Ground):
    """Buses of RabbitMQ with the plain driver; every second one of its URLs asks for ours."""

    def bus(self, name: str) -> str:
        return super().bus(name) if name == "cell2" else f"{super().bus(name)}?plain_driver=true"


@pytest.mark.parametrize(
    ("query", "kind"), [("", RabbitDriver), ("?plain_driver=True", PlainDriver), ("?plain_driver=false", RabbitDriver)]
)
def test_the_url_says_which_driver(query: str, kind: type) -> None:
    bus = Bus(f"rabbit://u:p@127.0.0.1:1/v{query}")

    assert type(bus._transport._driver) is kind
    assert bus.vhost == "v"
    bus.close()


def test_what_the_plain_driver_cannot_do_is_refused() -> None:
    with pytest.raises(errors.Misconfigured, match="plain_driver=maybe is neither true nor false"):
        Bus("rabbit://u:p@127.0.0.1:1/?plain_driver=maybe")
    with pytest.raises(errors.Misconfigured, match="agents with broker users of their own need the other driver"):
        Bus("rabbit://compute.h1:p@127.0.0.1:1/?plain_driver=true", confined=Confined(queue="compute.h1"))


@pytest.mark.parametrize("server_is_plain", [True, False])
def test_processes_with_either_driver_understand_each_other(server_is_plain: bool) -> None:
    queries = ("", "?plain_driver=true")
    with rabbit_url() as url:
        serving, asking = (Bus(url + queries[plain]) for plain in (server_is_plain, not server_is_plain))
        parrot = Parrot()
        serving.serve("topic", "h1", [parrot], threads=0)
        client = asking.client("topic", timeout=PATIENCE)
        assert client.call(CONTEXT, "echo", list[object], value=["\u2603", 1.5, None]) == ["\u2603", 1.5, None]
        with pytest.raises(errors.Unsupported, match="vanish"):
            client.call(CONTEXT, "vanish", type(None))
        with pytest.raises(errors.Invalid, match="too large"):
            client.cast_each(
                [(CONTEXT, "h1", MethodCall("hear", {"text": text})) for text in ("small", "x" * (MESSAGE_BYTES_LIMIT + 1))]
            )
        client.cast_each([(CONTEXT, "h1", MethodCall("hear", {"text": str(n)})) for n in range(100)])
        client.fanout(CONTEXT, "hear", text="all")
        assert wait_until(lambda: len(parrot.heard) == 101, PATIENCE)
        assert [text for text in parrot.heard if text != "all"] == [str(n) for n in range(100)]
        asking.close()
        serving.close()


def test_notifications_go_out_by_it() -> None:
    with rabbit_url() as url:
        listener = Listener(f"{url}?plain_driver=true")
        notifier = Notifier(NotificationSettings(drivers=("messagingv2",), topics=("notifications",)), f"{url}?plain_driver=true")
        message = {
            "event_type": "instance.create",
            "publisher_id": "p",
            "payload": {"uuid": "u1"},
            "priority": "INFO",
            "message_id": "m",
        }
        notifier.send({}, message)
        assert wait_until(lambda: listener.types("u1") == ["instance.create"], PATIENCE)
        notifier.close()
        listener.close()


def test_servers_are_booted_and_deleted_with_it(tmp_path: Path) -> None:
    ground = PlainGround("mariadb", tmp_path)
    ground.wait_for_room()
    cloud = World(ground, HOSTS)
    try:
        cloud.begin()
        cloud.start()
        for count in (2, 1, 3):
            cloud.accept(count)
        booted = [row.instance for row in cloud.settle().rows]
        assert [str(instance.state) for instance in booted] == ["active"] * 6
        assert sum(len(cloud.spawned(host)) for host in cloud.homes) == len(booted)
        for instance in booted:
            assert cloud.delete(instance.uuid) is not None
        assert [str(row.instance.state) for row in cloud.settle().rows] == ["deleted"] * 6
    finally:
        ground.end(cloud.end, ground.release)
