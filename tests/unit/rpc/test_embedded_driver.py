"""The embedded driver as oslo.messaging sees it: its entry point, isolation by URL, JSON round trip, notifications, and its end."""

from __future__ import annotations

import configparser
import threading
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import oslo_messaging as om
import pytest
from oslo_messaging.transport import NotificationTransport

from objects import errors
from objects.context import RequestContext
from rpc.drivers.embedded import EmbeddedDriver
from rpc.drivers.embedded_broker import BROKERS
from rpc.errors import Unreachable
from rpc.transport import Bus, open_transport
from service.periodic import wait_until
from tests.support.bus import CONTEXT, embedded_url

PATIENCE = 90.0


class Keeper:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def hear(self, context: RequestContext, value: object) -> None:
        self.heard.append(value)

    def change(self, context: RequestContext, value: dict[str, int]) -> dict[str, int]:
        value["changed"] = 1
        return value


class Subscriber:
    """Notes notifications, and gives each back once if asked to."""

    def __init__(self, *, requeue: bool = False) -> None:
        self.heard: list[tuple[str, object]] = []
        self._requeue = requeue
        self._returned: set[str] = set()
        self._lock = threading.Lock()

    def info(self, context: dict[str, Any], publisher: str, event: str, payload: object, metadata: object) -> object:
        with self._lock:
            if self._requeue and event not in self._returned:
                self._returned.add(event)
                return om.NotificationResult.REQUEUE
            self.heard.append((event, payload))
            return om.NotificationResult.HANDLED


def test_the_driver_is_registered_under_its_name() -> None:
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[3] / "setup.cfg")
    lines = config["options.entry_points"]["oslo.messaging.drivers"].strip().splitlines()
    registered = dict(line.replace(" ", "").split("=") for line in lines)

    assert EntryPoint("embedded", registered["embedded"], "oslo.messaging.drivers").load() is EmbeddedDriver


@pytest.mark.parametrize("other", ["embedded://two/", "embedded://one/vhost", "embedded:///"])
def test_buses_of_different_names_share_nothing(other: str) -> None:
    one, two = Bus("embedded://one/"), Bus(other)
    keepers = Keeper(), Keeper()
    for bus, keeper in zip((one, two), keepers, strict=True):
        bus.serve_topic("topic", "h1", [keeper])

    client = two.make_client("topic")
    client.cast(CONTEXT, "hear", value=1)
    client.on_server("h1").cast(CONTEXT, "hear", value=2)
    client.fanout(CONTEXT, "hear", value=3)

    assert wait_until(lambda: len(keepers[1].heard) == 3, PATIENCE)
    assert keepers[0].heard == []
    one.close()
    two.close()


def test_buses_of_one_name_are_one_bus() -> None:
    url, keeper = embedded_url(), Keeper()
    serving, asking = Bus(url), Bus(url)
    serving.serve_topic("topic", "h1", [keeper])

    assert asking.make_client("topic").call(CONTEXT, "change", dict[str, int], value={}) == {"changed": 1}
    serving.close()
    asking.close()


def test_arguments_are_copies_as_on_a_network() -> None:
    bus = Bus(embedded_url())
    bus.serve_topic("topic", "h1", [Keeper()])
    mine = {"a": 1}

    assert bus.make_client("topic").call(CONTEXT, "change", dict[str, int], value=mine) == {"a": 1, "changed": 1}
    assert mine == {"a": 1}
    bus.close()


def test_closing_the_last_bus_forgets_its_contents() -> None:
    url = embedded_url()
    name = (url.removeprefix("embedded://").rstrip("/"), "")
    first, second = Bus(url), Bus(url)
    first.make_client("topic").cast(CONTEXT, "hear", value="left over")

    first.close()
    first.close()
    assert name in BROKERS.list_open()
    second.close()
    assert name not in BROKERS.list_open()

    bus, keeper = Bus(url), Keeper()
    bus.serve_topic("topic", "h1", [keeper], threads=1)
    bus.make_client("topic").call(CONTEXT, "change", dict[str, int], value={})
    assert keeper.heard == []
    bus.close()


def test_a_closed_bus_stops_servers_and_sending() -> None:
    url, keeper = embedded_url(), Keeper()
    open_one, closed = Bus(url), Bus(url)
    closed.serve_topic("topic", "h1", [keeper])
    closed.close()

    open_one.make_client("topic").cast(CONTEXT, "hear", value=1)
    with pytest.raises(Unreachable, match="closed"):
        closed.make_client("topic").cast(CONTEXT, "hear", value=2)

    following = Keeper()
    open_one.serve_topic("topic", "h2", [following])
    assert wait_until(lambda: following.heard == [1], PATIENCE)
    assert keeper.heard == []
    open_one.close()


