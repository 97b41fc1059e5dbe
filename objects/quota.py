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
    def of(cls, flavor: Flavor, count: int = 1) -> QuotaUsage:
        """The usage of ``count`` servers of this flavor."""
        return cls(instances=count, cores=count * flavor.vcpus, ram=count * flavor.memory_mb)

    @classmethod
    def total(cls, some: Iterable[QuotaUsage]) -> QuotaUsage:
        """The sum."""
        each = list(some)
        return cls(**{name: sum(getattr(usage, name) for usage in each) for name in RESOURCES})


Shares = Mapping[str, QuotaUsage]
"""A project's usage, or a change of it, by user."""


def shares(some: Iterable[tuple[str, str, QuotaUsage]]) -> dict[str, Shares]:
    """Sum usages of (project, user): the shares of each project, by project in the order of their ids."""
    found: dict[str, dict[str, list[QuotaUsage]]] = {}
    for project_id, user_id, usage in some:
        found.setdefault(project_id, {}).setdefault(user_id, []).append(usage)
    return {
        project_id: {user_id: QuotaUsage.total(usages) for user_id, usages in sorted(users.items())}
        for project_id, users in sorted(found.items())
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

    def over(self, defaults: QuotaLimits) -> QuotaLimits:
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


def admit(quota: Quota, flavor: Flavor, wanted: int, admission: Admission, user: UserQuota | None = None) -> int:
    """How many of ``wanted`` servers of this flavor the project may add: at least ``at_least``.

    ``user``: the quota of their user, if it has limits of its own; these apply beside the project's.
    Raises errors.OverQuota, with the Compute API's message, if there is no room for these.
    """
    least = wanted if admission.at_least is None else admission.at_least
    fitting, exceeded = _fitting(quota.own.over(admission.limits), quota.used, flavor, wanted)
    if fitting < least:
        raise errors.OverQuota(_refusal(exceeded, wanted, least))
    if user is None:
        return fitting
    of_user, exceeded = _fitting(user.own.over(QuotaLimits()), user.used, flavor, wanted)
    if of_user < least:
        raise errors.OverQuota(_refusal(exceeded, wanted, least) + OF_USER)
    return min(fitting, of_user)


def _fitting(limits: QuotaLimits, before: QuotaUsage, flavor: Flavor, wanted: int) -> tuple[int, list[tuple[str, int, int, int]]]:
    """How many of these servers are within the limits, and what all of them would exceed, for ``_refusal``."""
    one, exceeded = QuotaUsage.of(flavor), _exceeded(limits, before, QuotaUsage.of(flavor, wanted))
    return min([wanted, *((limit - used) // getattr(one, name) for name, _, used, limit in exceeded)]), exceeded


def refuse_growth(quota: Quota, more: QuotaUsage, defaults: QuotaLimits) -> None:
    """Raise errors.OverQuota if the project has no room for servers that grow by this much."""
    if exceeded := _exceeded(quota.own.over(defaults), quota.used, more):
        raise errors.OverQuota(_refusal(exceeded, 1, 1))


def refuse_user_growth(user: UserQuota, more: QuotaUsage) -> None:
    """Raise errors.OverQuota if the user's own limits have no room for its servers to grow by this much."""
    if exceeded := _exceeded(user.own.over(QuotaLimits()), user.used, more):
        raise errors.OverQuota(_refusal(exceeded, 1, 1) + OF_USER)


def _exceeded(limits: QuotaLimits, before: QuotaUsage, more: QuotaUsage) -> list[tuple[str, int, int, int]]:
    found = []
    for name in sorted(RESOURCES):
        limit, used, asked = getattr(limits, name), getattr(before, name), getattr(more, name)
        if limit != UNLIMITED and asked and used + asked > limit:
            found.append((name, asked, used, limit))
    return found


OF_USER = " of this user"
"""After a refusal by the limits of a user."""


def check_limit(name: str, limit: int, least: int, most: int = UNLIMITED) -> None:
    """Raise errors.Invalid, with the Compute API's message, for a limit that is out of this range."""
    if limit != UNLIMITED and limit < least:
        text = f"Quota limit {limit} for {name} must be greater than or equal to already used and reserved {least}."
        raise errors.Invalid(text)
    if most != UNLIMITED and not 0 <= limit <= most:
        raise errors.Invalid(f"Quota limit {limit} for {name} must be less than or equal to {most}.")


def lower(one: int, other: int) -> int:
    """The limit in force where two limits apply."""
    return max(one, other) if UNLIMITED in (one, other) else min(one, other)


def _refusal(exceeded: list[tuple[str, int, int, int]], wanted: int, least: int) -> str:
    number = {"instances": str(wanted) if wanted == least else f"{least}-{wanted}"}
    names = ", ".join(name for name, *_ in exceeded)
    requested = ", ".join(number.get(name, str(asked)) for name, asked, _, _ in exceeded)
    used = ", ".join(str(used) for _, _, used, _ in exceeded)
    allowed = ", ".join(str(limit) for *_, limit in exceeded)
    return f"Quota exceeded for {names}: Requested {requested}, but already used {used} of {allowed} {names}"
