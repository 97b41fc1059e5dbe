"""Rows by the names of their hosts, with an index of their own for names that are asked for again and again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, repeat

import numpy as np

from scheduler.table.arrays import Ints

RECENT_NAMES = 16384
"""Names that are remembered at most."""


def lowered(names: Sequence[str]) -> Sequence[str]:
    """These names in lower case. Most are already, and to see that takes an eighth of the time."""
    return names if "".join(names).islower() else list(map(str.lower, names))


class NamedRows:
    """The rows of hosts by name in lower case.

    Every new member of a group asks for the hosts of all other members. In the index of a large fleet each look-up waits for
    memory; the names that were asked for lately stay together in a small one.
    """

    def __init__(self, index: Mapping[str, Sequence[int]]) -> None:
        self._index = index
        self._recent: dict[str, int] = {}  # of hosts with one row

    def of(self, hosts: Collection[str]) -> tuple[Ints, Ints]:
        """The rows of these hosts, none for one that is unknown, and for each row the position of its host."""
        rows = np.fromiter(map(self._recent.get, hosts, repeat(-1)), np.int64, len(hosts))
        if rows.size and rows.item(rows.argmin()) < 0:
            return self._looked_up(hosts)
        return rows, np.arange(rows.size)

    def _looked_up(self, hosts: Collection[str]) -> tuple[Ints, Ints]:
        found = list(map(self._index.get, hosts, repeat(())))
        if len(self._recent) + len(found) > RECENT_NAMES:
            self._recent.clear()
        self._recent.update((host, rows[0]) for host, rows in zip(hosts, found, strict=True) if len(rows) == 1)
        counts = np.fromiter(map(len, found), np.int64, len(found))
        return np.fromiter(chain.from_iterable(found), np.int64), np.repeat(np.arange(len(found)), counts)

    def changed(self) -> None:
        """The index has changed."""
        self._recent.clear()
