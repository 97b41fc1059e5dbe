"""The best of many scores, without putting all of them in order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler.table.arrays import Floats, Ints, Mask, tally

BLOCKS = 1024
"""Blocks that scores are divided into: every 1024th is of the same one."""
WHOLE = 1536
"""So few scores are not divided: that takes longer than to look at all of them."""


class Leaders(NamedTuple):
    """Positions, as they come, of all scores that are at least ``least``, and of some that are a little less."""

    positions: Ints
    least: float


def leading(scores: Floats, left: Mask | None, count: int, slack: float) -> Leaders:
    """The ``count`` best of those ``left`` (None: all), and all that are at most ``slack`` worse than the last of them.

    There may be more of them. The best of each block are looked at first: the ``count``-th best of these is no better than the
    ``count``-th best of all. Those that are not left stand among them, so that it may take another look, further down.
    """
    if scores.size > max(2 * count, WHOLE):
        tops = _best_of_blocks(scores)
        enough = count if left is None else count * 5 // 4  # most hosts are left, as a rule
        while enough < tops.size:
            tops.partition(-enough)
            least = tops.item(-enough)
            ahead = scores >= least - slack
            if left is None:
                return Leaders(ahead.nonzero()[0], least)
            ahead &= left
            found: Ints = ahead.nonzero()[0]
            if tally(scores[found] >= least) >= count:
                return Leaders(found, least)
            enough *= 2
    return Leaders(np.arange(scores.size) if left is None else left.nonzero()[0], -np.inf)


def _best_of_blocks(scores: Floats) -> Floats:
    """The best of each block, to be put in any order; those behind the last full row of blocks are blocks of their own."""
    size = scores.size // BLOCKS
    if size < 2:
        return scores.copy()
    full = size * BLOCKS
    return np.concatenate((scores[:full].reshape(size, BLOCKS).max(axis=0), scores[full:]))
