"""A machine whose guests are counted from outside: they belong to it, whatever its agent, host name or cell is called."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import msgspec

from compute.driver import Guest, GuestSpec
from compute.main import ComputeService
from compute.opts import ComputeSettings, SimulatedSettings
from objects import errors
from objects.build import Origin
from objects.compute_node import ComputeNode
from objects.console import ConsoleKind
from objects.diagnostics import Diagnostics
from objects.port import Port
from objects.spec import BootSecrets
from objects.task import DriveChanges, NewImage, Power, SendTarget
from rpc.transport import Bus

QUICK = {"report_interval": 0.2, "stats_interval": 0.2, "audit_interval": 0.2, "report_retry_max": 0.3, "call_timeout": 2.0}
"""Seconds of the agent's periodic work, so that it happens within a test."""


class Hypervisor:
    """One machine; as a driver it says that it is ``host``."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.running: dict[str, Guest] = {}
        self.destroyed: list[str] = []
        """Uuids whose guest ran and was destroyed."""

    @property
    def instances_folder(self) -> str:
        return ""

    def spawn(
        self, guest: Guest, spec: GuestSpec, secrets: BootSecrets | None, cancel: threading.Event, origin: Origin | None = None
    ) -> None:
        self.running[guest.uuid] = guest

    def destroy(self, uuid: str) -> None:
        if self.running.pop(uuid, None) is not None:
            self.destroyed.append(uuid)

    def set_power(self, uuid: str, power: Power, *, hard: bool) -> None:
        self.running[uuid] = msgspec.structs.replace(self.running[uuid], power=power)

    def send(self, uuid: str, target: SendTarget, cancel: threading.Event) -> None:
        raise errors.TaskFailed("This machine cannot migrate guests live.")

    def reboot(self, uuid: str, *, hard: bool) -> None:
        self.set_power(uuid, Power.ON, hard=hard)

    def rebuild(self, guest: Guest, changes: DriveChanges, secrets: BootSecrets | None) -> None:
        self.running[guest.uuid] = guest

    def console_output(self, uuid: str, max_bytes: int) -> bytes:
        raise errors.NotOffered("no console")

    def check_console(self, uuid: str, kind: ConsoleKind) -> None:
        raise errors.NotOffered("no console")

    def connect_console(self, uuid: str, kind: ConsoleKind) -> socket.socket:
        raise errors.NotOffered("no console")

    def diagnostics(self, uuid: str) -> Diagnostics:
        raise errors.NotOffered("no diagnostics")

    def snapshot(self, uuid: str, image_id: str) -> None:
        return None

    def make_image(self, uuid: str, image_id: str, image: NewImage, cancel: threading.Event) -> None:
        raise errors.TaskFailed("This machine makes no images.")

    def rescue(self, uuid: str, image_id: str, secrets: BootSecrets | None, image_hash: str = "") -> None:
        raise errors.TaskFailed("This machine rescues no guests.")

    def set_password(self, uuid: str, password: str) -> None:
        raise errors.TaskFailed("This machine sets no passwords.")

    def crash_dump(self, uuid: str) -> None:
        raise errors.TaskFailed("This machine triggers no crash dumps.")

    def set_interfaces(self, uuid: str, ports: tuple[Port, ...]) -> None:
        raise errors.TaskFailed("This machine changes no interfaces.")

    def trouble(self) -> str | None:
        return None

    def watch(self, changed: Callable[[], None]) -> None:
        pass

    def guests(self) -> list[Guest]:
        return list(self.running.values())

    def nodes(self) -> list[ComputeNode]:
        return [ComputeNode(host=self.host, node=self.host, vcpus=64, memory_mb=262144, disk_gb=4000)]

    def note_task(self, uuid: str, number: int) -> None:
        self.running[uuid] = msgspec.structs.replace(self.running[uuid], last_task=number)

    def close(self) -> None:
        pass

    def agent(self, bus: Bus, state_path: str, **changes: object) -> ComputeService:
        """A start of its agent, not started yet."""
        settings = ComputeSettings(host=self.host, simulated=SimulatedSettings(state_path=state_path), **{**QUICK, **changes})  # type: ignore[arg-type]  # a test's shorthand
        return ComputeService(settings, bus, driver=self)
