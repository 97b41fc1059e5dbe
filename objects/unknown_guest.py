"""A guest that runs on a host and that its cell's records do not account for."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from objects.base import Message, Number
from objects.port import Port
from objects.task import Power

REPORTED_LIMIT = 500
"""Maximum unknown guests of one host that its agent reports, in order of uuid. The rest follows as these are adopted or
removed."""

PORTS_LIMIT = 100
"""Maximum interfaces of one guest that are kept."""

REASON_SIZE = 1024
"""Maximum bytes of UTF-8 in a reason."""


class UnknownGuest(Message, frozen=True, kw_only=True):
    """The agent's data on the guest: vCPUs, MiB, GiB; ``resources`` by resource class.

    ``fence``, ``attempt`` and ``builder`` are stored with the guest; a row that adopts it must have the same. ``reason``: what the
    records say instead. ``power``: what it is now, as the agent writes it; empty: its agent is of an older release.
    ``server_uuid``: of a later body, its server. ``project_id``, ``user_id``: whose it is. ``ports``: its interfaces.
    ``last_task``: the number of its latest task; 0: none is known. These five are the host's word.
    """

    VERSION: ClassVar[str] = "1.3"

    uuid: str
    name: str
    node: str
    fence: Number
    attempt: Number
    builder: str
    vcpus: Number
    memory_mb: Number
    disk_gb: Number
    reason: str
    batch_id: str = ""
    image_id: str | None = None
    resources: dict[str, Number] = msgspec.field(default_factory=dict)
    power: str = ""
    server_uuid: str = ""
    project_id: str = ""
    user_id: str = ""
    ports: tuple[Port, ...] = ()
    last_task: Number = 0

    @property
    def uses_disk(self) -> bool:
        """Whether it uses its disk now, as far as this release knows its power."""
        return self.known_power is not None and self.known_power.uses_disk

    @property
    def known_power(self) -> Power | None:
        """None: its agent has not said it, or is of a later release."""
        return Power(self.power) if self.power in set(Power) else None

    @property
    def mac_addresses(self) -> frozenset[str]:
        return frozenset(port.mac for port in self.ports)
