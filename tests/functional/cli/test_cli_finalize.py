"""``upgrade finalize``: refused while an older process could read what the new one writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from db import processes
from db.api.rows import finalized, tables
from db.cell import services
from db.cell.services import Beat
from db.sql.connection import Connection
from db.sql.engine import Database
from objects import errors
from objects.cell import CellMapping
from objects.messages_version import SPAN, V1_0
from objects.process import AGENT_BINARY, SCHEDULER_BINARY, About, Process
from tests.support.cell_databases import Cells
from tests.support.commands import Shell


class Site:
    """A deployment of the release before, with an agent."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.shell = Shell(folder, capsys)
        self.cells = Cells(folder)
        self.cells.add("cell0", cell0=True)
        self.east = self.cells.add("east")
        self.cells.api.write(_execute, sa.delete(tables.finalized))

    def introduce(self, messages: str) -> None:
        Database(self.east.database_url).write(
            services.introduce_service, Beat(host="east-h1", binary=AGENT_BINARY), About(messages=messages), 1.0
        )

    def show_scheduler(self, messages: str) -> None:
        about = About(release="0.0.9", messages=messages)
        process = Process(uuid="s", binary=SCHEDULER_BINARY, host="h", about=about, started_at=0.0, last_seen=0.0, age=1.0)
        self.cells.api.write(processes.record_process, "api", process)

    def refused(self) -> str:
        outcome = self.shell("upgrade finalize")
        assert outcome.status != 0
        assert self.cells.api.read(finalized.read) == V1_0
        return outcome.err


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, capsys)


def test_it_succeeds_once_all_releases_match(site: Site) -> None:
    site.introduce(str(SPAN))
    site.show_scheduler(str(SPAN))
    with pytest.raises(errors.Conflict, match="feature: the upgrade of this deployment is not finished"):
        site.cells.api.read(finalized.check, "feature", SPAN.newest)
    assert "messages 1.0" in site.shell.done("upgrade finalize")
    assert site.cells.api.read(finalized.read) == SPAN.newest
    site.cells.api.read(finalized.check, "feature", SPAN.newest)
    site.shell.done("upgrade finalize")


def test_only_living_older_agents_block_the_upgrade(site: Site) -> None:
    site.introduce("1.0")
    assert "superconductor-compute on east-h1 (1.0)" in site.refused()
    Database(site.east.database_url).write(services.set_forced_down, "east-h1", AGENT_BINARY, True, 1.0)
    site.shell.done("upgrade finalize")


def test_an_older_api_process_is_named(site: Site) -> None:
    site.show_scheduler("1.0")
    assert "superconductor-scheduler on h (1.0)" in site.refused()


def test_a_silent_cell_may_have_older_processes(site: Site) -> None:
    _move(site.cells, site.east)
    assert "its processes are unknown" in site.refused()


def test_the_check_counts_messages_and_warns_until_finalized(site: Site) -> None:
    site.introduce("1.0")
    outcome = site.shell("upgrade check")
    assert "superconductor-compute: 1.0 (1)" in outcome.out
    assert "waits for 'superconductor upgrade finalize'" in " ".join(outcome.out.split())


def _move(cells: Cells, mapping: CellMapping) -> None:
    cells.api.write(
        _execute,
        sa.update(tables.cell_mappings)
        .where(tables.cell_mappings.c.uuid == mapping.uuid)
        .values(database_url="sqlite:////nowhere/x.db"),
    )


def _execute(tx: Connection, statement: sa.Executable) -> None:
    tx.execute(statement)
