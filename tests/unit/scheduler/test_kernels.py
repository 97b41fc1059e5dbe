"""The functions in use against those in NumPy, to the last bit: the same ones, but for a compiled wheel."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from scheduler.table import arrays, kernels, reference

WORDS = st.integers(0, 2**64 - 1)
AMOUNTS = st.one_of(st.sampled_from([0.0, -0.0, 0.1]), st.floats(-1e6, 1e6))
SCORES = st.one_of(st.sampled_from([0.0, -0.0, 1.0, 2.0, -np.inf]), st.floats(-1e6, 1e6))
ODD = st.one_of(SCORES, st.sampled_from([np.nan, np.inf]))
SIZES = st.integers(1, 300)
WHOLE = st.integers(-3, 3)
KINDS = st.sampled_from([np.float64, np.int64, np.int32])
"""The table has columns of the first kind; a site's weigher may give others."""


def floats(size: int, numbers: st.SearchStrategy[float] = SCORES) -> st.SearchStrategy[Any]:
    return nps.arrays(np.float64, size, elements=numbers)


def masks(size: int) -> st.SearchStrategy[Any]:
    return nps.arrays(np.bool_, size)


def same(one: Any, other: Any) -> bool:
    """Equal, of one kind, numbers that are none included."""
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    kinds = (one.dtype, other.dtype) if isinstance(one, np.ndarray) else (type(one), type(other))
    return kinds[0] == kinds[1] and np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")


@given(st.data(), SIZES, st.integers(1, 100))
def test_the_best_are_put_in_the_same_order(data: st.DataObject, size: int, count: int) -> None:
    scores = data.draw(floats(size, ODD))
    rows = np.arange(size)[::-1].copy()
    cells = data.draw(nps.arrays(np.int64, size, elements=st.integers(0, 2)))
    assert same(kernels.ordered(rows, scores, count), reference.ordered(rows, scores, count))
    assert same(kernels.ordered_in(rows, scores, cells, 1, count), reference.ordered_in(rows, scores, cells, 1, count))


@given(st.lists(WORDS, max_size=20), st.integers(0, 2**63 - 1), st.sampled_from([1e-9, 1.0]))
def test_noise_is_the_same_to_the_last_bit(salts: list[int], seed: int, below: float) -> None:
    words = np.array(salts, np.uint64)
    assert kernels.mixed(seed) == arrays.mixed(seed)
    assert arrays.all_mixed(np.array([seed, 0, 7])).tolist() == [arrays.mixed(number) for number in (seed, 0, 7)]
    assert kernels.noise(words, seed, below).tobytes() == reference.noise(words, seed, below).tobytes()
    scores, positions = np.linspace(0.0, 1.0, len(salts)), np.arange(len(salts))[::-1][: len(salts) // 2].copy()
    asked = scores, positions, words, positions, seed, below
    assert kernels.untied(*asked).tobytes() == reference.untied(*asked).tobytes()


@given(st.data(), SIZES)
def test_a_mask_is_narrowed_and_counted_alike(data: st.DataObject, size: int) -> None:
    mask, passed = data.draw(masks(size)), data.draw(masks(size))
    again = mask.copy()
    assert same(kernels.narrowed(mask, passed), reference.narrowed(again, passed))
    assert same(mask, again)


@given(st.data(), SIZES, st.one_of(st.integers(-(2**70), 2**70), st.floats()), KINDS)
def test_columns_are_compared_alike(data: st.DataObject, size: int, bound: float, kind: type[Any]) -> None:
    numbers: Any = data.draw(floats(size, ODD)) if kind is np.float64 else data.draw(nps.arrays(kind, size, elements=WHOLE))
    assert same(kernels.at_least(numbers, bound), reference.at_least(numbers, bound))
    assert same(kernels.below(numbers, bound), reference.below(numbers, bound))
    limits = np.full(size, float(bound))
    assert same(kernels.below(numbers, limits), reference.below(numbers, limits))
    assert same(kernels.equal(numbers, 2), reference.equal(numbers, 2))


@given(st.data(), SIZES, st.sampled_from([None, 0.0, 1.0]), st.booleans())
def test_extremes_are_the_same(data: st.DataObject, size: int, least: float | None, all_left: bool) -> None:
    raw, left = data.draw(floats(size, ODD)), None if all_left else data.draw(masks(size).filter(np.any))  # one is left at least
    assert same(kernels.extremes(raw, left, least), reference.extremes(raw, left, least))


@given(st.data(), SIZES, st.sampled_from([0.0, 0.1, -3.0]), st.floats(-1e6, 1e6), KINDS)
def test_weights_are_scaled_and_added_alike(data: st.DataObject, size: int, low: float, factor: float, kind: type[Any]) -> None:
    raw: Any = data.draw(floats(size, AMOUNTS)) if kind is np.float64 else data.draw(nps.arrays(kind, size, elements=WHOLE))
    total = data.draw(floats(size, AMOUNTS))
    assert same(kernels.add_scaled(None, raw, low, factor), reference.add_scaled(None, raw, low, factor))
    factors: Any = data.draw(st.sampled_from([factor, np.full(size, factor)]))
    assert same(kernels.add_scaled(total.copy(), raw, low, factors), reference.add_scaled(total.copy(), raw, low, factors))


def test_columns_that_lie_in_memory_otherwise_are_read_right() -> None:
    """Every second number of a column: no pass over its memory as it stands may take that for one after another."""
    wide = np.arange(40.0)
    apart, mask = wide[::2], np.arange(40) % 3 == 0
    assert same(kernels.at_least(apart, 7), reference.at_least(apart, 7))
    assert same(kernels.extremes(apart, mask[::2], None), reference.extremes(apart, mask[::2], None))
    assert same(kernels.add_scaled(None, apart, 1.0, 0.5), reference.add_scaled(None, apart, 1.0, 0.5))
    assert same(kernels.ordered(np.arange(20), apart, 5), reference.ordered(np.arange(20), apart, 5))
