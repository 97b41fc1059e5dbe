"""Requests that are not built now: they wait for another try, or they end."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import msgspec

from conductor.bury import Undertaker
from conductor.context import ConductorContext
from conductor.lease_renewer import LeaseRenewer
from db.api.operations import operations, steps
from db.api.queue import batches, leases
from objects import errors
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

STEP = "build"
"""The step of dead letters about requests. Their keys are the UUIDs of the instances."""


class Requeuer:
    """Leaves requests to a later try, sets them aside, or buries them. All of them are leased by this conductor."""

    def __init__(self, context: ConductorContext, driving: LeaseRenewer, *, lease_seconds: float, retry_pause: float) -> None:
        """``driving``: renews the leases of requests in progress."""
        self._context = context
        self._database = context.database
        self._undertaker = Undertaker(context.ledger, context.registry)
        self._aside = context.aside
        self._driving = driving
        self._lease_seconds = lease_seconds
        self._retry_pause = retry_pause
        self._complaints = RateLimitedLog(LOG)

    # -- not now -------------------------------------------------------------------------------------------------------------------

    def leave_batch(self, batch: leases.LeasedBatch, why: str) -> None:
        """Let the lease expire after ``retry_pause``, so that the queue's sweep tries again."""
        reason = why.replace(batch.batch_id, "")  # in an outage all batches wait for the same
        self._complaints(reason, logging.WARNING, "batch %s waits and is retried: %s", batch.batch_id, why)
        self._driving.leave_leases(
            {r.instance_uuid: r.fence for r in batch.requests}, self._database.current_time() + self._retry_pause
        )

    def leave_until(self, request: leases.LeasedRequest, wait: float) -> None:
        """Let the lease expire after ``wait`` seconds, after the longest valid lease or at the deadline, whichever is first."""
        until = self.end_of_wait(request, wait, self._database.current_time())
        self._driving.leave_leases({request.instance_uuid: request.fence}, until)

    def end_of_wait(self, request: leases.LeasedRequest, wait: float, now: float) -> float:
        """When a lease is to expire that should do so in ``wait`` seconds: see ``leave_until``."""
        until = min(now + wait, leases.furthest_end(now, self._lease_seconds) - leases.LEASE_SLACK_S)
        return request.deadline if until > request.deadline > now else until

    def withhold_batch(self, batch: leases.LeasedBatch, error: errors.SuperconductorError) -> None:
        """Do not build without the secrets. If a key is missing, wait for it up to the deadline; if secrets are lost, bury."""
        if isinstance(error, errors.Misconfigured):
            LOG.error("batch %s cannot be built: %s", batch.batch_id, error)
            self.leave_batch(batch, "its secrets cannot be decrypted")
        else:  # if it was decided meanwhile, the fence is old and the burial is refused
            self.bury_requests(batch, dict.fromkeys(batch.requests, f"Build aborted: {error}."))

    # -- dead letters --------------------------------------------------------------------------------------------------------------

    def without_skipped(self, batch: leases.LeasedBatch) -> leases.LeasedBatch:
        """The batch without requests that have a dead letter and are not due for a retry, or that an operator has skipped."""
        due = self._aside.due_items(STEP, batch.requests, key=_instance_uuid)
        if len(due) == len(batch.requests):
            return batch
        waiting = [request for request in batch.requests if request not in set(due)]
        for request in waiting:
            self.leave_until(request, self._aside.seconds_until_retry(STEP, request.instance_uuid))
        return msgspec.structs.replace(batch, requests=tuple(due))

    def set_aside(self, faults: Mapping[leases.LeasedRequest, Exception]) -> None:
        """Postpone these requests to a later try, at the latest at their deadline, when they end."""
        if not faults:
            return
        self._aside.note_failed(STEP, {request.instance_uuid: error for request, error in faults.items()})
        for request in faults:
            self.leave_until(request, self._aside.seconds_until_retry(STEP, request.instance_uuid))

    def note_succeeded(self, uuids: Collection[str]) -> None:
        """Remove the dead letters of these requests."""
        self._aside.note_succeeded(STEP, uuids)

    # -- never ---------------------------------------------------------------------------------------------------------------------

    def bury_rolled_back(self, batch: leases.LeasedBatch) -> bool:
        """Bury an all-or-nothing batch that has failed; return whether it has. If it fails later, its cells roll it back."""
        if batch.unreadable is not None:
            return False
        fault = self._database.read(batches.fault_of, batch.batch_id) if batch.spec.all_or_nothing else None
        if fault is not None:
            self.bury_requests(batch, dict.fromkeys(batch.requests, fault))
        return fault is not None

    def bury_overdue(self, batch: leases.LeasedBatch) -> leases.LeasedBatch:
        """Until hand-over the super conductor enforces the deadline: bury overdue requests, return the batch without them."""
        now = self._database.current_time()
        late = {r: "Build timed out in scheduling." for r in batch.requests if r.deadline < now}
        if late:
            self.bury_requests(batch, late)
        return msgspec.structs.replace(batch, requests=tuple(r for r in batch.requests if r not in late))

    def bury_requests(self, batch: leases.LeasedBatch, reasons: Mapping[leases.LeasedRequest, str]) -> None:
        """Bury these requests. Past its deadline a request ends even if it or cell0 is faulty."""
        now = self._database.current_time()
        late = {request: reason for request, reason in reasons.items() if request.deadline < now}
        timely = {request: reason for request, reason in reasons.items() if request not in late}
        for requests, forced in ((late, True), (timely, False)):
            if requests:
                self._bury_some(batch, requests, forced=forced)

    def _bury_some(self, batch: leases.LeasedBatch, reasons: Mapping[leases.LeasedRequest, str], *, forced: bool) -> None:
        reasons = self._give_up(reasons)
        if not reasons:
            return
        spec = batch.spec if batch.unreadable is None else None
        try:
            failed = self._undertaker.bury_requests(spec, reasons, forced=forced)
        except (errors.Transient, errors.NotFound) as error:  # NotFound: there is no cell0
            self.leave_batch(msgspec.structs.replace(batch, requests=tuple(reasons)), str(error))
            return
        self.set_aside(dict(failed))
        refused = {request for request, _ in failed}
        self.note_succeeded([request.instance_uuid for request in reasons if request not in refused])

    def _give_up(self, reasons: Mapping[leases.LeasedRequest, str]) -> Mapping[leases.LeasedRequest, str]:
        """Give up the operations of twins among these requests: their servers stay where they are. Returns the other requests."""
        twins = {request.instance_uuid: request for request in reasons if request.server_uuid is not None}
        operation_uuids = self._database.read(operations.of_twins, twins) if twins else {}
        if operation_uuids:
            faults = {operation.uuid: reasons[twins[twin]] for twin, operation in operation_uuids.items()}
            fences = {twin: twins[twin].fence for twin in operation_uuids}
            self._context.ledger.write(steps.give_up, faults, self._database.current_time(), fences)
            self._context.signals.advance_operations(sorted(faults))
        return {request: why for request, why in reasons.items() if request.instance_uuid not in operation_uuids}


def _instance_uuid(request: leases.LeasedRequest) -> str:
    return request.instance_uuid
