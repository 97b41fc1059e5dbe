"""The XML of a guest's domain, as a pure function of what was asked and of the host."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from compute.driver import Guest, GuestSpec
from compute.libvirt.capabilities import HostFacts
from compute.libvirt.cpu_plan import Taken
from compute.libvirt.guest_options import GuestSettings
from objects.base import Object

METADATA_NAMESPACE = "urn:superconductor:guest:1"
METADATA_PREFIX = "sc"
METADATA_ELEMENT = "guest"
"""The element in the domain's metadata that makes it a guest of ours. Its text is the identity, ``spawned`` is "0" or "1"."""


class DomainDisk(Object, frozen=True, kw_only=True):
    """One disk, in the order of the list; the guest boots from the first. ``bus`` empty: as the image or the host says.

    ``format``: ``qcow2`` or ``raw``. ``device``: ``disk`` or ``cdrom``. ``serial``: what the guest sees; virtio shows 20 characters.
    """

    path: str
    format: str = "qcow2"
    bus: str = ""
    serial: str = ""
    device: str = "disk"


class DomainNic(Object, frozen=True, kw_only=True):
    """One network interface. ``kind``: ``bridge``, ``network`` (of libvirt) or ``user``. ``source``: the name of either."""

    mac: str
    kind: str
    source: str = ""
    mtu: int | None = None


class DomainRequest(Object, frozen=True, kw_only=True):
    """Everything that the XML of a domain is made of.

    ``image_properties``: those of the image store with those given to the API. ``identity``: JSON, without secrets.
    ``config_drive``: path of an ISO file. ``console_log``: path. ``direct_io``: whether the disks' file system takes O_DIRECT.
    ``others``: what the other guests of the host have taken (``taken_of`` their XML).
    """

    guest: Guest
    spec: GuestSpec
    host: HostFacts
    settings: GuestSettings
    disks: tuple[DomainDisk, ...]
    console_log: str
    identity: str
    image_properties: dict[str, str] = {}
    spawned: bool = False
    config_drive: str | None = None
    nics: tuple[DomainNic, ...] = ()
    direct_io: bool = True
    others: tuple[Taken, ...] = ()


def domain_name(uuid: str) -> str:
    """The name of the domain of an instance."""
    return f"sc-{uuid}"


def make_domain_xml(request: DomainRequest) -> str:
    """The domain's XML. Raises ``errors.BuildFailed`` if another host may do it, ``errors.BuildAborted`` if none would."""
    raise NotImplementedError


def make_metadata_xml(identity: str, *, spawned: bool) -> str:
    """The metadata element for ``virDomainSetMetadata``, which adds namespace and prefix itself."""
    raise NotImplementedError


def taken_of(domain_xml: str) -> Taken:
    """What the guest of this domain has taken for itself; empty for a domain that is not ours."""
    raise NotImplementedError
