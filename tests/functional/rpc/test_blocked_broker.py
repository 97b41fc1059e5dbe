"""A broker that has blocked who publishes, with a real alarm of a broker of its own: everybody who asks is told the truth."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cli.databases.connecting import _try_bus
from deploy.rabbitmq import RabbitMQ
from objects.context import RequestContext
from rpc.errors import Unreachable
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.servers import is_ruled_out
from tests.support.weather import own_server

CONTEXT = RequestContext(request_id="req-blocked")
PATIENCE = 30.0


class Endpoint:
    def __init__(self) -> None:
        self.arrived = threading.Event()

    def note(self, context: RequestContext) -> None:
        self.arrived.set()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    if is_ruled_out("SC_TEST_RABBIT_URL"):
        pytest.skip("RabbitMQ is ruled out")
    made = RabbitMQ(tmp_path_factory.mktemp("broker"))
    with own_server(made):
        yield made


@contextmanager
def alarm(broker: RabbitMQ) -> Iterator[None]:
    """The broker has too little memory."""
    broker.run_ctl("set_vm_memory_high_watermark", "0.00001")
    try:
        yield
    finally:
        broker.run_ctl("set_vm_memory_high_watermark", "0.6")


def test_a_blocked_broker_differs_from_a_healthy_one(broker: RabbitMQ) -> None:
    bus = Bus(broker.admin_url, name="blocked")
    endpoint = Endpoint()
    server = bus.serve_topic("topic", "one", [endpoint], threads=1)
    client = bus.make_client("topic", timeout=PATIENCE)
    bus.check_login()
    assert bus.find_trouble() == server.find_trouble() == ""
    assert _try_bus("transport_url", broker.admin_url).fits
    with alarm(broker):
        began = time.monotonic()
        with pytest.raises(Unreachable, match="blocked"):
            client.on_server("one").cast(CONTEXT, "note")
        assert time.monotonic() - began < PATIENCE, "it was not waited for until the deadline"
        assert "an alarm for its memory or disk" in bus.find_trouble()
        with pytest.raises(Unreachable, match="blocked"):
            server.find_trouble()
        with pytest.raises(Unreachable, match="blocked"):
            bus.check_login()
        found = _try_bus("transport_url", broker.admin_url)
        assert not found.fits
        assert "blocked" in found.text
    assert wait_until(lambda: not bus.find_trouble(), PATIENCE)
    assert endpoint.arrived.wait(PATIENCE), "what was sent meanwhile arrives"
    assert server.find_trouble() == ""
    bus.check_login()
    bus.close()
