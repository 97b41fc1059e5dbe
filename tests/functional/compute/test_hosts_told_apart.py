"""Whether hosts are told apart is said by ``config check``, ``upgrade check`` and ``status``."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.cell import services
from db.cell.services import Beat
from objects.process import AGENT_BINARY, About
from tests.support.cell_databases import Cells
from tests.support.commands import Shell
from tests.support.processes import write_configuration
from tests.support.region import host, region


@pytest.mark.parametrize(("users", "said"), [("shared", True), ("required", False)])
def test_config_check_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], users: str, said: bool) -> None:
    groups: dict[str, dict[str, object]] = {
        "DEFAULT": {"transport_url": "rabbit://sc:x@mq/cell1"},
        "cell_database": {"connection": f"sqlite:///{tmp_path}/cell.db"},
        "conductor": {"roles": "cell", "agent_users": users},
    }
    file = write_configuration(tmp_path / "cell1.conf", groups)
    told = Shell(tmp_path, capsys).run("config", "check", "--config-file", str(file), "--role", "conductor", "-f", "value")
    assert told.status == 0
    assert ("does not tell its hosts apart" in told.out) is said


def test_upgrade_check_names_hosts_that_share_a_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(tmp_path, capsys)
    shell.done("db sync --api")
    cells = Cells(tmp_path)
    cells.add("cell0", cell0=True)
    cells.add("east")
    cells.report("east", "e1", "e2")
    east = cells.ground.open("east")
    east.write(services.introduce_service, Beat(host="e1", binary=AGENT_BINARY), About(release="1"), 1.0, identified=True)
    east.write(services.introduce_service, Beat(host="e2", binary=AGENT_BINARY), About(release="1"), 1.0)
    told = shell("upgrade check -f value")
    assert "e2: cannot be distinguished, because their agents share a broker user" in told.out
    assert "e1: not" not in told.out
    east.dispose_connections()


def test_status_counts_them(tmp_path: Path) -> None:
    with region(tmp_path, [host("h1")]) as made:
        status = made.http.get(f"{made.all.api_endpoint}/superconductor/status", timeout=30).json()["status"]
        assert [cell["shared_user_hosts"] for cell in status["cells"]] == [0], "inside of one process nobody shares one"
