"""The kinds of column the host table is made of, and the small hash that breaks ties."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

try:  # np.count_nonzero reaches it through two Python calls, ten times in every decision
    from numpy._core.multiarray import count_nonzero as _count
except ImportError:  # NumPy does not promise this private name
    _count = np.count_nonzero

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

tally: Callable[[Mask], np.intp] = _count
"""Counts the true elements; returns a NumPy number."""

_WORD = (1 << 64) - 1


def word_of(text: str) -> int:
    """63 bits that depend on every character of ``text``: the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def mix_bits(number: int) -> int:
    """splitmix64 of ``number``: neighbours in, unrelated 64-bit words out."""
    word = (number * 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def all_mixed(numbers: Ints) -> Words:
    """``mix_bits`` of each of these, which are not negative."""
    word = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def divide_by(amounts: Floats, by: int) -> Floats:
    """Each of them divided by this number, as a new array. By a power of two, the product with its inverse is the same number, and
    takes half the time."""
    quotients: Floats = amounts / by if by & (by - 1) else amounts * (1.0 / by)
    return quotients


def attribute_column(records: Sequence[object], name: str, kind: Any = np.float64) -> npt.NDArray[Any]:
    """This attribute of all records, as an array of ``kind``."""
    return np.fromiter(map(attrgetter(name), records), kind, len(records))
