"""``superconductor flavor``, ``aggregate`` and ``group``: what they make, change, show, and refuse."""

from __future__ import annotations

import pytest

from db.api.rows import epochs
from db.sql.engine import Database
from tests.support.cell_databases import Cells
from tests.support.commands import Shell, shell_fixture
from tests.support.databases import sqlite_url

shell = shell_fixture("-q db sync")


# -- flavors ---------------------------------------------------------------------------------------------------------------------


def test_flavor_from_creation_to_deletion(shell: Shell) -> None:
    created = shell.json(
        "flavor create m1 --id 1 --vcpus 2 --ram 512 --disk 10 --ephemeral 5 --swap 1024 --rxtx-factor 2.5"
        " --property a=b=c --property d="
    )
    assert created == {
        "id": "1",
        "name": "m1",
        "vcpus": 2,
        "ram": 512,
        "disk": 10,
        "ephemeral": 5,
        "swap": 1024,
        "rxtx_factor": 2.5,
        "public": True,
        "projects": "",
        "disabled": False,
        "description": None,
        "properties": "a=b=c, d=",
    }
    assert shell.json("flavor show 1") == shell.json("flavor show m1") == created
    changed = shell.json("flavor set m1 --unset d --property a=x --property new=1 --disable --description small")
    assert changed == {**created, "properties": "a=x, new=1", "disabled": True, "description": "small"}
    assert shell.json("flavor set m1 --enable") == {**changed, "disabled": False}
    shell.done("flavor delete m1")
    assert shell.json("flavor list") == []
    assert "rxtx_factor: nan is not a number above 0" in shell.refused("flavor create m1 --vcpus 1 --ram 1 --rxtx-factor nan")


def test_a_private_flavor_is_given_to_projects(shell: Shell) -> None:
    made = shell.json("flavor create m1 --vcpus 1 --ram 1 --private --project p2 --project p1 --project p2")
    assert (made["public"], made["projects"]) == (False, "p1, p2")
    changed = shell.json("flavor set m1 --project p3 --no-project p1")
    assert changed == shell.json("flavor show m1") == {**made, "projects": "p2, p3"}


def test_flavors_get_missing_ids_and_size_order(shell: Shell) -> None:
    for name, vcpus in (("big", 8), ("small", 1), ("middle", 4)):
        shell.done(f"-q flavor create {name} --vcpus {vcpus} --ram 1024")
    rows = shell.json("flavor list")
    assert [row["Name"] for row in rows] == ["small", "middle", "big"]
    assert len({row["ID"] for row in rows}) == 3


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("flavor create m1 --vcpus 1 --ram 1", "Flavor 'm1' ("),
        ("flavor create other --id 1 --vcpus 1 --ram 1", "already exists"),
        ("flavor show nope", "Flavor 'nope' not found"),
        ("flavor set nope --disable", "Flavor 'nope' not found"),
        ("flavor create gpu --vcpus 1 --ram 1 --property resources:GPU=1", "resources:GPU: there is no resource class 'GPU'; use"),
        ("flavor create gpu --vcpus 1 --ram 1 --property resources:CUSTOM_GPU=many", "resources:CUSTOM_GPU: 'many' is not a whole"),
        ("flavor set m1 --property resources:CUSTOM_GPU=-1", "resources:CUSTOM_GPU: '-1' is not a whole number from 1"),
        ("flavor set m1 --property trait:SSD=maybe", "trait:SSD: 'maybe' is not required or forbidden"),
        ("flavor set m1 --property a/b=c", "'a/b': a key has 1 to 255 letters, digits, spaces and . _ : -"),
        ("flavor create other --id a/b --vcpus 1 --ram 1", "id: 'a/b' has other characters than"),
        ("flavor create other --vcpus 1 --ram 1 --project p1", "--project: every project may use a public flavor; give --private"),
        ("flavor set m1 --project p1", "--project: every project may use a public flavor"),
        ("flavor set m1 --no-project p1", "Flavor access not found for 1 / p1 combination."),
    ],
)
def test_flavor_refusals(shell: Shell, line: str, text: str) -> None:
    shell.done("-q flavor create m1 --id 1 --vcpus 1 --ram 1")
    assert text in shell.refused(line)
    assert len(shell.json("flavor list")) == 1


def test_deleting_several_does_those_that_can_be(shell: Shell) -> None:
    for name in ("a", "b"):
        shell.done(f"-q flavor create {name} --vcpus 1 --ram 1")
    outcome = shell("flavor delete a nope b")
    assert (outcome.status, outcome.err) == (1, "superconductor: Flavor 'nope' not found\n")
    assert shell.json("flavor list") == []


# -- aggregates ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hosts(shell: Shell) -> None:
    cells = Cells(shell.state)
    cells.add("east")
    cells.report("east", "h1", "h2", "h3")
    shell.done("-q host discover")


