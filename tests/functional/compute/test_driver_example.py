"""The driver of docs/drivers.md works: with its own options, in the agent's process, with a hypervisor that comes late."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest
from oslo_config import cfg

import service.opts
from compute import opts
from compute.process import ComputeRole, read_plan
from objects import errors
from objects.instance import State
from objects.task import Power
from service import config
from service.periodic import wait_until
from tests.support.closing import closing_fixture
from tests.support.task_cell import HOST, TaskCell
from tests.support.world import PATIENCE

PAGE = Path(__file__).parents[3] / "docs" / "drivers.md"


cell = closing_fixture(TaskCell)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "file_driver.py").write_text(PAGE.read_text().split("```python")[1].split("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "guests"


def conf_of(cell: TaskCell, tmp_path: Path, text: str) -> cfg.ConfigOpts:
    file = tmp_path / "compute.conf"
    file.write_text(f"[compute]\nhost = {HOST}\ndriver = file_driver:open_files\nstats_full_interval = 1\n[files]\n{text}\n")
    return config.load_options(
        [], service.opts.list_opts(), opts.list_opts(), files=[file], overrides={"transport_url": cell.site.bus.url_masked}
    )


def test_a_custom_driver_boots_stops_and_deletes(cell: TaskCell, tmp_path: Path, files: Path) -> None:
    conf = conf_of(cell, tmp_path, f"path = {files}\nvcpus = 3")
    read_plan(conf)
    role = ComputeRole(conf)
    away = files.rename(tmp_path / "away")
    starting = threading.Thread(target=partial(role.start, threading.Event()))
    starting.start()
    assert not wait_until(lambda: not starting.is_alive(), 0.2), "it waits for its hypervisor"
    away.rename(files)
    starting.join(PATIENCE)
    try:
        one = cell.boot()
        assert (files / f"{one}.json").exists()
        cell.ask(one, Power.OFF)
        cell.wait_over(one)
        assert b'"power":"off"' in (files / f"{one}.json").read_bytes()
        cell.delete(one)
        assert wait_until(lambda: cell.row(one).state is State.DELETED, PATIENCE)
        assert list(files.iterdir()) == []
    finally:
        role.stop()


def test_a_driver_needs_its_required_options(cell: TaskCell, tmp_path: Path, files: Path) -> None:
    with pytest.raises(errors.Misconfigured, match=r"file_driver.*path"):
        read_plan(conf_of(cell, tmp_path, ""))
    conf = conf_of(cell, tmp_path, f"path = {files}")
    conf.set_override("driver", "file_driver:nothing", group="compute")
    with pytest.raises(errors.Misconfigured, match="cannot be imported"):
        read_plan(conf)
