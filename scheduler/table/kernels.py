"""The operations on columns that decisions spend their time in, in NumPy."""

from __future__ import annotations

import numpy as np

from scheduler.table.arrays import Counts, Floats, Ints, Mask, Words, mix_bits, tally

FULL_SORT_LIMIT = 64
"""Up to this many scores beyond ``count`` are sorted completely."""

_ODD = np.uint64(0xBF58476D1CE4E5B9)  # the first multiplier of splitmix64 (Steele, Lea, Flood: OOPSLA 2014)
_LOW = np.uint64(11)  # the low bits that a float cannot hold


def seeded_noise(salts: Words, seed: int, below: float) -> Floats:
    """A number from 0 to ``below`` per salt, another set for every seed. It depends on nothing else: a decision can be replayed."""
    words = salts ^ np.uint64(mix_bits(seed))
    words *= _ODD
    words >>= _LOW
    numbers: Floats = words.view(np.int64) * np.float64(below * 2.0**-53)  # signed ones are faster converted, and these are small
    return numbers


def at_least(column: Floats, least: float) -> Mask:
    """Which of them reach ``least``."""
    reached: Mask = column >= float(least)  # with a Python int NumPy takes twice as long
    return reached


def are_below(column: Counts, limit: Floats | float) -> Mask:
    """Which of them are less than the limit, or each than its own."""
    less: Mask = column < limit
    return less


def are_equal(column: Ints, number: int) -> Mask:
    """Which of them are this number."""
    same: Mask = column == number
    return same


def find_extremes(raw: Floats, remaining: Mask | None, least: float | None) -> tuple[float, float]:
    """The lowest and the highest of those that are left (None: all), of which there is one at least; no lowest above ``least``."""
    last, first = raw.argmin(), raw.argmax()
    low, high = raw.item(last), raw.item(first)
    if remaining is not None:  # the extremes of all hosts usually are those of the remaining ones
        first_remaining = remaining.argmax()  # the first that is left; many hosts often weigh alike
        if not remaining[first] and raw[first_remaining] != high:
            remaining_raw = np.where(remaining, raw, -np.inf)
            high = remaining_raw.item(remaining_raw.argmax())
        if (least is None or low < least) and not remaining[last] and raw[first_remaining] != low:
            remaining_raw = np.where(remaining, raw, np.inf)
            low = remaining_raw.item(remaining_raw.argmin())
    return (least if least is not None and low > least else low), high


def add_scaled(total: Floats | None, raw: Floats, low: float, factor: Floats | float) -> Floats:
    """``(raw - low) * factor``, added to ``total`` in place where there is one."""
    added: Floats = raw - low if low else raw * factor
    if low:
        added *= factor
    return added if total is None else np.add(total, added, out=total)


def in_order(scores: Floats, count: int) -> Ints:
    """Positions of the ``count`` best, or of all where there are fewer, best first, equals as they come."""
    if scores.size <= count + FULL_SORT_LIMIT:
        return _descending_order(scores)[:count]
    tops = scores.copy()
    tops.partition(-count)
    few = (scores >= tops.item(-count)).nonzero()[0]
    return few[_descending_order(scores[few])[:count]]


def order_best(rows: Ints, scores: Floats, count: int) -> tuple[Ints, Floats]:
    """The ``count`` best of these rows, or all where there are fewer, best first, with their scores; equals as they come."""
    order = in_order(scores, count)
    return rows[order], scores[order]


def _descending_order(scores: Floats) -> Ints:
    """A sort that keeps equals in order takes three times as long, so for many scores it is left to where there are any."""
    behind = -scores
    if behind.size <= FULL_SORT_LIMIT:
        return behind.argsort(kind="stable")
    order = behind.argsort()
    falling = behind[order]
    return behind.argsort(kind="stable") if tally(falling[1:] == falling[:-1]) else order
