"""Hosts are mapped by the conductor that hears of them, and by one that starts; never taken from another cell."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cells.administration import delete_cell
from cells.registry import CellRegistry
from conductor.context import ConductorContext
from conductor.feed_follower import FeedFollower, FeedSettings
from conductor.host_mapper import HostMapper
from db.api.claims import claims
from db.api.claims.claims import Ledger
from db.api.deployment import host_mappings, host_removal
from db.api.deployment import host_removal as api_host_removal
from db.cell import host_removal as cell_host_removal
from db.cell import services
from db.cell.services import Beat
from objects import errors
from objects.cell import HostMapping
from objects.compute_node import ComputeNode
from objects.process import AGENT_BINARY, About
from tests.support.cell_databases import Cells, cells_on, closed_port
from tests.support.ground import CHOSEN, GROUNDS, on

NO_WAIT = -1.0
"""Seconds of silence that any agent has behind it."""


@pytest.fixture(params=CHOSEN)
def cells(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cells]:
    with cells_on(request.param, tmp_path) as made:
        made.add("east")
        made.add("west")
        yield made


@pytest.fixture
def registry(cells: Cells) -> Iterator[CellRegistry]:
    with cells.registry() as registry:
        yield registry


def keeper(
    cells: Cells, registry: CellRegistry, name: str, *, map_hosts: bool = True, identified_only: bool = False
) -> FeedFollower:
    cell = next(cell for cell in registry.list_cells() if cell.name == name)
    settings = FeedSettings(settle_age=3600.0, map_hosts=map_hosts, identified_only=identified_only)
    return FeedFollower(ConductorContext(Ledger(cells.api, name), registry), cell, settings)


def mapped(cells: Cells, registry: CellRegistry) -> dict[str, str]:
    names = {cell.uuid: cell.name for cell in registry.list_cells()}
    return {mapping.host: names[mapping.cell_uuid] for mapping in cells.api.read(host_mappings.list_all)}


def test_hosts_are_mapped_at_reports_and_conductor_starts(cells: Cells, registry: CellRegistry) -> None:
    cells.report("east", "before")
    first = keeper(cells, registry, "east")
    first.keep_up()
    assert mapped(cells, registry) == {"before": "east"}
    cells.report("east", "later")
    first.keep_up()
    assert mapped(cells, registry) == {"before": "east", "later": "east"}
    cells.report("east", "missed")
    keeper(cells, registry, "east", map_hosts=False).keep_up()  # reads the events, as one that is killed before it maps could
    keeper(cells, registry, "east").keep_up()
    assert set(mapped(cells, registry)) == {"before", "later", "missed"}


def test_by_command_only_where_that_is_wanted(cells: Cells, registry: CellRegistry) -> None:
    cells.report("east", "e1")
    keeper(cells, registry, "east", map_hosts=False).keep_up()
    assert mapped(cells, registry) == {}


def test_hosts_of_a_shared_user_wait_for_command(cells: Cells, registry: CellRegistry, caplog: pytest.LogCaptureFixture) -> None:
    cells.report("east", "e1")
    cells.report("east", "e2")
    east = cells.ground.open("east")
    east.write(services.introduce_service, Beat(host="e1", binary=AGENT_BINARY), About(), 1.0, identified=True)
    east.write(services.introduce_service, Beat(host="e2", binary=AGENT_BINARY), About(), 1.0, identified=False)
    first = keeper(cells, registry, "east", identified_only=True)
    first.keep_up()
    assert mapped(cells, registry) == {"e1": "east"}
    assert "hosts of a shared broker user are not mapped: e2" in caplog.text
    east.write(services.introduce_service, Beat(host="e2", binary=AGENT_BINARY), About(), 1.0, identified=True)
    first.keep_up()
    assert mapped(cells, registry) == {"e1": "east", "e2": "east"}, "without a change of its stats"
    east.dispose_connections()


def test_a_cell_that_was_removed_gets_no_hosts(cells: Cells, registry: CellRegistry) -> None:
    """A conductor that has not heard of it yet reads the cell's hosts once more."""
    cells.report("east", "e1")
    first, second = keeper(cells, registry, "east"), keeper(cells, registry, "east")
    first.keep_up()
    delete_cell(cells.api, "east", with_hosts=True)
    cells.report("east", "e2")
    first.keep_up()
    second.keep_up()
    assert cells.api.read(host_mappings.list_all) == []


