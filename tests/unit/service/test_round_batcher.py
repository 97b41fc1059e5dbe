"""What is added while a round is under way is handled together in the next one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

import pytest

from service.batching import RECENT_ROUNDS, RoundBatcher

PATIENCE = 90.0


class Handler:
    """Notes each round, which lasts until it is let go."""

    def __init__(self) -> None:
        self.rounds: queue.Queue[list[str]] = queue.Queue()
        self.go = threading.Event()

    def __call__(self, items: Sequence[str]) -> None:
        self.rounds.put(list(items))
        self.go.wait(PATIENCE)
        if "broken" in items:
            raise RuntimeError("a fault")


@pytest.fixture
def handler() -> Iterator[Handler]:
    handler = Handler()
    yield handler
    handler.go.set()


def test_a_round_takes_all_arrivals_during_its_predecessor(handler: Handler) -> None:
    batcher = RoundBatcher("test", handler, pace=0.0, patience=PATIENCE)
    batcher.add_items(["a"])
    assert handler.rounds.get(timeout=PATIENCE) == ["a"]
    for items in (["b"], ["c", "b"], ["broken"]):
        batcher.add_items(items)
    handler.go.set()
    assert handler.rounds.get(timeout=PATIENCE) == ["b", "c", "broken"]
    batcher.add_items(["d"])  # after one that failed
    assert handler.rounds.get(timeout=PATIENCE) == ["d"]
    batcher.stop()


def test_a_long_round_delays_others_only_briefly(handler: Handler) -> None:
    batcher = RoundBatcher("test", handler, pace=0.0, patience=0.01, workers=3, limit=2)
    for item in "abcde":
        batcher.add_items([item])
    found = [handler.rounds.get(timeout=PATIENCE) for _ in range(3)]
    assert handler.rounds.empty()  # no more at a time
    handler.go.set()
    while sum(map(len, found)) < 5:
        found.append(handler.rounds.get(timeout=PATIENCE))
    assert sorted(item for items in found for item in items) == list("abcde")
    assert max(map(len, found)) <= 2
    batcher.stop()


def test_no_round_begins_or_runs_after_stop(handler: Handler) -> None:
    batcher = RoundBatcher("test", handler, pace=0.0, patience=PATIENCE)
    batcher.add_items(["a"])
    assert handler.rounds.get(timeout=PATIENCE) == ["a"]
    batcher.add_items(["b"])
    stopping = threading.Thread(target=batcher.stop)
    stopping.start()
    handler.go.set()
    stopping.join(PATIENCE)
    batcher.add_items(["c"])
    assert not stopping.is_alive()
    assert handler.rounds.empty()


def test_slow_recent_rounds_make_the_next_wait_longer(handler: Handler) -> None:
    batcher = RoundBatcher("test", handler, pace=0.0, patience=0.01, longest=PATIENCE, workers=2)
    batcher._took.extend([20.0] * RECENT_ROUNDS)
    batcher.add_items(["a"])
    assert handler.rounds.get(timeout=PATIENCE) == ["a"]
    batcher.add_items(["b"])
    with pytest.raises(queue.Empty):
        handler.rounds.get(timeout=0.3)
    batcher._took.append(0.0)  # as soon as one was quick
    batcher.add_items(["c"])
    assert handler.rounds.get(timeout=PATIENCE) == ["b", "c"]
    handler.go.set()
    batcher.stop()


def test_a_round_delays_the_next_within_a_bound(handler: Handler) -> None:
    batcher = RoundBatcher("test", handler, pace=0.0, patience=0.01, longest=0.02, workers=2)
    batcher._took.extend([20.0] * RECENT_ROUNDS)
    batcher.add_items(["a"])
    assert handler.rounds.get(timeout=PATIENCE) == ["a"]
    batcher.add_items(["b"])
    assert handler.rounds.get(timeout=PATIENCE) == ["b"]
    handler.go.set()
    batcher.stop()


def test_beyond_what_may_wait_new_ones_are_dropped(handler: Handler) -> None:
    batcher = RoundBatcher("test", handler, pace=0.0, patience=PATIENCE, most=2)
    batcher.add_items(["a"])
    assert handler.rounds.get(timeout=PATIENCE) == ["a"]
    for item in "bcd":
        batcher.add_items([item])
    handler.go.set()
    assert handler.rounds.get(timeout=PATIENCE) == ["b", "c"]
    batcher.stop()


def test_one_thread_goes_from_round_to_round() -> None:
    threads: queue.Queue[int] = queue.Queue()
    batcher: RoundBatcher[int] = RoundBatcher("test", lambda items: threads.put(threading.get_ident()), pace=0.0, workers=5)
    found = set()
    for item in range(20):
        batcher.add_items([item])
        found.add(threads.get(timeout=PATIENCE))
    batcher.stop()
    assert len(found) <= 2
