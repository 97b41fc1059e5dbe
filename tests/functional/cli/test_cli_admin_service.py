"""``superconductor service list``: every process, whatever its level."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from db import processes
from db.cell import services
from db.cell.services import Beat
from db.processes import Level
from db.sql.engine import Database
from objects.process import API_BINARY, CONDUCTOR_BINARY, SCHEDULER_BINARY, About, Process
from tests.support.cell_databases import Cells, closed_port, east_and_west
from tests.support.commands import Shell
from tests.support.databases import sqlite_url

AGENT = "superconductor-compute"


@pytest.fixture
def cells(tmp_path: Path) -> Cells:
    cells = east_and_west(tmp_path)
    show(cells, "api", "api", API_BINARY)
    show(cells, "api", "api", SCHEDULER_BINARY)
    show(cells, "api", "api", CONDUCTOR_BINARY)
    show(cells, "east", "cell", CONDUCTOR_BINARY)
    return cells


def show(cells: Cells, name: str, level: Level, binary: str) -> None:
    about = About(release="1.2", messages="" if binary == API_BINARY else "1.0", pid=7)
    shown = Process(uuid=f"{name}-{binary}", binary=binary, host="control1", about=about, started_at=0.0, last_seen=0.0, age=1.0)
    database = cells.api if level == "api" else Database(sqlite_url(cells.folder, name))
    database.write(processes.record_process, level, shown)


def test_all_processes_are_listed_with_known_details(cells: Cells, shell: Shell) -> None:
    cells.report("east", "e1", "e2")
    database = Database(sqlite_url(cells.folder, "east"))
    database.write(services.introduce_service, Beat(host="e1", binary=AGENT), About(release="1.1", messages="1.0", pid=9), 1.0)
    shell.done("-q host discover")
    shell.done("host disable e1 --reason 'a fan is loud'")
    shell.done("host set e2 --down")
    rows = shell.json("service list")
    assert [(row["Binary"], row["Level"], row["Host"], row["State"]) for row in rows] == [
        (API_BINARY, "api", "control1", "up"),
        (CONDUCTOR_BINARY, "api", "control1", "up"),
        (SCHEDULER_BINARY, "api", "control1", "up"),
        (CONDUCTOR_BINARY, "east", "control1", "up"),
        (AGENT, "east", "e1", "up"),
        (AGENT, "east", "e2", "down"),
    ]
    api, e1, e2 = rows[0], rows[4], rows[5]
    assert (api["PID"], api["Release"], api["Messages"], api["Status"]) == (7, "1.2", None, None)
    assert api["Started At"] <= api["Last Seen"]
    assert (e1["PID"], e1["Release"], e1["Status"], e1["Reason"], e1["Forced Down"]) == (
        9,
        "1.1",
        "disabled",
        "a fan is loud",
        "no",
    )
    assert (e2["PID"], e2["Status"], e2["Forced Down"]) == (None, "enabled", "yes")
    assert [row["Host"] for row in shell.json(f"service list --cell east --binary {AGENT}")] == ["e1", "e2"]
    assert shell.json("service list --host e1") == [e1]


def test_every_format_tells_the_same(cells: Cells, shell: Shell) -> None:
    told = shell.json("service list --cell east")
    assert yaml.safe_load(shell.done("service list --cell east -f yaml")) == told
    assert shell.done("service list --cell east -f value -c Binary -c Host") == f"{CONDUCTOR_BINARY} control1\n"
    assert shell.done("service list --cell east -f csv -c Binary").splitlines() == ['"Binary"', f'"{CONDUCTOR_BINARY}"']
    assert "control1" in shell.done("service list --cell east")


def test_an_unreachable_cell_is_reported_beside_the_list(cells: Cells, shell: Shell) -> None:
    cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    outcome = shell("service list -f value -c Level")
    assert outcome.status == 1
    assert outcome.out.split() == ["api", "api", "api", "east"]
    assert outcome.err.startswith("superconductor: cell 'dead'")
    assert outcome.err.endswith("its processes are unknown\n")
    assert "secret" not in outcome.err
