"""``superconductor host``: discovery, and the list that is right while a cell is away."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from db import host_mappings, services
from db.engine import Database
from objects.cell import HostMapping
from tests.support.cell_databases import Cells, closed_port
from tests.support.commands import Shell
from tests.support.databases import sqlite_url


@pytest.fixture
def cells(tmp_path: Path) -> Cells:
    cells = Cells(tmp_path)
    cells.add("cell0", cell0=True)
    cells.add("east")
    cells.add("west")
    return cells


@pytest.fixture
def shell(cells: Cells, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(cells.folder, capsys)


def test_discover_maps_what_reported_and_shows_it(cells: Cells, shell: Shell) -> None:
    cells.report("east", "e1", "e2")
    cells.report("west", "w1")
    assert shell.json("host discover") == [{"Host": h, "Cell": c} for h, c in (("e1", "east"), ("e2", "east"), ("w1", "west"))]
    again = shell("host discover")
    assert again.status == 0
    assert again.err == "superconductor: No new host among the 3 that have reported\n"
    assert [row["Hosts"] for row in shell.json("cell list")] == [0, 2, 1]


def test_discover_tells_conflicts_and_dead_cells_and_maps_the_rest(cells: Cells, shell: Shell) -> None:
    cells.report("east", "twin", "e1")
    cells.report("west", "twin")
    cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    outcome = shell("host discover -f value")
    assert outcome.status == 1
    assert outcome.out == "e1 east\n"
    conflict, dead = outcome.err.splitlines()
    assert conflict.startswith("superconductor: Host 'twin' reports in cell 'east' and 'west' and is not mapped")
    assert dead.startswith("superconductor: cell 'dead': Database mysql")
    assert dead.endswith("its hosts were not looked at")
    assert "secret" not in dead


def test_list_shows_state_capacity_and_use(cells: Cells, shell: Shell) -> None:
    cells.report("east", "fresh")
    cells.report("east", "stale", at=time.time() - 3600)
    shell.done("-q host discover")
    cells.report("west", "unmapped")
    rows = {row["Host"]: row for row in shell.json("host list")}
    assert {name: (row["Cell"], row["Mapped"], row["State"], row["Status"]) for name, row in rows.items()} == {
        "fresh": ("east", "yes", "up", "enabled"),
        "stale": ("east", "yes", "down", "enabled"),
        "unmapped": ("west", "no", "up", "enabled"),
    }
    fresh = rows["fresh"]
    assert (fresh["vCPUs"], fresh["vCPUs Used"], fresh["RAM"], fresh["RAM Used"]) == (8, 2, 16384, 1024)
    assert (fresh["Disk"], fresh["Disk Used"], fresh["Servers"]) == (100, 5, 2)
    assert [row["Host"] for row in shell.json("host list --cell west")] == ["unmapped"]
    assert {row["State"] for row in shell.json("host list --cell east --down-after 7200")} == {"up"}


def test_list_shows_disabled_and_forced_down_hosts(cells: Cells, shell: Shell) -> None:
    cells.report("east", "off", "dead")
    database = Database(sqlite_url(cells.folder, "east"))
    database.write(services.set_disabled, "off", "superconductor-compute", True, "maintenance", 0.0)
    database.write(services.set_forced_down, "dead", "superconductor-compute", True, 0.0)
    rows = {row["Host"]: (row["State"], row["Status"]) for row in shell.json("host list")}
    assert rows == {"off": ("up", "disabled"), "dead": ("down", "enabled")}


def test_hosts_of_a_cell_that_cannot_be_reached_are_unknown_and_the_command_succeeds(cells: Cells, shell: Shell) -> None:
    cells.report("east", "e1")
    shell.done("-q host discover")
    dead = cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    cells.api.write(host_mappings.add, [HostMapping(host="d1", cell_uuid=dead.uuid)], 0.0)
    outcome = shell("host list -f value -c Host -c Cell -c State -c vCPUs")
    assert outcome.status == 0
    assert outcome.out.splitlines() == ["d1 dead unknown None", "e1 east up 8"]
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("superconductor: cell 'dead': Database mysql")
    assert outcome.err.endswith("its 1 hosts are unknown\n")
    assert "secret" not in outcome.err


def test_unknown_cells_are_refused(shell: Shell) -> None:
    assert "No cell is called 'north'" in shell.refused("host list --cell north")


def test_a_mapped_host_that_never_reported_is_unknown(cells: Cells, shell: Shell) -> None:
    east = shell.json("cell show east")["uuid"]
    cells.api.write(host_mappings.add, [HostMapping(host="ghost", cell_uuid=east)], 0.0)
    (row,) = shell.json("host list")
    assert (row["Host"], row["State"], row["Last Seen"]) == ("ghost", "unknown", None)
