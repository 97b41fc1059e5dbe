"""Quota: the limits and the usage of projects and their users, and how many more servers they may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from objects import errors
from objects.base import Object
from objects.flavor import Flavor
from objects.server_name import NameScope

RESOURCES = ("instances", "cores", "ram")
UNLIMITED = -1


class QuotaUsage(Object, frozen=True, kw_only=True):
    """The usage of servers: their number, their virtual CPUs, and their memory in MiB."""

    instances: int = 0
    cores: int = 0
    ram: int = 0

    @classmethod
    def of_flavor(cls, flavor: Flavor, count: int = 1) -> QuotaUsage:
        """The usage of ``count`` servers of this flavor."""
        return cls(instances=count, cores=count * flavor.vcpus, ram=count * flavor.memory_mb)

    @classmethod
    def sum_of(cls, usages: Iterable[QuotaUsage]) -> QuotaUsage:
        """The sum."""
        listed_usages = list(usages)
        return cls(**{name: sum(getattr(usage, name) for usage in listed_usages) for name in RESOURCES})


Shares = Mapping[str, QuotaUsage]
"""A project's usage, or a change of it, by user."""


def sum_shares(charged: Iterable[tuple[str, str, QuotaUsage]]) -> dict[str, Shares]:
    """Sum usages of (project, user): the shares of each project, by project in the order of their ids."""
    usages_by_project: dict[str, dict[str, list[QuotaUsage]]] = {}
    for project_id, user_id, usage in charged:
        usages_by_project.setdefault(project_id, {}).setdefault(user_id, []).append(usage)
    return {
        project_id: {user_id: QuotaUsage.sum_of(usages) for user_id, usages in sorted(users.items())}
        for project_id, users in sorted(usages_by_project.items())
    }


class ImageLimits(Object, frozen=True, kw_only=True):
    """What a project may have in the image store, uploads and images of its servers together. -1: no limit.

    ``gigabytes``: GiB of complete images. Images that are being made, or wait for their content, count as images only.
    """

    images: int = UNLIMITED
    gigabytes: int = UNLIMITED


class QuotaLimits(Object, frozen=True, kw_only=True):
    """The most that a project may have at once; -1 is no limit."""

    instances: int = UNLIMITED
    cores: int = UNLIMITED
    ram: int = UNLIMITED


class OwnLimits(Object, frozen=True, kw_only=True):
    """An operator's limits for one project or user; None: the default, of a user the project's."""

    instances: int | None = None
    cores: int | None = None
    ram: int | None = None

    def over_defaults(self, defaults: QuotaLimits) -> QuotaLimits:
        """The limits in force."""
        values = {name: getattr(self, name) for name in RESOURCES}
        return QuotaLimits(**{name: getattr(defaults, name) if value is None else value for name, value in values.items()})


class Quota(Object, frozen=True, kw_only=True):
    """One project's own limits and its usage by all servers that are not deleted, including those in ERROR.

    ``limited_users``: how many of its users have limits of their own. While it is 0, usage by user is not recorded.
    """

    project_id: str
    own: OwnLimits = OwnLimits()
    used: QuotaUsage = QuotaUsage()
    limited_users: int = 0


class UserQuota(Object, frozen=True, kw_only=True):
    """The own limits of one user in one project, and the usage by the servers that the user created there."""

    project_id: str
    user_id: str
    own: OwnLimits = OwnLimits()
    used: QuotaUsage = QuotaUsage()


class Admission(Object, frozen=True, kw_only=True):
    """The terms for admitting a batch: the default limits of a project, and the minimum number of servers.

    ``at_least`` None: all servers or none. ``group_members``: the most that the batch's server group may have, and
    ``user_group_members``: the most of the user's servers in it. ``unique_names``: where the names of the servers must be unique.
    ``judged_by``: the sum of the epochs that the batch was judged by (``db/api/rows/epochs.py``). None: they need no check.
    """

    limits: QuotaLimits = QuotaLimits()
    at_least: int | None = None
    group_members: int = UNLIMITED
    user_group_members: int = UNLIMITED
    unique_names: NameScope = NameScope.OFF
    judged_by: int | None = None


ANY = Admission()


def admit_servers(quota: Quota, flavor: Flavor, count: int, admission: Admission, user: UserQuota | None = None) -> int:
    """How many of ``count`` servers of this flavor the project may add: at least ``at_least``.

    ``user``: the quota of their user, if it has limits of its own; these apply beside the project's.
    Raises errors.OverQuota, with the Compute API's message, if there is no room for these.
    """
    least = count if admission.at_least is None else admission.at_least
    one, fitting = QuotaUsage.of_flavor(flavor), count
    judged = [(quota.own.over_defaults(admission.limits), quota.used, "")]
    if user is not None:
        judged.append((user.own.over_defaults(QuotaLimits()), user.used, OF_USER))
    for limits, before, whose in judged:
        exceeded = _list_exceeded(limits, before, QuotaUsage.of_flavor(flavor, count))
        fitting = min([fitting, *((limit - used) // getattr(one, name) for name, _, used, limit in exceeded)])
        if fitting < least:
            raise errors.OverQuota(_refusal_text(exceeded, count, least) + whose)
    return fitting


def refuse_growth(quota: Quota, more: QuotaUsage, defaults: QuotaLimits) -> None:
    """Raise errors.OverQuota if the project has no room for servers that grow by this much."""
    if exceeded := _list_exceeded(quota.own.over_defaults(defaults), quota.used, more):
        raise errors.OverQuota(_refusal_text(exceeded, 1, 1))


def refuse_user_growth(user: UserQuota, more: QuotaUsage) -> None:
    """Raise errors.OverQuota if the user's own limits have no room for its servers to grow by this much."""
    if exceeded := _list_exceeded(user.own.over_defaults(QuotaLimits()), user.used, more):
        raise errors.OverQuota(_refusal_text(exceeded, 1, 1) + OF_USER)


def _list_exceeded(limits: QuotaLimits, before: QuotaUsage, more: QuotaUsage) -> list[tuple[str, int, int, int]]:
    exceeded = []
    for name in sorted(RESOURCES):
        limit, used, added = getattr(limits, name), getattr(before, name), getattr(more, name)
        if limit != UNLIMITED and added and used + added > limit:
            exceeded.append((name, added, used, limit))
    return exceeded


OF_USER = " of this user"
"""After a refusal by the limits of a user."""


def check_limit(name: str, limit: int, least: int, most: int = UNLIMITED) -> None:
    """Raise errors.Invalid, with the Compute API's message, for a limit that is out of this range."""
    if limit != UNLIMITED and limit < least:
        text = f"Quota limit {limit} for {name} must be greater than or equal to already used and reserved {least}."
        raise errors.Invalid(text)
    if most != UNLIMITED and not 0 <= limit <= most:
        raise errors.Invalid(f"Quota limit {limit} for {name} must be less than or equal to {most}.")


def lower_limit(one: int, other: int) -> int:
    """The limit in force where two limits apply."""
    return max(one, other) if UNLIMITED in (one, other) else min(one, other)


def _refusal_text(exceeded: list[tuple[str, int, int, int]], count: int, least: int) -> str:
    number = {"instances": str(count) if count == least else f"{least}-{count}"}
    names = ", ".join(name for name, *_ in exceeded)
    requested = ", ".join(number.get(name, str(added)) for name, added, _, _ in exceeded)
    used = ", ".join(str(used) for _, _, used, _ in exceeded)
    allowed = ", ".join(str(limit) for *_, limit in exceeded)
    return f"Quota exceeded for {names}: Requested {requested}, but already used {used} of {allowed} {names}"
