"""The scheduler's answer."""

from __future__ import annotations

from typing import ClassVar

from objects.base import Message, Object


class HostCapacity(Object, frozen=True, kw_only=True):
    """What the host may hold in all, allocation ratios applied: vCPUs, MiB, GiB. The agent's own claim tests against these.

    ``resources``: amounts by custom resource class. What is not named here is not limited by it.
    """

    vcpus: float
    memory_mb: float
    disk_gb: float
    resources: dict[str, int] = {}


class Selection(Message, frozen=True, kw_only=True):
    """One ``(host, node)`` for one instance. The first of a list is claimed under ``fence``; the others are alternates."""

    VERSION: ClassVar[str] = "1.1"

    host: str
    node: str
    cell_uuid: str
    limits: HostCapacity | None = None
    availability_zone: str | None = None
    fence: int = 0
    decision_id: str | None = None
