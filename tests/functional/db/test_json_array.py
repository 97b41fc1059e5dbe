"""Columns that a server sends as one text each: exact, whole, and empty where there are no rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sqlalchemy as sa

from db.api.claims import claims
from db.api.deployment import host_mappings
from db.api.rows.tables import inventories
from db.sql import dialect
from db.sql.engine import Database
from objects.cell import HostMapping
from tests.support.databases import database_fixture
from tests.support.fleet import CELLS

AMOUNTS = [0.1, 1 / 3, 35.2, 109.99999999999999, 110.00000000000001, 2.0**53 - 1, 0.0]


made = database_fixture()


@pytest.fixture
def database(made: Database) -> Database:
    made.write(lambda tx: tx.execute(sa.delete(inventories)))
    return made


def insert(database: Database, capacities: Sequence[float], *, custom: str | None = None) -> None:
    rows = [
        {"host": f"h{n}", "node": f"h{n}", "cell_uuid": CELLS[0], "cap_vcpus": each, "cap_memory_mb": 2 * each, "cap_disk_gb": 1.0}
        for n, each in enumerate(capacities)
    ]
    database.write(lambda tx: tx.execute(sa.insert(inventories), [row | {"cap_resources": custom} for row in rows]))


def test_floating_point_numbers_are_exact(database: Database) -> None:
    insert(database, AMOUNTS)
    page = database.read(claims.read_after, 0)
    assert dict(zip(page.host, page.cap_vcpus, strict=True)) == {f"h{n}": each for n, each in enumerate(AMOUNTS)}
    assert sorted(page.cap_memory_mb) == sorted(2 * each for each in AMOUNTS)


def test_an_empty_ledger_is_an_empty_page(database: Database) -> None:
    page = database.read(claims.read_after, 0)
    assert (page.id, page.host, page.cap_vcpus, page.resources) == ([], [], [], {})


def test_a_page_of_the_longest_names_is_whole(database: Database) -> None:
    """MariaDB cuts off what is longer than a MiB."""
    names = [f"{n:04}" + "\N{GRINNING FACE}" * 251 for n in range(dialect.JSON_ARRAY_SIZE)]
    database.write(host_mappings.add_mappings, [HostMapping(host=name, cell_uuid=CELLS[0]) for name in names], 0.0)
    assert database.read(host_mappings.cell_uuid_by_host) == dict.fromkeys(names, CELLS[0])


@pytest.mark.parametrize(("custom", "capacity"), [('{"CUSTOM_GPU":4}', 8.0), ("nonsense", 0.0)])
def test_custom_amounts_come_with_their_page(database: Database, custom: str, capacity: float) -> None:
    """A host with unreadable ones has no capacity, as in the log."""
    insert(database, [8.0], custom=custom)
    page = database.read(claims.read_after, 0)
    [known] = database.read(claims.read_all)
    assert (page.cap_vcpus, page.cap_memory_mb) == ([capacity], [2 * capacity])
    assert (page.cap_vcpus[0], page.resources[page.id[0]]) == (known.cap_vcpus, (known.cap_resources, {}))
