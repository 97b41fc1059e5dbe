"""Agents on simulated hosts, for tests: real services on a real bus, with a hold on their spawns and tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from compute.driver import Guest, GuestSpec
from compute.journal import read_entries, read_guests
from compute.main import ComputeService
from compute.opts import ComputeSettings, SimulatedSettings
from compute.simulated import SimulatedDriver, cut_power, journal_path
from objects import errors
from objects.build import Origin, Report
from objects.compute_node import ComputeNode
from objects.flavor import Flavor
from objects.port import Port
from objects.spec import BootSecrets
from objects.task import DriveChanges, NewImage, Power, SendTarget, StoredContent
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.cell_conductor import PATIENCE
from tests.support.closing import close_all

A_SPEC = GuestSpec(project_id="p", user_id="u", flavor=Flavor(flavor_id="1", name="tiny", vcpus=1, memory_mb=512), hostname="a")


class GatedDriver(SimulatedDriver):
    """The simulated driver with a gate before each spawn and task, a list of those at it, and a service it depends on."""

    def __init__(self, settings: ComputeSettings) -> None:
        super().__init__(settings)
        self.gate = threading.Event()
        self.gate.set()
        self.closed = threading.Event()
        self.spawning: list[str] = []
        self.specs: dict[str, GuestSpec] = {}
        self.tasks: list[tuple[str, str]] = []
        """Kind of the task, or power, and whether it is hard."""
        self.task_errors = 0
        self.destroyed: list[str] = []
        self.destroy_errors = 0
        self.outage = False
        self.raises: Exception | None = None
        """What each spawn raises, if anything."""
        self.down = ""
        """Why the hypervisor cannot be used, if so."""
        self.loses_calls = False
        """The next spawn or task has its effect, but the hypervisor goes down before it says so."""

        self.more_vcpus = 0
        """CPUs that the host has got since it was configured."""
        self.changed: Callable[[], None] = lambda: None
        self.looks = 0
        """How often its guests were listed."""
        self._reasons: dict[str, str] = {}

    def trouble(self) -> str | None:
        return self.down or None

    def watch(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def stops(self, uuid: str, reason: str) -> None:
        """The guest goes off by itself, and the hypervisor sends an event."""
        self._reasons[uuid] = reason
        super().set_power(uuid, Power.OFF, hard=True)
        self.changed()

    def guests(self) -> list[Guest]:
        self._connect()
        self.looks += 1
        return [msgspec.structs.replace(guest, off_reason=self._reasons.get(guest.uuid, "")) for guest in super().guests()]

    def nodes(self) -> list[ComputeNode]:
        self._connect()
        return [msgspec.structs.replace(node, vcpus=node.vcpus + self.more_vcpus) for node in super().nodes()]

    def _connect(self) -> None:
        if self.down:
            raise errors.HypervisorDown(self.down, untouched=True)

    def _answer(self) -> None:
        if self.loses_calls:
            self.loses_calls, self.down = False, "It went down during a call."
            raise errors.HypervisorDown(self.down)

    def spawn(
        self, guest: Guest, spec: GuestSpec, secrets: BootSecrets | None, cancel: threading.Event, origin: Origin | None = None
    ) -> None:
        self.spawning.append(guest.uuid)
        self.specs[guest.uuid] = spec
        wait_until(lambda: self.gate.is_set() or cancel.is_set(), PATIENCE, pause=0.005)
        if self.outage:
            raise errors.ServiceUnavailable("The image service is down.")
        if self.raises is not None:
            raise self.raises
        self._connect()
        super().spawn(guest, spec, secrets, cancel, origin)
        self._answer()

    def set_power(self, uuid: str, power: Power, *, hard: bool) -> None:
        self._at_task(power, hard=hard)
        super().set_power(uuid, power, hard=hard)
        self._answer()

    def send(self, uuid: str, target: SendTarget, cancel: threading.Event) -> None:
        self._at_task("send", hard=False)
        super().send(uuid, target, cancel)

    def reboot(self, uuid: str, *, hard: bool) -> None:
        self._at_task("reboot", hard=hard)
        super().reboot(uuid, hard=hard)
        self._answer()

    def rebuild(self, guest: Guest, changes: DriveChanges, secrets: BootSecrets | None) -> None:
        self._at_task("rebuild", hard=False)
        super().rebuild(guest, changes, secrets)

    def snapshot(self, uuid: str, image_id: str) -> StoredContent:
        self._at_task("snapshot", hard=False)
        return super().snapshot(uuid, image_id)

    def make_image(self, uuid: str, image_id: str, image: NewImage, cancel: threading.Event) -> StoredContent:
        self._at_task("image", hard=False)
        return super().make_image(uuid, image_id, image, cancel)

    def rescue(self, uuid: str, image_id: str, secrets: BootSecrets | None, image_hash: str = "") -> None:
        self._at_task("rescue", hard=False)
        super().rescue(uuid, image_id, secrets, image_hash)

    def set_password(self, uuid: str, password: str) -> None:
        self._at_task("password", hard=False)
        super().set_password(uuid, password)

    def crash_dump(self, uuid: str) -> None:
        self._at_task("crash-dump", hard=False)
        super().crash_dump(uuid)

    def set_interfaces(self, uuid: str, ports: tuple[Port, ...]) -> None:
        self._at_task("interfaces", hard=False)
        super().set_interfaces(uuid, ports)
        self._answer()

    def _at_task(self, what: str, *, hard: bool) -> None:
        self.tasks.append((str(what), "hard" if hard else "soft"))
        wait_until(lambda: self.gate.is_set() or self.closed.is_set(), PATIENCE, pause=0.005)
        if self.closed.is_set():
            raise OSError("the agent has ended")
        if self.task_errors:
            self.task_errors -= 1
            raise OSError("the guest does not react")
        self._connect()

    def close(self) -> None:
        self.closed.set()
        super().close()

    def destroy(self, uuid: str) -> None:
        self.destroyed.append(uuid)
        if self.destroy_errors:
            self.destroy_errors -= 1
            raise OSError("the disk is busy")
        self._connect()
        super().destroy(uuid)


def settings(path: Path, host: str = "h1", *, simulated: dict[str, float] | None = None, **changes: Any) -> ComputeSettings:
    """Impatient settings, so that what is periodic happens within a test."""
    quick = {"report_interval": 0.2, "stats_interval": 0.2, "audit_interval": 0.3, "report_retry_max": 0.3, "call_timeout": 2.0}
    quick["outage_retry_max"] = 0.1
    sim = SimulatedSettings(state_path=str(path), shared_folder=True, **(simulated or {}))  # type: ignore[arg-type]  # a test's shorthand
    return ComputeSettings(host=host, simulated=sim, images_folder=str(path / "images"), **{**quick, **changes})


class Agents:
    """Agents by host, on one bus, in one folder."""

    def __init__(self, bus: Bus, path: Path) -> None:
        self.bus = bus
        self.path = path
        self.services: dict[str, ComputeService] = {}
        self.drivers: dict[str, GatedDriver] = {}

    def start(self, host: str = "h1", *, simulated: dict[str, float] | None = None, **changes: Any) -> ComputeService:
        service = self.make(host, simulated=simulated, **changes)
        service.start()
        return service

    def make(self, host: str = "h1", *, simulated: dict[str, float] | None = None, **changes: Any) -> ComputeService:
        """An agent that is not started yet."""
        made = settings(self.path, host, simulated=simulated, **changes)
        self.drivers[host] = GatedDriver(made)
        self.services[host] = service = ComputeService(made, self.bus, driver=self.drivers[host])
        return service

    def block_driver(self, host: str = "h1") -> GatedDriver:
        """The host's driver, which spawns nothing until its gate is set."""
        driver = self.drivers[host]
        driver.gate.clear()
        return driver

    def guests(self, host: str = "h1") -> list[Guest]:
        """What is on the host, from its file."""
        return read_guests(journal_path(str(self.path), host))

    def most_guests(self, host: str = "h1") -> int:
        """The most guests that were ever on the host at once since its agent started."""
        most, uuids = 0, list[str]()
        for entry in read_entries(journal_path(str(self.path), host)):
            uuids = [uuid for uuid in uuids if uuid != entry.destroyed] + ([entry.spawned.uuid] if entry.spawned else [])
            most = max(most, len(uuids))
        return most

    def guest(self, uuid: str, host: str = "h1") -> Guest:
        (found,) = [guest for guest in self.guests(host) if guest.uuid == uuid]
        return found

    def cut_power(self, host: str = "h1") -> None:
        """The host of an agent that is not there loses power: no guest runs any more."""
        cut_power(str(self.path), host)

    def stop(self) -> None:
        close_all([partial(service.stop, 0.0) for service in self.services.values()])


def owed_report(report: Report | None) -> Report:
    """What an entry of the agent says that it owes its cell; there must be something."""
    assert report is not None
    return report
