"""Attributes of hosts, each distinct value kept once."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler.table.dictionary_column import UNUSED_VALUES_LIMIT, DictionaryColumn
from tests.support.examples import examples

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(0, 2), st.sampled_from(["1", "a"]), st.lists(st.integers(0, 1), max_size=2)
)


@given(st.lists(st.tuples(st.integers(0, 200), VALUES), max_size=40))
@examples(100)
def test_a_column_returns_the_last_value_of_rows(puts: list[tuple[int, Any]]) -> None:
    facet, expected = DictionaryColumn(), dict.fromkeys(range(201))
    for row, value in puts:
        facet.put_values(np.array([row]), [value])
        expected[row] = value
    told = [facet.values[code] for code in facet.codes_of_rows(201)]
    assert [(type(value), value) for value in told] == [(type(value), value) for value in expected.values()]


def test_changing_values_do_not_pile_up() -> None:
    facet = DictionaryColumn()
    for n in range(10_000):
        facet.put_values(np.array([n % 5]), [n])
    assert len(facet.values) <= 64 + UNUSED_VALUES_LIMIT + 1
    assert [facet.values[code] for code in facet.codes_of_rows(5)] == [9995, 9996, 9997, 9998, 9999]
