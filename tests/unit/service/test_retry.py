"""The one way in which what failed is tried again."""

from __future__ import annotations

import threading

import pytest

from service.retry import keep_trying, pause_after


def test_pauses_double_up_to_the_longest() -> None:
    assert [pause_after(failures, 0.5, 3.0) for failures in (1, 2, 3, 4, 1000)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_pauses_are_spread_below_what_they_would_be() -> None:
    pauses = [pause_after(3, 1.0, 60.0, spread=0.5) for _ in range(200)]
    assert 2.0 <= min(pauses) < max(pauses) <= 4.0


def test_a_retry_continues_until_success_reporting_every_error() -> None:
    left, told = [OSError("a"), OSError("b")], list[str]()

    def function() -> int:
        if left:
            raise left.pop(0)
        return 7

    stopping = threading.Event()
    assert keep_trying(function, first=0.01, longest=0.01, stopping=stopping, failed=lambda error: told.append(str(error))) == 7
    assert told == ["a", "b"]


def test_other_errors_pass_at_once() -> None:
    def function() -> None:
        raise KeyError("no weather")

    with pytest.raises(KeyError):
        keep_trying(function, first=60, longest=60, stopping=threading.Event(), failed=lambda _: None, on=OSError)


def test_who_stops_waits_for_no_pause() -> None:
    stopping, tries = threading.Event(), list[int]()

    def function() -> None:
        tries.append(1)
        raise OSError("down")

    with pytest.raises(OSError, match="down"):
        keep_trying(function, first=60, longest=60, stopping=stopping, failed=lambda _: stopping.set())
    assert len(tries) <= 2