@pytest.mark.parametrize(
    "url", ["http://host/", "kafka://host/", "host", "", "rabbit://guest:guest@host/?no_such_option=1", "rabbit://u:p@host:port/"]
)
def test_a_useless_url_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(errors.Misconfigured, match="bus URL") as refused:
        Bus(url)

    assert "\n" not in str(refused.value)
    assert "guest@" not in str(refused.value)


@pytest.fixture
def notifications() -> Any:
    transport = open_transport(embedded_url(), NotificationTransport)
    yield transport
    transport.cleanup()


def listen(transport: Any, subscriber: Subscriber, pool: str | None = None) -> Any:
    listener = om.get_notification_listener(transport, [om.Target(topic="events")], [subscriber], allow_requeue=True, pool=pool)
    listener.start()
    return listener


def notifier(transport: Any) -> Any:
    return om.Notifier(transport, publisher_id="test", driver="messagingv2", topics=["events"])


def stop(*listeners: Any) -> None:
    for listener in listeners:
        listener.stop()
        listener.wait()


def test_equal_listeners_share_notifications(notifications: Any) -> None:
    subscribers = Subscriber(), Subscriber()
    listeners = [listen(notifications, subscriber) for subscriber in subscribers]

    for number in range(10):
        notifier(notifications).info({}, f"event.{number}", {"number": number})

    def heard() -> list[tuple[str, object]]:
        return [event for subscriber in subscribers for event in subscriber.heard]

    assert wait_until(lambda: len(heard()) == 10, PATIENCE)
    assert sorted(heard(), key=str) == [(f"event.{number}", {"number": number}) for number in range(10)]
    assert all(subscriber.heard for subscriber in subscribers)
    stop(*listeners)


def test_notification_priorities_without_listeners_disturb_nobody(notifications: Any) -> None:
    subscriber = Subscriber()
    listener = listen(notifications, subscriber)

    notifier(notifications).error({}, "trouble", {})
    notifier(notifications).info({}, "news", {})

    assert wait_until(lambda: bool(subscriber.heard), PATIENCE)
    assert subscriber.heard == [("news", {})]
    stop(listener)


def test_every_pool_of_listeners_gets_every_notification(notifications: Any) -> None:
    subscribers = {pool: Subscriber() for pool in ("audit", "billing")}
    listeners = [listen(notifications, subscriber, pool) for pool, subscriber in subscribers.items()]

    notifier(notifications).info({}, "event", {})

    assert wait_until(lambda: all(subscriber.heard for subscriber in subscribers.values()), PATIENCE)
    assert [subscriber.heard for subscriber in subscribers.values()] == [[("event", {})]] * 2
    stop(*listeners)


def test_notifications_are_worked_on_side_by_side(notifications: Any) -> None:
    both = threading.Barrier(2)

    class Patient(Subscriber):
        def info(self, context: dict[str, Any], publisher: str, event: str, payload: object, metadata: object) -> object:
            both.wait(PATIENCE)
            return super().info(context, publisher, event, payload, metadata)

    subscriber = Patient()
    listener = listen(notifications, subscriber)
    for name in ("a", "b"):
        notifier(notifications).info({}, name, {})

    assert wait_until(lambda: len(subscriber.heard) == 2, PATIENCE)
    assert not both.broken
    stop(listener)


def test_closing_a_transport_ends_its_listeners() -> None:
    url = embedded_url()
    closed, open_one = (open_transport(url, NotificationTransport) for _ in range(2))
    subscriber, following = Subscriber(), Subscriber()
    listen(closed, subscriber)

    closed.cleanup()
    notifier(open_one).info({}, "event", {})
    listener = listen(open_one, following)

    assert wait_until(lambda: bool(following.heard), PATIENCE)
    assert subscriber.heard == []
    stop(listener)
    open_one.cleanup()


def test_a_notification_given_back_comes_again(notifications: Any) -> None:
    subscriber = Subscriber(requeue=True)
    listener = listen(notifications, subscriber)

    for name in ("a", "b"):
        notifier(notifications).info({}, name, {})

    assert wait_until(lambda: len(subscriber.heard) == 2, PATIENCE)
    assert sorted(event for event, _ in subscriber.heard) == ["a", "b"]
    stop(listener)
