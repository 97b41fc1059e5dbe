"""One attribute of all hosts, each distinct value kept once: a request judges the values, and a look-up judges the hosts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from scheduler.table.arrays import Counts, Ints

UNUSED_VALUES_LIMIT = 64
"""Number of values, beyond one for each row, that may be kept although no host has them any more."""


class DictionaryColumn:
    """``values[code]`` for every row of the table; code 0, None, for hosts that do not have the attribute.

    Values are what JSON knows. A fleet has few distinct ones, however many hosts it has.
    """

    def __init__(self) -> None:
        self.values: list[Any] = [None]
        self._known: dict[object, int] = {}
        self._codes: Counts = np.zeros(64, dtype=np.int32)

    def put_values(self, rows: Ints, values: Sequence[Any]) -> None:
        """The hosts in these rows have these values; None: one lacks the attribute."""
        if len(self.values) > self._codes.size + UNUSED_VALUES_LIMIT:
            self._drop_unused()
        end = int(rows.max(initial=-1)) + 1
        if end > self._codes.size:
            self._grow_to(end)
        self._codes[rows] = [0 if value is None else self._code_of(value) for value in values]

    def value_at(self, row: int) -> Any:
        return self.values[self._codes[row]] if row < self._codes.size else None

    def codes_of_rows(self, size: int) -> Counts:
        """The codes of the first ``size`` rows."""
        if size > self._codes.size:
            self._grow_to(size)
        return self._codes[:size]

    def _code_of(self, value: Any) -> int:
        key = value if type(value) is str else _value_key(value)
        code = self._known.get(key)
        if code is None:
            code = self._known[key] = len(self.values)
            self.values.append(value)
        return code

    def _drop_unused(self) -> None:
        """Forget the values that no row has any more."""
        used = np.union1d(self._codes, [0])
        moved = {int(old): new for new, old in enumerate(used)}
        self.values = [self.values[old] for old in moved]
        self._known = {key: moved[code] for key, code in self._known.items() if code in moved}
        self._codes = np.searchsorted(used, self._codes).astype(np.int32)

    def _grow_to(self, size: int) -> None:
        grown = np.zeros(max(size, 2 * self._codes.size), dtype=np.int32)
        grown[: self._codes.size] = self._codes
        self._codes = grown


def _value_key(value: Any) -> Hashable:
    """Differs from that of every other value, and from every text."""
    return (type(value), value) if isinstance(value, (str, int, float, bool)) else msgspec.json.encode(value, order="sorted")


UNIQUE = frozenset({"host_ip"})
"""Attributes whose value differs on every host: they get no dictionary column."""


class DictionaryColumns(dict[str, DictionaryColumn]):
    """All attributes that any host has, by name."""

    def set_attributes(self, rows: Ints, attributes: Sequence[Mapping[str, Any]]) -> None:
        """These are the attributes of the hosts in these rows, and they have no others."""
        for name in sorted(set().union(*attributes).difference(self, UNIQUE)):
            if any(host_attributes.get(name) is not None for host_attributes in attributes):
                self[name] = DictionaryColumn()
        for name, facet in self.items():
            facet.put_values(rows, [host_attributes.get(name) for host_attributes in attributes])

    def attributes_at(self, row: int) -> dict[str, Any]:
        """The attributes of the host in this row."""
        values = {name: facet.value_at(row) for name, facet in self.items()}
        return {name: value for name, value in values.items() if value is not None}
