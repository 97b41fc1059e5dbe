"""What was asked for: the request spec, stored once per batch and handed to the scheduler, the cell and the host as it is."""

from __future__ import annotations

from objects.base import Message, Object
from objects.flavor import Flavor
from objects.group import ServerGroup


class Image(Object, frozen=True, kw_only=True):
    """The image to boot from; ``properties`` as far as the API was told them."""

    id: str
    properties: dict[str, str] = {}


class ServerProperties(Object, frozen=True, kw_only=True):
    """What the tenant asked for that does not bear on placement. ``user_data`` is base64 text and never logged."""

    metadata: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    user_data: str | None = None
    key_name: str | None = None
    config_drive: bool = False
    networks: str = "none"
    description: str | None = None
    block_devices: tuple[dict[str, str | int | bool | None], ...] = ()

    def __repr__(self) -> str:
        """Without the user data, which may hold secrets, and the metadata, which may too."""
        return f"ServerProperties(tags={self.tags!r}, networks={self.networks!r})"


class RequestSpec(Message, frozen=True, kw_only=True):
    """One accepted request for ``num_instances`` equal servers (a batch).

    The last two fields belong to one scheduling call and are never stored: ``fences`` maps each instance uuid to the fence under
    which its request is leased, ``excluded_cells`` are cells that just failed to take the build.
    """

    batch_id: str
    request_id: str
    project_id: str
    user_id: str
    name: str
    flavor: Flavor
    image: Image | None = None
    num_instances: int = 1
    availability_zone: str | None = None
    group: ServerGroup | None = None
    ignore_hosts: tuple[str, ...] = ()
    force_hosts: tuple[str, ...] = ()
    force_nodes: tuple[str, ...] = ()
    scheduler_hints: dict[str, tuple[str, ...]] = {}
    max_attempts: int = 3
    properties: ServerProperties = ServerProperties()

    fences: dict[str, int] = {}
    excluded_cells: tuple[str, ...] = ()
