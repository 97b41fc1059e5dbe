"""A deployment starts again whatever is said of its hosts."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from cli.standalone.all_in_one import SimulatedHost
from cli.standalone.discovery import discover_until
from db.cell import services
from db.sql.engine import CellDatabase
from objects.process import AGENT_BINARY
from tests.support.region import Region

HOSTS = (SimulatedHost(name="a1", cell="one"), SimulatedHost(name="a2", cell="one"))


@pytest.mark.parametrize("what", ["set_forced_down", "set_disabled"])
def test_hosts_called_down_or_disabled_are_known(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.standalone.discovery.DISCOVERY_WAIT_S", 20.0)
    region = Region(tmp_path, HOSTS)
    region.start()
    cell = CellDatabase(region.folder.database_url("one"), name="one")
    for host in ("a1", "a2"):
        if what == "set_forced_down":
            cell.write(services.set_forced_down, host, AGENT_BINARY, True, time.time())
        else:
            cell.write(services.set_disabled, host, AGENT_BINARY, True, "fan", time.time())
    region.restart()
    began = time.monotonic()
    discover_until(region.folder, region.all, {"a1", "a2"}, region.commands, threading.Event())
    assert time.monotonic() - began < 15.0
    assert region.all.count_known() == 2
    assert region.all.count_schedulable() == (0 if what == "set_forced_down" else 2)
    cell.dispose_connections()
    region.stop()
