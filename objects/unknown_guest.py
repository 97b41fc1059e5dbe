"""A guest that runs on a host and that its cell's records do not account for."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from objects.base import Message, Number

REPORTED_LIMIT = 500
"""Maximum unknown guests of one host that its agent reports, in order of uuid. The rest follows as these are adopted or
removed."""

REASON_SIZE = 1024
"""Maximum bytes of UTF-8 in a reason."""


class UnknownGuest(Message, frozen=True, kw_only=True):
    """The agent's data on the guest: vCPUs, MiB, GiB; ``resources`` by resource class.

    ``fence``, ``attempt`` and ``builder`` are stored with the guest; a row that adopts it must have the same. ``reason``: what the
    records say instead.
    """

    VERSION: ClassVar[str] = "1.1"

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
