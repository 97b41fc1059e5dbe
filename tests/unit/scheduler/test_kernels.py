"""The operations on columns against plain definitions of the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from scheduler.table import kernels

SCORES = st.one_of(st.sampled_from([0.0, -0.0, 1.0, 2.0, -np.inf]), st.floats(-1e6, 1e6))
SIZES = st.integers(1, 300)


def score_columns(size: int) -> st.SearchStrategy[Any]:
    return nps.arrays(np.float64, size, elements=SCORES)


@given(st.data(), SIZES, st.integers(1, 100))
def test_best_rows_come_first_with_equals_in_order(data: st.DataObject, size: int, count: int) -> None:
    scores = data.draw(score_columns(size))
    rows = np.arange(size) + 1000
    best, best_scores = kernels.order_best(rows, scores, count)

    expected = sorted(range(size), key=lambda position: -scores[position])[:count]
    assert best.tolist() == [1000 + position for position in expected]
    assert best_scores.tolist() == [scores[position] for position in expected]


@given(st.data(), SIZES, st.one_of(st.none(), st.floats(-10, 10)))
def test_extremes_are_those_of_the_remaining_hosts(data: st.DataObject, size: int, least: float | None) -> None:
    raw = data.draw(nps.arrays(np.float64, size, elements=st.floats(-1e6, 1e6)))
    remaining = data.draw(nps.arrays(np.bool_, size))
    remaining[data.draw(st.integers(0, size - 1))] = True

    low, high = kernels.find_extremes(raw, remaining, least)
    lowest = float(raw[remaining].min())
    assert high == raw[remaining].max()
    assert low == (lowest if least is None else min(lowest, least))


@given(st.data(), SIZES, st.floats(-100, 100), st.floats(-100, 100))
def test_scaled_weights_are_added_in_place(data: st.DataObject, size: int, low: float, factor: float) -> None:
    raw = data.draw(nps.arrays(np.float64, size, elements=st.floats(-1e6, 1e6)))
    total = np.ones(size)
    expected = 1 + (raw - low) * factor

    added = kernels.add_scaled(total, raw, low, factor)
    assert added is total
    assert np.allclose(added, expected)


@given(st.integers(0, 2**64 - 1), st.floats(1e-6, 1.0))
def test_noise_is_bounded_and_differs_by_seed(seed: int, bound: float) -> None:
    salts = np.arange(1, 500, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    noise = kernels.seeded_noise(salts, seed, bound)

    assert ((noise >= 0) & (noise < bound)).all()
    assert noise.tolist() == kernels.seeded_noise(salts, seed, bound).tolist()
    assert noise.tolist() != kernels.seeded_noise(salts, seed ^ 1, bound).tolist()
