"""``superconductor host``: discovery, and the list that is right while a cell is away."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from cells import administration
from db.api.deployment import host_mappings
from db.cell import compute_nodes, feed, services
from db.cell.tables import services as service_rows
from db.sql.engine import Database
from objects import stored
from objects.cell import HostMapping
from objects.feed import EventKind
from objects.host_limits import HostLimits
from objects.host_terms import Ratios
from objects.machine import Machine, RefusedMachine
from objects.process import AGENT_BINARY, About
from tests.support.cell_databases import Cells, closed_port
from tests.support.commands import Shell
from tests.support.databases import sqlite_url


def test_discover_maps_what_reported_and_shows_it(cells: Cells, shell: Shell) -> None:
    cells.report("east", "e1", "e2")
    cells.report("west", "w1")
    assert shell.json("host discover") == [{"Host": h, "Cell": c} for h, c in (("e1", "east"), ("e2", "east"), ("w1", "west"))]
    again = shell("host discover")
    assert again.status == 0
    assert again.err == "superconductor: No new host among the 3 that have reported\n"
    assert [row["Hosts"] for row in shell.json("cell list")] == [0, 2, 1]


def test_discover_reports_conflicts_and_maps_the_rest(cells: Cells, shell: Shell) -> None:
    cells.report("east", "twin", "e1")
    cells.report("west", "twin")
    cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    outcome = shell("host discover -f value")
    assert outcome.status == 1
    assert outcome.out == "e1 east\n"
    conflict, dead = outcome.err.splitlines()
    assert conflict.startswith("superconductor: Host 'twin' reports in cell 'east' and 'west' and is not mapped")
    assert dead.startswith("superconductor: cell 'dead': Database mysql")
    assert dead.endswith("its hosts were not checked")
    assert "secret" not in dead


def test_list_shows_hosts_up_in_two_cells(cells: Cells, shell: Shell) -> None:
    """Not of one that was in another cell before."""
    cells.report("east", "twin", "e1", "moved")
    cells.report("west", "twin")
    cells.report("west", "moved", at=time.time() - 3600)
    outcome = shell("host list -f json")
    assert outcome.status == 0
    assert outcome.err == (
        "superconductor: Host twin reports from cells east and west: "
        "no server goes there until one of the agents stops or has another name\n"
    )
    assert [(row["Host"], row["Cell"]) for row in json.loads(outcome.out) if row["Host"] == "twin"] == [
        ("twin", "east"),
        ("twin", "west"),
    ]


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


def test_list_shows_stopping_agents_and_their_work(cells: Cells, shell: Shell) -> None:
    cells.report("east", "busy", "leaving", "gone")
    database = Database(sqlite_url(cells.folder, "east"))
    beats = [services.Beat(host="leaving", binary="superconductor-compute", version=1, stopping=True)]
    database.write(services.record_heartbeats, beats, time.time())
    beats = [services.Beat(host="gone", binary="superconductor-compute", version=1, stopping=True)]
    database.write(services.record_heartbeats, beats, time.time() - 3600)
    node = next(node for node in database.read(compute_nodes.list_all) if node.host == "busy")
    database.write(compute_nodes.store_node, msgspec.structs.replace(node, queued_builds=7), time.time())
    rows = {row["Host"]: (row["State"], row["Waiting Builds"]) for row in shell.json("host list")}
    assert rows == {"busy": ("up", 7), "leaving": ("stopping", 0), "gone": ("down", 0)}


def test_list_shows_custom_resource_classes(cells: Cells, shell: Shell) -> None:
    cells.report("east", "plain", "gpus")
    database = Database(sqlite_url(cells.folder, "east"))
    node = next(node for node in database.read(compute_nodes.list_all) if node.host == "gpus")
    amounts = {"resources": {"CUSTOM_NIC": 2, "CUSTOM_GPU": 4}, "resources_used": {"CUSTOM_GPU": 1}}
    database.write(compute_nodes.store_node, msgspec.structs.replace(node, **amounts), time.time())
    rows = {row["Host"]: row["Resources"] for row in shell.json("host list")}
    assert rows == {"plain": "", "gpus": "CUSTOM_GPU 1/4, CUSTOM_NIC 0/2"}


def test_list_shows_disabled_and_forced_down_hosts(cells: Cells, shell: Shell) -> None:
    cells.report("east", "off", "dead")
    database = Database(sqlite_url(cells.folder, "east"))
    database.write(services.set_disabled, "off", "superconductor-compute", True, "maintenance", 0.0)
    database.write(services.set_forced_down, "dead", "superconductor-compute", True, 0.0)
    rows = {row["Host"]: (row["State"], row["Status"]) for row in shell.json("host list")}
    assert rows == {"off": ("up", "disabled"), "dead": ("down", "enabled")}


def test_hosts_of_unreachable_cells_are_unknown(cells: Cells, shell: Shell) -> None:
    cells.report("east", "e1")
    shell.done("-q host discover")
    dead = cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    cells.api.write(host_mappings.add_mappings, [HostMapping(host="d1", cell_uuid=dead.uuid)], 0.0)
    outcome = shell("host list -f value -c Host -c Cell -c State -c vCPUs")
    assert outcome.status == 0
    assert outcome.out.splitlines() == ["d1 dead unknown None", "e1 east up 8"]
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("superconductor: cell 'dead': Database mysql")
    assert outcome.err.endswith("its 1 hosts are unknown\n")
    assert "secret" not in outcome.err


def test_unknown_cells_are_refused(shell: Shell) -> None:
    assert "No cell is called 'north'" in shell.refused("host list --cell north", 3)


def test_a_mapped_host_that_never_reported_is_unknown(cells: Cells, shell: Shell) -> None:
    east = shell.json("cell show east")["uuid"]
    cells.api.write(host_mappings.add_mappings, [HostMapping(host="ghost", cell_uuid=east)], 0.0)
    (row,) = shell.json("host list")
    assert (row["Host"], row["State"], row["Last Seen"]) == ("ghost", "unknown", None)


def test_operator_settings_of_hosts_reach_the_feed(cells: Cells, shell: Shell) -> None:
    cells.report("east", "e1")
    cells.report("west", "w1", "w2")
    shell.done("-q host discover")

    def shown() -> dict[str, tuple[str, str]]:
        return {row["Host"]: (row["State"], row["Status"]) for row in shell.json("host list")}

    shell.done("host disable e1 w1 --reason 'a fan is loud'")
    shell.done("host set w1 --down")
    assert shown() == {"e1": ("up", "disabled"), "w1": ("down", "disabled"), "w2": ("up", "enabled")}
    service = Database(sqlite_url(cells.folder, "east")).read(services.get, "e1", "superconductor-compute")
    assert service.disabled_reason == "a fan is loud"
    shell.done("host enable e1 w1")
    shell.done("host set w1 --up")
    assert shown() == dict.fromkeys(("e1", "w1", "w2"), ("up", "enabled"))
    events = Database(sqlite_url(cells.folder, "west")).read(feed.read, 0, 100)
    assert [event.key for event in events.events if event.kind is EventKind.SERVICE] == ["w1"] * 4


def test_unknown_hosts_are_reported_and_others_updated(cells: Cells, shell: Shell) -> None:
    cells.report("east", "e1")
    shell.done("-q host discover")
    api_database = Database(sqlite_url(cells.folder, "api"))
    east = administration.find_cell(api_database, "east")
    api_database.write(host_mappings.add_mappings, [HostMapping(host="silent", cell_uuid=east.uuid)], 0.0)
    outcome = shell("host disable nobody silent e1")
    assert outcome.status == 1
    unmapped, silent = outcome.err.splitlines()
    assert "Host 'nobody' is not mapped to a cell: run 'superconductor host discover'." in unmapped
    assert "Service 'superconductor-compute' on host 'silent' not found" in silent
    assert [row["Status"] for row in shell.json("host list") if row["Host"] == "e1"] == ["disabled"]
    assert "--down, --up or a ratio is needed" in shell.run("host", "set", "e1").err


def test_delete_forgets_hosts_that_are_silent(cells: Cells, shell: Shell) -> None:
    cells.report("east", "fresh")
    cells.report("east", "stale", at=time.time() - 3600)
    shell.done("-q host discover")
    outcome = shell("host delete fresh nobody stale")
    assert outcome.status == 1
    up, unknown = outcome.err.splitlines()
    assert "Host 'fresh' is up: stop its agent first" in up
    assert "Host 'nobody' is not mapped to a cell" in unknown
    assert [row["Host"] for row in shell.json("host list")] == ["fresh"]


class TestTwoMachines:
    """Two machines with the name of one host."""

    ADMITTED, REFUSED = (Machine(id=letter * 32, name=f"rack-{letter}") for letter in "ab")
    SECOND_BEAT = services.Beat(host="e1", binary=AGENT_BINARY, machine="b" * 32)

    @pytest.fixture
    def east(self, cells: Cells, shell: Shell) -> Database:
        cells.report("east", "e1", "e2")
        shell.done("-q host discover")
        database = Database(sqlite_url(cells.folder, "east"))
        beat = services.Beat(host="e1", binary=AGENT_BINARY, machine=self.ADMITTED.id)
        database.write(services.introduce_service, beat, About(machine=self.ADMITTED.name), 1.0)
        assert not database.write(services.admit, self.SECOND_BEAT, self.REFUSED, 60.0).is_admitted
        return database

    def test_both_are_named(self, east: Database, shell: Shell) -> None:
        text = "two machines are called e1: rack-a runs as the host, and rack-b is refused."
        shown = shell.json("host show e1")
        assert shown["Machine"] == "rack-a"
        assert [problem[: len(text)] for problem in shown["Problems"]] == [text]
        for command in ("host list", "service list"):
            outcome = shell(command)
            assert (outcome.status, text in outcome.err) == (0, True)
        assert shell.json("host show e2")["Problems"] == []

    def test_one_that_no_longer_asks_is_not_named(self, east: Database, shell: Shell) -> None:
        """It asked two minutes ago, and the other one has reported since."""
        refused = RefusedMachine(id="b", name="rack-b", since=1.0, last=time.time() - 120.0)
        east.write(lambda tx: tx.execute(service_rows.update().values(refused=stored.dump_value(refused))))
        assert shell.json("host show e1")["Problems"] == []
        assert "two machines" not in shell("host list").err

    def test_the_refused_agent_takes_over_on_operator_command(self, east: Database, shell: Shell) -> None:
        outcome = shell("host accept --machine e1 e2 -f value")
        assert (outcome.status, outcome.out) == (1, "e1 rack-b\n")
        assert "No other machine has asked to run as host 'e2'" in outcome.err
        assert east.write(services.admit, self.SECOND_BEAT, self.REFUSED, 60.0).is_admitted


class TestTerms:
    """What hosts count with, whatever they report."""

    @pytest.fixture
    def east(self, cells: Cells, shell: Shell) -> Database:
        cells.report("east", "e1", "e2")
        shell.done("-q host discover")
        database = Database(sqlite_url(cells.folder, "east"))
        [node] = database.read(compute_nodes.of_hosts, ["e1"])
        large = msgspec.structs.replace(node, vcpus=4000, resources={"CUSTOM_GPU": 4})
        database.write(compute_nodes.store_node, large, time.time(), HostLimits())
        return database

    def listed(self, shell: Shell) -> dict[str, tuple[int, str]]:
        return {row["Host"]: (row["vCPUs"], row["Waiting Size"]) for row in shell.json("host list")}

    def test_a_size_waits_until_it_is_accepted(self, east: Database, shell: Shell) -> None:
        text = "vcpus 4000 (counts 8), CUSTOM_GPU 4 (counts 0)"
        assert self.listed(shell) == {
            "e1": (8, text),
            "e2": (8, ""),
        }
        problem = f"node e1 reports {text}: if the machine has that, run 'superconductor host accept e1'"
        assert problem in shell.json("host show e1")["Problems"]
        accepted = {"Host": "e1", "Node": "e1", "vCPUs": 4000, "RAM": 16384, "Disk": 100, "Resources": "CUSTOM_GPU 4"}
        assert shell.json("host accept e1") == [accepted]
        assert self.listed(shell) == {
            "e1": (4000, ""),
            "e2": (8, ""),
        }
        outcome = shell("host accept e9 e2 -f value -c Host")
        assert (outcome.status, outcome.out) == (1, "e2\n")
        assert outcome.err.count("\n") == 1
        assert "e9" in outcome.err

    def test_ratios_are_set(self, east: Database, shell: Shell) -> None:
        shell.done("host set e1 e2 --cpu-ratio 16 --disk-ratio 1.5")
        assert [Ratios.of_node(node) for node in east.read(compute_nodes.list_all)] == [Ratios(cpu=16.0, disk=1.5)] * 2
        assert "x 16" in str(shell.json("host show e1")["Nodes"])
        shell.done("host set e1 --cpu-ratio default")
        [node] = east.read(compute_nodes.of_hosts, ["e1"])
        east.write(compute_nodes.store_node, msgspec.structs.replace(node, vcpus_used=1), time.time(), HostLimits())
        [node] = east.read(compute_nodes.of_hosts, ["e1"])
        assert Ratios.of_node(node) == Ratios(disk=1.5)
