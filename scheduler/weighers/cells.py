"""Weighers by cell."""

from __future__ import annotations

import numpy as np

from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Floats, Mask
from scheduler.framework.hosts import Hosts
from scheduler.framework.weigher import Weigher


class CrossCellWeigher(Weigher):
    """Prefers the source cell for moves that may leave it.

    Does not apply to boots, which have no source cell, nor to moves that may not leave their cell.
    """

    option = "cross_cell_move_weight_multiplier"
    applies_when = ("move",)
    reads = ()

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        if request.source_cell is None or request.only_cell is not None:
            return None
        is_source_cell: Mask = hosts.cell_numbers == request.source_cell
        return is_source_cell.astype(np.float64)


class CellSpreadWeigher(Weigher):
    """Prefers hosts of cells with fewer servers of the batch and of its group.

    Limits how many servers of a batch or group fail with one cell. Does not apply to a single server without a group.
    """

    cell_wide = True
    option = "cell_spread_weight_multiplier"

    def weigh(self, hosts: Hosts, request: Request) -> Floats | None:
        if request.server_group is None and request.spec.num_instances < 2:
            return None
        return -hosts.cell_members.astype(np.float64)


class CellCapacityWeigher(Weigher):
    """Prefers hosts of cells with a larger free share of their capacity.

    The smaller of the free shares of a cell's vCPUs and memory, between 0 and 1, computed once per batch.

    It keeps cells of different sizes equally full, even where their hosts look the same.
    """

    least = 0.0
    option = "cell_capacity_weight_multiplier"

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        shares = request.remember_result(self.name, lambda: np.minimum(hosts.cell_shares("vcpus"), hosts.cell_shares("memory_mb")))
        column: Floats = shares[hosts.cell_numbers]
        return column
