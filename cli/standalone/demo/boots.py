"""What a scripted load asks for, and what must come of it: boots, flavors, groups. The demo and chaos runs plan with these."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cli.standalone.demo.site import CommandRunner
from compute.simulated import METADATA_KEY
from db.api.claims import server_groups
from db.sql.engine import ApiDatabase
from objects.base import Object
from objects.group import GroupPolicy

IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"


class Expected(enum.StrEnum):
    """What must come of each server of a boot that nobody deletes."""

    ACTIVE = "active"
    NO_VALID_HOST = "no valid host"
    EXHAUSTED = "attempts exhausted"
    ABORTED = "aborted"
    TOGETHER = "all active or none"


class FlavorPlan(Object, frozen=True, kw_only=True):
    """MiB of memory, GiB of disk."""

    name: str
    vcpus: int
    ram: int
    disk: int = 0


class GroupPlan(Object, frozen=True, kw_only=True):
    name: str
    policy: GroupPolicy


class Act(Object, frozen=True, kw_only=True):
    """An action on a server, ``after`` seconds from its acceptance."""

    after: float
    name: str
    value: Any = None


class PlannedBoot(Object, frozen=True, kw_only=True):
    """One POST of ``count`` servers.

    ``simulated`` scripts how its spawns end, on some hosts or on all. ``delete_after`` seconds from its acceptance the first
    ``deletes`` of its servers are deleted: queued, staged, building or running. ``acts``: on its last server.
    """

    flavor: FlavorPlan
    count: int = 1
    zone: str | None = None
    group: GroupPlan | None = None
    simulated: str | None = None
    image: str = IMAGE
    expected: Expected = Expected.ACTIVE
    deletes: int = 0
    delete_after: float = 0.0
    all_or_nothing: bool = False
    acts: tuple[Act, ...] = ()

    @property
    def request_name(self) -> str:
        """The name in its POST."""
        raise NotImplementedError

    def server_names(self) -> tuple[str, ...]:
        """The names its servers get; no two boots share one."""
        name = self.request_name
        return (name,) if self.count == 1 else tuple(f"{name}-{number + 1}" for number in range(self.count))

    def boot_body(self, group_uuids: Mapping[str, str]) -> dict[str, Any]:
        """The body of ``POST /servers``. ``group_uuids``: by the names of the groups."""
        counts = {"min_count": self.count, "max_count": self.count}
        server: dict[str, Any] = {"name": self.request_name, "flavorRef": self.flavor.name, "imageRef": self.image, **counts}
        if self.zone:
            server["availability_zone"] = self.zone
        if self.simulated:
            server["metadata"] = {METADATA_KEY: self.simulated}
        hints = {"group": group_uuids[self.group.name]} if self.group else {"all_or_nothing": True} if self.all_or_nothing else {}
        return {"server": server} | ({"os:scheduler_hints": hints} if hints else {})


def define_flavors(commands: CommandRunner, flavors: Sequence[FlavorPlan], known: Collection[str] = ()) -> None:
    """Make these flavors, but those whose names are known."""
    for flavor in flavors:
        if flavor.name not in known:
            amounts = ("--vcpus", str(flavor.vcpus), "--ram", str(flavor.ram), "--disk", str(flavor.disk))
            commands.run("flavor", "create", flavor.name, "--id", flavor.name, *amounts)


def define_groups(commands: CommandRunner, groups: Sequence[GroupPlan], project: str, known: Collection[str] = ()) -> None:
    """Make these groups in a project, but those whose names are known."""
    for group in groups:
        if group.name not in known:
            commands.run("group", "create", group.name, "--policy", group.policy, "--project", project)


def group_uuids(api_url: str) -> dict[str, str]:
    """The uuids of all groups by name. ``api_url``: of the API database."""
    database = ApiDatabase(api_url, name="api")
    try:
        return {group.name: group.uuid for group in database.read(server_groups.list_all)}
    finally:
        database.dispose_connections()
