"""Requests with their selected hosts, before hand-over to the hosts' cells."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable

from cells.cell import Cell
from db.api.queue import leases
from db.api.queue.builds import HandOver
from objects.context import RequestContext
from objects.instance import Instance, State
from objects.selection import Selection
from objects.spec import RequestSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placed:
    """One request of a batch with its selected host and the cell that the host is mapped to."""

    batch: leases.LeasedBatch
    request: leases.LeasedRequest
    selection: Selection
    alternates: tuple[Selection, ...]
    cell: Cell

    @property
    def staged_instance(self) -> Instance:
        """The instance's row before hand-over."""
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
            has_group=spec.group is not None and spec.group.policy.is_strict,
            server_uuid=self.request.server_uuid,
            turn=self.request.turn,
            power=self.request.power,
            ports=self.request.ports,
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


def by_cell(placed: Iterable[Placed]) -> dict[Cell, list[Placed]]:
    groups: dict[Cell, list[Placed]] = defaultdict(list)
    for p in placed:
        groups[p.cell].append(p)
    return groups


def by_batch(placed: Iterable[Placed]) -> dict[str, list[Placed]]:
    """By batch ID, in the given order."""
    groups: dict[str, list[Placed]] = defaultdict(list)
    for p in placed:
        groups[p.batch.batch_id].append(p)
    return groups


def context_of(spec: RequestSpec) -> RequestContext:
    """The request context of the user who made the request."""
    return RequestContext(request_id=spec.request_id, project_id=spec.project_id, user_id=spec.user_id)
