"""Make concurrent schedulers prefer different hosts, without a leader and without messages between them."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import numpy as np

from scheduler.engine.driver import SchedulerDriver
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SchedulerSettings
from scheduler.framework.weigher import Weigher
from scheduler.table.arrays import Floats
from scheduler.weighers.leftover import LeftoverWeigher

ACTIVE_S = 10.0
"""Seconds for which a scheduler counts as active after a claim, and for which stripes are used after a conflict."""


class Stripes:
    """Divides the hosts among the active schedulers, for as long as they conflict.

    In a fleet with room, schedulers rarely choose the same host, because the request's seed breaks their ties. In a full fleet all
    of them see the same few hosts, and if they pack, the same one. So a scheduler that has just lost a host to another one adds a
    weigher, which prefers the hosts with ``inventory_id % active_schedulers == my_index``.

    All schedulers compute the same indexes, because all read the same claims log. If one of them has not read it yet, as after a
    start, two may share a stripe. No claim's correctness depends on stripes. Measurements: ``docs/performance.md``.
    """

    def __init__(self) -> None:
        self._claimed: dict[int, float] = {}  # writer: when it was last seen to claim
        self._own_writer: int | None = None
        self._until = float("-inf")
        self._striped: tuple[SchedulerDriver, tuple[int, int], SchedulerDriver] | None = None

    def note_writers(self, others: Iterable[int], own_writer: int | None, now: float, *, conflict: bool) -> None:
        """Record who claimed.

        ``others``: ids of writers that have claimed since the last call. ``own_writer``: our own writer id, if we have claimed.
        ``now``: monotonic clock. ``conflict``: we have lost a host to another scheduler.
        """
        self._claimed |= dict.fromkeys(others, now)
        self._claimed = {writer: at for writer, at in self._claimed.items() if at > now - ACTIVE_S}
        self._own_writer = own_writer or self._own_writer
        if conflict:
            self._until = now + ACTIVE_S

    def with_stripe(self, driver: SchedulerDriver, now: float) -> SchedulerDriver:
        """The driver unchanged, or a copy with a weigher that prefers our stripe."""
        if now > self._until or self._own_writer is None or not driver.weighers:
            return driver
        writers = sorted({*self._claimed, self._own_writer})
        place = writers.index(self._own_writer)
        if len(writers) == 1:
            return driver
        if self._striped is None or self._striped[0] is not driver or self._striped[1] != (place, len(writers)):
            self._striped = driver, (place, len(writers)), with_stripe(driver, place, len(writers))
        return self._striped[2]


def with_stripe(driver: SchedulerDriver, place: int, of: int) -> SchedulerDriver:
    """A copy of the driver that prefers one stripe."""
    striped = copy.copy(driver)
    settings = driver.weighers[0].settings
    packing = next((one for one in driver.weighers if isinstance(one, LeftoverWeigher) and one.weight_multiplier), None)
    stripes = [Stripe(settings, place, of, packing, packs=False)]
    if packing is not None:
        stripes.append(Stripe(settings, place, of, packing, packs=True))
    striped.weighers = (*driver.weighers, *stripes)
    return striped


class Stripe(Weigher):
    """A host weighs 1 if ``inventory_id % of == place``, otherwise 0. Cannot be configured.

    ``packing``: the driver's LeftoverWeigher, if it has one, which would outweigh it.
    ``packs``: True: it applies to requests that ``packing`` packs, and has its multiplier. False: it applies to all others, with 1.
    """

    least = 0.0
    reads = ("unpacked_policy",)

    def __init__(self, settings: SchedulerSettings, place: int, of: int, packing: LeftoverWeigher | None, *, packs: bool) -> None:
        super().__init__(settings)
        self.place, self.of = place, of
        self._packing, self._packs = packing, packs

    @property
    def weight_multiplier(self) -> float:
        return abs(self._packing.weight_multiplier) if self._packs and self._packing is not None else 1.0

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        table = hosts.table
        if request.has_soft_policy:  # it is only a weight, which this would outweigh
            return None
        if (self._packing is not None and self._packing.packs_request(table, request)) is not self._packs:
            return None
        numbers = table.inventory[: table.size] if hosts.rows is None else table.inventory[hosts.rows]
        is_in_stripe: Floats = (numbers % self.of == self.place).astype(np.float64)
        return is_in_stripe
