"""Ringing never holds up whoever rings."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

import pytest

from api.lookup.doorbell import QUEUED_RINGS_LIMIT, WakeupSender
from objects.context import RequestContext

CONTEXT = RequestContext(request_id="req-1")


class SlowBell:
    """A bell on a bus that hangs until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.ringing = threading.Event()
        self.rings: list[list[str]] = []
        self.heard: queue.Queue[object] = queue.Queue()

    def schedule_and_build_instances(self, context: RequestContext, batch_id: str) -> None:
        self.ringing.set()
        self.go.wait(30)
        self.heard.put(batch_id)
        if batch_id == "broken":
            raise RuntimeError("the bus broke")

    def schedule_and_build_batches(self, context: RequestContext, batch_ids: Sequence[str]) -> None:
        self.rings.append(list(batch_ids))
        for batch_id in batch_ids:
            self.schedule_and_build_instances(context, batch_id)

    def delete_instances(self, context: RequestContext, uuids: Sequence[str]) -> None:
        self.go.wait(30)
        self.heard.put(list(uuids))

    def operate(self, context: RequestContext, uuids: Sequence[str]) -> None:
        self.heard.put(("operate", *uuids))


@pytest.fixture
def bell() -> Iterator[SlowBell]:
    bell = SlowBell()
    yield bell
    bell.go.set()


def test_every_ring_arrives_and_an_error_ends_none(bell: SlowBell) -> None:
    """The thread lives on."""
    bell.go.set()
    doorbell = WakeupSender(bell)
    doorbell.ring_for_batch(CONTEXT, "broken")
    assert bell.heard.get(timeout=10) == "broken"
    doorbell.ring_for_deleted(CONTEXT, ("u1", "u2"))
    doorbell.ring_for_batch(CONTEXT, "b2")
    doorbell.ring_for_operation(CONTEXT, "o1")
    heard = [bell.heard.get(timeout=10) for _ in range(3)]
    assert ["u1", "u2"] in heard
    assert "b2" in heard
    assert ("operate", "o1") in heard


def test_simultaneous_batches_share_one_ring(bell: SlowBell) -> None:
    doorbell = WakeupSender(bell)
    doorbell.ring_for_batch(CONTEXT, "b1")
    assert bell.ringing.wait(10)  # the bus hangs
    for name in ("b2", "b3"):
        doorbell.ring_for_batch(CONTEXT, name)
    bell.go.set()
    assert [bell.heard.get(timeout=10) for _ in range(3)] == ["b1", "b2", "b3"]
    assert bell.rings == [["b2", "b3"]]


def test_a_bus_that_hangs_holds_up_nobody(bell: SlowBell) -> None:
    """However many ring meanwhile; what is too much is dropped, and what was kept is rung when the bus is back."""
    doorbell = WakeupSender(bell)
    for number in range(QUEUED_RINGS_LIMIT + 100):
        doorbell.ring_for_batch(CONTEXT, str(number))
    assert bell.heard.empty()
    bell.go.set()
    heard = [bell.heard.get(timeout=10) for _ in range(QUEUED_RINGS_LIMIT)]
    assert heard == [str(number) for number in range(QUEUED_RINGS_LIMIT)]
