"""Requests with the hosts they were given, on their way into the cells of these."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from cells.cell import Cell
from db.api import leases
from db.api.builds import HandOver
from db.cell import staging
from db.cell.instances import Order
from objects.context import RequestContext
from objects.instance import Instance, State
from objects.selection import Selection
from objects.spec import RequestSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placed:
    """One request of a batch with the host it was given, and the cell that host is mapped to."""

    batch: leases.LeasedBatch
    request: leases.LeasedRequest
    selection: Selection
    alternates: tuple[Selection, ...]
    cell: Cell

    @property
    def instance(self) -> Instance:
        """Its row before hand_over."""
        spec, selection = self.batch.spec, self.selection
        return Instance(
            uuid=self.request.instance_uuid,
            state=State.STAGED,
            fence=self.request.fence,
            host=selection.host,
            node=selection.node,
            limits=selection.limits,
            availability_zone=selection.availability_zone,
            alternates=self.alternates,
            max_attempts=spec.max_attempts,
            deadline=self.request.deadline,
            has_group=spec.group is not None and spec.group.policy.strict,
        )

    @property
    def new_instance(self) -> staging.NewInstance:
        request = self.request
        return staging.NewInstance(
            instance=self.instance, name=request.name, launch_index=request.launch_index, created_at=request.created_at
        )

    @property
    def hand_over(self) -> HandOver:
        return HandOver(
            instance_uuid=self.request.instance_uuid,
            fence=self.request.fence,
            cell_uuid=self.cell.uuid,
            host=self.selection.host,
            node=self.selection.node,
            availability_zone=self.selection.availability_zone,
        )

    @property
    def order(self) -> Order:
        return Order(instance=self.instance, name=self.request.name, spec=self.batch.spec)


def by_cell(placed: Iterable[Placed]) -> dict[Cell, list[Placed]]:
    groups: dict[Cell, list[Placed]] = defaultdict(list)
    for p in placed:
        groups[p.cell].append(p)
    return groups


def by_batch(placed: Iterable[Placed]) -> dict[str, list[Placed]]:
    """By the batch's id, in the order in which they come."""
    groups: dict[str, list[Placed]] = defaultdict(list)
    for p in placed:
        groups[p.batch.batch_id].append(p)
    return groups


def context_of(spec: RequestSpec) -> RequestContext:
    """The identity under which the work for a request goes on."""
    return RequestContext(request_id=spec.request_id, project_id=spec.project_id, user_id=spec.user_id)


def asked(batch: leases.LeasedBatch, excluded_cells: tuple[str, ...]) -> RequestSpec:
    """What the scheduler is asked for a batch."""
    fences = {r.instance_uuid: r.fence for r in batch.requests}
    return msgspec.structs.replace(batch.spec, fences=fences, excluded_cells=excluded_cells)
