"""``superconductor verify``: what it prints, what it repairs, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import uuid
from pathlib import Path

import pytest
import sqlalchemy as sa

from db.api.rows.tables import allocations, inventories
from db.sql.engine import Database
from tests.support.auditing import change
from tests.support.cell_databases import Cells, closed_port
from tests.support.commands import Shell
from tests.support.databases import sqlite_url


@pytest.fixture
def cells(tmp_path: Path) -> Cells:
    cells = Cells(tmp_path)
    cells.add("cell0", cell0=True)
    cells.add("east")
    return cells


@pytest.fixture
def claim(cells: Cells, shell: Shell) -> str:
    """A claim of five vCPUs on host h3 that nothing stands on; returns whose it is."""
    cells.report("east", "h3", guests=0)
    shell.done("-q host discover")
    assert shell("verify --settle 0 --repair").status == 0, "capacities are told by the first feed that is applied"
    database, stray = Database(sqlite_url(cells.folder, "api")), str(uuid.uuid4())
    [key] = database.read(lambda tx: list(tx.execute(sa.select(inventories.c.id)).scalars()))
    row = {"instance_uuid": stray, "inventory_id": key, "fence": 1, "vcpus": 5, "memory_mb": 1, "disk_gb": 1}
    change(database, sa.insert(allocations), row | {"selection": "[]", "writer": 1, "wseq": 1})
    change(database, sa.update(inventories).values(used_vcpus=5, used_memory_mb=1, used_disk_gb=1, instances=1))
    database.dispose_connections()
    return stray


def test_where_everything_agrees_it_says_so(cells: Cells, shell: Shell) -> None:
    assert shell.done("verify --settle 0") == "everything agrees\n"
    assert shell.done("-q verify --settle 0") == ""
    assert shell.json("verify --settle 0") == []


def test_findings_are_reported_and_repaired_on_request(shell: Shell, claim: str) -> None:
    line = f"claim without instance: 5 vcpus of {claim} on h3 (east); "
    found = shell("verify --settle 0")
    assert (found.status, found.out, found.err) == (1, f"{line}would be released\n", "")
    repaired = shell("verify --settle 0 --repair")
    assert (repaired.status, repaired.out, repaired.err) == (0, f"{line}released\n", "")
    assert shell.done("verify --settle 0") == "everything agrees\n"


@pytest.mark.parametrize("formatter", ["json", "yaml", "csv", "value", "table"])
def test_every_format_has_the_same(shell: Shell, claim: str, formatter: str) -> None:
    outcome = shell(f"verify --settle 0 -f {formatter}")
    assert outcome.status == 1
    assert claim in outcome.out
    assert "released" in outcome.out
    row = {
        "Finding": "claim without instance",
        "Object": claim,
        "Cell": "east",
        "Details": f"5 vcpus of {claim} on h3",
        "Repair": "released",
        "Outcome": "found",
        "Advice": None,
    }
    if formatter == "json":
        assert json.loads(outcome.out) == [row]
    if formatter == "csv":
        assert list(csv.DictReader(io.StringIO(outcome.out))) == [row | {"Advice": ""}]


def test_what_only_a_person_can_decide_is_left(cells: Cells, shell: Shell) -> None:
    cells.add("west")
    cells.report("east", "twin", guests=0)
    cells.report("west", "twin", guests=0)
    outcome = shell("verify --settle 0 --repair")
    assert outcome.status == 1
    assert outcome.out.startswith("host in two cells: twin reports in east and west; rename one of them")
    rows = {row["Finding"]: row for row in json.loads(shell("verify --repair --settle 0 -f json").out)}
    conflict = rows["host in two cells"]
    assert (conflict["Object"], conflict["Outcome"], conflict["Repair"]) == ("twin", "left", None)


def test_a_cell_that_cannot_be_reached_is_named(cells: Cells, shell: Shell, claim: str) -> None:
    cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    both = shell("verify --settle 0 --repair")
    assert both.status == 3, "what was found was repaired; the other cell is unknown"
    assert both.out.endswith("on h3 (east); released\n")
    assert both.err.startswith("superconductor: cell 'dead': Database mysql")
    assert both.err.endswith("its state is unknown\n")
    assert both.err.count("\n") == 1
    assert "secret" not in both.err
    unknown = shell("verify --settle 0")
    assert (unknown.status, unknown.out) == (3, "")


def test_an_unusable_api_database_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Shell(tmp_path, capsys)("verify")
    assert outcome.status == 3
    assert "does not exist" in outcome.err
    assert outcome.err.count("\n") == 1


def test_usage_errors_have_a_status_of_their_own(shell: Shell) -> None:
    assert "--settle" in shell.refused("verify --settle soon", status=2)
