"""Rows by the names of their hosts, with an index of their own for names that are asked for again and again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from scheduler.table.arrays import Ints

RECENT_NAMES = 16384
"""Names that are remembered at most."""
RECENT_TEXTS = 256
"""Texts of names that are remembered at most."""


def lower_names(names: Sequence[str]) -> Sequence[str]:
    """These names in lower case. Most are already, and to see that takes an eighth of the time."""
    return names if "".join(names).islower() else list(map(str.lower, names))


_NO_ROWS: Ints = np.zeros(0, np.int64)
_UNKNOWN = (-1,)


class _Text(NamedTuple):
    """Names in lower case, each with an end of line, and their rows."""

    lines: str
    rows: Ints


class NamedRows:
    """The rows of hosts by name in lower case.

    Every new member of a group asks for the hosts of all other members. In the index of a large fleet each look-up waits for
    memory; the names that were asked for lately stay together in a small one.
    """

    def __init__(self, index: Mapping[str, Sequence[int]], hosts: Sequence[str] = ()) -> None:
        """``hosts``: the names of rows."""
        self._index = index
        self.hosts = hosts
        self._recent: dict[str, int] = {}  # of hosts with one row
        self._texts: OrderedDict[Hashable, _Text] = OrderedDict()  # the latest last

    def rows_and_positions(self, hosts: Collection[str]) -> tuple[Ints, Ints]:
        """The rows of these hosts, none for one that is unknown, and for each row the position of its host."""
        rows = np.fromiter(map(self._recent.get, hosts, repeat(-1)), np.int64, len(hosts))
        if rows.size and rows.item(rows.argmin()) < 0:
            return self._looked_up(hosts)
        return rows, np.arange(rows.size)

    def _looked_up(self, hosts: Collection[str]) -> tuple[Ints, Ints]:
        rows_by_host = list(map(self._index.get, hosts, repeat(())))
        if len(self._recent) + len(rows_by_host) > RECENT_NAMES:
            self._recent.clear()
        self._recent.update((host, rows[0]) for host, rows in zip(hosts, rows_by_host, strict=True) if len(rows) == 1)
        counts = np.fromiter(map(len, rows_by_host), np.int64, len(rows_by_host))
        return np.fromiter(chain.from_iterable(rows_by_host), np.int64), np.repeat(np.arange(len(rows_by_host)), counts)

    def of_text(self, key: Hashable, text: str) -> Ints | None:
        """The row of each host in a text of their names, a line each; -1 for one that is unknown. None if one has several rows.

        ``key``: of what the text was another one before. Only names that have come since are looked up.
        """
        if not text:
            return _NO_ROWS
        lines = text.lower() + "\n"
        before = self._texts.pop(key, None)
        if before is None or before.lines != lines:
            first, last = (0, 0) if before is None else _common_ends(before.lines, lines)
            middle = self._rows_of_each(lines[first : len(lines) - last].split("\n")[:-1])
            if middle is None:
                return None
            if before is not None:
                start, end = lines.count("\n", 0, first), lines.count("\n", len(lines) - last)
                middle = np.concatenate((before.rows[:start], middle, before.rows[before.rows.size - end :]))
            before = _Text(lines, middle)
        self._texts[key] = before
        if len(self._texts) > RECENT_TEXTS:
            self._texts.popitem(last=False)
        return before.rows

    def _rows_of_each(self, names: Sequence[str]) -> Ints | None:
        rows = np.fromiter(map(self._recent.get, names, repeat(-1)), np.int64, len(names))
        if rows.size and rows.item(rows.argmin()) < 0:
            rows_by_name = [self._index.get(name, _UNKNOWN) for name in names]
            if any(len(host_rows) > 1 for host_rows in rows_by_name):
                return None
            rows = np.array([host_rows[0] for host_rows in rows_by_name], np.int64)
        return rows

    def forget_cached(self) -> None:
        """The index has changed."""
        self._recent.clear()
        self._texts.clear()


def _common_ends(one: str, other: str) -> tuple[int, int]:
    """How much of two texts is the same at their beginnings and at their ends, in whole lines.

    ``a|b|c|d|`` and ``a|x|c|d|``: 2 and 2. It may be a line less. The two do not overlap.
    """
    first = one.rfind("\n", 0, _common_prefix_length(one, other)) + 1
    one, other = one[first:], other[first:]
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]:
            low = middle
        else:
            high = middle - 1
    begins = other.find("\n", len(other) - low) + 1 if low else 0
    return first, len(other) - begins if begins else 0


def _common_prefix_length(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginnings."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
