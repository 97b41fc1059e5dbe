"""Validate what a driver reports before it goes into a message, so that one invalid guest or node does not affect the others."""

from __future__ import annotations

import inspect
import logging
import socket
import threading
from collections.abc import Callable

from compute.driver import ComputeDriver, Guest, GuestSpec
from objects import errors, stats, text
from objects.build import Origin
from objects.compute_node import ComputeNode
from objects.console import ConsoleKind
from objects.diagnostics import Diagnostics
from objects.port import Port
from objects.spec import BootSecrets
from objects.task import DriveChanges, NewImage, Power, SendTarget, StoredContent
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)


class CheckedDriver:
    """A driver whose guests and nodes have names and texts that every database and codec accepts.

    A guest or node with an invalid name is logged and left out: it stays on the host, uncounted and unreported. Other texts are
    cleaned. Errors of the driver are passed on unchanged.
    """

    def __init__(self, driver: ComputeDriver) -> None:
        self._driver = driver
        self._complaints = RateLimitedLog(LOG)

    @property
    def instances_folder(self) -> str:
        return str(getattr(self._driver, "instances_folder", ""))  # one written for an earlier release has none

    def spawn(
        self, guest: Guest, spec: GuestSpec, secrets: BootSecrets | None, cancel: threading.Event, origin: Origin | None = None
    ) -> None:
        self._driver.spawn(guest, spec, secrets, cancel, origin)

    def destroy(self, uuid: str) -> None:
        self._driver.destroy(uuid)

    def set_power(self, uuid: str, power: Power, *, hard: bool) -> None:
        self._driver.set_power(uuid, power, hard=hard)

    def send(self, uuid: str, target: SendTarget, cancel: threading.Event) -> None:
        self._driver.send(uuid, target, cancel)

    def reboot(self, uuid: str, *, hard: bool) -> None:
        self._driver.reboot(uuid, hard=hard)

    def rebuild(self, guest: Guest, changes: DriveChanges, secrets: BootSecrets | None) -> None:
        if len(inspect.signature(self._driver.rebuild).parameters) > 1:
            self._driver.rebuild(guest, changes, secrets)
        elif changes:  # it was written for an earlier release
            raise errors.TaskFailed("The hypervisor driver of this host cannot make a new config drive. The guest is as it was.")
        else:
            self._driver.rebuild(guest)  # type: ignore[call-arg]  # as in that release

    def console_output(self, uuid: str, max_bytes: int) -> bytes:
        if not hasattr(self._driver, "console_output"):  # written for an earlier release
            raise errors.NotOffered("The hypervisor driver of this host keeps no console output.")
        return self._driver.console_output(uuid, max_bytes)[-max_bytes:]

    def check_console(self, uuid: str, kind: ConsoleKind) -> None:
        if not hasattr(self._driver, "check_console"):  # written for an earlier release
            raise errors.NotOffered("The hypervisor driver of this host connects to no consoles.")
        self._driver.check_console(uuid, kind)

    def connect_console(self, uuid: str, kind: ConsoleKind) -> socket.socket:
        return self._driver.connect_console(uuid, kind)

    def diagnostics(self, uuid: str) -> Diagnostics:
        answer: Diagnostics | None = self._driver.diagnostics(uuid) if hasattr(self._driver, "diagnostics") else None
        if answer is None:  # written for an earlier release; one derived from the protocol has its empty method
            raise errors.NotOffered("The hypervisor driver of this host tells no diagnostics.")
        return answer

    def snapshot(self, uuid: str, image_id: str) -> StoredContent | None:
        return self._driver.snapshot(uuid, image_id)

    def make_image(self, uuid: str, image_id: str, image: NewImage, cancel: threading.Event) -> StoredContent | None:
        if not hasattr(self._driver, "make_image"):  # written for an earlier release
            raise errors.TaskFailed("The hypervisor driver of this host makes no images.")
        return self._driver.make_image(uuid, image_id, image, cancel)

    def rescue(self, uuid: str, image_id: str, secrets: BootSecrets | None, image_hash: str = "") -> None:
        if not hasattr(self._driver, "rescue"):
            raise errors.TaskFailed("The hypervisor driver of this host rescues no guests.")
        compares = "image_hash" in inspect.signature(self._driver.rescue).parameters
        self._driver.rescue(uuid, image_id, secrets, *((image_hash,) if compares else ()))

    def set_password(self, uuid: str, password: str) -> None:
        if not hasattr(self._driver, "set_password"):
            raise errors.TaskFailed("The hypervisor driver of this host sets no passwords.")
        self._driver.set_password(uuid, password)

    def crash_dump(self, uuid: str) -> None:
        if not hasattr(self._driver, "crash_dump"):
            raise errors.TaskFailed("The hypervisor driver of this host triggers no crash dumps.")
        self._driver.crash_dump(uuid)

    def set_interfaces(self, uuid: str, ports: tuple[Port, ...]) -> None:
        method = getattr(type(self._driver), "set_interfaces", None)
        if method in (None, ComputeDriver.set_interfaces):  # one derived from the protocol has its empty method
            raise errors.TaskFailed("The hypervisor driver of this host does not change the network interfaces of a guest.")
        self._driver.set_interfaces(uuid, ports)

    def note_task(self, uuid: str, number: int) -> None:
        if hasattr(self._driver, "note_task"):
            self._driver.note_task(uuid, number)

    def trouble(self) -> str | None:
        return self._driver.trouble() if hasattr(self._driver, "trouble") else None  # else written for an earlier release

    def watch(self, changed: Callable[[], None]) -> None:
        if hasattr(self._driver, "watch"):
            self._driver.watch(changed)

    def guests(self) -> list[Guest]:
        return [guest for guest in self._driver.guests() if self._is_readable(guest)]

    def nodes(self) -> list[ComputeNode]:
        checked_nodes = (self._checked_node(node) for node in self._driver.nodes())
        return [node for node in checked_nodes if node is not None]

    def close(self) -> None:
        self._driver.close()

    def _is_readable(self, guest: Guest) -> bool:
        names = (guest.uuid, guest.node, guest.builder)
        if all(isinstance(name, str) and len(name) <= text.NAME_LENGTH and text.is_safe(name) for name in names):
            return True
        message = (
            "The driver reports a guest with an invalid uuid, node or builder: %.400r. It stays, but is not reported to the cell"
        )
        self._complaints(repr(names), logging.ERROR, message, names)
        return False

    def _checked_node(self, node: ComputeNode) -> ComputeNode | None:
        try:
            cleaned = stats.clean_stats(node)
            stats.check_stats(cleaned)
        except errors.Invalid as error:
            self._complaints(str(error), logging.ERROR, "The driver reports an invalid node, which is not offered: %s", error)
            return None
        return cleaned
