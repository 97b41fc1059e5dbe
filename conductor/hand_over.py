"""Decide the cells of staged instances, finally and in one transaction, and send the orders to their hosts."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from conductor.context import ConductorContext
from conductor.lease_renewer import LeaseRenewer
from conductor.orders import send_orders
from conductor.placement import Placed, by_batch, by_cell
from conductor.requeue import Requeuer
from db.api.operations import steps
from db.api.queue import builds
from db.cell.instances import Order
from service import metrics
from service.bisect import isolate_failures
from service.logs import log_step

LOG = logging.getLogger(__name__)


class CellHandOver:
    """Hands staged instances over to their cells. From then on their cells' conductors drive them."""

    def __init__(self, context: ConductorContext, unbuilt: Requeuer, driving: LeaseRenewer) -> None:
        self._database = context.database
        self._signals = context.signals
        self._unbuilt = unbuilt
        self._driving = driving

    def hand_over_staged(self, staged: Sequence[Placed]) -> None:
        """Decide the cell of each instance, finally and in one transaction. Then send the orders, one cast per host and batch."""
        if twins := [p for p in staged if p.request.server_uuid is not None]:
            self._hand_over_twins(twins)
            staged = [p for p in staged if p not in twins]
        if not staged:
            return
        with metrics.STAGE["hand_over"].time():
            done = isolate_failures(self._write_cells, staged)
        won = {uuid for uuids in done.results for uuid in uuids}
        faults = {p.request: error for p, error in done.failed}
        if faults:
            self._unbuilt.set_aside(faults)
        self._handed_over(staged, won)
        for p in staged:
            if p.request.instance_uuid not in won and p.request not in faults:
                LOG.info(
                    "batch %s: %s was not handed over: a delete or another conductor came first",
                    p.batch.batch_id,
                    p.request.instance_uuid,
                )

    def _handed_over(self, staged: Sequence[Placed], won: Collection[str]) -> None:
        """Send the orders of those that were won."""
        self._unbuilt.note_succeeded(won)
        own_members = [p for p in staged if p.request.instance_uuid in won]
        for p in own_members:
            log_step(LOG, "handed over", p.request.instance_uuid, p.batch.spec.request_id, cell=p.cell.name, host=p.selection.host)
        for cell, members in by_cell(own_members).items():
            send_orders(cell, [Order(instance=p.staged_instance, name=p.request.name, spec=p.batch.spec) for p in members])

    def _hand_over_twins(self, staged: Sequence[Placed]) -> None:
        """Hand over the twins whose sources are off. The others wait for that with their claims, leased and staged."""
        fences = {p.request.instance_uuid: p.request.fence for p in staged}
        now = self._database.current_time()
        until = {
            p.request.instance_uuid: self._unbuilt.end_of_wait(p.request, max(0.0, p.request.deadline - now), now) for p in staged
        }
        held = self._database.write(steps.hold_sources, fences, until, now)
        ready = [p for p in staged if p.request.instance_uuid in held]
        decided = isolate_failures(
            lambda members: self._database.write(
                builds.hand_over_twins, [p.hand_over for p in members], self._database.current_time()
            ),
            ready,
        )
        self._unbuilt.set_aside({p.request: error for p, error in decided.failed})
        won = {uuid for uuids in decided.results for uuid in uuids}
        self._handed_over(ready, won)
        self._driving.forget_requests([twin for twin in held if twin not in won])
        if waiting := [operation for twin, operation in held.items() if twin not in won]:
            self._signals.advance_operations(waiting)

    def _write_cells(self, staged: Sequence[Placed]) -> list[str]:
        """One transaction. It also erases the secrets of batches that are handed over whole. Returns the UUIDs that were won."""
        sizes = {batch_id: (members[0].batch.spec, len(members)) for batch_id, members in by_batch(staged).items()}
        whole = [batch_id for batch_id, (spec, size) in sizes.items() if spec.has_secrets and size == spec.num_instances]
        return self._database.write(builds.hand_over, [p.hand_over for p in staged], self._database.current_time(), whole)
