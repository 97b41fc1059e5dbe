"""The scheduler's selections."""

from __future__ import annotations

from typing import ClassVar

from objects.base import Message, Object


class HostCapacity(Object, frozen=True, kw_only=True):
    """The host's total capacity with allocation ratios applied: vCPUs, MiB, GiB. The agent's own claim tests against it.

    ``resources``: amounts by custom resource class. A class without an amount is not limited.
    ``numa_nodes``: the NUMA nodes of the host that the server is tied to; empty: none.
    """

    vcpus: float
    memory_mb: float
    disk_gb: float
    resources: dict[str, int] = {}
    numa_nodes: tuple[int, ...] = ()


class Selection(Message, frozen=True, kw_only=True):
    """One ``(host, node)`` for one instance. The first of a list is claimed under ``fence``; the others are alternates."""

    VERSION: ClassVar[str] = "1.2"

    host: str
    node: str
    cell_uuid: str
    limits: HostCapacity | None = None
    availability_zone: str | None = None
    fence: int = 0
    decision_id: str | None = None

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """The NUMA nodes of the host that the instance is tied to; empty: none."""
        return self.limits.numa_nodes if self.limits is not None else ()
