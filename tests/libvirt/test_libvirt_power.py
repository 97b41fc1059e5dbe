"""Guests that go off, orders of power, and agents that die or start again, with real guests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from compute.libvirt import binding
from compute.libvirt.private_daemon import PrivateDaemon
from objects.task import Power, TaskKind
from service.periodic import wait_until
from tests.support import libvirt_host
from tests.support.libvirt_cell import LibvirtCell, kill, libvirt_cell
from tests.support.libvirt_driver import PATIENCE_S, left_of

HOST = "a1"


@pytest.fixture
def cell(daemon: PrivateDaemon, tmp_path: Path) -> Iterator[LibvirtCell]:
    with libvirt_cell(tmp_path / "cell", daemon) as cell:
        yield cell


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LibvirtCell]:
    """A cell with an agent that several tests use."""
    place = tmp_path_factory.mktemp("power")
    with libvirt_host.private_daemon(place / "host") as daemon, libvirt_cell(place / "cell", daemon) as cell:
        cell.start(HOST, audit_interval=600.0)
        yield cell


def test_a_guest_losing_qemu_is_off_with_reason(running: LibvirtCell) -> None:
    """The audit comes in ten minutes: the event of libvirt makes it come at once."""
    one = running.booted(HOST)
    kill(running.pid(one))
    assert wait_until(lambda: running.row(one).power is Power.OFF, PATIENCE_S)
    assert "crashed" in (running.row(one).task_fault or "")
    running.do(one, Power.ON)
    running.wait_console(one, "spark: boot 0002")
    running.delete(one)
    assert running.left(one) == []


def test_a_guest_shutting_down_is_off_with_reason(running: LibvirtCell) -> None:
    one = running.booted(HOST)
    running.wait_console(one, "spark: tick 0001")
    binding.load_libvirt().open(running.daemon.connection_uri).lookupByUUIDString(one).shutdown()
    assert wait_until(lambda: running.row(one).power is Power.OFF, PATIENCE_S)
    assert "has shut down" in (running.row(one).task_fault or "")
    assert running.pid(one) is None


def test_orders_of_power(running: LibvirtCell) -> None:
    one = running.booted(HOST)
    running.wait_console(one, "spark: tick 0001")
    running.do(one, Power.OFF)
    running.wait_console(one, "spark: power button")
    assert running.pid(one) is None
    running.do(one, Power.ON)
    running.wait_console(one, "spark: boot 0002")
    running.do(one, Power.PAUSED)
    running.do(one, Power.ON)
    running.do(one, Power.SUSPENDED)
    assert running.pid(one) is None
    running.do(one, Power.ON)
    assert running.pid(one) is not None
    running.do(one, Power.ON, TaskKind.REBOOT, hard=True)
    running.wait_console(one, "spark: boot 0003")
    running.do(one, Power.OFF, hard=True)
    assert (running.row(one).power, running.row(one).task_fault) == (Power.OFF, None)


def test_guests_keep_running_while_their_agent_starts_again(cell: LibvirtCell) -> None:
    cell.start(HOST)
    uuids = [cell.booted(HOST) for _ in range(2)]
    pids = [cell.pid(one) for one in uuids]
    cell.stop(HOST)
    cell.start(HOST)
    assert wait_until(lambda: all(cell.drivers[HOST].guests() and cell.row(one).builder for one in uuids), PATIENCE_S)
    three = cell.booted(HOST)
    assert [cell.pid(one) for one in uuids] == pids
    for one in (*uuids, three):
        cell.delete(one)
    assert (left_of(cell.settings[HOST]), cell.daemon.guest_pids()) == ([], {})


@pytest.mark.parametrize("resumes", [True, False], ids=["resumed", "off"])
def test_the_host_is_restarted(cell: LibvirtCell, resumes: bool) -> None:
    """QEMU, libvirt and the agent are gone, and so is what was in memory."""
    cell.start(HOST)
    one = cell.booted(HOST, config_drive=True)
    off = cell.booted(HOST)
    cell.do(off, Power.OFF, hard=True)
    cell.stop(HOST)
    cell.daemon.kill_daemon()
    kill(cell.pid(one))
    assert wait_until(lambda: cell.pid(one) is None, PATIENCE_S)
    shutil.rmtree(cell.settings[HOST].config_drive_path)
    shutil.rmtree(cell.daemon.folder / "run/libvirt")
    cell.daemon.start()
    cell.start(HOST, resume_guests_on_start=resumes)
    if resumes:
        cell.wait_console(one, "spark: boot 0002")
        assert (cell.row(one).power, cell.row(one).task_fault) == (Power.ON, None)
        assert (Path(cell.settings[HOST].config_drive_path) / f"{one}.iso").exists()
    else:
        assert wait_until(lambda: cell.row(one).power is Power.OFF, PATIENCE_S)
        assert "host was restarted" in (cell.row(one).task_fault or "")
        assert cell.pid(one) is None
    assert (cell.pid(off), cell.row(off).power) == (None, Power.OFF)
    for each in (one, off):
        cell.delete(each)
    assert left_of(cell.settings[HOST]) == []
