"""Make concurrent schedulers prefer different hosts, without a leader and without messages between them."""

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

ACTIVE_S = 10.0
"""Seconds for which a scheduler counts as active after a claim, and for which stripes are used after a conflict."""


class Stripes:
    """Divides the hosts among the active schedulers, for as long as they conflict.

    In a fleet with room, schedulers rarely choose the same host, because the request's seed breaks their ties. In a full fleet all
    of them see the same few hosts. So a scheduler that has just lost a host to another one adds a weigher, which prefers the hosts
    with ``inventory_id % active_schedulers == my_index``.

    All schedulers compute the same indexes, because all read the same claims log. If one of them has not read it yet, as after a
    start, two may share a stripe. No claim's correctness depends on stripes. Measurements: ``docs/performance.md``.
    """

    def __init__(self) -> None:
        self._claimed: dict[int, float] = {}  # writer: when it was last seen to claim
        self._own: int | None = None
        self._until = float("-inf")
        self._made: tuple[SchedulerDriver, Stripe, SchedulerDriver] | None = None

    def learn(self, others: Iterable[int], own: int | None, now: float, *, conflict: bool) -> None:
        """Record who claimed.

        ``others``: ids of writers that have claimed since the last call. ``own``: our own writer id, if we have claimed.
        ``now``: monotonic clock. ``conflict``: we have lost a host to another scheduler.
        """
        self._claimed |= dict.fromkeys(others, now)
        self._claimed = {writer: at for writer, at in self._claimed.items() if at > now - ACTIVE_S}
        self._own = own or self._own
        if conflict:
            self._until = now + ACTIVE_S

    def apply(self, driver: SchedulerDriver, now: float) -> SchedulerDriver:
        """The driver unchanged, or a copy with a weigher that prefers our stripe."""
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
    """A host weighs 1 if ``inventory_id % of == place``, otherwise 0. Cannot be configured."""

    multiplier = 1.0
    least = 0.0
    reads = ()

    def __init__(self, settings: SchedulerSettings, place: int, of: int) -> None:
        super().__init__(settings)
        self.place, self.of = place, of

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        table = hosts.table
        numbers = table.inventory[: table.size] if hosts.rows is None else table.inventory[hosts.rows]
        mine: Floats = (numbers % self.of == self.place).astype(np.float64)
        return mine
