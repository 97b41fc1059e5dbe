"""Every process of a deployment shows itself while it runs, and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from objects.process import AGENT_BINARY, API_BINARY, CONDUCTOR_BINARY, SCHEDULER_BINARY
from service.periodic import wait_until
from tests.support.commands import Shell
from tests.support.region import host, region


def test_processes_are_listed_while_running_and_agents_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with region(tmp_path, [host("h1")]) as cloud:
        shell = Shell(cloud.folder.path, capsys)
        everybody = {
            (API_BINARY, "api"),
            (SCHEDULER_BINARY, "api"),
            (CONDUCTOR_BINARY, "api"),
            (CONDUCTOR_BINARY, "cell1"),
            (AGENT_BINARY, "cell1"),
        }

        def introduced() -> bool:
            rows = shell.json("service list")
            return {(row["Binary"], row["Level"]) for row in rows if row["State"] == "up" and row["PID"]} == everybody

        assert wait_until(introduced, 90.0)
        cloud.all.stop()
        assert [(row["Binary"], row["State"]) for row in shell.json("service list")] == [(AGENT_BINARY, "stopping")]
