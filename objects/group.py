"""Server groups and their policies."""

from __future__ import annotations

import enum

from objects.base import Object


class GroupPolicy(enum.StrEnum):
    """Where members of a group may run relative to each other."""

    AFFINITY = "affinity"
    ANTI_AFFINITY = "anti-affinity"
    SOFT_AFFINITY = "soft-affinity"
    SOFT_ANTI_AFFINITY = "soft-anti-affinity"

    @property
    def is_strict(self) -> bool:
        return self in (GroupPolicy.AFFINITY, GroupPolicy.ANTI_AFFINITY)


class ServerGroup(Object, frozen=True, kw_only=True):
    """A group of servers of one project.

    ``max_server_per_host`` and ``max_server_per_rack`` apply to anti-affinity only. None: racks do not matter.
    """

    uuid: str
    name: str
    project_id: str
    policy: GroupPolicy
    user_id: str = ""
    max_server_per_host: int = 1
    max_server_per_rack: int | None = None
