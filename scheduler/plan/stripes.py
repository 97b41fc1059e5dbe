"""Keep schedulers that work at the same time from wanting the same hosts, without a leader and without a word between them."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import numpy as np

from scheduler.drivers.base import SchedulerDriver
from scheduler.plan.request import Request
from scheduler.settings import SchedulerSettings
from scheduler.table.arrays import Floats
from scheduler.table.hosts import Hosts
from scheduler.weighers.base import Weigher

RECENT = 10.0
"""Seconds for which a scheduler that has claimed counts as one that claims, and in which hosts are shared after a conflict."""


class Stripes:
    """Shares the hosts out among the schedulers that have claimed lately, for as long as they take room from each other.

    Where a fleet has room, schedulers that choose by the same rule and draw their ties by request hardly meet. Where little is left
    they all see the same few hosts. So who has just lost a host to another prefers, with the weight of one weigher, those whose
    number divided by how many schedulers there are leaves its own place among them. All find the same places, because all read
    the same log of claims; where they do not, as when one has just started, two share a stripe. No claim's correctness depends
    on it. Measured: ``docs/performance.md``.
    """

    def __init__(self) -> None:
        self._claimed: dict[int, float] = {}  # writer: when it was last seen to claim
        self._own: int | None = None
        self._until = float("-inf")
        self._made: tuple[SchedulerDriver, Stripe, SchedulerDriver] | None = None

    def learn(self, others: Iterable[int], own: int | None, now: float, *, conflict: bool) -> None:
        """Writers that have claimed since the last time, and our own. ``conflict``: they were faster. ``now``: monotonic clock."""
        self._claimed |= dict.fromkeys(others, now)
        self._claimed = {writer: at for writer, at in self._claimed.items() if at > now - RECENT}
        self._own = own or self._own
        if conflict:
            self._until = now + RECENT

    def apply(self, driver: SchedulerDriver, now: float) -> SchedulerDriver:
        """The driver as it is, or with a preference for our stripe."""
        if now > self._until or self._own is None or not driver.weighers:
            return driver
        writers = sorted({*self._claimed, self._own})
        place = writers.index(self._own)
        if len(writers) == 1:
            return driver
        if self._made is None or self._made[0] is not driver or (self._made[1].place, self._made[1].of) != (place, len(writers)):
            self._made = _with_stripe(driver, place, len(writers))
        return self._made[2]


def _with_stripe(driver: SchedulerDriver, place: int, of: int) -> tuple[SchedulerDriver, Stripe, SchedulerDriver]:
    stripe = Stripe(driver.weighers[0].settings, place, of)
    striped = copy.copy(driver)
    striped.weighers = (*driver.weighers, stripe)
    return driver, stripe, striped


class Stripe(Weigher):
    """Every host whose inventory's number leaves ``place`` when divided by ``of`` weighs 1, the others 0. Not to be configured."""

    multiplier = 1.0
    least = 0.0

    def __init__(self, settings: SchedulerSettings, place: int, of: int) -> None:
        super().__init__(settings)
        self.place, self.of = place, of

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        table = hosts.table
        numbers = table.inventory[: table.size] if hosts.rows is None else table.inventory[hosts.rows]
        mine: Floats = (numbers % self.of == self.place).astype(np.float64)
        return mine
