"""An answer is used again, and nobody waits for it for long."""

from __future__ import annotations

import threading

from service.cached_probe import Sample
from service.periodic import wait_until

PATIENCE = 90.0


def test_an_answer_is_used_again() -> None:
    numbers = iter(range(1, 9))
    sample = Sample("queue", lambda: next(numbers), keep=1000.0, patience=PATIENCE)
    assert [sample.get(), sample.get()] == [1, 1]
    assert next(numbers) == 2


def test_a_failed_sample_has_no_answer_and_repeats() -> None:
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        if len(asked) == 1:
            raise ConnectionError("away")
        return 7

    sample = Sample("queue", ask, keep=0.0, patience=PATIENCE)
    assert sample.get() is None
    assert wait_until(lambda: bool(sample.get()) or len(asked) > 1, PATIENCE)


def test_a_hanging_sample_blocks_only_one_thread() -> None:
    going_on = threading.Event()
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        going_on.wait(PATIENCE)
        return 1

    sample = Sample("queue", ask, keep=1000.0, patience=0.01)
    assert [sample.get() for _ in range(3)] == [None, None, None]
    assert len(asked) == 1
    going_on.set()
    assert wait_until(lambda: sample.get() == 1, PATIENCE)
