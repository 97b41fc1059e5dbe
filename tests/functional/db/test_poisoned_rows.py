"""One bad row costs itself only, whichever table and column it is in: lists, boots and sweeps of others go on.

Every table is covered by its metadata. A new one fails here until ``tests/support/poisoned_rows.py`` puts rows into it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from tests.support.poisoned_rows import TABLES, Deployment, rounds

LEFT_OUT = {
    "api.certification": "its only row is the whole database's",
    "api.epochs": "its rows are all processes'",
    "api.finalized": "its only row is the whole deployment's",
    "api.incarnation": "its only row is the whole database's",
    "cell.certification": "its only row is the whole cell's",
    "cell.feed_head": "its only row is the whole cell's",
    "cell.incarnation_seen": "its only row is the whole cell's",
}
"""Tables without a row that is one thing's among others."""
TURNS = range(9) if os.environ.get("TEST_MATRIX") == "all" else range(1)
"""Which values each column gets. The first is of another type than the column."""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("deployment"))
    made.fill_all()
    yield made
    made.close()


@pytest.mark.parametrize("name", sorted(TABLES.keys() - LEFT_OUT))
def test_a_bad_row_costs_itself_only(deployment: Deployment, name: str, caplog: pytest.LogCaptureFixture) -> None:
    _, table = TABLES[name]
    done: set[str] = set()
    for turn in TURNS:
        for columns in rounds(table, turn):
            caplog.clear()
            with caplog.at_level(logging.ERROR), deployment.spoiled(name, columns, turn) as bad:
                done |= {each.column for each in bad}
                assert deployment.faults(name) == [], bad
            for record in caplog.records:
                text = record.getMessage()
                if record.name == "db.sql.readable" and text.startswith(f"{table.name} "):
                    assert any(f"column {each.column} " in text for each in bad), (text, bad)
    assert done == {column.name for column in table.columns}
