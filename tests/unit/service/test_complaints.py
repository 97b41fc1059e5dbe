"""What is met again and again is said once in a while."""

from __future__ import annotations

import logging

import pytest

from service import rate_limited_log
from service.rate_limited_log import RateLimitedLog
from tests.support.clock import Clock

LOG = logging.getLogger("tests.complaints")


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


@pytest.fixture
def complain(clock: Clock) -> RateLimitedLog:
    return RateLimitedLog(LOG, 30.0, clock)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_repeated_complaint_returns_with_its_count(
    complain: RateLimitedLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(100):
        complain("east is down", logging.WARNING, "request %d: east is down", number)
    clock.now = 30.0
    complain("east is down", logging.WARNING, "request %d: east is down", 100)
    clock.now = 60.0
    complain("east is down", logging.WARNING, "request %d: east is down", 101)
    assert said(caplog) == [
        "request 0: east is down",
        "request 100: east is down (and 99 more like it)",
        "request 101: east is down",
    ]


def test_different_things_are_all_said(complain: RateLimitedLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        for name in ("east", "west"):
            complain(name, logging.WARNING, "%s is down", name)
    assert said(caplog) == ["east is down", "west is down"]


def test_suppressed_complaints_appear_at_debug_level(complain: RateLimitedLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOG.name)
    complain("east", logging.WARNING, "east is down")
    complain("east", logging.WARNING, "east is down")
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.DEBUG]


def test_it_does_not_grow_without_end(complain: RateLimitedLog, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limited_log, "REMEMBERED_KEYS_LIMIT", 10)
    for number in range(1000):
        clock.now += number % 7
        complain(f"complaint {number}", logging.DEBUG, "no")
    assert len(complain._said) <= 10
