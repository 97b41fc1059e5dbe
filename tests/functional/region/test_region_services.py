"""Every process of a deployment shows itself while it runs, and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from cells.discovery import AGENT
from cells.presence import API, CONDUCTOR, SCHEDULER
from service.periodic import wait_until
from tests.support.commands import Shell
from tests.support.region import host, region


def test_processes_are_listed_while_they_run_and_agents_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with region(tmp_path, [host("h1")]) as cloud:
        shell = Shell(cloud.folder.path, capsys)
        everybody = {(API, "api"), (SCHEDULER, "api"), (CONDUCTOR, "api"), (CONDUCTOR, "cell1"), (AGENT, "cell1")}

        def introduced() -> bool:
            rows = shell.json("service list")
            return {(row["Binary"], row["Level"]) for row in rows if row["State"] == "up" and row["PID"]} == everybody

        assert wait_until(introduced, 30.0)
        cloud.all.stop()
        assert [(row["Binary"], row["State"]) for row in shell.json("service list")] == [(AGENT, "stopping")]
