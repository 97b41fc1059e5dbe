"""``superconductor host move``: an empty host goes to another cell, once, whatever gets in between."""

from __future__ import annotations

import json
import threading
import time

import pytest

from cells.administration import list_cells
from cells.discovery import discover_hosts
from db.api.claims import inventories
from db.api.deployment import host_mappings
from db.api.deployment.host_removal import to_cell
from db.cell import host_removal, services, staging
from db.cell.services import Beat
from db.sql.engine import Database
from objects import errors
from objects.cell import HostMapping
from objects.instance import Instance, State
from objects.process import AGENT_BINARY
from objects.selection import Selection
from tests.support.cell_databases import Cells, closed_port
from tests.support.cell_site import SPEC
from tests.support.commands import Shell
from tests.support.databases import sqlite_url
from tests.support.ground import CHOSEN
from tests.support.world import World, world_fixture

NO_WAIT = -1.0


def homes(cells: Cells) -> dict[str, str]:
    names = {row["UUID"]: row["Name"] for row in _cell_list(cells)}
    return {mapping.host: names[mapping.cell_uuid] for mapping in cells.api.read(host_mappings.list_all)}


def _cell_list(cells: Cells) -> list[dict[str, str]]:
    return [{"UUID": mapping.uuid, "Name": mapping.name} for mapping in list_cells(cells.api)]


def test_a_silent_empty_host_moves_once(cells: Cells, shell: Shell) -> None:
    cells.report("east", "e1", at=time.time() - 3600)
    cells.report("east", "e2")
    shell.done("-q host discover")
    shell.done("aggregate create rack --host e1")
    assert "Host 'e2' is up: stop its agent first" in shell.refused("host move e2 --to west")
    shell.done("host move e1 --to west")
    assert homes(cells) == {"e1": "west", "e2": "east"}
    again = shell("host move e1 --to west")
    assert (again.status, again.err) == (0, "superconductor: Host 'e1' is in cell 'west' already\n")
    cells.report("west", "e1")
    shown = shell.json("host show e1")
    assert (shown["Cell"], shown["State"], shown["Aggregates"], shown["Problems"]) == ("west", "up", ["rack"], [])


def test_a_stopping_agent_shortens_the_silence(cells: Cells, shell: Shell) -> None:
    cells.report("east", "e1")
    shell.done("-q host discover")
    Database(sqlite_url(cells.folder, "east")).write(
        services.record_heartbeats, [Beat(host="e1", binary=AGENT_BINARY, stopping=True)]
    )
    shell.done("host move e1 --to west")
    assert homes(cells) == {"e1": "west"}


def test_the_next_move_finishes_an_interrupted_one(cells: Cells, shell: Shell) -> None:
    cells.report("east", "e1", at=time.time() - 3600)
    shell.done("-q host discover")
    Database(sqlite_url(cells.folder, "east")).write(host_removal.from_cell, "e1", AGENT_BINARY, 60.0)
    assert homes(cells) == {"e1": "east"}
    shell.done("host move e1 --to west")
    assert homes(cells) == {"e1": "west"}


