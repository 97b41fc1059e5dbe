"""``db archive``: what was deleted long ago goes into files, whole, once at least, and is then gone from the databases."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cells import administration
from cells.administration import CellChange, NewCell, create_cell
from cli.shared.archive_file import ArchiveFile
from conductor.tidy import forget_deleted
from db.api.deployment import cell_mappings
from db.api.reconcile import purge as api_purge
from db.cell import purge as cell_purge
from db.sql.connection import ApiTransaction
from db.sql.engine import Database
from objects import errors
from tests.support import tombstones
from tests.support.cell_databases import Cells
from tests.support.commands import Shell
from tests.support.databases import SERVERS, closed_port, database_on, sqlite_url
from tests.support.ground import Ground

DAY = 86400.0
EAST = "cell-of-the-east"


class Site:
    """A state folder with cell0 and cells whose servers are rows only."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.shell = Shell(folder, capsys)
        self.shell.done("db sync --api")
        self.shell.done("cell create cell0 --cell0")
        for name in ("east", "west"):
            self.shell.done(f"cell create {name}")
        self.api = Database(sqlite_url(folder, "api"))
        self.cells = {name: Database(sqlite_url(folder, name)) for name in ("east", "west")}

    def leave(self, cell: str, count: int, days: float = 40.0) -> list[str]:
        uuid = administration.find_cell(self.api, cell).uuid
        return tombstones.leave(self.api, self.cells[cell], uuid, count, time.time() - days * DAY)

    def run(self, line: str) -> tuple[int, dict[str, tuple[Any, str]]]:
        """The exit status, and for each database the servers and the result."""
        outcome = self.shell(f"{line} -f json")
        return outcome.status, {row["Database"]: (row["Servers"], row["Result"]) for row in json.loads(outcome.out)}

    def archived(self, name: str) -> list[dict[str, Any]]:
        return read(self.shell.state / "archive" / name)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def uuids_in(records: list[dict[str, Any]], table: str) -> Counter[str]:
    key = "uuid" if table == "instances" else "instance_uuid"
    return Counter(record["row"][key] for record in records if record["table"] == table)


def _lead_nowhere(tx: ApiTransaction, uuid: str) -> None:
    mapping = cell_mappings.get(tx, uuid)
    url = f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell"
    cell_mappings.update_mapping(tx, msgspec.structs.replace(mapping, database_url=url))


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, capsys)


@pytest.mark.parametrize("server", SERVERS)
def test_a_page_is_copied_and_deleted_everywhere(server: str, tmp_path: Path) -> None:
    with database_on(server, tmp_path, "api") as above, database_on(server, tmp_path, "cell") as cell:
        old = tombstones.leave(above, cell, EAST, 3, 100.0)
        tombstones.leave(above, cell, EAST, 2, 900.0)
        found = cell.read(cell_purge.old_rows, 500.0, 2)
        assert len(found) == 2
        assert set(found) < set(old)

        lines = [json.loads(line) for line in cell.read(cell_purge.lines_of_rows, old)]
        for table in ("instances", "builds", "instance_actions"):
            assert uuids_in(lines, table) == Counter(old)
        assert cell.write(cell_purge.forget_rows, old) == 3
        assert cell.write(cell_purge.forget_rows, old) == 0, "harmless to repeat"
        lines = [json.loads(line) for line in above.read(api_purge.lines_of_servers, old)]
        assert uuids_in(lines, "instance_mappings") == Counter(old)
        assert [line["row"]["project_id"] for line in lines[:3]] == ["p"] * 3
        assert len([line for line in lines if line["table"] == "request_specs"]) == 1
        assert tombstones.SEALED not in json.dumps(lines), "secrets do not leave the database"
        assert above.write(api_purge.forget_servers, old) == 3
        assert tombstones.left(above).items() >= {"instance_mappings": 2, "request_specs": 1, "request_secrets": 1}.items()
        assert tombstones.left(cell).items() >= {"instances": 2, "builds": 2, "instance_actions": 2}.items()


