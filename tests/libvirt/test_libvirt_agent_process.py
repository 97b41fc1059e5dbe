"""The agent as the process that operators run, with real guests: killed at any moment, and started before its libvirt."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from compute.libvirt.private_daemon import PrivateDaemon
from objects.instance import State
from objects.task import Power, TaskKind, TaskState
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.bus import url_of
from tests.support.libvirt_cell import LibvirtCell, hanging, libvirt_cell
from tests.support.libvirt_driver import PATIENCE_S
from tests.support.processes import RoleProcess, write_configuration

HOST = "a1"


class AgentProcess:
    """An agent that is started and killed."""

    def __init__(self, cell: LibvirtCell, bus: str) -> None:
        self.cell = cell
        libvirt = cell.host(HOST)
        paths = ("connection_uri", "instances_path", "config_drive_path", "cache_path", "shutdown_timeout")
        groups: dict[str, dict[str, object]] = {
            "DEFAULT": {"transport_url": bus},
            "compute": {"host": HOST, "driver": "libvirt", "report_interval": 0.2, "audit_interval": 0.5},
            "libvirt": {"virt_type": "qemu", **{name: getattr(libvirt, name) for name in paths}},
            "images": {"folder": cell.path / "images"},
        }
        self._conf = write_configuration(cell.path / "agent.conf", groups)
        self.start()

    def start(self) -> None:
        self.process = RoleProcess("compute", self.cell.path, self._conf, name=HOST)

    def dies_during(
        self, one: str, hangs: int | None, power: Power, kind: TaskKind = TaskKind.POWER, *, hard: bool = False
    ) -> None:
        """It is killed while it carries out this task, as a process hangs that it needs for it. Then it starts again."""
        with hanging(hangs):
            self.cell.ask(one, power, kind, hard=kind is TaskKind.REBOOT)
            self.cell.wait_over(one, TaskState.RUNNING)
            self.process.kill()
        self.start()
        over = (TaskState.DONE, TaskState.FAILED)
        assert wait_until(lambda: self.cell.sweep() or self.cell.row(one).task_state in over, PATIENCE_S), self.process.log


@pytest.fixture
def cell(daemon: PrivateDaemon, bus_url: str, tmp_path: Path) -> Iterator[LibvirtCell]:
    bus = Bus(bus_url)
    with libvirt_cell(tmp_path / "cell", daemon, bus) as cell:
        yield cell


@pytest.fixture
def bus_url() -> Iterator[str]:
    yield from url_of("rabbit")


@pytest.fixture
def agent(cell: LibvirtCell, bus_url: str) -> Iterator[AgentProcess]:
    """Its libvirt is not there when it begins."""
    cell.daemon.stop()
    made = AgentProcess(cell, bus_url)
    try:
        assert made.process.says("waiting for the hypervisor"), made.process.log
        cell.daemon.start()
        yield made
    finally:
        made.process.kill()


def _is_active(cell: LibvirtCell, uuid: str) -> bool:
    cell.sweep()
    return cell.row(uuid).state is State.ACTIVE


def test_an_agent_killed_in_the_middle_of_tasks(cell: LibvirtCell, agent: AgentProcess) -> None:
    one, other = (cell.boot(HOST) for _ in range(2))
    for each in (one, other):
        assert wait_until(partial(_is_active, cell, each), PATIENCE_S), agent.process.log
        cell.wait_console(each, "spark: boot 0001")
    pid = cell.pid(other)

    agent.dies_during(one, cell.pid(one), Power.OFF)
    assert (cell.row(one).power, cell.row(one).task_state, cell.pid(one)) == (Power.OFF, TaskState.DONE, None)

    agent.dies_during(one, cell.daemon.daemon_pid, Power.ON)
    assert (cell.row(one).power, cell.row(one).task_state) == (Power.ON, TaskState.DONE)
    cell.wait_console(one, "spark: boot 0002")

    agent.dies_during(one, cell.daemon.daemon_pid, Power.ON, TaskKind.REBOOT)
    assert (cell.row(one).task_state, cell.row(one).power) == (TaskState.FAILED, Power.ON), "it is carried out once at most"
    assert wait_until(lambda: cell.pid(one) is not None, PATIENCE_S)

    assert cell.pid(other) == pid, "it has run all the time"
    for each in (one, other):
        cell.delete(each)
        assert cell.left(each) == []
