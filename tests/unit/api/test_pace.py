"""Token buckets of projects."""

from __future__ import annotations

import pytest

from api.http import rate_limit
from api.http.rate_limit import RequestRateLimit, TooFast
from service.periodic import wait_until


def test_a_burst_passes_and_then_the_project_waits() -> None:
    """The others do not."""
    bucket = RequestRateLimit(rate=0.001, burst=3)
    for _ in range(3):
        bucket.count_request("p1")
    with pytest.raises(TooFast) as refused:
        bucket.count_request("p1")
    assert 900 < refused.value.retry_after <= 1000
    bucket.count_request("p2")


def test_it_fills_again() -> None:
    bucket = RequestRateLimit(rate=50.0, burst=1)
    bucket.count_request("p1")

    def passes() -> bool:
        try:
            bucket.count_request("p1")
        except TooFast:
            return False
        return True

    assert wait_until(passes, 90.0)


def test_no_rate_is_no_limit() -> None:
    bucket = RequestRateLimit(rate=0.0, burst=1)
    for _ in range(100):
        bucket.count_request("p1")


def test_buckets_are_bounded() -> None:
    """The oldest one goes."""
    bucket = RequestRateLimit(rate=0.001, burst=1)
    for number in range(rate_limit.TRACKED_PROJECTS_LIMIT + 1):
        bucket.count_request(f"p{number}")
    bucket.count_request("p0")
    with pytest.raises(TooFast):
        bucket.count_request(f"p{rate_limit.TRACKED_PROJECTS_LIMIT}")
