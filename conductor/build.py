"""The super conductor's main job: leased batches become instances in their cells.

``docs/life-of-a-boot.md`` describes the steps. A conductor loses an instance if a delete came first or a successor holds a newer
fence. It then does nothing more: the settler reads the decided mapping and removes the staged row.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

import msgspec

from conductor.cell_lookup import CellLookup
from conductor.context import ConductorContext
from conductor.destinations import Destinations, in_groups
from conductor.hand_over import CellHandOver
from conductor.lease_renewer import LeaseRenewer
from conductor.placement import Placed, by_batch
from conductor.requeue import Requeuer
from conductor.stage import Stager
from db.api.queue import holds, leases
from objects import errors
from objects.spec import BootSecrets
from rpc.scheduler import SchedulerClient
from service import metrics
from service.bisect import isolate_failures
from service.logs import log_step
from service.vault import OPTION, Vault

LOG = logging.getLogger(__name__)

LARGE_BATCH_SIZE = 50
"""Batches of this many servers or more are built after the others, so that small batches do not wait for them."""

GROUP_SIZE = 500
"""Large batches are built together, up to so many servers: each cell has one transaction for all of them."""

BUSY_S = 0.3
"""A round that follows another within so many seconds takes all batches that wait."""
ROUND_SIZE = 50
"""Most batches that such a round looks for."""
CLOCK_SLACK_S = 60.0
"""Seconds by which the clock of the process that accepted a batch may be ahead."""


class Builder:
    """Drives leased batches through the steps. Stateless between calls: everything that must survive is in the databases."""

    def __init__(
        self, context: ConductorContext, scheduler: SchedulerClient, *, owner: str, lease_seconds: float, retry_pause: float
    ) -> None:
        """``owner``: the name of this process in leases. Times in seconds."""
        self._context = context
        self._database = context.database
        self._owner = owner
        self.lease_seconds = lease_seconds
        self.driving = LeaseRenewer(context.database, lease_seconds)
        """Requests in progress here. The builder's owner calls ``renew`` periodically."""
        self._cell_lookup = CellLookup(context.ledger, context.registry)
        self._unbuilt = Requeuer(context, self.driving, lease_seconds=lease_seconds, retry_pause=retry_pause)
        self.destinations = Destinations(context.database, context.registry, scheduler, self._unbuilt)
        self.stager = Stager(context.database, self._cell_lookup, context.vault, self._unbuilt)
        self.hand_over = CellHandOver(context, self._unbuilt, self.driving)
        self._rung_at = -math.inf

    def build_notified(self, batch_ids: Sequence[str]) -> None:
        """Build the batches that this conductor was told of. Under load it builds all that wait, whichever conductor was told.

        Rounds of several conductors then have as many batches as those of one, and none waits for the pace of its own conductor.
        """
        now = time.monotonic()
        is_busy, self._rung_at = now - self._rung_at < BUSY_S, now
        if is_busy and not self._context.is_held:
            args = (self._database.current_time(), ROUND_SIZE, -CLOCK_SLACK_S, self.lease_seconds)
            waiting_ids = self._database.read(leases.list_waiting, *args)
            # Where these are all that wait, another conductor has leased those that are missing.
            batch_ids = waiting_ids if len(waiting_ids) < ROUND_SIZE else batch_ids
        if batch_ids:
            self.schedule_and_build(batch_ids)

    def schedule_and_build(self, batch_ids: Sequence[str]) -> None:
        """Lease those of these batches that no conductor drives, and build them. Large batches do not delay small ones."""
        if self._context.is_held:
            return  # the queue's sweep finds them after the API database has been compared with its cells
        leased = isolate_failures(self._lease_batches, batch_ids)
        if leased.failed:
            self._context.aside.note_failed("lease", dict(leased.failed))
        self._begin_batches([batch for batches in leased.results for batch in batches])

    def end_without_spec(self) -> None:
        """End requests past their deadline whose spec is missing: nothing else leases them."""
        if self._context.is_held:
            return
        args = (self._owner, self._database.current_time(), self.lease_seconds, LARGE_BATCH_SIZE, self._context.known)
        self._begin_batches(self._database.write(leases.lease_without_spec, *args))

    def _lease_batches(self, batch_ids: Sequence[str]) -> list[leases.LeasedBatch]:
        args = (self._owner, batch_ids, self._database.current_time(), self.lease_seconds, self._context.known)
        return self._database.write(leases.lease_batches, *args)

    def _begin_batches(self, leased: Sequence[leases.LeasedBatch]) -> None:
        for leased_batch in leased:
            for request in leased_batch.requests:
                log_step(LOG, "leased", request.instance_uuid, leased_batch.spec.request_id, fence=request.fence)
        with self.driving.renew_during(leased):
            for batch in leased:
                if batch.requests[0].held_until is None:  # else it may have waited for its user
                    metrics.observe_since(metrics.STAGE["queue"], batch.requests[0].created_at)
            apart = _split_twins(leased)
            small = [batch for batch in apart if len(batch.requests) < LARGE_BATCH_SIZE]
            large = [batch for batch in apart if len(batch.requests) >= LARGE_BATCH_SIZE]
            for batches in (small, *in_groups(large, GROUP_SIZE)):
                self.build_batches(batches)

    def build_batches(self, batches: Sequence[leases.LeasedBatch], excluded_cells: tuple[str, ...] = ()) -> None:
        """One scheduler call for these batches, one transaction per cell, one hand-over, one cast per host and batch.

        Batches do not affect each other: after an unexpected error they are retried in smaller and smaller groups. Every step can
        safely be repeated. A batch that fails alone is set aside, and ends at its deadline.
        """
        with self.driving.renew_during(batches):  # ``_go_elsewhere`` calls with new fences
            done = isolate_failures(lambda members: self._drive_batches(members, excluded_cells), batches)
            for batch, error in done.failed:
                self._unbuilt.set_aside(dict.fromkeys(batch.requests, error))

    def _drive_batches(self, batches: Sequence[leases.LeasedBatch], excluded_cells: tuple[str, ...]) -> None:
        secrets: dict[str, BootSecrets | None] = {}
        ready = [timely for batch in batches if (timely := self._ready_batch(batch, secrets)) is not None]
        placed = self._without_held(self.destinations.find_destinations(ready, excluded_cells))
        for staged, refused in self.stager.stage_placed(placed, secrets):
            self.hand_over.hand_over_staged(staged)
            for members in by_batch(refused).values():
                self._go_elsewhere(members, excluded_cells)

    def _ready_batch(self, batch: leases.LeasedBatch, secrets: dict[str, BootSecrets | None]) -> leases.LeasedBatch | None:
        """The requests of the batch that may be built now; None if there are none. Adds the batch's secrets to ``secrets``."""
        if adopted := self._cell_lookup.adopt_found(batch.requests):
            remaining = tuple(request for request in batch.requests if request.instance_uuid not in adopted)
            batch = msgspec.structs.replace(batch, requests=remaining)
        if not batch.requests or self._unbuilt.bury_rolled_back(batch):
            return None
        timely = self._unbuilt.without_skipped(self._unbuilt.bury_overdue(batch))
        if not timely.requests:
            return None
        if timely.unreadable is not None:
            self._unbuilt.set_aside(dict.fromkeys(timely.requests, errors.Invalid(timely.unreadable)))
            return None
        try:
            # before claiming for a batch that cannot be built
            secrets[batch.batch_id] = _open_secrets(self._context.vault, timely) if timely.spec.has_secrets else None
        except (errors.NotFound, errors.Misconfigured) as error:
            self._unbuilt.withhold_batch(timely, error)
            return None
        return timely

    def _without_held(self, placed: Sequence[Placed]) -> Sequence[Placed]:
        """Park those of open holds with their claims, and return the others. A hold that has ended never comes back."""
        waiting = by_batch([p for p in placed if p.request.held_until is not None])
        if not waiting:
            return placed
        fences = {batch: {p.request.instance_uuid: p.request.fence for p in members} for batch, members in waiting.items()}
        parked = self._database.write(holds.park_requests, fences, self._database.current_time())
        self._unbuilt.note_succeeded(parked)
        for p in placed:
            if p.request.instance_uuid in parked:
                log_step(LOG, "held", p.request.instance_uuid, p.batch.spec.request_id, cell=p.cell.name, host=p.selection.host)
        return [p for p in placed if p.request.instance_uuid not in parked]

    def _go_elsewhere(self, refused: Sequence[Placed], excluded_cells: tuple[str, ...]) -> None:
        """Build in other cells, under new fences: a copy left in the first cell can then never be handed over."""
        batch = refused[0].batch
        fences = self._database.write(leases.refence_requests, {p.request.instance_uuid: p.request.fence for p in refused})
        requests = tuple(
            msgspec.structs.replace(r, fence=fences[r.instance_uuid]) for r in batch.requests if r.instance_uuid in fences
        )
        excluded = (*excluded_cells, *sorted({p.cell.uuid for p in refused}))
        self.build_batches([msgspec.structs.replace(batch, requests=requests)], excluded)


def _open_secrets(vault: Vault, batch: leases.LeasedBatch) -> BootSecrets:
    """Decrypt the secrets of a leased batch, and store none of them.

    Raises errors.NotFound if they are no longer stored, errors.Misconfigured if no key opens them.
    """
    if not vault.can_seal:
        raise errors.Misconfigured(
            f"{OPTION}: no master key; it is needed to decrypt the secrets of a request and encrypt them for a cell."
        )
    if batch.sealed is None:
        raise errors.NotFound("its user data and password are no longer stored")
    return vault.open(batch.batch_id, batch.sealed)


def _split_twins(leased: Sequence[leases.LeasedBatch]) -> list[leases.LeasedBatch]:
    """The batches, those that boots leave to another cell apart from their siblings: only these must leave their cell."""
    apart: list[leases.LeasedBatch] = []
    for batch in leased:
        again = tuple(r for r in batch.requests if r.server_uuid is not None and batch.spec.move is None)
        others = tuple(r for r in batch.requests if r not in again)
        apart += [msgspec.structs.replace(batch, requests=siblings) for siblings in (again, others) if siblings]
    return apart
