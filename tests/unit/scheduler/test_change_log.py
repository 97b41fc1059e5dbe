"""The table knows which rows have changed since some count of changes, as far back as its log reaches."""

from __future__ import annotations

import random

import numpy as np
import pytest

from scheduler.table import columns
from scheduler.table.columns import Columns

KEPT = 50


@pytest.mark.parametrize("seed", range(5))
def test_rows_since_are_those_that_were_touched(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CHANGES_KEPT", KEPT)
    chance, table, touched = random.Random(seed), Columns(), list[int]()
    for _ in range(40):
        table.append_row()
    for _ in range(200):
        rows = [chance.randrange(40) for _ in range(chance.choice((0, 1, 7, 30, 70)))]
        if len(rows) == 1:
            table.note_changed(rows[0])
        else:
            table.note_changed(np.array(rows, np.int64))
        touched += rows
        assert table.change_count == len(touched)
        back = chance.randrange(KEPT + 20)
        since = max(len(touched) - back, 0)
        expected = set(touched[since:])
        found = table.rows_since(since, most=20)
        if len(touched) - since > KEPT:
            assert found is None
            assert table.changed_since(since) == range(40)
        else:
            assert table.changed_since(since) == expected
            assert found is None if len(expected) > 20 else found is not None and found.tolist() == sorted(expected)
