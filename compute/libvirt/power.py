"""Bring a guest to a power: start, stop, pause, suspend."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from compute.libvirt import binding
from compute.libvirt.connection import GUEST_CALL_LIMIT_S, LibvirtConnection, code_of
from compute.libvirt.domains import Domains
from compute.libvirt.kept_guest import KeptGuest
from objects import errors
from objects.task import Power

LOG = logging.getLogger(__name__)

libvirt = binding.load_libvirt()

_POWER_BUTTON = libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN

PRESS_INTERVAL_S = 4.0
"""Seconds after which the power button is pressed again: a system that is still booting does not see the first time."""

LOOK_INTERVAL_S = 0.1
"""Seconds between two looks whether a guest has stopped."""

SAVE_LIMIT_S = 600.0
"""Seconds in which the memory of a guest must be saved to disk."""


_RUNNING = (Power.ON, Power.RESCUED)
"""Powers of a guest whose CPUs run."""


class PowerSwitch:
    """Changes the power of domains, and keeps in them what it is to be."""

    def __init__(
        self, connection: LibvirtConnection, domains: Domains, shutdown_timeout: float, before_start: Callable[[KeptGuest], None]
    ) -> None:
        """``shutdown_timeout``: seconds that a guest has to stop by itself. ``before_start`` makes what a guest needs to start."""
        self._connection = connection
        self._domains = domains
        self._timeout = shutdown_timeout
        self._before_start = before_start
        self._pause = threading.Event()

    def bring_power(self, domain: Any, power: Power, *, hard: bool) -> None:
        """Bring the guest to this power, and return when it is so. Idempotent. Raises ``errors.TaskFailed``."""
        now = self._domains.power_of(domain)
        match power:
            case Power.ON | Power.RESCUED:  # the definition of a rescued guest has the rescue disk
                self._keep_power(domain, power)
                self._start(domain, now)
            case Power.PAUSED:
                self._keep_power(domain, power)
                self._pause_guest(domain, now)
            case Power.SUSPENDED:
                if not now.uses_disk and not self._domains.is_saved(domain):
                    raise errors.TaskFailed("The guest is off, so it has no memory to save.")
                self._keep_power(domain, power)
                if now.uses_disk:
                    self._ask_guest(domain.managedSave, "save the guest", limit=SAVE_LIMIT_S)
            case Power.HELD:  # the memory of a suspended guest stays: it may go on here
                self._stop(domain, now, hard=hard)
                self._keep_power(domain, power)
            case Power.OFF:
                self._stop(domain, now, hard=hard)
                self.forget_memory(domain)
                self._keep_power(domain, power)
            case _:
                raise errors.TaskFailed("This host cannot receive a guest live.")

    def stop(self, domain: Any, *, hard: bool) -> None:
        """Stop the guest, and forget its memory. What its power is to be stays. Raises ``errors.TaskFailed``."""
        self._stop(domain, self._domains.power_of(domain), hard=hard)
        self.forget_memory(domain)

    def forget_memory(self, domain: Any) -> None:
        """Remove the memory of a suspended guest, which then starts anew."""
        if self._domains.is_saved(domain):
            self._ask_guest(domain.managedSaveRemove, "remove the saved memory of the guest")

    def create(self, domain: Any, power: Power) -> None:
        """Start a new domain, if ``power`` needs that. Raises ``errors.BuildFailed``."""
        if power in (Power.OFF, Power.HELD):
            return
        flags = libvirt.VIR_DOMAIN_START_PAUSED if power is Power.PAUSED else 0
        self._ask_guest(lambda: domain.createWithFlags(flags), "start the guest", errors.BuildFailed)
        if power is Power.SUSPENDED:
            self._ask_guest(domain.managedSave, "save the guest", errors.BuildFailed, SAVE_LIMIT_S)

    def _keep_power(self, domain: Any, power: Power) -> None:
        kept_guest = self._domains.read_kept(domain)
        if kept_guest.guest.power is not power:
            guest = msgspec.structs.replace(kept_guest.guest, power=power)
            self._domains.keep_guest(domain, msgspec.structs.replace(kept_guest, guest=guest))

    def _start(self, domain: Any, now: Power) -> None:
        if now is Power.PAUSED:
            self._ask_guest(domain.resume, "resume the guest")
        elif now not in _RUNNING:
            self._before_start(self._domains.read_kept(domain))
            self._ask_guest(domain.create, "start the guest")

    def _pause_guest(self, domain: Any, now: Power) -> None:
        if now in _RUNNING:
            self._ask_guest(domain.suspend, "pause the guest")
        elif now is not Power.PAUSED:
            self._before_start(self._domains.read_kept(domain))
            self._ask_guest(lambda: domain.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED), "start the guest")

    def _stop(self, domain: Any, now: Power, *, hard: bool) -> None:
        if now in _RUNNING and not hard:
            self._shut_down(domain)
        if self._domains.power_of(domain).uses_disk:  # also if it is paused: it cannot react then
            self._turn_off(domain)

    def _shut_down(self, domain: Any) -> None:
        """Press the power button, and wait until the guest is off, or the timeout is over, or its QEMU does not react."""
        end = time.monotonic() + self._timeout
        press_at = 0.0
        while (now := time.monotonic()) < end and self._domains.power_of(domain) in _RUNNING:
            if now >= press_at:
                try:
                    self._unless_off(partial(domain.shutdownFlags, _POWER_BUTTON), "shut the guest down", end - now)
                except errors.TaskFailed as error:
                    LOG.info("A guest cannot shut down, and is turned off: %s", error)
                    return
                press_at = now + PRESS_INTERVAL_S
            self._pause.wait(LOOK_INTERVAL_S)

    def _turn_off(self, domain: Any) -> None:
        self._unless_off(domain.destroy, "turn the guest off")

    def _unless_off(self, function: Callable[[], object], doing: str, limit: float = GUEST_CALL_LIMIT_S) -> None:
        """Call libvirt about a guest that may have gone off meanwhile."""
        try:
            self._connection.ask_guest(function, doing, min(limit, GUEST_CALL_LIMIT_S))
        except libvirt.libvirtError as error:
            if code_of(error) != libvirt.VIR_ERR_OPERATION_INVALID:
                raise self._connection.translate_error(error, errors.TaskFailed, doing) from error

    def _ask_guest(
        self,
        function: Callable[[], object],
        doing: str,
        kind: type[errors.SuperconductorError] = errors.TaskFailed,
        limit: float = GUEST_CALL_LIMIT_S,
    ) -> None:
        with self._connection.errors_as(kind, doing):
            self._connection.ask_guest(function, doing, limit)
