"""A broker that is down, silent, or dies in the middle holds nobody for long, and is found again when it is back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

import pytest

from objects import errors
from objects.context import RequestContext
from rpc.errors import Timeout, Unreachable
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.bus import CONTEXT, FaultProxy, rabbit_url, silent_listener

T = TypeVar("T")

PATIENCE = 60.0
SOON = 20.0
"""Seconds that count as "not for long" here: several times what it takes, and far less than for ever."""


SENDER = "rabbit-send"
"""The name of the threads that may have to be left behind."""
HEARTBEAT = "Rabbit-heartbeat"
"""The library's name for the thread that each connection has."""


class Parrot:
    def echo(self, context: RequestContext, value: int) -> int:
        return value

    def hear(self, context: RequestContext) -> None:
        """Nothing to do."""


def within(seconds: float, function: Callable[[], T]) -> T:
    """Return or raise what ``function`` does; fail if it has not ended in time, without waiting for it any longer."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    with contextlib.suppress(TimeoutError):
        future.exception(seconds)
    assert future.done(), f"still blocked after {seconds} s"
    return future.result()


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """A proxy in front of a RabbitMQ."""
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(rabbit_url())
        except LookupError as why:
            pytest.skip(str(why))
        proxy = FaultProxy(url)
        stack.callback(proxy.close)
        yield proxy


def test_a_dead_broker_fails_calls_and_casts_immediately() -> None:
    bus = Bus("rabbit://guest:hidden@127.0.0.1:1/", name="cell1")
    client = bus.make_client("topic", timeout=3600)

    for send in (lambda: client.call(CONTEXT, "echo", int, value=1), lambda: client.cast(CONTEXT, "hear")):
        with pytest.raises(Unreachable, match="cell1") as unreachable:
            within(SOON, send)
        assert "hidden" not in str(unreachable.value)
        assert isinstance(unreachable.value, errors.SuperconductorError)

    within(SOON, bus.close)


def test_a_silent_broker_accepting_connections_is_unreachable() -> None:
    assert wait_until(lambda: not any(thread.name == SENDER for thread in threading.enumerate()), PATIENCE), "left by another test"
    with silent_listener() as listener:
        bus = Bus(f"rabbit://guest:guest@127.0.0.1:{listener.getsockname()[1]}/")
        client = bus.make_client("topic", timeout=3600)

        for send in (lambda: client.call(CONTEXT, "echo", int, value=1), lambda: client.cast(CONTEXT, "hear")):
            with pytest.raises(Unreachable):
                within(SOON, send)

        assert not [thread for thread in threading.enumerate() if thread.name == SENDER], "no thread may be stuck on it"
        within(SOON, bus.close)


def test_serving_on_a_dead_broker_waits_in_background() -> None:
    bus = Bus("rabbit://guest:guest@127.0.0.1:1/")

    server = within(SOON, lambda: bus.serve_topic("topic", "h1", [Parrot()]))

    assert not server.is_listening
    within(SOON, server.stop)
    within(SOON, bus.close)


def test_any_broker_suffices_and_all_dead_are_unreachable() -> None:
    bus = Bus("rabbit://u:p@127.0.0.1:1,u:p@127.0.0.1:2/")

    with pytest.raises(Unreachable):
        within(SOON, lambda: bus.make_client("topic").cast(CONTEXT, "hear"))
    bus.close()


def test_a_server_listens_when_its_broker_comes_up(proxy: FaultProxy) -> None:
    proxy.cut()
    bus = Bus(proxy.url)
    server = within(SOON, lambda: bus.serve_topic("topic", "h1", [Parrot()]))
    assert not server.is_listening

    proxy.restore()

    assert wait_until(lambda: server.is_listening, PATIENCE)
    assert within(PATIENCE, lambda: bus.make_client("topic").call(CONTEXT, "echo", int, value=5)) == 5
    bus.close()


@pytest.mark.parametrize(
    ("fault", "before"),
    [("cut", "cast"), ("cut", "call"), ("freeze", "call"), ("mute", "call"), ("deafen", "cast")],
)
def test_a_broker_dying_in_use_is_reconnected(proxy: FaultProxy, fault: str, before: str) -> None:
    direct, bus = Bus(proxy.target_url), Bus(proxy.url)
    direct.serve_topic("topic", "h1", [Parrot()])
    client = bus.make_client("topic", timeout=3600)
    if before == "cast":
        client.cast(CONTEXT, "hear")
    else:
        assert client.call(CONTEXT, "echo", int, value=1) == 1

    getattr(proxy, fault)()
    for send in (lambda: client.call(CONTEXT, "echo", int, value=1), lambda: client.cast(CONTEXT, "hear")):
        with pytest.raises(Unreachable):
            within(SOON, send)
    proxy.restore() if fault == "cut" else proxy.thaw()

    def is_back() -> bool:
        try:
            return bus.make_client("topic", timeout=5).call(CONTEXT, "echo", int, value=2) == 2
        except (Timeout, Unreachable):
            return False

    assert wait_until(is_back, PATIENCE)
    within(SOON, bus.close)
    direct.close()


def test_a_connection_used_during_closing_closes_on_return(proxy: FaultProxy) -> None:
    """Else its heartbeats would look for the broker, and complain, as long as the process lives."""
    before = set(threading.enumerate())
    bus = Bus(proxy.url)
    bus.make_client("topic").cast(CONTEXT, "hear")
    bus._transport._driver.with_connection(lambda _: within(SOON, bus.close))
    left = [thread for thread in threading.enumerate() if thread not in before and thread.name == HEARTBEAT]
    assert wait_until(lambda: not any(thread.is_alive() for thread in left), PATIENCE)


def test_a_server_listens_again_when_its_broker_returns(proxy: FaultProxy) -> None:
    direct, bus = Bus(proxy.target_url), Bus(proxy.url)
    bus.serve_topic("topic", "h1", [Parrot()])
    client = direct.make_client("topic", timeout=PATIENCE)
    assert client.call(CONTEXT, "echo", int, value=1) == 1

    proxy.cut()
    proxy.restore()

    assert client.call(CONTEXT, "echo", int, value=2) == 2, "the queue keeps the message until the server is back"
    within(SOON, bus.close)
    direct.close()


def test_a_server_can_stop_without_its_broker(proxy: FaultProxy) -> None:
    before = set(threading.enumerate())
    bus = Bus(proxy.url)
    server = bus.serve_topic("topic", "h1", [Parrot()])
    assert server.is_listening
    proxy.cut()

    within(SOON, server.stop)
    within(SOON, bus.close)

    proxy.restore()  # what was left behind comes to its end, and complains in no other test
    proxys_own = ("_accept", "_pump")
    assert wait_until(
        lambda: not [t for t in threading.enumerate() if t not in before and not any(name in t.name for name in proxys_own)],
        PATIENCE,
    ), threading.enumerate()
