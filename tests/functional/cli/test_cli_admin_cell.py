"""``superconductor cell``: creating, listing, showing; nothing half-saved, no password shown."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import pytest

from db.api.deployment import host_mappings
from db.cell import services
from db.sql.engine import Database
from db.sql.sync import latest_version
from objects.cell import CELL0_UUID, HostMapping
from objects.process import AGENT_BINARY
from tests.support.cell_databases import silent_port
from tests.support.commands import Shell, shell_fixture

FAR = "--database-connection mysql+pymysql://sc:secret@db-far/sc --transport-url rabbit://sc:secret@mq-far:5671/sc"


shell = shell_fixture("-q db sync")


def test_create_with_state_uses_the_folders_file(shell: Shell) -> None:
    created = shell.json("cell create east")
    assert created["database_url"] == f"sqlite:///{shell.state}/east.db"
    assert created["transport_url"] == "embedded://east/"
    assert created["state"] == "enabled"
    assert shell.json("db version --cell east")[0]["Result"] == "up to date", "its schema was applied"
    assert shell.json("cell show east") == {**created, "hosts": 0}
    assert shell.json(f"cell show {created['uuid']}") == shell.json("cell show east")


def test_create_elsewhere_without_sync_touches_no_server(shell: Shell) -> None:
    created = shell.json(f"cell create far {FAR} --no-sync --disabled")
    assert created["database_url"] == "mysql+pymysql://sc:***@db-far/sc"
    assert created["transport_url"] == "rabbit://sc:***@mq-far:5671/sc"
    assert created["state"] == "disabled"


def test_cell0(shell: Shell) -> None:
    created = shell.json("cell create cell0 --cell0")
    assert (created["uuid"], created["transport_url"]) == (CELL0_UUID, "none:///")
    assert (shell.state / "cell0.db").exists()
    assert "Cell 'cell0' exists already: it is cell0 already" in shell.refused("cell create cell0 --cell0", 4)


def test_create_without_state_needs_urls(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "superconductor.conf"
    file.write_text(f"[api_database]\nconnection = sqlite:///{tmp_path}/api.db\n")
    no_database = shell.run("--config-file", str(file), "cell", "create", "west")
    assert no_database.err == "superconductor: Cell 'west' needs a database: give --database-connection URL\n"
    url = f"sqlite:///{tmp_path}/west.db"
    no_bus = shell.run("--config-file", str(file), "cell", "create", "west", "--database-connection", url)
    assert no_bus.err.startswith("superconductor: Cell 'west' needs a transport URL")
    assert not (tmp_path / "west.db").exists()


def test_list_in_every_format(shell: Shell) -> None:
    shell.done("-q cell create west")
    shell.done(f"-q cell create far {FAR} --no-sync")
    shell.done("-q cell create cell0 --cell0")
    names = ["cell0", "far", "west"]
    assert [row["Name"] for row in shell.json("cell list")] == names
    assert shell.done("cell list -f value -c Name").split() == names
    assert [row["Name"] for row in csv.DictReader(io.StringIO(shell.done("cell list -f csv")))] == names
    assert shell.done("cell list -f yaml").count("Name:") == 3
    assert all(name in shell.done("cell list") for name in names)


@pytest.mark.parametrize("line", ["-v cell list -f json", "cell list --verbose -f json", "cell show far -f json", "-v cell list"])
def test_passwords_are_always_masked(shell: Shell, line: str) -> None:
    shell.done(f"-q cell create far {FAR} --no-sync")
    outcome = shell(line)
    assert outcome.status == 0
    assert "secret" not in outcome.out + outcome.err
    assert "sc:***@" in outcome.out


def test_update_changes_what_is_given_and_nothing_else(shell: Shell) -> None:
    shell.done("-q cell create west")
    before = shell.json("cell show west")
    assert shell.json("cell update west --name south")["name"] == "south"
    after = shell.json("cell show south")
    assert after == {**before, "name": "south"}
    moved = shell.json("cell update south --transport-url embedded://south/")
    assert (moved["database_url"], moved["transport_url"]) == (before["database_url"], "embedded://south/")


def test_what_is_new_need_not_be_there_yet(shell: Shell) -> None:
    shell.done("-q cell create east")
    assert shell.json(f"cell update east {FAR} --no-check")["database_url"] == "mysql+pymysql://sc:***@db-far/sc"


def test_state_of_several_at_once(shell: Shell) -> None:
    for cell in ("east", "west"):
        shell.done(f"-q cell create {cell}")
    shell.done("cell disable east west")
    assert [row["State"] for row in shell.json("cell list")] == ["disabled", "disabled"]
    shell.done("cell drain west")
    shell.done("cell enable east")
    assert [row["State"] for row in shell.json("cell list")] == ["enabled", "draining"]
    outcome = shell("cell disable nowhere east")
    assert (outcome.status, "No cell is called 'nowhere'" in outcome.err) == (3, True)
    assert [row["State"] for row in shell.json("cell list")] == ["disabled", "draining"], "the others are done"


def test_check_tries_each(shell: Shell) -> None:
    for cell in ("cell0 --cell0", "east", "west"):
        shell.done(f"-q cell create {cell}")
    assert shell.json("cell check") == [
        {"Cell": "cell0", "Database": "ok", "Bus": ""},
        {"Cell": "east", "Database": "ok", "Bus": "ok"},
        {"Cell": "west", "Database": "ok", "Bus": "ok"},
    ]
    (shell.state / "east.db").unlink()
    shell.done("cell update west --transport-url rabbit://sc:secret@127.0.0.1:1/sc --no-check")
    outcome = shell("cell check east west -f json")
    assert outcome.status == 1
    east, west = json.loads(outcome.out)
    assert "east.db does not exist" in east["Database"]
    assert west["Database"] == "ok"
    assert "127.0.0.1:1" in west["Bus"]
    assert "secret" not in outcome.out + outcome.err


def test_delete_leaves_the_databases_alone(shell: Shell) -> None:
    shell.done("-q cell create east")
    shell.done("cell delete east")
    assert shell.json("cell list") == []
    assert (shell.state / "east.db").exists()
    assert "No cell is called 'east'" in shell.refused("cell delete east", 3)


def test_a_lost_cell_is_removed_with_an_account(shell: Shell) -> None:
    for cell in ("east", "west"):
        shell.done(f"-q cell create {cell}")
    database = Database(f"sqlite:///{shell.state}/api.db")
    east = shell.json("cell show east")["uuid"]
    database.write(host_mappings.add_mappings, [HostMapping(host="h1", cell_uuid=east)], 0.0)
    database.dispose_connections()
    assert "still has 1 hosts: delete them, or give --with-hosts" in shell.refused("cell delete east", 5)
    assert "--dry-run goes with --offline" in shell.refused("cell delete east --dry-run")
    (shell.state / "east.db").unlink()
    account = {"Cell": "east", "Kind": "host", "ID": "h1", "Host": "h1", "Outcome": "forgotten"}
    for flags, told in ((" --dry-run", "it would be removed as lost"), ("", "it was removed as lost")):
        outcome = shell(f"cell delete east --offline{flags} -f json")
        assert (outcome.status, outcome.err.count("\n")) == (0, 1)
        assert told in outcome.err
        [row] = json.loads(outcome.out)
        assert {key: value for key, value in row.items() if value} == account
    assert [row["Name"] for row in shell.json("cell list")] == ["west"]
    assert shell.done("cell delete west --offline -f value") == "", "it answers, but nothing lives in it"
    assert "No cell is called 'west'" in shell("cell delete west --offline").err


def test_templates_are_stored_and_expanded_on_connection(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "api.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = embedded://bus/api\n[api_database]\nconnection = sqlite:///{tmp_path}/api.db\n")
    database, bus = f"{{scheme}}:///{tmp_path}/east.db", "{scheme}://{hostname}/east"
    words = ("--config-file", str(file), "cell")
    made = shell.run(*words, "create", "east", "--database-connection", database, "--transport-url", bus, "-f", "json")
    assert made.status == 0, made
    assert (tmp_path / "east.db").exists()
    shown = json.loads(made.out)
    assert (shown["database_url"], shown["transport_url"]) == (database, bus)
    assert shell.run(*words, "check", "east").status == 0
    assert shell.run("--config-file", str(file), "db", "version", "--cell", "east").status == 0
    again = shell.run(*words, "create", "west", "--database-connection", f"sqlite:///{tmp_path}/east.db", "--transport-url", bus)
    assert "Cell 'east' " in again.err
    assert "uses this database already" in again.err
    same = shell.run(*words, "update", "east", "--database-connection", f"sqlite:///{tmp_path}/east.db", "-f", "json")
    assert json.loads(same.out)["database_url"] == f"sqlite:///{tmp_path}/east.db", "another URL, although of the same place"
    masked = shell.run(*words, "update", "east", "--transport-url", "rabbit://{username}:secret@mq/x{y}", "--no-check")
    assert "URL template 'rabbit://{username}:***@mq/x{y}' has an unknown field {y}; there are:" in masked.err
    assert "needs {scheme}" in shell.refused("cell delete east --offline"), "what cannot be asked from here may well be alive"
    assert "needs {scheme}, which comes from transport_url" in shell.refused(f"cell create w --transport-url '{bus}' --no-sync")


def test_health_of_every_cell_is_asked_at_once(shell: Shell) -> None:
    for cell in ("cell0 --cell0", "east", "west", "north"):
        shell.done(f"-q cell create {cell}")
    database = Database(f"sqlite:///{shell.state}/east.db")
    now = time.time()
    for host, seen in (("h1", now), ("h2", now), ("h3", now - 3600)):
        database.write(services.record_heartbeats, [services.Beat(host=host, binary=AGENT_BINARY)], seen)
    database.dispose_connections()
    rows = shell.json("cell list --health")
    assert [(row["Name"], row["Database"], row["Bus"], row["Since"]) for row in rows] == [
        ("cell0", "ok", "", None),
        *((name, "ok", "ok", None) for name in ("east", "north", "west")),
    ]
    assert [(row["Hosts Up"], row["Hosts"]) for row in rows] == [(0, 0), (2, 3), (0, 0), (0, 0)]
    assert all(row["Database ms"] > 0 and row["Schema"] == latest_version("cell") for row in rows)
    (shell.state / "east.db").unlink()
    shell.done("cell update west --transport-url rabbit://sc:secret@127.0.0.1:1/sc --no-check")
    with silent_port() as port:
        url = f"mysql+pymysql://sc:secret@127.0.0.1:{port}/x?connect_timeout=60"
        shell.done(f"cell update north --database-connection {url} --no-check")
        (shell.state / "impatient.conf").write_text("[cells]\ntimeout = 0.3\n")
        outcome = shell(f"--config-file {shell.state}/impatient.conf cell list --health -f json --endpoint http://127.0.0.1:1")
    assert (outcome.status, outcome.err) == (1, "")
    _, east, north, west = json.loads(outcome.out)
    assert "east.db does not exist" in east["Database"]
    assert (east["Schema"], east["Hosts"]) == (None, None), "unknown, not none"
    assert "127.0.0.1:1" in west["Bus"]
    assert (west["Database"], west["Hosts"]) == ("ok", 0)
    assert "gave no answer within 0.3 s" in north["Database"]
    assert all(row["Since"] for row in (east, north, west))
    assert "secret" not in outcome.out
