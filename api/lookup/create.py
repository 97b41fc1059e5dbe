"""The body of ``POST /servers`` as a record, and the meaning of its fields for the build."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import field

from api.http import schemas
from api.http.validation import canonical_ipv6, checked_metadata, is_uuid
from objects import errors, typed
from objects.base import Object
from objects.spec import BootSecrets, InjectedFile, ServerProperties
from objects.text import NAME_LENGTH

Boolean = bool | str
Count = int | str

_HINTS = "os:scheduler_hints"
_OLD_HINTS = "OS-SCH-HNT:scheduler_hints"
_ALL_OR_NOTHING = "all_or_nothing"

Hint = Any
"""Text, a number, a boolean, null, an object, or a list of these."""
_LAST_OF_URL = re.compile(r"^https?://.*/([^/]+)$")


class BlockDevice(Object, frozen=True, kw_only=True):
    """One entry of ``block_device_mapping_v2``."""

    source_type: str
    uuid: str | None = None
    destination_type: str = "local"
    boot_index: Count | None = None
    delete_on_termination: Boolean = True
    volume_size: Count | None = None
    device_name: str | None = None
    guest_format: str | None = None
    device_type: str | None = None
    disk_bus: str | None = None
    tag: str | None = None
    volume_type: None = None

    @property
    def boots(self) -> bool:
        return self.boot_index is not None and int(self.boot_index) == 0

    def stored(self) -> dict[str, str | int | bool | None]:
        """As stored in the request spec: with numbers and booleans converted, and without missing values."""
        clean = msgspec.structs.replace(
            self,
            boot_index=None if self.boot_index is None else int(self.boot_index),
            volume_size=None if self.volume_size is None else int(self.volume_size),
            delete_on_termination=schemas.BOOLEANS[self.delete_on_termination],
        )
        return {name: value for name, value in msgspec.structs.asdict(clean).items() if value is not None}


class AskedNetwork(Object, frozen=True, kw_only=True):
    uuid: str | None = None
    port: str | None = None
    fixed_ip: str | None = None
    tag: str | None = None


class SecurityGroup(Object, frozen=True, kw_only=True):
    name: str = "default"


class ServerBody(Object, frozen=True, kw_only=True):
    """The ``server`` of the body."""

    name: str
    flavor_ref: str | int = field(name="flavorRef")
    image_ref: str = field(name="imageRef", default="")
    block_devices: tuple[BlockDevice, ...] = field(name="block_device_mapping_v2", default=())
    networks: str | tuple[AskedNetwork, ...] = ()
    availability_zone: str | None = None
    min_count: Count | None = None
    max_count: Count | None = None
    return_reservation_id: Boolean = False
    metadata: dict[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    description: str | None = None
    user_data: str | None = None
    admin_pass: str | None = field(name="adminPass", default=None)
    personality: tuple[InjectedFile, ...] = ()
    config_drive: Boolean = False
    key_name: str | None = None
    security_groups: tuple[SecurityGroup, ...] = (SecurityGroup(),)
    disk_config: str = field(name="OS-DCF:diskConfig", default="MANUAL")
    trusted_image_certificates: None = None
    host: str | None = None
    hypervisor_hostname: str | None = None
    hostname: str | None = None
    access_ip_v4: str = field(name="accessIPv4", default="")
    access_ip_v6: str = field(name="accessIPv6", default="")

    def __repr__(self) -> str:
        """Without fields that may hold secrets."""
        return f"ServerBody(name={self.name!r})"


class CreateBody(Object, frozen=True, kw_only=True):
    """A whole request body after validation by its schema."""

    server: ServerBody
    new_hints: dict[str, Hint] | None = field(name=_HINTS, default=None)
    old_hints: dict[str, Hint] | None = field(name=_OLD_HINTS, default=None)

    @property
    def hints_field(self) -> str:
        """The name of the hints field in the request."""
        return _OLD_HINTS if self.new_hints is None and self.old_hints is not None else _HINTS

    def hints(self) -> dict[str, tuple[str, ...]]:
        """Scheduler hints, each as a list, because a hint may be given more than once."""
        return {
            key: tuple(map(_hint_text, _listed(value)))
            for key, value in self._given().items()
            if value not in EMPTY_HINTS and key != _ALL_OR_NOTHING
        }

    def all_or_nothing(self) -> bool:
        """Whether the whole batch fails if one server fails. Raises errors.Invalid for a value that is not a boolean."""
        given = _listed(self._given().get(_ALL_OR_NOTHING, False))
        if len(given) != 1 or given[0] not in schemas.BOOLEANS:
            shown = " and ".join(repr(value)[:80] for value in given) or "an empty list"
            raise errors.Invalid(f"{self.hints_field}.{_ALL_OR_NOTHING}: {shown} is not a boolean; give true or false, once")
        return schemas.BOOLEANS[given[0]]

    def _given(self) -> dict[str, Hint]:
        return self.new_hints if self.new_hints is not None else self.old_hints or {}


EMPTY_HINTS: tuple[Hint, ...] = (None, "", [], {})
"""Values of a hint that is not given."""


def _listed(hint: Hint) -> list[Hint]:
    return hint if isinstance(hint, list) else [hint]


def _hint_text(hint: Hint) -> str:
    """As the request spec has it: text as it is, the rest as JSON, but for booleans. Raises errors.Invalid if it is too long."""
    text = hint if isinstance(hint, str) else str(hint) if isinstance(hint, bool) else msgspec.json.encode(hint).decode()
    if len(text) > schemas.HINT_LENGTH:
        raise errors.Invalid(f"{_HINTS}: a hint has more than {schemas.HINT_LENGTH} characters")
    return text


def parse(body: dict[str, Any]) -> CreateBody:
    """The body as a record. It was validated by its schema before."""
    try:
        return typed.convert(body, CreateBody)
    except msgspec.ValidationError as error:
        raise errors.Invalid(f"The body is not valid: {error}") from error


def counts(server: ServerBody, most: int) -> tuple[int, int]:
    """The number of servers to make: ``max_count``, or fewer down to ``min_count`` if the project's quota has no room for more.

    Of the accepted servers, those that find a host are built, if they are at least ``min_count``. Returns (min_count, max_count).
    Raises errors.Invalid.
    """
    least = int(server.min_count) if server.min_count is not None else 1
    wanted = int(server.max_count) if server.max_count is not None else least
    if least < 1 or wanted < 1:
        raise errors.Invalid("server.min_count: must be 1 or more, and so must max_count")
    if least > wanted:
        raise errors.Invalid(f"server.min_count: {least} is more than max_count, {wanted}")
    if wanted > most:
        raise errors.Invalid(f"server.max_count: {wanted} is more than the maximum of one request, {most}")
    if server.hostname and wanted > 1:
        raise errors.Invalid(f"server.hostname: {wanted} servers cannot have one host name; boot them one by one, or leave it out")
    return least, wanted


def flavor_ref(server: ServerBody) -> str:
    """The flavor's ID; clients may send its URL."""
    reference = str(server.flavor_ref)
    match = _LAST_OF_URL.match(reference)
    return match[1] if match else reference


