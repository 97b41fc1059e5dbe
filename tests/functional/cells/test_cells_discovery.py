"""Hosts that have reported in their cells are mapped, once, and conflicts are left to people."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cells.discovery import Discovery, HostConflict, discover_hosts
from cells.registry import CellRegistry
from db.api.deployment import host_mappings
from db.api.rows import epochs
from objects.cell import HostMapping
from tests.support.cell_databases import Cells, cells_on, closed_port
from tests.support.ground import USUAL


@pytest.fixture(params=USUAL)
def cells(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cells]:
    with cells_on(request.param, tmp_path) as made:
        made.add("cell0", cell0=True)
        yield made


def _mapped(cells: Cells) -> dict[str, str]:
    return {m.host: m.cell_uuid for m in cells.api.read(host_mappings.list_all)}


def test_new_hosts_are_mapped_to_their_reporting_cell(cells: Cells, registry: CellRegistry) -> None:
    east, west = cells.add("east"), cells.add("west")
    cells.report("east", "e1", "e2")
    cells.report("west", "w1")
    found = discover_hosts(registry, cells.api)
    assert _mapped(cells) == {"e1": east.uuid, "e2": east.uuid, "w1": west.uuid}
    assert {m.host for m in found.mapped} == {"e1", "e2", "w1"}
    assert (found.conflicts, found.unreachable, found.hosts) == ((), (), 3)
    assert registry.of_host("w1").name == "west"


def test_only_agents_make_hosts(cells: Cells, registry: CellRegistry) -> None:
    cells.add("east")
    cells.report("east", "controller", binary="superconductor-conductor")
    assert discover_hosts(registry, cells.api) == Discovery()
    assert _mapped(cells) == {}


def test_a_second_run_only_adds_new_hosts(cells: Cells, registry: CellRegistry) -> None:
    cells.add("east")
    cells.report("east", "e1")
    discover_hosts(registry, cells.api)
    before = cells.api.read(epochs.read)
    assert discover_hosts(registry, cells.api).mapped == ()
    assert cells.api.read(epochs.read) == before, "nothing that caches hosts has to load them again"
    cells.report("east", "e2")
    assert [m.host for m in discover_hosts(registry, cells.api).mapped] == ["e2"]


def test_a_mapped_host_in_another_cell_stays_mapped(cells: Cells, registry: CellRegistry) -> None:
    east = cells.add("east")
    cells.add("west")
    cells.report("east", "twin")
    discover_hosts(registry, cells.api)
    cells.report("west", "twin", "w1")
    found = discover_hosts(registry, cells.api)
    assert found.conflicts == (HostConflict(host="twin", seen_in=("east", "west"), mapped_to="east"),)
    assert str(found.conflicts[0]).startswith("Host 'twin' reports in cell 'east' and 'west' and stays mapped to cell 'east'")
    assert _mapped(cells)["twin"] == east.uuid
    assert [m.host for m in found.mapped] == ["w1"], "the others are mapped all the same"


def test_a_host_that_changed_cells_is_not_moved(cells: Cells, registry: CellRegistry) -> None:
    east, _ = cells.add("east"), cells.add("west")
    cells.api.write(host_mappings.add_mappings, [HostMapping(host="moved", cell_uuid=east.uuid)], 0.0)
    cells.report("west", "moved")
    assert discover_hosts(registry, cells.api).conflicts == (HostConflict(host="moved", seen_in=("west",), mapped_to="east"),)
    assert _mapped(cells) == {"moved": east.uuid}


def test_a_new_name_in_two_cells_stays_unmapped(cells: Cells, registry: CellRegistry) -> None:
    cells.add("east")
    cells.add("west")
    cells.report("east", "twin")
    cells.report("west", "twin")
    found = discover_hosts(registry, cells.api)
    assert found.conflicts == (HostConflict(host="twin", seen_in=("east", "west"), mapped_to=None),)
    assert found.mapped == ()
    assert _mapped(cells) == {}


def test_unreachable_cells_are_told_and_the_others_done(cells: Cells, registry: CellRegistry) -> None:
    cells.add("east")
    cells.report("east", "e1")
    cells.add_unreachable("gone", f"sqlite:///{cells.folder}/gone.db")
    cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    found = discover_hosts(registry, cells.api)
    assert [m.host for m in found.mapped] == ["e1"]
    assert [cell.cell for cell in found.unreachable] == ["dead", "gone"]
    assert "secret" not in str(found)


def test_many_runs_at_once_map_every_host_once(cells: Cells, registry: CellRegistry) -> None:
    names = [f"h{number}" for number in range(50)]
    east = cells.add("east")
    cells.report("east", *names)
    results: list[Discovery] = []
    barrier = threading.Barrier(6)

    def run() -> None:
        barrier.wait(10)
        results.append(discover_hosts(registry, cells.api))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 6
    assert all(result.conflicts == () for result in results)
    assert _mapped(cells) == dict.fromkeys(names, east.uuid)
