"""Agents on simulated hosts, for tests: real services on a real bus, with a hold on their spawns."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

from compute.driver import Guest
from compute.journal import read_entries, read_guests
from compute.main import ComputeService
from compute.opts import ComputeSettings, SimulatedSettings
from compute.simulated import SimulatedDriver, journal_path
from objects import errors
from objects.spec import BootSecrets
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.cell_conductor import PATIENCE
from tests.support.closing import close_all


class GatedDriver(SimulatedDriver):
    """The simulated driver with a gate before each spawn, a count of those at it, and a service it depends on."""

    def __init__(self, settings: ComputeSettings) -> None:
        super().__init__(settings)
        self.gate = threading.Event()
        self.gate.set()
        self.spawning: list[str] = []
        self.destroyed: list[str] = []
        self.destroy_errors = 0
        self.outage = False
        self.raises: Exception | None = None
        """What each spawn raises, if anything."""

    def spawn(self, guest: Guest, secrets: BootSecrets | None, cancel: threading.Event) -> None:
        self.spawning.append(guest.uuid)
        wait_until(lambda: self.gate.is_set() or cancel.is_set(), PATIENCE, pause=0.005)
        if self.outage:
            raise errors.ServiceUnavailable("The image service is down.")
        if self.raises is not None:
            raise self.raises
        super().spawn(guest, secrets, cancel)

    def destroy(self, uuid: str) -> None:
        self.destroyed.append(uuid)
        if self.destroy_errors:
            self.destroy_errors -= 1
            raise OSError("the disk is busy")
        super().destroy(uuid)


def settings(path: Path, host: str = "h1", *, simulated: dict[str, float] | None = None, **changes: Any) -> ComputeSettings:
    """Impatient settings, so that what is periodic happens within a test."""
    quick = {"report_interval": 0.2, "stats_interval": 0.2, "audit_interval": 0.3, "report_retry_max": 0.3, "call_timeout": 2.0}
    quick["outage_retry_max"] = 0.1
    sim = SimulatedSettings(state_path=str(path), shared_folder=True, **(simulated or {}))  # type: ignore[arg-type]  # a test's shorthand
    return ComputeSettings(host=host, simulated=sim, **{**quick, **changes})


class Agents:
    """Agents by host, on one bus, in one folder."""

    def __init__(self, bus: Bus, path: Path) -> None:
        self.bus = bus
        self.path = path
        self.services: dict[str, ComputeService] = {}
        self.drivers: dict[str, GatedDriver] = {}

    def start(self, host: str = "h1", *, simulated: dict[str, float] | None = None, **changes: Any) -> ComputeService:
        made = settings(self.path, host, simulated=simulated, **changes)
        self.drivers[host] = GatedDriver(made)
        self.services[host] = service = ComputeService(made, self.bus, driver=self.drivers[host])
        service.start()
        return service

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

    def stop(self) -> None:
        close_all([partial(service.stop, 0.0) for service in self.services.values()])