def test_of_two_operators_at_once_one_moves_it(cells: Cells, shell: Shell) -> None:
    """To different cells: the other is told, or finds it moved and moves it on. It is in one cell at every moment."""
    north = cells.add("north")
    cells.report("east", "e1", at=time.time() - 3600)
    shell.done("-q host discover")
    uuids = {row["Name"]: row["UUID"] for row in _cell_list(cells)}
    refused: list[str] = []
    barrier = threading.Barrier(2)

    def move(new: str) -> None:
        barrier.wait(10)
        try:
            cells.api.write(to_cell, "e1", uuids["east"], new)
        except errors.Conflict as error:
            refused.append(str(error))

    threads = [threading.Thread(target=move, args=(new,)) for new in (uuids["west"], north.uuid)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert refused == ["Host 'e1' is in another cell by now: somebody else has moved or deleted it"]
    assert homes(cells)["e1"] in ("west", "north")


def test_agents_still_in_the_old_cell_are_reported(cells: Cells, shell: Shell) -> None:
    cells.report("east", "e1", at=time.time() - 3600)
    shell.done("-q host discover")
    shell.done("host move e1 --to west")
    cells.report("east", "e1")
    outcome = shell("host list -f json")
    assert outcome.err == (
        "superconductor: Host e1 reports in cell east and is mapped to cell west: no server goes there. "
        "Give its agent the configuration of west, or run 'superconductor host move e1 --to east'\n"
    )
    assert [(row["Cell"], row["Mapped"]) for row in json.loads(outcome.out)] == [("east", "no"), ("west", "yes")]
    assert "its agent reports in cell east" in shell.json("host show e1")["Problems"][0]
    assert "stays mapped to cell 'west'" in shell("host discover").err
    cells.report("west", "e1")
    assert "reports from cells east and west" in shell("host list").err
    assert "reports from cells east and west" in shell.json("host show e1")["Problems"][0]


def test_the_old_cell_must_answer(cells: Cells, shell: Shell) -> None:
    dead = cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    cells.api.write(host_mappings.add_mappings, [HostMapping(host="d1", cell_uuid=dead.uuid)], 0.0)
    line = shell.refused("host move d1 --to west")
    assert "cell 'dead'" in line
    assert "secret" not in line
    assert homes(cells) == {"d1": "dead"}


cloud = world_fixture(grounds=CHOSEN, embedded=True)


def _uuids(cloud: World) -> dict[str, str]:
    return {cell.name: cell.uuid for cell in cloud.keeper.registry.list_cells()}


def test_claims_and_pending_builds_prevent_a_move(cloud: World) -> None:
    """A build in one cell may go on to its alternates there, so these stay as well until it has ended."""
    [uuid] = cloud.conductor("one").drive(cloud.accept(), upto="claimed").uuids
    [host] = cloud.evidence().claims.values()
    cells = _uuids(cloud)
    home = cloud.homes[host]
    other = cells["cell2" if home == "cell1" else "cell1"]
    with pytest.raises(errors.Conflict, match=f"Host '{host}' is claimed by 1 servers"):
        cloud.api.write(to_cell, host, cells[home], other)
    alternates = [a for a in cloud.homes if a != host and cloud.homes[a] == home]
    for alternate in alternates:
        with pytest.raises(errors.Conflict, match=f"Host '{alternate}' is an alternate of 1 builds that have no cell yet"):
            cloud.api.write(to_cell, alternate, cells[home], other)
    cloud.start()
    cloud.settle()
    host = cloud.row(uuid).host or ""
    with pytest.raises(errors.Conflict, match=f"Host '{host}' has 1 servers"):
        cloud.databases[cloud.homes[host]].write(host_removal.from_cell, host, AGENT_BINARY, NO_WAIT)
    idle = next(a for a in cloud.homes if a != host and cloud.homes[a] == "cell1")
    cloud.databases["cell1"].write(host_removal.from_cell, idle, AGENT_BINARY, NO_WAIT)
    cloud.api.write(to_cell, idle, cells["cell1"], cells["cell2"])


def test_a_moved_host_accepts_servers_in_its_cell(cloud: World) -> None:
    cells = _uuids(cloud)
    cloud.databases["cell1"].write(host_removal.from_cell, "a1", AGENT_BINARY, NO_WAIT)
    cloud.api.write(to_cell, "a1", cells["cell1"], cells["cell2"])
    cloud.homes["a1"] = "cell2"
    cloud.appear("a1")
    cloud.keeper.registry.refresh_cells()
    cloud.keeper.keep()
    found = {row.host: row.cell_uuid for row in cloud.api.read(inventories.read_all)}
    assert found["a1"] == cells["cell2"]
    assert discover_hosts(cloud.keeper.registry, cloud.api).conflicts == ()


def test_an_unfinished_build_is_found_by_its_alternates(cells: Cells) -> None:
    """By the whole name, and not by what looks alike."""
    cells.report("east", "e1")
    east = Database(sqlite_url(cells.folder, "east"))
    alternates = (Selection(host="e_2", node="e_2", cell_uuid="c"),)
    row = Instance(uuid="u1", state=State.STAGED, fence=1, host="e1", node="e1", alternates=alternates, deadline=1e12)
    east.write(staging.stage_instances, SPEC, [staging.NewInstance(instance=row, name="u1", launch_index=0, created_at=1.0)], 1.0)
    assert east.read(host_removal.heading_for, "e_2") == ["u1"]
    assert east.read(host_removal.heading_for, "ex2") == []
    assert east.read(host_removal.heading_for, "e_") == []
