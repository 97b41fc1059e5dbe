"""Quota: a project's limits and usage, and how many more servers it may have."""

from __future__ import annotations

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


class QuotaLimits(Object, frozen=True, kw_only=True):
    """The most that a project may have at once; -1 is no limit."""

    instances: int = UNLIMITED
    cores: int = UNLIMITED
    ram: int = UNLIMITED


class OwnLimits(Object, frozen=True, kw_only=True):
    """An operator's limits for one project; None: the default."""

    instances: int | None = None
    cores: int | None = None
    ram: int | None = None

    def over(self, defaults: QuotaLimits) -> QuotaLimits:
        """The limits in force."""
        values = {name: getattr(self, name) for name in RESOURCES}
        return QuotaLimits(**{name: getattr(defaults, name) if value is None else value for name, value in values.items()})


class Quota(Object, frozen=True, kw_only=True):
    """One project's own limits and its usage by all servers that are not deleted, including those in ERROR."""

    project_id: str
    own: OwnLimits = OwnLimits()
    used: QuotaUsage = QuotaUsage()


class Admission(Object, frozen=True, kw_only=True):
    """The terms for admitting a batch: the default limits of a project, and the minimum number of servers.

    ``at_least`` None: all servers or none. ``group_members``: the most that the batch's server group may have. ``unique_names``:
    where the names of the servers must be unique.
    """

    limits: QuotaLimits = QuotaLimits()
    at_least: int | None = None
    group_members: int = UNLIMITED
    unique_names: NameScope = NameScope.OFF


ANY = Admission()


def admit(quota: Quota, flavor: Flavor, wanted: int, admission: Admission) -> int:
    """How many of ``wanted`` servers of this flavor the project may add: at least ``at_least``.

    Raises errors.OverQuota, with the Compute API's message, if there is no room for these.
    """
    least = wanted if admission.at_least is None else admission.at_least
    limits, one, asked = quota.own.over(admission.limits), QuotaUsage.of(flavor), QuotaUsage.of(flavor, wanted)
    fitting, exceeded = wanted, []
    for name in sorted(RESOURCES):
        limit, used, more = getattr(limits, name), getattr(quota.used, name), getattr(asked, name)
        if limit != UNLIMITED and more and used + more > limit:
            exceeded.append((name, more, used, limit))
            fitting = min(fitting, (limit - used) // getattr(one, name))
    if fitting >= least:
        return fitting
    raise errors.OverQuota(_refusal(exceeded, wanted, least))


def refuse_growth(quota: Quota, more: QuotaUsage, defaults: QuotaLimits) -> None:
    """Raise errors.OverQuota if the project has no room for servers that grow by this much."""
    limits, exceeded = quota.own.over(defaults), []
    for name in sorted(RESOURCES):
        limit, used, asked = getattr(limits, name), getattr(quota.used, name), getattr(more, name)
        if limit != UNLIMITED and asked and used + asked > limit:
            exceeded.append((name, asked, used, limit))
    if exceeded:
        raise errors.OverQuota(_refusal(exceeded, 1, 1))


def _refusal(exceeded: list[tuple[str, int, int, int]], wanted: int, least: int) -> str:
    number = {"instances": str(wanted) if wanted == least else f"{least}-{wanted}"}
    names = ", ".join(name for name, *_ in exceeded)
    requested = ", ".join(number.get(name, str(asked)) for name, asked, _, _ in exceeded)
    used = ", ".join(str(used) for _, _, used, _ in exceeded)
    allowed = ", ".join(str(limit) for *_, limit in exceeded)
    return f"Quota exceeded for {names}: Requested {requested}, but already used {used} of {allowed} {names}"
