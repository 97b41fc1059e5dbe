"""``superconductor dead-letter``: what steps could not process, at the API level and in cells; and how ``verify`` tells of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from db import dead_letters
from db.sql.engine import Database
from tests.support.cell_databases import Cells, closed_port
from tests.support.commands import Shell
from tests.support.databases import sqlite_url


@pytest.fixture
def east(cells: Cells) -> Iterator[Database]:
    """East's database, with a letter; the API level has two."""
    database = Database(sqlite_url(cells.folder, "east"))
    database.write(dead_letters.put_letters, "cell", "deadlines", {"server-3": "ValueError: what a driver said"})
    cells.api.write(dead_letters.put_letters, "api", "feed", {"server-1": "ValueError: an odd row"})
    cells.api.write(dead_letters.put_letters, "api", "build", {"server-2": "DataError: a tag"})
    yield database
    database.dispose_connections()


def listed(shell: Shell, options: str = "") -> list[tuple[str, str, str]]:
    return [(row["Place"], row["Step"], row["Key"]) for row in shell.json(f"dead-letter list {options}")]


def test_the_letters_of_all_places_are_listed(shell: Shell, east: Database) -> None:
    every = [("api", "build", "server-2"), ("api", "feed", "server-1"), ("east", "deadlines", "server-3")]
    assert listed(shell) == every
    assert listed(shell, "--cell east") == every[2:]
    assert listed(shell, "--cell api") == every[:2]
    assert listed(shell, "--cell west") == []
    assert listed(shell, "--step feed") == every[1:2]
    row = shell.json("dead-letter list --cell east")[0]
    assert (row["Tries"], row["Reason"]) == (1, "ValueError: what a driver said")
    assert row["Since"] <= row["Last Try"] <= row["Next Try"]


def test_letters_are_skipped_and_tried_again(cells: Cells, shell: Shell, east: Database) -> None:
    shell.done("dead-letter skip server-1 server-3")
    shown = {row["Key"]: row["Next Try"] for row in shell.json("dead-letter list")}
    assert (shown["server-1"], shown["server-3"]) == ("skipped", "skipped")
    assert shown["server-2"] != "skipped"
    shell.done("dead-letter retry --all --cell east")
    (letter,) = east.read(dead_letters.list_all, "cell")
    assert (letter.skipped, letter.wait) == (False, 0.0)
    assert [each.skipped for each in cells.api.read(dead_letters.list_all, "api")] == [False, True]


def test_a_wrong_name_is_refused_in_a_line(shell: Shell, east: Database) -> None:
    assert "no dead letter of 'unknown'" in shell.refused("dead-letter retry unknown")
    assert "name the keys, or give --all" in shell.refused("dead-letter skip")
    assert "name the keys, or give --all" in shell.refused("dead-letter skip server-1 --all")
    assert "no dead letter of 'server-1'" in shell.refused("dead-letter retry server-1 --step build")


def test_a_silent_cell_is_reported_beside_the_list(cells: Cells, shell: Shell, east: Database) -> None:
    cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    outcome = shell("dead-letter list -f value -c Key")
    assert (outcome.status, outcome.out.split()) == (1, ["server-2", "server-1", "server-3"])
    assert "dead" in outcome.err
    assert "secret" not in outcome.err


def test_verify_names_step_key_reason_and_since(shell: Shell, east: Database) -> None:
    found = shell("verify --settle 0 -f json")
    assert found.status == 1
    told = shell("verify --settle 0").out.splitlines()
    lines = [line for line in told if line.startswith("dead letter: ")]
    assert len(lines) == 3
    assert any("deadlines cannot process server-3 since 20" in line and "what a driver said (east)" in line for line in lines)
    shell.done("dead-letter skip --all")
    assert shell.done("verify --settle 0") == "everything agrees\n"
