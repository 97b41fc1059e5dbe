"""What the body of ``POST /servers`` asks for."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import field

from api.http import schemas
from api.http.validation import canonical_ipv6, is_uuid
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
    def is_boot_device(self) -> bool:
        return self.boot_index is not None and int(self.boot_index) == 0

    def stored_fields(self) -> dict[str, str | int | bool | None]:
        """As stored in the request spec: with numbers and booleans converted, and without missing values."""
        clean = msgspec.structs.replace(
            self,
            boot_index=None if self.boot_index is None else int(self.boot_index),
            volume_size=None if self.volume_size is None else int(self.volume_size),
            delete_on_termination=schemas.BOOLEANS[self.delete_on_termination],
        )
        return {name: value for name, value in msgspec.structs.asdict(clean).items() if value is not None}


class RequestedNetwork(Object, frozen=True, kw_only=True):
    uuid: str | None = None
    port: str | None = None
    fixed_ip: str | None = None
    tag: str | None = None


class SecurityGroup(Object, frozen=True, kw_only=True):
    name: str = "default"


class ServerBody(Object, frozen=True, kw_only=True):
    """The ``server`` of the body, as clients write it."""

    name: str
    flavor_ref: str | int = field(name="flavorRef")
    image_ref: str = field(name="imageRef", default="")
    block_devices: tuple[BlockDevice, ...] = field(name="block_device_mapping_v2", default=())
    networks: str | tuple[RequestedNetwork, ...] = ()
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


class CreateBody(Object, frozen=True, kw_only=True):
    """A whole request body after validation by its schema."""

    server: ServerBody
    new_hints: dict[str, Hint] | None = field(name=_HINTS, default=None)
    old_hints: dict[str, Hint] | None = field(name=_OLD_HINTS, default=None)


class BootRequest(Object, frozen=True, kw_only=True):
    """Servers to boot, with every field in the form that the build uses. Nothing that it names has been looked up.

    ``count``: servers to make.
    ``min_count``: the fewest to which the project's quota may cut ``count``. Of the accepted servers, those that find a host are
    built, if they are at least ``min_count``.
    ``flavor``: the ID or name of the flavor.
    ``image_id``: the image to boot from.
    ``hints``: scheduler hints, each as a tuple, because a hint may be given more than once.
    ``hints_field``: the name of the hints in the body.
    ``all_or_nothing``: the whole batch fails if one server fails.
    ``secrets``: user data, admin password and files.
    ``wants_reservation``: the answer is to be a reservation ID alone.
    ``properties``: all that does not affect placement, but the networks and the public key.
    """

    name: str
    count: int
    min_count: int
    flavor: str
    image_id: str
    availability_zone: str | None
    host: str | None
    hypervisor_hostname: str | None
    networks: str | tuple[RequestedNetwork, ...]
    security_groups: tuple[str, ...]
    hints: dict[str, tuple[str, ...]]
    hints_field: str
    all_or_nothing: bool
    secrets: BootSecrets
    wants_reservation: bool
    disk_config: str
    properties: ServerProperties

    def __repr__(self) -> str:
        """Without fields that may hold secrets."""
        return f"BootRequest(name={self.name!r}, count={self.count})"

    def server_names(self, count: int) -> list[str]:
        """The names of ``count`` servers: the name itself for one; ``name-1`` and so on for several."""
        return [self.name] if count == 1 else [f"{self.name}-{number}" for number in range(1, count + 1)]


EMPTY_HINTS: tuple[Hint, ...] = (None, "", [], {})
"""Values of a hint that is not given."""


def parse(document: dict[str, Any], max_count: int) -> BootRequest:
    """What a body asks for. It was validated by its schema before. ``max_count``: the most servers of one request.

    Raises errors.Invalid, naming the field.
    """
    try:
        body = typed.convert_data(document, CreateBody)
    except msgspec.ValidationError as error:
        raise errors.Invalid(f"The body is not valid: {error}") from error
    server = body.server
    min_count, count = _server_counts(server, max_count)
    if count > 1 and len(f"{server.name}-{count}") > NAME_LENGTH:
        raise errors.Invalid(
            f"server.name: is too long: {NAME_LENGTH} characters at most, with the number of the server at its end"
        )
    hints_field = _OLD_HINTS if body.new_hints is None and body.old_hints is not None else _HINTS
    hints = body.new_hints if body.new_hints is not None else body.old_hints or {}
    flavor_url = _LAST_OF_URL.match(str(server.flavor_ref))  # clients may send the URL of the flavor
    return BootRequest(
        name=server.name,
        count=count,
        min_count=min_count,
        flavor=flavor_url[1] if flavor_url else str(server.flavor_ref),
        image_id=_image_id(server),
        availability_zone=server.availability_zone,
        host=server.host,
        hypervisor_hostname=server.hypervisor_hostname,
        networks=server.networks,
        security_groups=tuple(group.name for group in server.security_groups),
        hints={
            name: tuple(map(_hint_text, hint if isinstance(hint, list) else [hint]))
            for name, hint in hints.items()
            if hint not in EMPTY_HINTS and name != _ALL_OR_NOTHING
        },
        hints_field=hints_field,
        all_or_nothing=_ALL_OR_NOTHING in hints and _is_all_or_nothing(hints[_ALL_OR_NOTHING], hints_field),
        secrets=BootSecrets(user_data=server.user_data or None, admin_pass=server.admin_pass, files=server.personality),
        wants_reservation=schemas.BOOLEANS[server.return_reservation_id],
        disk_config=server.disk_config,
        properties=ServerProperties(
            metadata=server.metadata,
            tags=tuple(dict.fromkeys(server.tags)),
            key_name=server.key_name,
            config_drive=schemas.BOOLEANS[server.config_drive],
            description=server.description,
            block_devices=tuple(device.stored_fields() for device in server.block_devices),
            hostname=server.hostname,
            access_ip_v4=server.access_ip_v4,
            access_ip_v6=canonical_ipv6(server.access_ip_v6),
            auto_disk_config=server.disk_config == "AUTO",
        ),
    )


def _is_all_or_nothing(hint: Hint, hints_field: str) -> bool:
    """Raises errors.Invalid for a value that is not a boolean."""
    values = hint if isinstance(hint, list) else [hint]
    if len(values) != 1 or values[0] not in schemas.BOOLEANS:
        shown = " and ".join(repr(value)[:80] for value in values) or "an empty list"
        raise errors.Invalid(f"{hints_field}.{_ALL_OR_NOTHING}: {shown} is not a boolean; give true or false, once")
    return schemas.BOOLEANS[values[0]]


def _hint_text(hint: Hint) -> str:
    """As the request spec has it: text as it is, the rest as JSON, but for booleans. Raises errors.Invalid if it is too long."""
    text = hint if isinstance(hint, str) else str(hint) if isinstance(hint, bool) else msgspec.json.encode(hint).decode()
    if len(text) > schemas.HINT_LENGTH:
        raise errors.Invalid(f"{_HINTS}: a hint has more than {schemas.HINT_LENGTH} characters")
    return text


def _server_counts(server: ServerBody, max_count: int) -> tuple[int, int]:
    """(min_count, max_count) as numbers. Raises errors.Invalid."""
    least = int(server.min_count) if server.min_count is not None else 1
    count = int(server.max_count) if server.max_count is not None else least
    if least < 1 or count < 1:
        raise errors.Invalid("server.min_count: must be 1 or more, and so must max_count")
    if least > count:
        raise errors.Invalid(f"server.min_count: {least} is more than max_count, {count}")
    if count > max_count:
        raise errors.Invalid(f"server.max_count: {count} is more than the maximum of one request, {max_count}")
    if server.hostname and count > 1:
        raise errors.Invalid(f"server.hostname: {count} servers cannot have one host name; boot them one by one, or leave it out")
    return least, count


def _image_id(server: ServerBody) -> str:
    """The image to boot from: ``imageRef``, or the block device with boot_index 0. Both may be given if they agree.

    Raises errors.Invalid.
    """
    boots = [(n, device) for n, device in enumerate(server.block_devices) if device.is_boot_device]
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
        if device.source_type == "image" and not device.is_boot_device:
            raise errors.Invalid(f"server.block_device_mapping_v2[{number}].boot_index: only the first disk has an image")
    return chosen


def secrets_of_rebuild(value: dict[str, Any]) -> BootSecrets:
    """The same of the value of a ``rebuild``, which was validated by its schema before."""
    files = typed.convert_data(value.get("personality", []), tuple[InjectedFile, ...])
    return BootSecrets(user_data=value.get("user_data") or None, admin_pass=value.get("adminPass"), files=files)


def check_personality(files: Sequence[InjectedFile], limits: Mapping[str, int], of: str = "server") -> None:
    """``limits``: those of the project, by the names of quotas; -1: none. ``of``: what of the body has them.

    Raises errors.Forbidden for more or larger files.
    """
    sizes = [("injected_files", len(files), "file")]
    for file in files:
        sizes.append(("injected_file_path_bytes", len(file.path.encode()), "file path"))
        sizes.append(("injected_file_content_bytes", len(base64.b64decode(file.contents)), "file content"))
    for name, size, part in sizes:
        if 0 <= limits[name] < size:
            raise errors.Forbidden(f"{of}.personality: Personality {part} limit exceeded: at most {limits[name]}")
