"""The request spec: stored once per batch, and passed unchanged to the scheduler, the cell and the host."""

from __future__ import annotations

import base64
import binascii
from typing import ClassVar

import msgspec

from objects import extra_specs, hints, numa
from objects.amounts import Amounts
from objects.base import Message, Object
from objects.destination import Destination
from objects.flavor import Flavor
from objects.group import ServerGroup
from objects.move import Move


class Image(Object, frozen=True, kw_only=True):
    """The image to boot from, as it was known when the request was accepted. An image that nobody knew then has its id only.

    ``properties``: those that filters read. ``disk_gb``: GiB of the disk in it, rounded up. ``min_disk``: GiB, ``min_ram``: MiB,
    which a flavor must have. ``hash_value``: the SHA-512 of its content in hexadecimal digits, as the API database has it; empty:
    it is not known there. A host refuses other content.
    """

    id: str
    properties: dict[str, str] = {}
    hash_value: str = ""
    disk_gb: int = 0
    min_disk: int = 0
    min_ram: int = 0

    def why_not_with(self, flavor: Flavor) -> str:
        """What the flavor has too little of; empty if it has enough. A root disk of 0 GiB is as large as the image's."""
        if flavor.memory_mb < self.min_ram:
            return f"the image needs {self.min_ram} MiB of memory, the flavor has {flavor.memory_mb}"
        disk = max(self.min_disk, self.disk_gb)
        if 0 < flavor.root_gb < disk:
            return f"the image needs a disk of {disk} GiB, the flavor has {flavor.root_gb}"
        return ""


class ServerProperties(Object, frozen=True, kw_only=True):
    """The tenant's properties that do not affect placement and are not secret (see ``BootSecrets`` for those).

    ``public_key``: the text of the key ``key_name`` as it was when the request was accepted. ``hostname`` None: made of the name.
    ``access_ip_v4``, ``access_ip_v6``: addresses that the tenant shows with the server; nothing uses them. ``auto_disk_config``:
    what ``OS-DCF:diskConfig`` says of the disk, for the guest's own tools: no driver here changes partitions.
    """

    metadata: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    key_name: str | None = None
    public_key: str | None = None
    config_drive: bool = False
    networks: str = "none"
    description: str | None = None
    block_devices: tuple[dict[str, str | int | bool | None], ...] = ()
    hostname: str | None = None
    access_ip_v4: str = ""
    access_ip_v6: str = ""
    auto_disk_config: bool = False

    def __repr__(self) -> str:
        """Without the metadata, which may hold secrets too."""
        return f"ServerProperties(tags={self.tags!r}, networks={self.networks!r})"


class InjectedFile(Object, frozen=True, kw_only=True):
    """A file that a guest finds in its config drive. ``contents``: base64 text."""

    path: str
    contents: str

    def __repr__(self) -> str:
        return "InjectedFile(...)"


class BootSecrets(Object, frozen=True, kw_only=True):
    """The secrets of a batch's guests: ``user_data`` as base64 text, the admin password, and files to be written.

    They are stored only encrypted (``service/vault.py``), apart from the request spec, until the build has ended. Nothing shows
    them.
    """

    user_data: str | None = None
    admin_pass: str | None = None
    files: tuple[InjectedFile, ...] = ()

    def __bool__(self) -> bool:
        return self != BootSecrets()

    def __repr__(self) -> str:
        return "BootSecrets(...)"

    def mask_text(self, text: str) -> str:
        """``text`` without these secrets: for a hypervisor's error messages."""
        texts = [self.user_data, *(file.contents for file in self.files)]
        for secret in (*texts, *map(_decode_base64, texts), self.admin_pass):
            if secret:
                text = text.replace(secret, "***")
        return text


def _decode_base64(text: str | None) -> str:
    try:
        return base64.b64decode(text or "").decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


DISK_PREFIXES = {"virtio": "vd", "ide": "hd"}
"""Prefixes of the names of disks by their bus; any other bus has ``sd``."""