def test_everything_old_goes_into_files_the_rest_stays(site: Site) -> None:
    east, west = site.leave("east", 5), site.leave("west", 2)
    kept = site.leave("east", 1, days=3)
    assert site.run("db archive --until-complete --max-rows 2") == (
        0,
        {"cell0": (0, "done"), "east": (5, "done"), "west": (2, "done"), "api": (7, "done")},
    )
    assert uuids_in(site.archived("cells/east.jsonl"), "instances") == Counter(east)
    assert uuids_in(site.archived("cells/west.jsonl"), "builds") == Counter(west)
    assert uuids_in(site.archived("api.jsonl"), "instance_mappings") == Counter(east + west)
    assert (site.shell.state / "archive" / "api.jsonl").stat().st_mode & 0o077 == 0
    assert not (site.shell.state / "archive" / "cells" / "cell0.jsonl").exists(), "nothing to say"
    assert tombstones.left(site.cells["east"])["instances"] == 1
    assert site.run("db archive")[0] == 0
    assert site.run("db archive --days 2") == (
        0,
        {"cell0": (0, "done"), "east": (1, "done"), "west": (0, "done"), "api": (1, "done")},
    )
    assert uuids_in(site.archived("api.jsonl"), "instance_mappings") == Counter(east + west + kept)


def test_a_bounded_run_reports_more_retaining_api_rows(site: Site) -> None:
    site.leave("east", 5)
    site.leave("west", 2)
    more = "more is left: run it again"
    assert site.run("db archive --max-rows 3") == (
        1,
        {"cell0": (0, "done"), "east": (3, more), "west": (2, "done"), "api": (2, "done")},
    )
    assert site.run("db archive --max-rows 3") == (
        1,
        {"cell0": (0, "done"), "east": (2, "done"), "west": (0, "done"), "api": (3, more)},
    )
    assert site.run("db archive --max-rows 3")[0] == 0
    assert tombstones.left(site.api).keys() == {"epochs", "cell_mappings", "certification", "finalized"}


def test_some_databases_only(site: Site) -> None:
    site.leave("east", 2)
    site.leave("west", 3)
    assert site.run("db archive --cell west --api") == (0, {"west": (3, "done"), "api": (3, "done")})
    assert site.run("db archive --all-cells") == (0, {"cell0": (0, "done"), "east": (2, "done"), "west": (0, "done")})
    assert site.run("db purge --api") == (0, {"api": (0, "done")}), "of no cell: nobody knows what is left of them there"
    assert site.run("db purge") == (0, {"cell0": (0, "done"), "east": (0, "done"), "west": (0, "done"), "api": (2, "done")})


def test_a_run_that_died_before_deleting_resumes(site: Site) -> None:
    """Killed in the middle of a line, the rows are still there: the torn line goes, and they are written once more."""
    uuids = site.leave("east", 2)
    file = site.shell.state / "archive" / "cells" / "east.jsonl"
    with ArchiveFile(file) as archived:
        archived.append_lines(site.cells["east"].read(cell_purge.lines_of_rows, uuids))
        with pytest.raises(errors.Conflict, match="is being written by another process"):
            ArchiveFile(file)
    with file.open("a") as torn:
        torn.write('{"table":"instances","row":{"uu' + "x" * 70_000)
    assert site.run("db archive")[0] == 0
    assert uuids_in(read(file), "instances") == Counter(uuids * 2)
    assert tombstones.left(site.cells["east"]).keys() == {"feed_head", "certification"}


def test_an_unwritable_folder_keeps_every_row(site: Site) -> None:
    site.leave("east", 1)
    (site.shell.state / "file").touch()
    outcome = site.shell(f"db archive --to {site.shell.state / 'file'} -f value -c Database -c Result")
    assert outcome.status == 2
    assert "east failed: " in outcome.out
    assert "cannot be written: Not a directory" in outcome.err
    assert tombstones.left(site.cells["east"])["instances"] == 1
    assert tombstones.left(site.api)["instance_mappings"] == 1


