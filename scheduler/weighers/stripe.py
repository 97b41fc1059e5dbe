"""Stripe: prefers the hosts that this process takes where several schedulers meet (``scheduler/plan/stripes.py`` says when)."""

from __future__ import annotations

import numpy as np

from scheduler.plan.request import Request
from scheduler.settings import SchedulerSettings
from scheduler.table.arrays import Floats
from scheduler.table.hosts import Hosts
from scheduler.weighers.base import Weigher


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
