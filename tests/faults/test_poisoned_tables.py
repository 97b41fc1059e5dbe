"""Rows of every table with values that no code of ours writes: servers beside them are built and deleted as if nothing were."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sqlalchemy as sa

from db.api.rows import tables as api
from db.api.rows.tables import instance_mappings as mapped
from db.cell import tables as cell
from objects.spec import RequestSpec
from service.periodic import wait_until
from tests.support.ground import USUAL
from tests.support.odd_rows import OF_ALL_SERVERS, TURNS, Names, odd, tables
from tests.support.world import World, world_fixture

pytestmark = pytest.mark.one_in(4)

CELL, OTHER = "cell1", "cell2"
PATIENCE = 90.0
"""Seconds in which a server is built beside an odd row."""


cloud = world_fixture({CELL: ["a1", "a2"], OTHER: ["b1"]}, USUAL, embedded=True, prepare=World.start)


def states(cloud: World, spec: RequestSpec) -> dict[str, str]:
    """Of a batch's servers, read as they are stored."""
    asked = sa.select(mapped.c.instance_uuid, mapped.c.state).where(mapped.c.batch_id == spec.batch_id)
    return {row.instance_uuid: row.state for row in cloud.api.read(lambda tx: tx.execute(asked).all())}


def become(cloud: World, specs: Sequence[RequestSpec], state: str) -> None:
    def are() -> bool:
        return all(set(states(cloud, spec).values()) == {state} for spec in specs)

    assert wait_until(are, PATIENCE), [states(cloud, spec) for spec in specs]


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("name", tables())
def test_neighbours_of_odd_rows_are_built_and_deleted(cloud: World, name: str, turn: int) -> None:
    table = tables()[name]
    database = cloud.api if name.startswith("api-") else cloud.databases[CELL]
    bad = cloud.accept(force_hosts=("a1",), project_id="odd")
    become(cloud, [bad], "active")
    [uuid] = states(cloud, bad)
    with odd(database, table, Names(uuid, bad.batch_id, "odd", "a1"), turn, cloud.api.dialect):
        neighbours = [cloud.accept(force_hosts=(host,)) for host in ("a2", "b1")] + [cloud.accept(2)]
        become(cloud, neighbours, "active")
        for neighbour in (neighbour for spec in neighbours for neighbour in states(cloud, spec)):
            cloud.delete(neighbour)
        become(cloud, neighbours, "deleted")


def test_tables_that_are_left_out_exist() -> None:
    assert set(OF_ALL_SERVERS) <= {*api.metadata.tables, *cell.metadata.tables}
