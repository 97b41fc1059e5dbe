"""Quota: how much a project may have at once, how much it has, and whether it may have more."""

from __future__ import annotations

from objects import errors
from objects.base import Object
from objects.flavor import Flavor

RESOURCES = ("instances", "cores", "ram")
UNLIMITED = -1


class QuotaUsage(Object, frozen=True, kw_only=True):
    """What servers take: how many they are, their virtual CPUs, their memory in MiB."""

    instances: int = 0
    cores: int = 0
    ram: int = 0

    @classmethod
    def of(cls, flavor: Flavor, count: int = 1) -> QuotaUsage:
        """Of ``count`` servers of this flavor."""
        return cls(instances=count, cores=count * flavor.vcpus, ram=count * flavor.memory_mb)


class QuotaLimits(Object, frozen=True, kw_only=True):
    """The most that a project may have at once; -1 is no limit."""

    instances: int = UNLIMITED
    cores: int = UNLIMITED
    ram: int = UNLIMITED


class OwnLimits(Object, frozen=True, kw_only=True):
    """What an operator decided for one project; None: as for every project."""

    instances: int | None = None
    cores: int | None = None
    ram: int | None = None

    def over(self, defaults: QuotaLimits) -> QuotaLimits:
        """The limits in force."""
        values = {name: getattr(self, name) for name in RESOURCES}
        return QuotaLimits(**{name: getattr(defaults, name) if value is None else value for name, value in values.items()})


class Quota(Object, frozen=True, kw_only=True):
    """One project's own limits and what it has: all its servers that are not deleted, in ERROR or not."""

    project_id: str
    own: OwnLimits = OwnLimits()
    used: QuotaUsage = QuotaUsage()


class Admission(Object, frozen=True, kw_only=True):
    """On what terms a batch comes in: the limits of a project that has none of its own, and how many servers will do.

    ``at_least`` None: all of them or none.
    """

    limits: QuotaLimits = QuotaLimits()
    at_least: int | None = None


ANY = Admission()


def admit(quota: Quota, flavor: Flavor, wanted: int, admission: Admission) -> int:
    """How many of ``wanted`` servers of this flavor the project may have besides what it has: ``at_least`` so many, or more.

    Raises errors.OverQuota, in the words of the Compute API, where there is no room for these.
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


def _refusal(exceeded: list[tuple[str, int, int, int]], wanted: int, least: int) -> str:
    number = {"instances": str(wanted) if wanted == least else f"{least}-{wanted}"}
    names = ", ".join(name for name, *_ in exceeded)
    requested = ", ".join(number.get(name, str(asked)) for name, asked, _, _ in exceeded)
    used = ", ".join(str(used) for _, _, used, _ in exceeded)
    allowed = ", ".join(str(limit) for *_, limit in exceeded)
    return f"Quota exceeded for {names}: Requested {requested}, but already used {used} of {allowed} {names}"
