"""``upgrade check`` finds what stands in the way, says what to do, and tells by its exit status."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from cells.discovery import discover_hosts
from cli.standalone import key_file
from compute.main import VERSION
from db import online, processes
from db.api.rows import tables
from db.cell import services
from db.cell.services import Beat
from db.online import Migration
from db.processes import Level
from db.sql.connection import Connection
from db.sql.engine import Database
from db.sql.sync import latest_version
from objects.cell import CellMapping
from objects.process import AGENT_BINARY, About, Process
from service.release import installed_release
from service.vault import new_key
from tests.support.cell_databases import Cells, closed_port
from tests.support.commands import Shell

AWAY = "mysql+pymysql://sc:secret@127.0.0.1:{}/cell"


class Site:
    """cell0 and two cells with a host each, all well."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.shell = Shell(folder, capsys)
        self.cells = Cells(folder)
        self.cells.add("cell0", cell0=True)
        self.east, self.west = self.cells.add("east"), self.cells.add("west")
        for name in ("east", "west"):
            self.cells.report(name, f"{name}-h1")
        with self.cells.registry() as registry:
            discover_hosts(registry, self.cells.api)
        key_file.read_or_make(folder)

    def check(self, status: int) -> dict[str, list[tuple[str, str]]]:
        """What each check found: results and details."""
        outcome = self.shell("upgrade check -f json")
        assert outcome.status == status, outcome
        assert "secret@" not in outcome.out + outcome.err
        found = defaultdict(list)
        for row in json.loads(outcome.out):
            found[row["Check"]].append((row["Result"], row["Details"]))
        return found

    def move(self, mapping: CellMapping, **changes: str) -> None:
        self.cells.change(msgspec.structs.replace(mapping, **changes))


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, capsys)


def worst(found: Mapping[str, list[tuple[str, str]]]) -> set[str]:
    """The checks that found anything but success."""
    return {check for check, told in found.items() if any(result != "Success" for result, _ in told)}


def test_all_is_well(site: Site) -> None:
    assert site.check(0) == {
        "API database": [("Success", f"schema {latest_version('api')}")],
        "Encryption key": [("Success", "there is a master key")],
        "API level's bus": [("Success", "inside the process")],
        "Cells": [("Success", "cell0 and 2 cells")],
        "Cell databases": [("Success", "the schema of 3 databases is up to date")],
        "Cell buses": [("Success", "2 cells can be reached")],
        "Hosts": [("Success", "2 hosts mapped")],
        "Services": [("Success", f"2 processes heard of; this is release {installed_release()}")],
        "Messages": [("Success", "superconductor-compute: 1.0 (2)"), ("Success", "finalized: 1.1")],
        "Server names": [("Success", "need not be unique")],
        "Online migrations": [("Success", "nothing is left to migrate")],
    }


def test_an_absent_cell_is_only_a_warning(site: Site) -> None:
    site.move(site.east, database_url=AWAY.format(closed_port()), transport_url=f"rabbit://sc:secret@127.0.0.1:{closed_port()}/x")
    found = site.check(1)
    assert worst(found) == {"Cell databases", "Cell buses"}
    [(_, away), (_, well)] = found["Cell databases"]
    assert away.startswith("cell 'east'")
    assert well == "the schema of 2 databases is up to date"
    assert found["Cell buses"][-1] == ("Success", "1 cell can be reached")
    assert found["Services"] == [("Success", f"1 process heard of; this is release {installed_release()}")]


def test_unusable_urls_and_old_schemas_are_failures(site: Site) -> None:
    site.move(site.east, database_url="nonsense")
    _change(site.west, sa.text("UPDATE schema_version_cell SET version_num = '0001'"))
    found = site.check(2)
    broken, old, well = found["Cell databases"]
    assert broken == ("Failure", "cell 'east' cannot be used: " + broken[1].partition(": ")[2])
    assert old[0] == "Failure"
    assert "The schema is 0001, of the development before 0.1.0: run" in old[1]
    assert well == ("Success", "the schema of 1 database is up to date")


def test_a_newer_schema_is_no_trouble(site: Site) -> None:
    site.cells.api.write(_execute, sa.text("UPDATE schema_version_api SET version_num = '9999'"))
    assert site.check(0)["API database"] == [("Success", "schema 9999, of a newer release")]


def test_an_api_database_without_schema_ends_it(site: Site) -> None:
    site.cells.api.write(_execute, sa.text("DELETE FROM schema_version_api"))
    found = site.check(2)
    assert found.keys() == {"API database", "Encryption key", "API level's bus"}
    assert "apply it with 'superconductor db sync'" in found["API database"][0][1]