def test_an_unreachable_cell_is_one_line_others_finish(site: Site) -> None:
    site.leave("east", 1)
    site.leave("west", 1)
    away = f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell"
    administration.change_cell(site.api, "east", CellChange(database_url=away))
    outcome = site.shell("db archive -f value -c Database -c Result")
    assert outcome.status == 2
    lines = dict(line.split(maxsplit=1) for line in outcome.out.splitlines())
    assert lines.keys() == {"cell0", "east", "west", "api"}
    assert lines["east"].startswith("failed: Database mysql+pymysql://sc:***@127.0.0.1")
    assert outcome.err.count("\n") == 1
    assert "secret" not in outcome.err + outcome.out
    assert tombstones.left(site.api)["instance_mappings"] == 1, "that of the cell that is away"


def test_the_sweep_forgets_as_the_command_does(site: Site, tmp_path: Path) -> None:
    site.leave("east", 2)
    site.leave("west", 1)
    kept = site.leave("east", 1, days=3)
    cells = Cells(tmp_path, Ground("lite", tmp_path))
    with cells.registry() as registry:
        site.api.write(_lead_nowhere, administration.find_cell(site.api, "west").uuid)
        registry.refresh_cells()
        forget_deleted(registry, site.api, 30 * DAY)
    assert tombstones.left(site.cells["east"])["instances"] == len(kept)
    assert tombstones.left(site.api)["instance_mappings"] == len(kept) + 1, "that of the cell that is away waits"


def test_servers_of_a_removed_cell_are_forgotten_too(site: Site) -> None:
    """Its database is nobody's any more, and nothing would ever come from it."""
    site.leave("east", 2)
    site.api.write(cell_mappings.delete, administration.find_cell(site.api, "east").uuid)
    assert site.run("db archive") == (0, {"cell0": (0, "done"), "west": (0, "done"), "api": (2, "done")})


def test_a_cell_may_be_called_api(site: Site) -> None:
    made = create_cell(
        site.api, NewCell(name="api", database_url=sqlite_url(site.shell.state, "third"), transport_url="embedded://third/")
    )
    site.shell.done("db sync --cell api")
    tombstones.leave(site.api, Database(made.database_url), made.uuid, 1, time.time() - 40 * DAY)
    site.shell.done("db archive")
    assert {record["table"] for record in site.archived("api.jsonl")} == {"instance_mappings", "request_specs"}
    assert {record["table"] for record in site.archived("cells/api.jsonl")} == {"instances", "builds", "instance_actions"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--before yesterday", "'yesterday' is not a date like 2026-03-31"),
        ("--before 2999-01-01", "'2999-01-01' is less than a day ago"),
        ("--before 2020-01-01 --days 3", "not allowed with argument"),
        ("--days 0", "'0' is not a whole number from 1"),
        ("--max-rows 0", "'0' is not a whole number from 1"),
    ],
)
def test_wrong_bounds_are_refused(site: Site, options: str, text: str) -> None:
    assert text in site.shell.refused(f"db archive {options}", status=2)


def test_without_a_state_folder_files_need_a_path(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "api.conf"
    file.write_text(f"[api_database]\nconnection = {sqlite_url(tmp_path, 'api')}\n")
    outcome = site.shell.run("--config-file", str(file), "db", "archive")
    assert (outcome.status, outcome.err) == (1, "superconductor: no folder for the archive is given: give --to DIR\n")


def test_dates_are_understood(site: Site) -> None:
    when = 1_700_000_000.0  # 2023-11-14T22:13:20Z
    tombstones.leave(site.api, site.cells["east"], administration.find_cell(site.api, "east").uuid, 1, when)
    for before, count in (("2023-11-14", 0), ("2023-11-14T23:13:20+01:00", 0), ("2023-11-14T23:13:21+01:00", 1)):
        assert site.run(f"db purge --before {before}")[1]["east"] == (count, "done")
