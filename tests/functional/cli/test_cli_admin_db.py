"""``superconductor db``: every database gets its turn and its own result."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.api.deployment import cell_mappings
from db.sql.sync import latest_version
from tests.support.cell_databases import Cells
from tests.support.commands import Shell, shell_fixture

shell = shell_fixture()


@pytest.fixture
def region(shell: Shell) -> Shell:
    """Three cells are registered; none of their databases has been made."""
    shell.done("db sync --api")
    shell.done("cell create cell0 --cell0 --no-sync")
    shell.done("cell create east --no-sync")
    shell.done("cell create west --no-sync")
    return shell


def test_sync_covers_api_database_cell0_and_cells(region: Shell) -> None:
    rows = region.json("db sync")
    assert [(row["Database"], row["Kind"], row["Result"]) for row in rows] == [
        ("api", "api", "up to date"),
        ("cell0", "cell", "up to date"),
        ("east", "cell", "up to date"),
        ("west", "cell", "up to date"),
    ]
    assert {row["Version"] for row in rows} == {latest_version("api"), latest_version("cell")}
    assert region.json("db sync --all") == rows, "harmless to repeat"
    assert all((region.state / f"{name}.db").exists() for name in ("api", "cell0", "east", "west"))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("--api", ["api"]),
        ("--cell0", ["cell0"]),
        ("--cell east", ["east"]),
        ("--all-cells", ["cell0", "east", "west"]),
        ("--cell west --cell cell0 --api", ["api", "cell0", "west"]),
    ],
)
def test_sync_of_some(region: Shell, options: str, names: list[str]) -> None:
    assert [row["Database"] for row in region.json(f"db sync {options}")] == names
    made = {file.stem for file in region.state.glob("*.db")}
    assert made == {"api", *names}


def test_a_failing_database_does_not_stop_the_others(region: Shell) -> None:
    (region.state / "east.db").mkdir()
    outcome = region("db sync -f value -c Database -c Result")
    assert outcome.status == 1
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines] == ["api", "cell0", "east", "west"]
    assert ["failed" in line for line in lines] == [False, False, True, False]
    assert outcome.err.startswith("superconductor: east: Database ")
    assert outcome.err.count("\n") == 1
    assert region.json("db version --cell west")[0]["Result"] == "up to date"


def test_an_unreachable_server_is_told_without_its_password(region: Shell, tmp_path: Path) -> None:
    cells = Cells(tmp_path)
    cells.add_unreachable("far", "mysql+pymysql://sc:secret@127.0.0.1:1/far")
    outcome = region("db sync")
    assert outcome.status == 1
    assert "sc:***@127.0.0.1" in outcome.err
    assert "secret" not in outcome.err + outcome.out


def test_quiet_sync_tells_failures_only(region: Shell) -> None:
    (region.state / "east.db").mkdir()
    outcome = region("-q db sync")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.startswith("superconductor: east: ")


def test_unknown_cells_are_named(region: Shell) -> None:
    assert "No cell is called 'north'; there are: cell0, east, west." in region.refused("db sync --cell north", 3)


def test_version_tells_what_each_database_has(region: Shell) -> None:
    region.done("db sync --api --cell east")
    outcome = region("db version -f value -c Database -c Version -c Result")
    lines = dict(line.split(maxsplit=1) for line in outcome.out.splitlines())
    assert lines["api"] == f"{latest_version('api')} up to date"
    assert lines["east"] == f"{latest_version('cell')} up to date"
    assert "does not exist" in lines["west"]
    assert outcome.status == 1


def test_version_without_schema_says_the_command(region: Shell) -> None:
    (region.state / "east.db").touch()
    told = f"run 'superconductor db sync': the latest is {latest_version('cell')}"
    assert region.json("db version --cell east") == [{"Database": "east", "Kind": "cell", "Version": None, "Result": told}]


def test_cells_that_went_meanwhile_are_no_trouble(region: Shell, tmp_path: Path) -> None:
    cells = Cells(tmp_path)
    for mapping in cells.api.read(cell_mappings.list_all):
        cells.api.write(cell_mappings.delete, mapping.uuid)
    assert [row["Database"] for row in region.json("db sync")] == ["api"]
