"""Drawings of a report."""

from __future__ import annotations

import pytest

from lab.report import round_top


@pytest.mark.parametrize(
    ("highest", "top"),
    [(0.0, 1.0), (0.3, 0.5), (1.0, 1.0), (96.74, 100.0), (100.0, 100.0), (101.0, 125.0), (395.0, 500.0), (1120.8, 1250.0)],
)
def test_an_axis_ends_at_a_round_number(highest: float, top: float) -> None:
    assert round_top(highest) == pytest.approx(top)
