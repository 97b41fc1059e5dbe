"""Hosts are mapped by the conductor that hears of them, and by one that starts; never taken from another cell."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cells.administration import delete_cell
from cells.registry import CellRegistry
from conductor.keep import CellKeeper
from db import host_mappings
from db.claims import Ledger
from tests.support.cell_databases import Cells


@pytest.fixture
def cells(tmp_path: Path) -> Cells:
    cells = Cells(tmp_path)
    cells.add("east")
    cells.add("west")
    return cells


@pytest.fixture
def registry(cells: Cells) -> Iterator[CellRegistry]:
    with cells.registry() as registry:
        yield registry


def keeper(cells: Cells, registry: CellRegistry, name: str, *, map_hosts: bool = True) -> CellKeeper:
    cell = next(cell for cell in registry.cells() if cell.name == name)
    return CellKeeper(cells.api, Ledger(cells.api, name), registry, cell, 3600.0, map_hosts=map_hosts)


def mapped(cells: Cells, registry: CellRegistry) -> dict[str, str]:
    names = {cell.uuid: cell.name for cell in registry.cells()}
    return {mapping.host: names[mapping.cell_uuid] for mapping in cells.api.read(host_mappings.list_all)}


def test_hosts_are_mapped_when_they_report_and_when_a_conductor_starts(cells: Cells, registry: CellRegistry) -> None:
    cells.report("east", "before")
    first = keeper(cells, registry, "east")
    first.keep()
    assert mapped(cells, registry) == {"before": "east"}
    cells.report("east", "later")
    first.keep()
    assert mapped(cells, registry) == {"before": "east", "later": "east"}
    cells.report("east", "missed")
    keeper(cells, registry, "east", map_hosts=False).keep()  # reads the events, as one that is killed before it maps could
    keeper(cells, registry, "east").keep()
    assert set(mapped(cells, registry)) == {"before", "later", "missed"}


def test_by_command_only_where_that_is_wanted(cells: Cells, registry: CellRegistry) -> None:
    cells.report("east", "e1")
    keeper(cells, registry, "east", map_hosts=False).keep()
    assert mapped(cells, registry) == {}


def test_a_cell_that_was_removed_gets_no_hosts(cells: Cells, registry: CellRegistry) -> None:
    """A conductor that has not heard of it yet reads the cell's hosts once more."""
    cells.report("east", "e1")
    first, second = keeper(cells, registry, "east"), keeper(cells, registry, "east")
    first.keep()
    delete_cell(cells.api, "east", with_hosts=True)
    cells.report("east", "e2")
    first.keep()
    second.keep()
    assert cells.api.read(host_mappings.list_all) == []


def test_the_first_cell_keeps_a_name_and_the_other_is_complained_of(
    cells: Cells, registry: CellRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    east, west = keeper(cells, registry, "east"), keeper(cells, registry, "west")
    cells.report("east", "twin")
    east.keep()
    cells.report("west", "twin", "w1")
    with caplog.at_level(logging.ERROR):
        for guests in range(3):
            cells.report("west", "twin", guests=guests, at=time.time())
            west.keep()
    assert mapped(cells, registry) == {"twin": "east", "w1": "west"}
    [complaint] = [record.getMessage() for record in caplog.records if record.name == "conductor.newcomers"]
    assert complaint.startswith("cell west: hosts report there that are mapped to other cells: twin")