def test_missing_cells(site: Site) -> None:
    for table in (tables.host_mappings, tables.cell_mappings):
        site.cells.api.write(_execute, sa.delete(table))
    assert [result for result, _ in site.check(2)["Cells"]] == ["Failure", "Failure"]


def test_hosts_that_are_not_mapped(site: Site) -> None:
    site.cells.report("east", *(f"east-h{n}" for n in range(2, 9)))
    told = "not mapped: east-h2, east-h3, east-h4, east-h5, east-h6 and 2 more; 'superconductor host discover' maps them"
    assert site.check(1)["Hosts"][0] == ("Warning", told)
    site.cells.api.write(_execute, sa.delete(tables.host_mappings))
    assert site.check(2)["Hosts"][0][0] == "Failure", "none is: nothing could be booted"


def test_hosts_with_two_or_no_cells_are_reported(site: Site) -> None:
    site.cells.report("west", "east-h1", "west-h1")
    site.cells.report("east", "east-h1")
    site.cells.api.write(
        _execute, sa.update(tables.host_mappings).where(tables.host_mappings.c.host == "west-h1").values(cell_uuid="x")
    )
    [twin, lost, _] = site.check(1)["Hosts"]
    assert twin[1].startswith("Host east-h1 reports from cells east and west: ")
    assert lost[1].startswith("mapped to a cell that is registered no more: west-h1; ")
    site.cells.report("west", "east-h1", at=time.time() - 3600.0)
    assert len(site.check(1)["Hosts"]) == 2, "the agent in the west fell silent an hour ago"


def test_services_of_an_older_release(site: Site) -> None:
    Database(site.east.database_url).write(
        services.record_heartbeats, [services.Beat(host="east-h1", binary=AGENT_BINARY, version=0)], time.time()
    )
    older, _ = site.check(1)["Services"]
    assert older == ("Warning", "agents of an older version: east-h1; upgrade them after conductors and schedulers")


def test_processes_of_another_release(site: Site) -> None:
    def show(database: Database, level: Level, release: str, age: float = 1.0) -> None:
        about = About(release=release)
        process = Process(uuid=f"{level}{age}", binary=level, host="h", about=about, started_at=0.0, last_seen=0.0, age=age)
        database.write(processes.record_process, level, process)

    show(site.cells.api, "api", "0.0.9")
    show(Database(site.east.database_url), "cell", installed_release())
    agent = Beat(host="east-h1", binary=AGENT_BINARY, version=VERSION)
    Database(site.east.database_url).write(services.introduce_service, agent, About(release="0.0.8"), 1.0)
    agents, level, well = site.check(1)["Services"]
    assert agents == ("Warning", f"on release 0.0.8, while this is {installed_release()}: superconductor-compute on east-h1")
    assert level == ("Warning", f"on release 0.0.9, while this is {installed_release()}: api on h")
    assert well[1].startswith("4 processes heard of")


def test_rows_that_are_to_be_migrated(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [3]

    def migrate(_: Connection, most: int) -> int:
        done, left[0] = min(left[0], most), max(left[0] - most, 0)
        return done

    monkeypatch.setattr(online, "MIGRATIONS", (Migration("fill-rows", "api", lambda _: left[0], migrate),))
    told = "fill-rows: 3 rows; run 'superconductor db online-migrations'"
    assert site.check(1)["Online migrations"] == [("Warning", told)]
    site.shell.done("db online-migrations")
    site.check(0)


def test_a_configuration_is_judged_too(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def found(status: int, *lines: str) -> dict[str, str]:
        file = tmp_path / "api.conf"
        file.write_text("\n".join([f"[api_database]\nconnection = sqlite:///{tmp_path}/api.db\n[DEFAULT]", *lines]))
        outcome = Shell(tmp_path, capsys).run("--config-file", str(file), "upgrade", "check", "-f", "json")
        assert outcome.status == status
        return {row["Check"]: row["Details"] for row in json.loads(outcome.out)}

    without = found(1)
    assert without["Encryption key"].startswith("[secrets] keys is empty: ")
    assert without["API level's bus"].startswith("[DEFAULT] transport_url is not set here")
    away = f"transport_url = rabbit://sc:secret@127.0.0.1:{closed_port()}/x"
    assert "sc:***@127.0.0.1" in found(1, away)["API level's bus"]
    assert found(0, "transport_url = embedded://x/", f"[secrets]\nkeys = {new_key()}").keys() == without.keys()


def _change(mapping: CellMapping, statement: sa.TextClause) -> None:
    Database(mapping.database_url).write(_execute, statement)


def _execute(tx: Connection, statement: sa.TextClause | sa.Delete | sa.Update) -> None:
    tx.execute(statement)
