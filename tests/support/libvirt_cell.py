"""One cell whose conductor answers agents with real guests, and which orders builds, deletes and tasks of them."""

from __future__ import annotations

import itertools
import os
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from compute.libvirt import binding
from compute.libvirt.driver import LibvirtDriver
from compute.libvirt.opts import LibvirtSettings
from compute.libvirt.private_daemon import PrivateDaemon
from compute.main import ComputeService
from compute.opts import ComputeSettings, SimulatedSettings
from conductor.cell_conductor import CellConductor
from conductor.orders import send_tasks
from db.cell import instances, staging, tasks
from db.cell.tasks import TaskFor
from objects import lifecycle
from objects.instance import Instance, State
from objects.port import Port
from objects.selection import Selection
from objects.spec import Image
from objects.task import Power, Task, TaskArgs, TaskKind, TaskState
from rpc.cell_conductor import serve_topic
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support import fleet
from tests.support.cell_site import CONTEXT, Site
from tests.support.ground import Ground
from tests.support.libvirt_driver import FLAVOR, PATIENCE_S, SPARK, add_spark, left_of, settings_of

QUICK = {"report_interval": 0.2, "stats_interval": 0.2, "audit_interval": 0.5, "report_retry_max": 0.3, "outage_retry_max": 0.1}
"""Seconds of the agent's periodic work, so that it happens within a test."""

HARD = TaskArgs(hard=True)


