"""A host name in two cells: whoever speaks first, no server goes there until one of the two is silent."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from objects.compute_node import ComputeNode
from scheduler.engine.surveying import survey
from scheduler.table.host_table import HostTable
from tests.support import fleet
from tests.support.fleet import CELLS

HOME, OTHER = CELLS
TWIN = fleet.node("twin")


def made(*, mapped: bool = True) -> HostTable:
    table = HostTable()
    table.set_topology(fleet.cells(), {"twin": HOME} if mapped else {}, {})
    table.set_inventory(fleet.inventory(1, TWIN, HOME), now=0.0)
    return table


def says(
    table: HostTable, cell: str, node: ComputeNode | None = TWIN, heard_at: float = 100.0, *, forced_down: bool = False
) -> None:
    """A cell is read: its node, and when its agent was heard of."""
    if node is not None:
        table.set_nodes(cell, [node])
    table.set_service(cell, "twin", heard_at, disabled=False, forced_down=forced_down)


def usable(table: HostTable, since: float = 50.0, force_hosts: tuple[str, ...] = ()) -> list[str]:
    request = fleet.request(fleet.spec(force_hosts=force_hosts), table, alive_since=since)
    return [table.hosts[row] for row in survey(table, fleet.driver(), request).passing_rows]


@pytest.mark.parametrize("order", list(itertools.permutations([(HOME, 64), (OTHER, 7), (OTHER, 9)])))
def test_a_twin_is_out_while_both_report(order: tuple[tuple[str, int], ...]) -> None:
    table = made()
    for cell, vcpus_used in order:
        says(table, cell, fleet.node("twin", vcpus_used=vcpus_used))
    assert usable(table) == []
    assert usable(table, force_hosts=("twin",)) == [], "not even by force"
    says(table, HOME, heard_at=200.0)
    table.expire_name_conflicts(150.0)  # nothing was heard of the other one since
    assert usable(table, 150.0) == ["twin"]
    row = table.find_row("twin", "twin")
    assert row is not None
    assert table.cells[int(table.cell[row])].uuid == HOME
    says(table, OTHER, heard_at=201.0)
    assert usable(table, 150.0) == [], "and out again, should it return"


def stopping(table: HostTable) -> None:
    says(table, OTHER, heard_at=float("-inf"))


def called_dead(table: HostTable) -> None:
    says(table, OTHER, forced_down=True)


@pytest.mark.parametrize("end", [stopping, called_dead])
def test_a_stopped_or_dead_agent_blocks_nobody(end: Callable[[HostTable], None]) -> None:
    table = made()
    says(table, HOME)
    says(table, OTHER)
    assert usable(table) == []
    end(table)
    assert usable(table) == ["twin"]


def test_resources_of_the_other_twin_are_not_counted() -> None:
    table = made()
    says(table, HOME)
    says(table, OTHER, fleet.node("twin", vcpus_used=16, failed_builds=9.0))
    says(table, OTHER, heard_at=float("-inf"))
    row = table.find_row("twin", "twin")
    assert row is not None
    assert (table.free_vcpus[row], table.failed_builds[row]) == (16.0, 0.0)


def test_the_other_twin_proves_nothing_about_this_one() -> None:
    table = made()
    says(table, OTHER)
    table.set_nodes(HOME, [TWIN])  # of its agent nothing was heard yet
    says(table, OTHER, heard_at=float("-inf"))
    assert usable(table) == []
    says(table, HOME)
    assert usable(table) == ["twin"]


def test_a_record_of_long_silence_is_no_namesake() -> None:
    table = made()
    table.expire_name_conflicts(50.0)
    says(table, HOME)
    says(table, OTHER, heard_at=10.0)
    assert usable(table) == ["twin"]


def test_a_conflict_and_its_end_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    table = made(mapped=False)
    for _ in range(3):
        says(table, HOME)
        says(table, OTHER)
        table.expire_name_conflicts(50.0)
    assert [record.message for record in caplog.records] == [
        "host twin reports from cells cell1 and cell2: no server goes there until one agent stops or is renamed"
    ]
    table.expire_name_conflicts(150.0)
    assert caplog.records[-1].message == "host twin reports from one cell again"


def test_a_foreign_mapping_makes_its_cell_read_anew() -> None:
    table = made()
    says(table, HOME)
    says(table, OTHER, heard_at=float("-inf"))
    assert table.rehomed == set()
    table.set_topology(fleet.cells(), {"twin": OTHER}, {})
    assert table.rehomed == {OTHER}
    says(table, HOME, heard_at=float("-inf"))
    assert usable(table) == []
    says(table, OTHER)
    assert usable(table) == ["twin"]
