"""Ringing never holds up whoever rings."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

import pytest

from api.doorbell import WAITING, Doorbell
from objects.context import RequestContext

CONTEXT = RequestContext(request_id="req-1")


class SlowBell:
    """A bell on a bus that hangs until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.heard: queue.Queue[object] = queue.Queue()

    def schedule_and_build_instances(self, context: RequestContext, batch_id: str) -> None:
        self.go.wait(30)
        self.heard.put(batch_id)
        if batch_id == "broken":
            raise RuntimeError("the bus broke")

    def delete_instances(self, context: RequestContext, uuids: Sequence[str]) -> None:
        self.go.wait(30)
        self.heard.put(list(uuids))


@pytest.fixture
def bell() -> Iterator[SlowBell]:
    bell = SlowBell()
    yield bell
    bell.go.set()


def test_rings_arrive_in_order_and_an_error_ends_none(bell: SlowBell) -> None:
    """The thread lives on."""
    bell.go.set()
    doorbell = Doorbell(bell)
    doorbell.accepted(CONTEXT, "broken")
    doorbell.deleted(CONTEXT, "u1")
    doorbell.accepted(CONTEXT, "b2")
    assert [bell.heard.get(timeout=10) for _ in range(3)] == ["broken", ["u1"], "b2"]


def test_a_bus_that_hangs_holds_up_nobody(bell: SlowBell) -> None:
    """However many ring meanwhile; what is too much is dropped, and what was kept is rung when the bus is back."""
    doorbell = Doorbell(bell)
    for number in range(WAITING + 100):
        doorbell.accepted(CONTEXT, str(number))
    assert bell.heard.empty()
    bell.go.set()
    heard = [bell.heard.get(timeout=10) for _ in range(WAITING)]
    assert heard == [str(number) for number in range(WAITING)]