class LibvirtCell:
    """The cell's rows, bus and conductor are real, and so are agents, hypervisor and guests. ``daemon``: of hosts without one."""

    def __init__(self, path: Path, daemon: PrivateDaemon, bus: Bus | None = None) -> None:
        """``bus``: another than an embedded one."""
        self.path = path
        self.daemon = daemon
        self.store = add_spark(path / "images")
        self.site = Site(Ground("lite", path, embedded=True), bus)
        self.agents: dict[str, ComputeService] = {}
        self.drivers: dict[str, LibvirtDriver] = {}
        self.settings: dict[str, LibvirtSettings] = {}
        self._daemons: dict[str, PrivateDaemon] = {}
        self._numbers = itertools.count(4, 4)
        self._server = serve_topic(self.site.bus, "conductor-1", CellConductor(self.site.database, self.site.sender))

    def close(self) -> None:
        for host in list(self.agents):
            self.stop(host)
        self._server.stop()
        self.site.close()
        self.site.ground.release()

    # -- agents --------------------------------------------------------------------------------------------------------------------

    def host(self, name: str, daemon: PrivateDaemon | None = None, **libvirt: Any) -> LibvirtSettings:
        """The settings of the driver of this host."""
        self._daemons[name] = daemon or self.daemon
        self.settings[name] = settings_of(self._daemons[name], self.path / name, **libvirt)
        return self.settings[name]

    def start(self, name: str, **compute: Any) -> ComputeService:
        """Start the agent of a host."""
        settings = self.settings.get(name) or self.host(name)
        simulated = SimulatedSettings(state_path=str(self.path))
        asked = ComputeSettings(host=name, simulated=simulated, images_folder=str(self.path / "images"), **{**QUICK, **compute})
        self.drivers[name] = LibvirtDriver(name, settings, self.store, self.store)
        self.agents[name] = ComputeService(asked, self.site.bus, driver=self.drivers[name])
        self.agents[name].start()
        return self.agents[name]

    def stop(self, name: str) -> None:
        self.agents.pop(name).stop(0.0)

    # -- what users do -------------------------------------------------------------------------------------------------------------

    def boot(
        self,
        *hosts: str,
        image: str = SPARK,
        image_properties: dict[str, str] | None = None,
        ports: Sequence[Port] = (),
        flavor: dict[str, Any] | None = None,
        config_drive: bool = False,
        name: str = "one",
    ) -> str:
        """A new instance, ordered from the first of these hosts; the others are its alternates. ``flavor``: changes of it."""
        spec = fleet.spec(
            msgspec.structs.replace(FLAVOR, **(flavor or {})), image=Image(id=image, properties=image_properties or {})
        )
        properties = msgspec.structs.replace(spec.properties, config_drive=config_drive)
        spec = msgspec.structs.replace(spec, properties=properties)
        one = str(uuid.uuid4())
        first, *rest = (Selection(host=host, node=host, cell_uuid="c1") for host in hosts)
        row = Instance(
            uuid=one,
            state=State.STAGED,
            fence=1,
            host=first.host,
            node=first.node,
            alternates=tuple(rest),
            deadline=1e12,
            ports=tuple(ports),
        )
        new = staging.NewInstance(instance=row, name=name, launch_index=0, created_at=time.time())
        assert self.site.database.write(staging.stage_instances, spec, [new], time.time()) == [one]
        self.site.activate(one)
        self.site.conductor.resend_orders([one])
        return one

    def booted(self, host: str, **asked: Any) -> str:
        """An ACTIVE instance on this host, whose guest has begun to write."""
        one = self.boot(host, **asked)
        self.wait(one, State.ACTIVE)
        self.wait_console(one, "spark: boot 0001")
        return one

    def ask(self, one: str, power: Power, kind: TaskKind = TaskKind.POWER, *, hard: bool = False) -> None:
        """As the API level does: the row first, then the order."""
        task = Task(number=next(self._numbers), kind=kind, power=power, args=TaskArgs(hard=hard), request_id="req-task")
        outcomes = self.site.database.write(tasks.ask_tasks, [TaskFor(instance_uuid=one, task=task)], time.time())
        assert isinstance(outcomes[one], lifecycle.Change), outcomes
        send_tasks(self.site.sender, CONTEXT, self.site.database.read(tasks.orders_of, [one]))

    def do(self, one: str, power: Power, kind: TaskKind = TaskKind.POWER, *, hard: bool = False) -> None:
        """The same, until it is done."""
        self.ask(one, power, kind, hard=hard)
        self.wait_over(one)

    def delete(self, one: str) -> None:
        self.site.database.write(instances.delete, [one], time.time())
        self.site.sweep().resend_deletes()
        assert wait_until(lambda: self.sweep() or self.row(one).state is State.DELETED, PATIENCE_S), self.row(one)

    def sweep(self) -> bool:
        """Send the orders again of builds, tasks and deletes that are not over. Returns False, to be said within a wait."""
        sweep = self.site.sweep(down_time=1e6)
        for each in (sweep.resend_orders, sweep.resend_tasks, sweep.resend_deletes):
            each()
        return False

    # -- what there is -------------------------------------------------------------------------------------------------------------

    def row(self, one: str) -> Instance:
        row = self.site.database.read(instances.get, one)
        assert row is not None
        return row

    def wait(self, one: str, state: State) -> Instance:
        assert wait_until(lambda: self.row(one).state is state, PATIENCE_S), self.row(one)
        return self.row(one)

    def wait_over(self, one: str, state: TaskState = TaskState.DONE) -> None:
        assert wait_until(lambda: self.row(one).task_state is state, PATIENCE_S), self.row(one)

    def wait_console(self, one: str, text: str, times: int = 1) -> None:
        """Wait until the guest has written this so many times."""
        host = self.row(one).host or ""
        console = Path(self.settings[host].instances_path) / one / "console.log"
        assert wait_until(lambda: console.exists() and console.read_text(errors="replace").count(text) >= times, PATIENCE_S), one

    def pid(self, one: str) -> int | None:
        """The QEMU process of this instance; None: it has none."""
        return next((pids[f"sc-{one}"] for each in self.daemons() if f"sc-{one}" in (pids := each.guest_pids())), None)

    def daemons(self) -> list[PrivateDaemon]:
        return list({id(each): each for each in (self.daemon, *self._daemons.values())}.values())

    def left(self, one: str) -> list[str]:
        """Everything that any host has of this instance: files, domains, processes."""
        files = [f"{host}/{name}" for host, settings in self.settings.items() for name in left_of(settings) if one in name]
        domains = [f"domain {name}" for daemon in self.daemons() for name in domains_of(daemon) if one in name]
        return files + domains + [f"process {pid}" for pid in (self.pid(one),) if pid is not None]


@contextmanager
def libvirt_cell(path: Path, daemon: PrivateDaemon, bus: Bus | None = None) -> Iterator[LibvirtCell]:
    """A cell, brought to an end afterwards."""
    path.mkdir(exist_ok=True)
    cell = LibvirtCell(path, daemon, bus)
    try:
        yield cell
    finally:
        cell.close()


def domains_of(daemon: PrivateDaemon) -> list[str]:
    """The names of its domains."""
    connection = binding.load_libvirt().open(daemon.connection_uri)
    try:
        return [found.name() for found in connection.listAllDomains()]
    finally:
        connection.close()


def kill(pid: int | None) -> None:
    """Kill a process of the test's own."""
    assert pid is not None
    os.kill(pid, 9)


@contextmanager
def hanging(pid: int | None) -> Iterator[None]:
    """The process hangs, and may be killed meanwhile."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
