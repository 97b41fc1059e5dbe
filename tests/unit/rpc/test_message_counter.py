"""Messages are counted by topic, method and kind."""

from __future__ import annotations

from rpc.counting import MessageCounter, MessageKind


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
