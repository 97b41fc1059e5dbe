"""The three kinds of column the host table is made of, and the small hash that breaks ties."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_WORD = (1 << 64) - 1
_ODD = np.uint64(0xBF58476D1CE4E5B9)  # the first multiplier of splitmix64 (Steele, Lea, Flood: OOPSLA 2014)


def word_of(text: str) -> int:
    """63 bits that depend on every character of ``text``: the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def mixed(number: int) -> int:
    """splitmix64 of ``number``: neighbours in, unrelated 64-bit words out."""
    word = (number * 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def noise(salts: Words, seed: int) -> Floats:
    """A number in [0, 1) per salt, another set for every seed. It depends on nothing else, so a decision can be replayed."""
    words = (salts ^ np.uint64(mixed(seed))) * _ODD
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
