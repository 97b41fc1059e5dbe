"""Cells that have never answered a scheduler: what the ledger knows of them keeps a request waiting, or does not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from objects import errors
from objects.cell import CellState
from objects.spec import RequestSpec
from scheduler.claim.claim_planner import ClaimPlanner
from scheduler.claim.cursor import Cursor
from scheduler.claim.refusals import OUTAGE_WAIT_S, unread_cells
from scheduler.engine.job import PlanContext
from scheduler.table.host_table import HostTable
from tests.support import fleet
from tests.support.attempts import begun, job

NEVER: Mapping[str, float | None] = {"cell1": 0.1, "cell2": None}


def half_heard(*, states: tuple[CellState, ...] = ()) -> HostTable:
    """h0 of cell1 is full; of h1 in cell2, which is in zone north, only the ledger knows: 2 of its 16 vCPUs are free."""
    nodes = [fleet.node("h0"), fleet.node("h1")]
    table = HostTable()
    homes = {node.host: cell for node, cell in zip(nodes, fleet.CELLS, strict=False)}
    table.set_topology(fleet.cells(*states), homes, {"h1": "north"})
    for key, (node, used) in enumerate(zip(nodes, (16, 14), strict=True), start=1):
        table.set_inventory(fleet.inventory(key, node, homes[node.host], used_vcpus=used), now=0.0)
    fleet.tell_cells(table, nodes[:1], homes)
    return table


def found(table: HostTable, asked: RequestSpec, ages: Mapping[str, float | None] = NEVER, **changes: Any) -> set[str]:
    return unread_cells(table, fleet.request(asked, table, **changes), ages)


def test_a_cell_without_answers_counts_by_its_ledger() -> None:
    table = half_heard()
    assert found(table, fleet.spec(fleet.flavor(vcpus=2))) == {"cell2"}
    assert found(table, fleet.spec(fleet.flavor(vcpus=3))) == set(), "it has no room"
    assert found(table, fleet.spec(), {"cell1": 0.1, "cell2": 900.0}) == set(), "it has answered, and has no such host"
    assert found(table, fleet.spec(), {"cell1": None, "cell2": 0.1}) == set(), "its hosts are known"


def test_only_where_the_request_may_go() -> None:
    table = half_heard()
    assert found(table, fleet.spec(availability_zone="north")) == {"cell2"}
    assert found(table, fleet.spec(availability_zone="nova")) == set()
    assert found(table, fleet.spec(force_hosts=("h1",))) == {"cell2"}
    assert found(table, fleet.spec(force_hosts=("h0",))) == set()
    assert found(table, fleet.spec(), excluded_cells=frozenset({table.cell_number(fleet.CELLS[1])})) == set()
    assert found(table, fleet.spec(), only_cell=table.cell_number(fleet.CELLS[0])) == set()
    assert found(half_heard(states=(CellState.ENABLED, CellState.DISABLED)), fleet.spec()) == set()


@pytest.mark.parametrize(("age", "waits"), [(60.0, True), (OUTAGE_WAIT_S + 1.0, False)])
def test_a_request_waits_for_it_for_a_time(age: float, waits: bool) -> None:
    one, table, now = job(fleet.spec()), half_heard(), time.monotonic()
    moment = PlanContext(now, time.time(), now - 60.0, young=False, mapped_since=now, ages=NEVER, began=now - age)
    made = ClaimPlanner(table, fleet.driver(), Cursor(), [one], moment)
    begun(made, [one])
    made.finish_plan()
    with pytest.raises(errors.CellUnavailable if waits else errors.NoValidHost, match="cell cell2" if waits else "0 were left by"):
        one.selections_or_raise()