def image_id(server: ServerBody) -> str:
    """The image to boot from: ``imageRef``, or the block device with boot_index 0. Both may be given if they agree.

    Raises errors.Invalid.
    """
    boots = [(n, device) for n, device in enumerate(server.block_devices) if device.boots]
    if len(boots) > 1:
        raise errors.Invalid("server.block_device_mapping_v2: more than one device has boot_index 0")
    for number, device in enumerate(server.block_devices):
        if device.source_type == "image" and not (device.uuid and is_uuid(device.uuid)):
            raise errors.Invalid(f"server.block_device_mapping_v2[{number}].uuid: must be the uuid of an image")
    device_image: str | None = None
    if boots:
        number, first = boots[0]
        if first.source_type != "image":
            raise errors.Invalid(f"server.block_device_mapping_v2[{number}].source_type: the boot device must be an image")
        device_image = first.uuid
        if server.image_ref and server.image_ref != device_image:
            raise errors.Invalid(f"server.block_device_mapping_v2[{number}].uuid: is not the image of imageRef")
    chosen = server.image_ref or device_image
    if not chosen:
        raise errors.Invalid("server.imageRef: is required, or else a block device with an image and boot_index 0")
    for number, device in enumerate(server.block_devices):
        if device.source_type == "image" and not device.boots:
            raise errors.Invalid(f"server.block_device_mapping_v2[{number}].boot_index: only the first disk has an image")
    return chosen


def secrets(server: ServerBody) -> BootSecrets:
    """The user data, the admin password and the files."""
    return BootSecrets(user_data=server.user_data or None, admin_pass=server.admin_pass, files=server.personality)


def secrets_of_rebuild(value: dict[str, Any]) -> BootSecrets:
    """The same of the value of a ``rebuild``, which was validated by its schema before."""
    files = typed.convert(value.get("personality", []), tuple[InjectedFile, ...])
    return BootSecrets(user_data=value.get("user_data") or None, admin_pass=value.get("adminPass"), files=files)


def check_personality(files: Sequence[InjectedFile], limits: Mapping[str, int], of: str = "server") -> None:
    """``limits``: those of the project, by the names of quotas; -1: none. ``of``: what of the body has them.

    Raises errors.Forbidden for more or larger files.
    """

    def refuse(name: str, found: int, what: str) -> None:
        if 0 <= limits[name] < found:
            raise errors.Forbidden(f"{of}.personality: Personality {what} limit exceeded: at most {limits[name]}")

    refuse("injected_files", len(files), "file")
    for file in files:
        refuse("injected_file_path_bytes", len(file.path.encode()), "file path")
        refuse("injected_file_content_bytes", len(base64.b64decode(file.contents)), "file content")


def properties(server: ServerBody, public_key: str | None, metadata_limit: int) -> ServerProperties:
    """All properties that do not affect placement, but the networks. Raises errors.Forbidden for too many items of metadata."""
    return ServerProperties(
        metadata=checked_metadata(server.metadata, metadata_limit),
        tags=tuple(dict.fromkeys(server.tags)),
        key_name=server.key_name,
        public_key=public_key,
        config_drive=schemas.BOOLEANS[server.config_drive],
        description=server.description,
        block_devices=tuple(device.stored() for device in server.block_devices),
        hostname=server.hostname,
        access_ip_v4=server.access_ip_v4,
        access_ip_v6=canonical_ipv6(server.access_ip_v6),
        auto_disk_config=server.disk_config == "AUTO",
    )


def names(server: ServerBody, count: int) -> list[str]:
    """The name itself for one server; ``name-1`` and so on for several.

    Raises errors.Invalid if the name is too long for the number.
    """
    if count == 1:
        return [server.name]
    if len(f"{server.name}-{count}") > NAME_LENGTH:
        raise errors.Invalid(
            f"server.name: is too long: {NAME_LENGTH} characters at most, with the number of the server at its end"
        )
    return [f"{server.name}-{number}" for number in range(1, count + 1)]
