"""CrossCellWeigher: prefers the source cell for moves that may leave it."""

from __future__ import annotations

import numpy as np

from scheduler.plan.request import Request
from scheduler.table.arrays import Floats, Mask
from scheduler.table.hosts import Hosts
from scheduler.weighers.base import Weigher


class CrossCellWeigher(Weigher):
    """Does not apply to boots, which have no source cell, nor to moves that may not leave their cell."""

    option = "cross_cell_move_weight_multiplier"
    applies_when = ("move",)

    @property
    def multiplier(self) -> float:
        return self.settings.cross_cell_move_weight_multiplier

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        if request.source_cell is None or request.only_cell is not None:
            return None
        there: Mask = hosts.cell == request.source_cell
        return there.astype(np.float64)