def root_device(spec: RequestSpec) -> str:
    """The name of the disk that the guests boot from, such as ``/dev/vda``: it follows from the bus of that disk."""
    devices = [device for device in spec.properties.block_devices if device.get("source_type") == "image"]
    of_image = spec.image.properties.get("hw_disk_bus") if spec.image is not None else None
    bus = (devices[0].get("disk_bus") if devices else None) or of_image or "virtio"
    return f"/dev/{DISK_PREFIXES.get(str(bus), 'sd')}a"


class RequestSpec(Message, frozen=True, kw_only=True):
    """One accepted request for ``num_instances`` equal servers (a batch), or for a move of one server.

    ``has_secrets``: ``BootSecrets`` are stored beside it, and its guests must not be built without them. ``all_or_nothing``: if one
    server ends in ERROR before all are ACTIVE, all do. ``min_count``: the servers that find a host are built if they are at least
    this many; None: all must find one.

    The last four fields belong to one scheduling call and are never stored. ``fences``: by instance uuid, the fence under which
    its request is leased. ``excluded_cells`` and ``excluded_hosts`` have just failed to take the build. ``rechecks_claims``: its
    claims were held for a while, so a claim is replaced if its host would not be chosen for it now.
    """

    # 2: user data left the properties. A process that reads only version 1 would build without it.
    VERSION: ClassVar[str] = "2.10"

    batch_id: str
    request_id: str
    project_id: str
    user_id: str
    name: str
    flavor: Flavor
    image: Image | None = None
    num_instances: int = 1
    min_count: int | None = None
    availability_zone: str | None = None
    group: ServerGroup | None = None
    ignore_hosts: tuple[str, ...] = ()
    force_hosts: tuple[str, ...] = ()
    force_nodes: tuple[str, ...] = ()
    requested_destination: Destination | None = None
    move: Move | None = None
    scheduler_hints: dict[str, tuple[str, ...]] = {}
    max_attempts: int = 3
    properties: ServerProperties = ServerProperties()
    has_secrets: bool = False
    all_or_nothing: bool = False

    fences: dict[str, int] = {}
    excluded_cells: tuple[str, ...] = ()
    excluded_hosts: tuple[str, ...] = ()
    rechecks_claims: bool = False

    @property
    def disk_gb(self) -> int:
        """Local disk that each instance takes, in GiB. Without a root disk in the flavor, the image's disk is the root disk."""
        of_image = self.image.disk_gb if self.image is not None and not self.flavor.root_gb else 0
        return self.flavor.disk_gb + of_image

    @property
    def taken_amounts(self) -> Amounts:
        """The resources that each instance takes: its size and the ``resources:CLASS`` of its flavor's extra specs."""
        flavor = self.flavor
        return Amounts.of_size(flavor.vcpus, flavor.memory_mb, self.disk_gb, extra_specs.resource_amounts(flavor.extra_specs))

    @property
    def numa_nodes(self) -> int:
        """The number of NUMA nodes that each instance is divided over; 0: it cannot be divided as it asks."""
        takes, properties = self.taken_amounts, self.image.properties if self.image is not None else {}
        return numa.requested_nodes(self.flavor.extra_specs, properties, takes.vcpus, takes.memory_mb)

    def with_image(self, image: Image) -> RequestSpec:
        return msgspec.structs.replace(self, image=image)

    @property
    def fault_domain(self) -> str | None:
        """The fault domain of its group; None if it is in no group, or in no domain of it."""
        domains = self.scheduler_hints.get(hints.FAULT_DOMAIN, ()) if self.group is not None else ()
        return domains[0] if domains else None

    @property
    def keeps_to_racks(self) -> bool:
        """Whether other members of its group may keep it from racks."""
        return self.fault_domain is not None or (self.group is not None and self.group.max_server_per_rack is not None)

    def for_move(
        self, move: Move, batch_id: str, flavor: Flavor | None = None, destination: Destination | None = None
    ) -> RequestSpec:
        """The request for a move of one of its servers, under a separate batch ID and without the conditions of the boot."""
        return msgspec.structs.replace(
            self,
            batch_id=batch_id,
            move=move,
            flavor=flavor or self.flavor,
            requested_destination=destination,
            num_instances=1,
            min_count=None,
            ignore_hosts=(),
            force_hosts=(),
            force_nodes=(),
            all_or_nothing=False,
        )
