"""The functions in use against those in NumPy: the same ones, but for a compiled wheel."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler import arrays, kernels, ranking

WORDS = st.integers(0, 2**64 - 1)
SCORES = st.one_of(st.sampled_from([0.0, -0.0, 1.0, 2.0, -np.inf]), st.floats(-1e6, 1e6))


@given(st.lists(SCORES, max_size=200), st.integers(1, 100))
def test_the_best_are_put_in_the_same_order(scores: list[float], count: int) -> None:
    given_scores = np.array(scores, np.float64)
    assert kernels.in_order(given_scores, count).tolist() == ranking.in_order(given_scores, count).tolist()


@given(st.lists(WORDS, max_size=20), st.integers(0, 2**63 - 1), st.sampled_from([1e-9, 1.0]))
def test_noise_is_the_same_to_the_last_bit(salts: list[int], seed: int, below: float) -> None:
    words = np.array(salts, np.uint64)
    assert kernels.noise(words, seed, below).tobytes() == arrays.noise(words, seed, below).tobytes()
