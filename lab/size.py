"""Search for the smallest fleet on which a policy refuses no server of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from lab.compare import Policy, Progress, Question, replay, survey
from lab.fleet import HOSTS_LIMIT

GROWTH_LIMIT = 8
"""A policy that still refuses servers on so many times the hosts that they need by volume is given up."""


class FleetSize(NamedTuple):
    """``hosts``: on so many the policy refuses nothing; None: it refuses servers on the largest fleet that was tried.

    ``rejected``: the servers that it refuses on one host less, or on that largest fleet; None: by volume there are too few hosts.
    """

    policy: str
    hosts: int | None
    rejected: int | None


class _Search:
    """Doubles the fleet until nothing is refused, then halves the interval to the last one that was too small."""

    def __init__(self, bound: int, begin: int, most: int) -> None:
        self._most = most
        self._small = bound - 1
        self.rejected: int | None = None
        self.hosts: int | None = None
        self.next: int | None = min(max(begin, bound), most)

    def answer(self, hosts: int, rejected: int) -> None:
        """So many servers were refused on so many hosts."""
        if rejected:
            self._small, self.rejected = hosts, rejected
        else:
            self.hosts = hosts
        if self.hosts is None:
            self.next = min(2 * self._small, self._most) if self._small < self._most else None
        else:
            self.next = (self._small + self.hosts) // 2 if self.hosts - self._small > 1 else None


def smallest_fleets(
    question: Question, policies: Sequence[Policy], processes: int, progress: Progress
) -> tuple[int, list[FleetSize]]:
    """Returns how many hosts the peak needs by volume, and for each policy on how many, in proportion, it refuses nothing.

    On one host less it refuses servers. It may refuse none on some smaller fleet: only some sizes are tried. Raises Invalid and
    TooCostly as ``lab.compare.survey``.
    """
    _, fleet, demand = survey(question)
    bound = max(demand.bound.hosts, 1)
    most = min(GROWTH_LIMIT * max(bound, len(fleet)), HOSTS_LIMIT)
    searches = {policy.name: _Search(bound, len(fleet), most) for policy in policies}
    while sizes := [(search.next, policy) for policy in policies if (search := searches[policy.name]).next is not None]:
        outcomes = replay([(replace(question, hosts=hosts), policy) for hosts, policy in sizes], demand, processes, progress)
        for (hosts, policy), outcome in zip(sizes, outcomes, strict=True):
            searches[policy.name].answer(hosts, outcome.rejected)
    return bound, [FleetSize(name, search.hosts, search.rejected) for name, search in searches.items()]
