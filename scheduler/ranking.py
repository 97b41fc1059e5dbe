"""The best of many scores, without putting all of them in order."""

from __future__ import annotations

import numpy as np

from scheduler.arrays import Floats, Ints, Mask

BLOCKS = 1024
"""Blocks that scores are divided into: every 1024th is of the same one."""


def leading(scores: Floats, left: Mask | None, count: int, slack: float) -> Ints:
    """Positions, in order, of the ``count`` best of those ``left`` (None: all), and of all at most ``slack`` worse than the last.

    There may be more of them. The best of each block are looked at first: the ``count``-th best of these is no better than the
    ``count``-th best of all. Those that are not left stand among them, so that it may take another look, further down.
    """
    if scores.size > 2 * count:
        tops = _best_of_blocks(scores)
        enough = count if left is None else count * 5 // 4  # most hosts are left, as a rule
        while enough < tops.size:
            least = np.partition(tops, -enough)[-enough]
            found: Ints = (scores >= least - slack).nonzero()[0]
            if left is None:
                return found
            found = found[left[found]]
            if np.count_nonzero(scores[found] >= least) >= count:
                return found
            enough *= 2
    return np.arange(scores.size) if left is None else left.nonzero()[0]


def descending(scores: Floats) -> Ints:
    """Positions in the order of their scores, best first, equals as they come.

    A sort that keeps equals in order takes four times as long, so it is left to where there are any.
    """
    order: Ints = np.argsort(-scores)
    sorted_scores = scores[order]
    if np.count_nonzero(sorted_scores[1:] == sorted_scores[:-1]):
        order = np.argsort(-scores, kind="stable")
    return order


def _best_of_blocks(scores: Floats) -> Floats:
    """The best of each block; those behind the last full row of blocks are blocks of their own."""
    size = scores.size // BLOCKS
    if size < 2:
        return scores
    full = size * BLOCKS
    return np.concatenate((scores[:full].reshape(size, BLOCKS).max(axis=0), scores[full:]))
