"""A server that gets no messages is told from one that is idle, and from one that has its hands full."""

from __future__ import annotations

import threading

import pytest

from objects.context import RequestContext
from rpc import loopback_probe
from rpc.server import TopicServer
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.bus import CONTEXT, embedded_url

PATIENCE = 90.0


class Slow:
    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.going_on = threading.Event()

    def work(self, context: RequestContext) -> None:
        self.begun.release()
        self.going_on.wait(PATIENCE)


@pytest.mark.parametrize("shared", [False, True])
def test_an_idle_server_is_well_and_asks_rarely(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_probe, "ARRIVAL_VALID_S", 1000.0)
    bus = Bus(embedded_url())
    servers = [bus.serve_topic("work", "one", [Slow()], shared_name=shared) for _ in range(2 if shared else 1)]
    sent: list[str] = []
    bus.observer = lambda topic, method, kind: sent.append(method)
    for _ in range(3):
        assert [server.find_trouble() for server in servers] == [""] * len(servers)
    assert sent == ["ping"] * len(servers)
    bus.close()


def test_a_server_that_gets_no_messages_is_wedged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_probe, "ARRIVAL_TIMEOUT_S", 0.2)
    bus = Bus(embedded_url())
    server = bus.serve_topic("work", "one", [Slow()])
    server._rpc.listener.cleanup()  # its consumer is gone, and nobody has told it
    assert "has not come back" in server.find_trouble()
    bus.close()


@pytest.fixture
def busy() -> tuple[Bus, TopicServer, Slow]:
    bus, slow = Bus(embedded_url()), Slow()
    server = bus.serve_topic("work", "one", [slow], threads=1)
    bus.make_client("work").cast(CONTEXT, "work")
    assert slow.begun.acquire(timeout=PATIENCE)
    return bus, server, slow


def test_a_server_with_its_hands_full_is_well(busy: tuple[Bus, TopicServer, Slow], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_probe, "ARRIVAL_TIMEOUT_S", 0.2)
    bus, server, slow = busy
    assert not server.find_trouble()
    slow.going_on.set()
    assert wait_until(lambda: not server.find_trouble(), PATIENCE)
    bus.close()


def test_a_message_that_never_ends_is_stuck(busy: tuple[Bus, TopicServer, Slow], monkeypatch: pytest.MonkeyPatch) -> None:
    bus, server, slow = busy
    monkeypatch.setattr("service.health.BOARD.stuck", 0.0)
    assert "1 of 1 messages under way do not end" in server.find_trouble()
    slow.going_on.set()
    bus.close()