@pytest.mark.usefixtures("hosts")
def test_aggregate_from_creation_to_deletion(shell: Shell) -> None:
    created = shell.json("aggregate create rack --zone north --host h1 --host h2 --host h1 --property ssd=true")
    assert created == {
        "id": created["id"],
        "name": "rack",
        "availability_zone": "north",
        "hosts": "h1, h2",
        "properties": "ssd=true",
    }
    assert shell.json("aggregate show rack") == shell.json(f"aggregate show {created['id']}") == created
    assert shell.json("aggregate add host rack h3")["hosts"] == "h1, h2, h3"
    assert shell.json("aggregate remove host rack h1 h2")["hosts"] == "h3"
    changed = shell.json("aggregate set rack --name shelf --zone south --unset ssd --property hdd=1")
    assert (changed["name"], changed["availability_zone"], changed["properties"]) == ("shelf", "south", "hdd=1")
    assert shell.json("aggregate set shelf --no-zone")["availability_zone"] is None
    assert shell.json("aggregate list") == [{"ID": created["id"], "Name": "shelf", "Availability Zone": None, "Hosts": 1}]
    assert "still has 1 hosts" in shell.refused("aggregate delete shelf")
    shell.done("-q aggregate remove host shelf h3")
    shell.done("aggregate delete shelf")
    assert shell.json("aggregate list") == []


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("aggregate create rack", "Aggregate 'rack' already exists"),
        ("aggregate create other --zone south --host h1", "Host 'h1' is in zone 'north' already, through aggregate 'rack'"),
        ("aggregate add host rack h2 h1", "Host 'h1' is in aggregate 'rack' already"),
        ("aggregate remove host rack h1 h2", "Host 'h2' in aggregate 'rack' not found"),
        ("aggregate show 999", "Aggregate '999' not found"),
        ("aggregate set nope --name x", "Aggregate 'nope' not found"),
        ("aggregate delete nope", "Aggregate 'nope' not found"),
    ],
)
def test_aggregate_refusals_change_nothing(shell: Shell, line: str, text: str) -> None:
    before = shell.json("aggregate create rack --zone north --host h1")
    assert text in shell.refused(line)
    assert shell.json("aggregate show rack") == before
    assert len(shell.json("aggregate list")) == 1


def test_unmapped_hosts_are_accepted_and_reported(shell: Shell) -> None:
    outcome = shell("aggregate create rack --host future -f value -c hosts")
    assert (outcome.status, outcome.out) == (0, "future\n")
    assert outcome.err == "superconductor: Host 'future' is not mapped to a cell yet; the aggregate applies once it is\n"


# -- groups ----------------------------------------------------------------------------------------------------------------------


def test_group_from_creation_to_deletion(shell: Shell) -> None:
    created = shell.json("server group create web --policy anti-affinity --project p1 --max-server-per-host 2")
    assert (created["policy"], created["project"], created["max_server_per_host"]) == ("anti-affinity", "p1", 2)
    other = shell.json("server group create web --policy affinity --project p2")
    assert shell.json(f"server group show {created['uuid']}") == shell.json("server group show web --project p1") == created
    assert {row["UUID"] for row in shell.json("server group list")} == {created["uuid"], other["uuid"]}
    assert [row["Project"] for row in shell.json("server group list --project p2")] == ["p2"]
    assert "Several server groups are named 'web'" in shell.refused("server group delete web")
    racked = shell.json("server group create db --policy anti-affinity --project p1 --max-server-per-rack 3")
    assert (racked["max_server_per_host"], racked["max_server_per_rack"]) == (1, 3)
    text = "--max-server-per-rack goes with the policy anti-affinity only"
    assert text in shell.refused("server group create db --policy affinity --project p1 --max-server-per-rack 3")
    shell.done("server group delete db")
    renamed = shell.json("server group set web --project p2 --name front")
    assert renamed == {**other, "name": "front"}
    assert shell.json("server group show front") == renamed
    shell.done("server group delete web --project p1")
    shell.done("server group delete front")
    assert shell.json("server group list") == []


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "server group create new --policy affinity --project p1 --max-server-per-host 2",
            "goes with the policy anti-affinity only",
        ),
        ("server group show nope", "Server group 'nope' not found"),
        ("server group set nope --name other", "Server group 'nope' not found"),
        ("server group delete web --project p2", "Server group 'web' not found"),
    ],
)
def test_group_refusals(shell: Shell, line: str, text: str) -> None:
    shell.done("-q server group create web --policy soft-affinity --project p1")
    assert text in shell.refused(line)
    assert len(shell.json("server group list")) == 1


# -- all -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "epoch"),
    [
        ("cell create east", "cells"),
        ("flavor create f --vcpus 1 --ram 1", "flavors"),
        ("aggregate create a", "aggregates"),
        ("server group create g --policy affinity --project p", "groups"),
    ],
)
def test_running_processes_are_told_by_the_epoch(shell: Shell, line: str, epoch: str) -> None:
    database = Database(sqlite_url(shell.state, "api"))
    before = database.read(epochs.read).get(epoch, 0)
    shell.done(f"-q {line}")
    assert database.read(epochs.read)[epoch] > before
