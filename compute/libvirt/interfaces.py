"""Network interfaces of guests that are defined already: in the definition, and in the guest while it runs.

What is there is read from libvirt each time, by MAC. So a change that was killed half-way is completed when it is made again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any
from xml.etree import ElementTree

from compute.libvirt import binding
from compute.libvirt.connection import LibvirtConnection, code_of
from objects import errors

libvirt = binding.load_libvirt()

RELEASE_TRIES = 4
"""How often a guest that runs is asked to release an interface."""
RELEASE_LOOKS = 25
"""Looks after each of them."""
LOOK_INTERVAL_S = 0.2

_LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
_CONFIG = libvirt.VIR_DOMAIN_AFFECT_CONFIG
_SOURCES = {_LIVE: 0, _CONFIG: libvirt.VIR_DOMAIN_XML_INACTIVE}
"""The flags that read what a change with these flags affects."""


class GuestInterfaces:
    """Attaches and detaches. Every method raises ``errors.TaskFailed`` and ``errors.HypervisorDown``."""

    def __init__(self, connection: LibvirtConnection) -> None:
        self._connection = connection
        self._pause = threading.Event()

    def bring_interfaces(self, domain: Any, wanted_interfaces: Mapping[str, str]) -> None:
        """Give the guest the interfaces of ``wanted_interfaces`` and no others: their XML by MAC. The others stay as they are."""
        with self._connection.errors_as(errors.TaskFailed, "read the state of the guest"):
            affected = (_LIVE, _CONFIG) if domain.isActive() else (_CONFIG,)
        for flags in affected:
            for mac, xml in self._read_interfaces(domain, flags).items():
                if mac not in wanted_interfaces:
                    self._detach_interface(domain, mac, xml, flags)
        for flags in affected:
            interface_by_mac = self._read_interfaces(domain, flags)
            for mac, xml in wanted_interfaces.items():
                if mac not in interface_by_mac:
                    self._change_interface(partial(domain.attachDeviceFlags, xml, flags), f"attach the interface {mac}")

    def _detach_interface(self, domain: Any, mac: str, xml: str, flags: int) -> None:
        """A guest that runs has to release its interface. A request that it did not hear is repeated."""
        for _ in range(RELEASE_TRIES if flags == _LIVE else 1):
            try:
                self._change_interface(partial(domain.detachDeviceFlags, xml, flags), f"detach the interface {mac}")
            except errors.TaskFailed:
                if mac in self._read_interfaces(domain, flags) and flags != _LIVE:
                    raise
            for _ in range(RELEASE_LOOKS):
                if mac not in self._read_interfaces(domain, flags):
                    return
                self._pause.wait(LOOK_INTERVAL_S)
        raise errors.TaskFailed(
            f"The guest's system does not release the interface {mac}: stop the server first, or run a system that can release it."
        )

    def _change_interface(self, call: Any, doing: str) -> None:
        with self._connection.errors_as(errors.TaskFailed, doing):
            self._connection.ask_guest(call, doing)

    def _read_interfaces(self, domain: Any, flags: int) -> dict[str, str]:
        """The interfaces in the definition or in the running guest: their XML by MAC."""
        try:
            text = domain.XMLDesc(_SOURCES[flags])
        except libvirt.libvirtError as error:
            if code_of(error) == libvirt.VIR_ERR_NO_DOMAIN:
                raise errors.TaskFailed("The guest is gone.") from error
            raise self._connection.translate_error(error, errors.TaskFailed, "read the interfaces of the guest") from error
        return interfaces_of(text)


def interfaces_of(domain_xml: str) -> dict[str, str]:
    """The interfaces in the XML of a domain: their XML by MAC."""
    root = ElementTree.fromstring(domain_xml)  # noqa: S314 - libvirt or this driver wrote it
    interface_by_mac: dict[str, str] = {}
    for element in root.iterfind("./devices/interface"):
        mac = element.find("mac")
        if mac is not None:
            interface_by_mac[(mac.get("address") or "").lower()] = ElementTree.tostring(element, encoding="unicode")
    return interface_by_mac
