"""A libvirt that is down or hangs, and a QEMU that hangs, under an agent with real guests."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from compute.libvirt import connection
from compute.libvirt.private_daemon import PrivateDaemon
from objects.instance import FailureClass, State
from objects.task import Power, TaskState
from service.periodic import wait_until
from tests.support.libvirt_cell import LibvirtCell, hanging, kill, libvirt_cell
from tests.support.libvirt_driver import PATIENCE_S, left_of
from tests.support.libvirt_host import private_daemon

HOST, OTHER = "a1", "a2"

MAX_CLIENT_REQUESTS = 5
"""Calls of one connection that libvirtd carries out at once, by default."""


@pytest.fixture
def cell(daemon: PrivateDaemon, tmp_path: Path) -> Iterator[LibvirtCell]:
    with libvirt_cell(tmp_path / "cell", daemon) as cell:
        yield cell


def wait_trouble(cell: LibvirtCell, host: str, *, there: bool) -> None:
    assert wait_until(lambda: bool(cell.agents[host].current_trouble) is there, PATIENCE_S), cell.agents[host].current_trouble


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return len([record for record in caplog.records if text in record.getMessage()])


def test_a_killed_libvirt_sends_builds_elsewhere(cell: LibvirtCell, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And what happened to its guests meanwhile is found when it is back, although no event tells it."""
    caplog.set_level(logging.INFO)
    with private_daemon(tmp_path / "other") as other:
        cell.host(OTHER, other)
        cell.start(HOST, max_concurrent_builds=1)
        cell.start(OTHER)
        stays, dies = (cell.booted(HOST) for _ in range(2))
        pid = cell.pid(stays)
        os.kill(cell.daemon.daemon_pid or 0, signal.SIGSTOP)  # so that builds queue
        uuids = [cell.boot(HOST, OTHER) for _ in range(3)]
        assert wait_until(lambda: all(cell.row(one).state is State.BUILDING for one in uuids), PATIENCE_S)
        kill(cell.pid(dies))
        cell.daemon.kill_daemon()
        wait_trouble(cell, HOST, there=True)
        assert wait_until(lambda: sum(cell.row(one).state is State.ACTIVE for one in uuids) == 2, PATIENCE_S), "the queued ones"
        late = cell.boot(HOST, OTHER)
        assert cell.wait(late, State.ACTIVE).host == OTHER
        assert (cell.row(dies).power, cell.pid(stays)) == (Power.ON, pid)
        assert said(caplog, "takes no orders") == 1

        cell.daemon.start()
        wait_trouble(cell, HOST, there=False)
        for one in uuids:
            row = cell.wait(one, State.ACTIVE)
            assert (row.host, {each.failure.kind for each in row.history}) == (OTHER, {FailureClass.STOPPING})
        assert wait_until(lambda: cell.row(dies).power is Power.OFF, PATIENCE_S)
        assert cell.row(dies).task_fault
        assert cell.booted(HOST)
        assert cell.pid(stays) == pid
        assert said(caplog, "takes no orders") == said(caplog, "can be used again") == 1
        assert not [record for record in caplog.records if record.exc_info]
        for one in (stays, dies, late, *uuids):
            cell.delete(one)
            assert cell.left(one) == []


def test_a_libvirt_that_hangs(cell: LibvirtCell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "KEEP_ALIVE_S", 1)  # else the test would take 20 s
    cell.host(HOST, open_timeout=1.0)
    cell.start(HOST)
    one = cell.booted(HOST)
    with hanging(cell.daemon.daemon_pid):
        cell.ask(one, Power.OFF)
        wait_trouble(cell, HOST, there=True)
    wait_trouble(cell, HOST, there=False)
    assert wait_until(lambda: cell.sweep() or cell.row(one).task_state is TaskState.DONE, PATIENCE_S), cell.row(one)
    assert cell.pid(one) is None
    two = cell.booted(HOST)
    for each in (one, two):
        cell.delete(each)
    assert left_of(cell.settings[HOST]) == []


def test_a_hanging_qemu_hinders_no_other_guest(
    cell: LibvirtCell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor do as many as libvirtd carries out calls for one connection: that would look like a libvirt that hangs."""
    monkeypatch.setattr(connection, "KEEP_ALIVE_S", 1)
    cell.host(HOST, shutdown_timeout=6.0)
    cell.start(HOST)
    deleted, lives, *hang = (cell.booted(HOST) for _ in range(2 + MAX_CLIENT_REQUESTS))
    with ExitStack() as stack:
        for one in (deleted, *hang):
            stack.enter_context(hanging(cell.pid(one)))
        for one in hang:
            cell.ask(one, Power.OFF)
        cell.do(lives, Power.PAUSED)
        cell.do(lives, Power.ON)
        cell.booted(HOST)
        cell.delete(deleted)
        for one in hang:
            cell.wait_over(one)
    assert {(cell.row(one).power, cell.pid(one)) for one in hang} == {(Power.OFF, None)}
    assert cell.left(deleted) == []
    assert said(caplog, "takes no orders") == 0
