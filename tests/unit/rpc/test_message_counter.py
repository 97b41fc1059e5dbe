"""Messages are counted by topic, method and kind, and are of a bounded size."""

from __future__ import annotations

import pytest

from objects import errors
from rpc.counting import MessageCounter, MessageKind
from rpc.drivers import wire
from rpc.drivers.frames import MESSAGE_BYTES_LIMIT


def test_a_call_makes_two_messages_others_one() -> None:
    counter = MessageCounter()
    for _ in range(3):
        counter("compute", "build_instances", MessageKind.CAST)
    counter("scheduler", "select_destinations", MessageKind.CALL)
    counter("compute", "refresh", MessageKind.FANOUT)

    assert counter.counts_by_method() == {
        ("compute", "build_instances", MessageKind.CAST): 3,
        ("scheduler", "select_destinations", MessageKind.CALL): 1,
        ("compute", "refresh", MessageKind.FANOUT): 1,
    }
    assert counter.count_messages() == 6

    counter.reset_counts()
    assert counter.counts_by_method() == {}


def test_an_oversized_message_is_refused_by_its_sender() -> None:
    """With its size, and before the connection is lost over it."""
    frame = len(wire.make_envelope({"args": ""}))
    assert len(wire.make_envelope({"args": "x" * (MESSAGE_BYTES_LIMIT - frame)})) == MESSAGE_BYTES_LIMIT
    with pytest.raises(errors.Invalid, match=f"the limit is {MESSAGE_BYTES_LIMIT}"):
        wire.make_envelope({"args": "x" * (MESSAGE_BYTES_LIMIT - frame + 1)})
