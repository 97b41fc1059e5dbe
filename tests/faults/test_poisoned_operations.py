"""An operation or a task whose row has values that no code of ours writes: operations of other servers go on beside it.

The operation is set aside and shown as a dead letter, and its server can be deleted as a whole.
"""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from db import dead_letters
from db.api.rows.tables import operations as table
from db.cell.tables import tasks
from objects.flavor import Flavor
from objects.instance import State
from objects.operation import OperationKind, OperationState, Outcome
from objects.task import Power
from service.periodic import wait_until
from tests.support.ground import USUAL
from tests.support.move_drive import boot, server
from tests.support.odd_rows import TURNS, Names, odd
from tests.support.world import PATIENCE, World, world_fixture

LARGE = Flavor(flavor_id="large", name="large", vcpus=2, memory_mb=1024, root_gb=1)


cloud = world_fixture({"cell1": ["a1", "a2"]}, USUAL, embedded=True, prepare=World.start_cells_and_agents)


def letters(cloud: World) -> set[str]:
    """The operations that were set aside."""
    return {each.key for each in cloud.api.read(dead_letters.list_all, "api") if each.step == "operate"}


def works(cloud: World, uuid: str) -> None:
    """Operations on this server come to their end."""
    for kind in (OperationKind.STOP, OperationKind.START, OperationKind.MIGRATE):
        found = cloud.ended(cloud.operate(uuid, kind))
        assert found.outcome is Outcome.DONE, found


@pytest.mark.parametrize("turn", TURNS)
def test_neighbours_of_an_odd_operation_go_on(cloud: World, turn: int) -> None:
    bad, good = boot(cloud), boot(cloud)
    cloud.start_conductor()
    resize = cloud.operate(bad, OperationKind.RESIZE, flavor=LARGE)
    assert cloud.ended(resize).state is OperationState.VERIFY
    with odd(cloud.api, table, Names(resize.uuid, "-", "-", "-"), turn, cloud.api.dialect):
        works(cloud, good)
        assert letters(cloud) == {resize.uuid}
        assert server(cloud, bad).state == "active"
    assert cloud.delete(bad) is not None
    assert wait_until(lambda: not cloud.evidence().operations, PATIENCE)
    cloud.settle()


@pytest.mark.parametrize("column", ["kind", "state", "power_before"])
def test_a_server_with_an_unreadable_operation_is_deleted(cloud: World, column: str) -> None:
    uuid = boot(cloud)
    cloud.start_conductor()
    resize = cloud.operate(uuid, OperationKind.RESIZE, flavor=LARGE)
    assert cloud.ended(resize).state is OperationState.VERIFY
    cloud.api.write(lambda tx: tx.execute(sa.update(table).values({table.c[column]: "odd"})))
    assert cloud.delete(uuid) is not None
    evidence = cloud.settle()
    assert {row.instance.state for row in evidence.rows} == {State.DELETED}
    assert (evidence.claims, evidence.operations, evidence.drifts) == ({}, (), ())


def test_an_operation_that_is_readable_again_goes_on(cloud: World) -> None:
    uuid = boot(cloud)
    stop = cloud.operate(uuid, OperationKind.STOP)
    spoil = sa.update(table).values(state=sa.bindparam("to"))
    cloud.api.write(lambda tx: tx.execute(spoil, {"to": "odd"}))
    conductor = cloud.conductor("one")
    conductor.operator.run_round()
    assert letters(cloud) == {stop.uuid}
    cloud.api.write(lambda tx: tx.execute(spoil, {"to": OperationState.TASK}))
    cloud.start_conductor()
    assert cloud.ended(stop).outcome is Outcome.DONE
    assert server(cloud, uuid).power is Power.OFF


@pytest.mark.parametrize("turn", TURNS)
def test_an_odd_task_ends_while_neighbours_go_on(cloud: World, turn: int) -> None:
    """Its host gets no order that can be read: at the deadline what was before is written over it."""
    bad, good = boot(cloud), boot(cloud)
    driver = cloud.agents["cell1"].block_driver("a1")
    cloud.start_conductor()
    stop = cloud.operate(bad, OperationKind.STOP, timeout=6.0)
    assert wait_until(lambda: cloud.row(bad).power is Power.OFF, PATIENCE)
    with odd(cloud.databases["cell1"], tasks, Names(bad, "-", "-", "-"), turn, cloud.api.dialect):
        driver.gate.set()
        works(cloud, good)
    assert cloud.ended(stop).outcome in (Outcome.DONE, Outcome.GIVEN_UP)
    cloud.settle()