def test_the_first_cell_keeps_names_others_are_reported(
    cells: Cells, registry: CellRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    east, west = keeper(cells, registry, "east"), keeper(cells, registry, "west")
    cells.report("east", "twin")
    east.keep_up()
    cells.report("west", "twin", "w1")
    with caplog.at_level(logging.ERROR):
        for guests in range(3):
            cells.report("west", "twin", guests=guests, at=time.time())
            west.keep_up()
    assert mapped(cells, registry) == {"twin": "east", "w1": "west"}
    [complaint] = [record.getMessage() for record in caplog.records if record.name == "conductor.host_mapper"]
    assert complaint.startswith("cell west: hosts report there that are mapped to other cells: twin")


def uuid_of(registry: CellRegistry, name: str) -> str:
    return next(cell.uuid for cell in registry.list_cells() if cell.name == name)


def leave(cells: Cells, name: str, host: str) -> None:
    """The first step of ``host move`` and ``host delete``: the cell forgets the host."""
    database = cells.ground.open(name)
    database.write(cell_host_removal.from_cell, host, AGENT_BINARY, NO_WAIT)
    database.dispose_connections()


def test_a_moved_and_deleted_host_is_not_remapped(cells: Cells, registry: CellRegistry) -> None:
    """Its new cell's feed still tells of it when its cell and the API level have forgotten it."""
    east, west = keeper(cells, registry, "east"), keeper(cells, registry, "west")
    cells.report("east", "e1")
    for each in (east, west):
        each.keep_up()
    leave(cells, "east", "e1")
    cells.api.write(host_removal.to_cell, "e1", uuid_of(registry, "east"), uuid_of(registry, "west"))
    cells.report("west", "e1", "w1")
    leave(cells, "west", "e1")
    cells.api.write(api_host_removal.from_api, "e1")
    for each in (west, east):
        each.keep_up()
    assert mapped(cells, registry) == {"w1": "west"}
    cells.report("west", "e1")
    west.keep_up()
    assert mapped(cells, registry) == {"w1": "west", "e1": "west"}, "deleted is not banned"


def test_hosts_of_a_silent_cell_wait_for_mapping(cells: Cells) -> None:
    """Whether it still knows them cannot be asked, and its feed will tell of them again."""
    cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    with cells.registry() as registry:
        dead = next(cell for cell in registry.list_cells() if cell.name == "dead")
        with pytest.raises(errors.CellUnavailable):
            HostMapper(cells.api, registry, dead).map_new(["d1"])
        assert mapped(cells, registry) == {}


@on("cells", *GROUNDS)
def test_only_an_unchanged_unused_mapping_is_taken_back(cells: Cells, registry: CellRegistry) -> None:
    """Somebody else's mapping, one that was moved meanwhile, and one that servers may be claimed on already are left alone."""
    east, west = uuid_of(registry, "east"), uuid_of(registry, "west")
    mine, other = time.time(), time.time() + 1.0
    names = ("mine", "moved", "offers", "theirs")
    cells.api.write(host_mappings.add_mappings, [HostMapping(host=name, cell_uuid=east) for name in names[:3]], mine)
    cells.api.write(host_mappings.add_mappings, [HostMapping(host="theirs", cell_uuid=east)], other)
    cells.api.write(host_removal.to_cell, "moved", east, west)
    node = ComputeNode(host="offers", node="offers", vcpus=8, memory_mb=1024, disk_gb=10)
    Ledger(cells.api, "test").write(claims.set_inventory, [node], east)
    assert cells.api.write(host_mappings.take_back, east, names, mine) == 1
    assert mapped(cells, registry) == {"moved": "west", "offers": "east", "theirs": "east"}
    assert cells.api.write(host_mappings.take_back, east, names, mine) == 0
