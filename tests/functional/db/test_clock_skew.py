"""A machine whose clock is an hour off looks neither dead nor alive for it, whoever looks, and is missed once it is dead."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from api.lookup.hosts import HostWatch
from db.cell import services
from db.cell.tables import services as table
from db.sql.engine import Database
from scheduler.cell_reader import LastReports
from service.liveness import Liveness
from tests.support.cell_databases import Cells
from tests.support.commands import Shell
from tests.support.databases import sqlite_url

AGENT = "superconductor-compute"
HOUR = 3600.0
DOWN_TIME = 60.0


def states(cells: Cells, shell: Shell, east: Database) -> dict[str, str]:
    """What is told by those who look once: a command, the API, a scheduler at its start."""
    (row,) = shell.json("host list")
    with cells.registry() as registry:
        api = HostWatch(registry, DOWN_TIME, 5.0).status_of("e1")
    mono = time.monotonic()
    (heard_at,), _ = LastReports().enter_signs(east.read(services.read_signs, AGENT), mono)
    silent = mono - heard_at > DOWN_TIME
    return {"command": row["State"], "API": api, "scheduler": "down" if silent else "up"}


@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_an_hour_makes_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    cells, real = Cells(tmp_path), time.time
    cells.add("east")
    cells.report("east", "e1")
    shell, east = Shell(tmp_path, capsys), Database(sqlite_url(tmp_path, "east"))
    with monkeypatch.context() as there:  # the agent's machine and its conductor's
        there.setattr(time, "time", lambda: real() + skew)
        east.write(services.record_heartbeats, [services.Beat(host="e1", binary=AGENT)])
    assert states(cells, shell, east) == {"command": "up", "API": "UP", "scheduler": "up"}
    with monkeypatch.context() as here:  # the reader's
        here.setattr(time, "time", lambda: real() + skew)
        assert states(cells, shell, east) == {"command": "up", "API": "UP", "scheduler": "up"}
    east.write(lambda tx: tx.execute(sa.update(table).values(last_seen=table.c.last_seen - 2 * DOWN_TIME)))
    assert states(cells, shell, east) == {"command": "down", "API": "UNKNOWN", "scheduler": "down"}


@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_who_goes_on_looking_counts_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew: float) -> None:
    """A cell's sweep, and a scheduler: what is written of times is nothing to them."""
    cells, real = Cells(tmp_path), time.time
    cells.add("east")
    cells.report("east", "e1", "e2")
    east, liveness = Database(sqlite_url(tmp_path, "east")), Liveness(DOWN_TIME)
    looks = [0.0, 25.0, 50.0, 75.0, 100.0, 125.0]
    found = []
    for now in looks:
        with monkeypatch.context() as there:
            there.setattr(time, "time", lambda: real() + skew)
            east.write(services.record_heartbeats, [services.Beat(host="e2", binary=AGENT)])
        if now <= 25.0:
            east.write(services.record_heartbeats, [services.Beat(host="e1", binary=AGENT)])
        found.append(liveness.hosts_down(east.read(services.list_all), now))
    assert found == [set(), set(), set(), set(), {"e1"}, {"e1"}]
