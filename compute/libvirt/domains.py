"""The domains of this host in libvirt, with what is kept in their metadata.

A domain is a guest once its metadata are marked as spawned: that is the commit point of a spawn. Before, it is a part, which the
next start of the agent removes. Domains without our metadata, and those of another agent's host, are never touched.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from xml.etree import ElementTree

import msgspec

from compute.driver import Guest
from compute.libvirt import binding
from compute.libvirt.connection import LibvirtConnection, code_of
from compute.libvirt.cpu_plan import Taken
from compute.libvirt.domain_xml import METADATA_NAMESPACE, METADATA_PREFIX, domain_name, make_metadata_xml, taken_of
from compute.libvirt.kept_guest import KeptGuest
from objects import errors, typed
from objects.task import Power
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

libvirt = binding.load_libvirt()

REMOVE_TRIES = 50
REMOVE_INTERVAL_S = 0.05
"""A libvirtd may still carry out a call of an agent that has died, so a removal is repeated until nothing is found."""

_GONE = (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_NO_DOMAIN_METADATA)
_KEPT = libvirt.VIR_DOMAIN_METADATA_ELEMENT
_CONFIG = libvirt.VIR_DOMAIN_AFFECT_CONFIG
_ALL_PARTS = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
)

_COUNTED = (
    libvirt.VIR_DOMAIN_STATS_STATE
    | libvirt.VIR_DOMAIN_STATS_VCPU
    | libvirt.VIR_DOMAIN_STATS_BALLOON
    | libvirt.VIR_DOMAIN_STATS_BLOCK
    | libvirt.VIR_DOMAIN_STATS_INTERFACE
)

_OFF_REASONS = {
    libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN: "The guest's system has shut down.",
    libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED: "The guest was turned off on its host.",
    libvirt.VIR_DOMAIN_SHUTOFF_CRASHED: "The guest crashed: its QEMU process ended or was killed.",
    libvirt.VIR_DOMAIN_SHUTOFF_FAILED: "The guest could not be started.",
    libvirt.VIR_DOMAIN_SHUTOFF_DAEMON: "The guest was ended by libvirt.",
    libvirt.VIR_DOMAIN_SHUTOFF_UNKNOWN: "The host was restarted, or lost its power.",
}


class Domains:
    """The domains that the agent of ``host`` made. Every method raises ``errors.HypervisorDown`` if there is no connection."""

    def __init__(self, connection: LibvirtConnection, host: str) -> None:
        self._connection = connection
        self._host = host
        self._complaints = RateLimitedLog(LOG)
        self._marked: dict[str, KeptGuest] = {}  # only this process changes marked domains of its host
        self._taken: dict[str, Taken] = {}  # by uuid, also of parts
        self._has_read_taken = False
        self._pause = threading.Event()

    # -- find ----------------------------------------------------------------------------------------------------------------------

    def find_domain(self, uuid: str) -> Any:
        """The domain of this uuid; None: there is none, or it is not ours."""
        domain = self._look_up(uuid)
        return domain if domain is not None and self._read(domain) is not None else None

    def read_kept(self, domain: Any) -> KeptGuest:
        """What is kept with a domain that ``find_domain`` or ``list_guests`` returned. Raises ``errors.NotFound`` if it has
        gone.
        """
        read = self._read(domain)
        if read is None:
            raise errors.NotFound("The domain is gone.")
        return read[0]

    def is_spawned(self, domain: Any) -> bool:
        """Whether the domain is marked."""
        read = self._read(domain)
        return read is not None and read[1]

    def list_guests(self) -> tuple[list[Guest], list[str]]:
        """The guests as they are now, and the uuids of parts."""
        with self._connection.errors_as(errors.TaskFailed, "list its domains"):
            states = self._connection.get().getAllDomainStats(
                libvirt.VIR_DOMAIN_STATS_STATE, libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
            )
        guests, parts, marked = [], [], {}
        for domain, about in states:
            uuid = domain.UUIDString()
            kept_guest = self._marked.get(uuid)
            if kept_guest is None:
                read = self._read(domain)
                if read is None:
                    continue
                if not read[1]:
                    parts.append(uuid)
                    continue
                kept_guest = read[0]
            marked[uuid] = kept_guest
            guests.append(self._guest_now(domain, kept_guest, *_state_of(about)))
        self._marked = marked
        return guests, parts

    def power_of(self, domain: Any) -> Power:
        """What the guest is now."""
        with self._connection.errors_as(errors.TaskFailed, "read the state of the guest"):
            state, reason = domain.state()
        return self._guest_now(domain, self.read_kept(domain), state, reason).power

    def read_counters(self, domain: Any) -> dict[str, Any]:
        """What libvirt knows of the domain now, without waiting for a busy QEMU. Raises ``errors.NotFound`` if it has gone."""
        connection = self._connection.get()  # of this thread, as the domain is
        doing = "read the counters of the guest"

        def read() -> Any:
            return connection.domainListGetStats([domain], _COUNTED, libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT)

        with self._connection.errors_as(errors.TaskFailed, doing):
            counters_read = self._connection.ask_guest(read, doing)
        if not counters_read:
            raise errors.NotFound("The domain is gone.")
        [(_, counters)] = counters_read
        return dict(counters)

    def as_counted(self, domain: Any, counters: Mapping[str, Any]) -> Guest:
        """The guest as it was when these counters were read."""
        return self._guest_now(domain, self.read_kept(domain), *_state_of(counters))

    # -- change --------------------------------------------------------------------------------------------------------------------

    def define_domain(self, uuid: str, xml: str) -> Any:
        """Define a domain, or replace the definition of the one of this uuid. Raises ``errors.BuildFailed``."""
        with self._connection.errors_as(errors.BuildFailed, "define the guest"):
            domain = self._connection.get().defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
        self._taken[uuid] = taken_of(xml)
        return domain

    def name_for(self, guest: Guest) -> str:
        """The name of the guest's domain: that which it has, or else ``sc-`` and the uuid of its server. So moves keep it.

        While another body of the server is on this host, as after a resize in place, it has its own uuid instead. The caller keeps
        others from defining meanwhile.
        """
        if (its := self._look_up(guest.uuid)) is not None:
            return str(its.name())
        name = domain_name(guest.server_uuid or guest.uuid)
        return name if self._look_up_or_none(lambda connection: connection.lookupByName(name)) is None else domain_name(guest.uuid)

    def taken_by_others(self, uuid: str) -> tuple[Taken, ...]:
        """What the other domains of this host have for themselves. The caller keeps others from defining meanwhile."""
        if not self._has_read_taken:
            for domain in self._list_domains():
                if self._read(domain) is not None:
                    with self._connection.errors_as(errors.BuildFailed, "read the definition of a guest"):
                        self._taken[domain.UUIDString()] = taken_of(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))
            self._has_read_taken = True
        return tuple(taken for other, taken in self._taken.items() if other != uuid and taken != Taken())

    def keep_guest(self, domain: Any, kept_guest: KeptGuest) -> None:
        """Store what is kept, and mark the domain as a guest."""
        xml = make_metadata_xml(kept_guest.as_text(), spawned=True)
        self._marked.pop(kept_guest.guest.uuid, None)
        with self._connection.errors_as(errors.TaskFailed, "mark the guest"):
            domain.setMetadata(_KEPT, xml, METADATA_PREFIX, METADATA_NAMESPACE, _CONFIG)

    def remove_domain(self, uuid: str) -> None:
        """Turn off and undefine, until there is no domain of ours. Raises ``errors.BuildFailed`` if it stays."""
        self._marked.pop(uuid, None)
        for _ in range(REMOVE_TRIES):
            domain = self.find_domain(uuid)
            if domain is None:
                self._taken.pop(uuid, None)
                return
            ran = self._unless_gone(domain.destroy)
            self._unless_gone(partial(domain.undefineFlags, _ALL_PARTS))
            if not ran:  # a start by an agent that has died may still be under way; one that is ended while it runs is over
                self._pause.wait(REMOVE_INTERVAL_S)
        raise errors.BuildFailed("The domain of the guest does not go away.")

    # -- how -----------------------------------------------------------------------------------------------------------------------

    def _list_domains(self) -> list[Any]:
        with self._connection.errors_as(errors.TaskFailed, "list its domains"):
            return list(self._connection.get().listAllDomains())

    def _unless_gone(self, call: Callable[[], object]) -> bool:
        """Whether it was done. A domain that is off cannot be destroyed, and one that has gone cannot be undefined."""
        try:
            call()
        except libvirt.libvirtError as error:
            if code_of(error) not in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
                raise self._connection.translate_error(error, errors.BuildFailed, "remove the guest") from error
            return False
        return True

    def _look_up(self, uuid: str) -> Any:
        return self._look_up_or_none(lambda connection: connection.lookupByUUIDString(uuid))

    def _look_up_or_none(self, look_up: Callable[[Any], Any]) -> Any:
        """The domain; None: there is none."""
        try:
            return look_up(self._connection.get())
        except libvirt.libvirtError as error:
            if code_of(error) in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_INVALID_ARG):
                return None
            raise self._connection.translate_error(error, errors.TaskFailed, "find the guest") from error

    def _read(self, domain: Any) -> tuple[KeptGuest, bool] | None:
        """What is kept, and whether the domain is marked; None: not ours, or gone."""
        try:
            xml = domain.metadata(_KEPT, METADATA_NAMESPACE, _CONFIG)
        except libvirt.libvirtError as error:
            if code_of(error) in (*_GONE, libvirt.VIR_ERR_OPERATION_INVALID):  # invalid: it is transient, so not ours
                return None
            raise self._connection.translate_error(error, errors.TaskFailed, "read the metadata of a guest") from error
        try:
            element = ElementTree.fromstring(xml)  # noqa: S314 - libvirt parsed and wrote it, without a document type
            kept_guest = typed.decode_json((element.text or "").encode(), KeptGuest)
        except (ElementTree.ParseError, msgspec.MsgspecError) as error:
            text = "Domain %s has metadata of ours that cannot be read, and is left alone: %s"
            self._complaints(domain.name(), logging.ERROR, text, domain.name(), error)
            return None
        return (kept_guest, element.get("spawned") == "1") if kept_guest.host == self._host else None

    def _guest_now(self, domain: Any, kept_guest: KeptGuest, state: int, reason: int) -> Guest:
        power, why = self._power_now(domain, kept_guest.guest.power, state, reason)
        of_spec = {"project_id": kept_guest.spec.project_id, "user_id": kept_guest.spec.user_id, "ports": kept_guest.spec.ports}
        return msgspec.structs.replace(kept_guest.guest, power=power, off_reason=why, **of_spec)

    def _power_now(self, domain: Any, wanted_power: Power, state: int, reason: int) -> tuple[Power, str]:
        match state:
            case libvirt.VIR_DOMAIN_SHUTOFF | libvirt.VIR_DOMAIN_CRASHED:
                if wanted_power is Power.SUSPENDED and self.is_saved(domain):
                    return Power.SUSPENDED, ""
                return (Power.HELD if wanted_power is Power.HELD else Power.OFF), _OFF_REASONS.get(reason, "")
            case libvirt.VIR_DOMAIN_PAUSED:
                return Power.PAUSED, ""
            case _:  # running, blocked, shutting down, asleep by its own system
                return (Power.RESCUED if wanted_power is Power.RESCUED else Power.ON), ""

    def is_saved(self, domain: Any) -> bool:
        """Whether the memory of the guest, which is off, is on disk."""
        try:
            return bool(domain.hasManagedSaveImage())
        except libvirt.libvirtError as error:
            if code_of(error) == libvirt.VIR_ERR_NO_DOMAIN:
                return False
            raise self._connection.translate_error(error, errors.TaskFailed, "look for the saved memory of a guest") from error


def has_crashed(counters: Mapping[str, Any]) -> bool:
    """Whether the guest whose counters these are ended without being told to."""
    state, reason = _state_of(counters)
    is_off = state == libvirt.VIR_DOMAIN_SHUTOFF
    return bool(state == libvirt.VIR_DOMAIN_CRASHED or (is_off and reason == libvirt.VIR_DOMAIN_SHUTOFF_CRASHED))


def _state_of(counters: Mapping[str, Any]) -> tuple[int, int]:
    """State and reason."""
    return counters.get("state.state", 0), counters.get("state.reason", 0)
