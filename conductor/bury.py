"""Requests that get no host end in cell0 as ERROR, with the reason."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from cells.instance_mapping import adopt_rows
from cells.registry import CellRegistry
from conductor.quarantine import reason_of
from db.api.claims.claims import Ledger
from db.api.queue import builds, leases
from db.cell import instances, staging
from objects import errors, lifecycle
from objects.instance import Instance, State
from objects.spec import RequestSpec
from objects.text import FAULTS_SIZE, clean_text
from service import metrics
from service.bisect import isolate_failures
from service.logs import log_step
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)


class Undertaker:
    """Stage in cell0, hand over to cell0, activate to ERROR: the same three steps as for any cell, without a host.

    The second step decides, and needs only the mapping and the fault in the API database. The row in cell0 is for readers of cells:
    if cell0 refuses it, the request ends without a row.
    """

    def __init__(self, ledger: Ledger, registry: CellRegistry) -> None:
        self.ledger = ledger
        self._registry = registry
        self._complaints = RateLimitedLog(LOG)

    def bury_requests(
        self, spec: RequestSpec | None, reasons: Mapping[leases.LeasedRequest, str], *, forced: bool = False
    ) -> list[tuple[leases.LeasedRequest, Exception]]:
        """End each request with its reason. Requests lost to a delete or a successor do not change.

        ``spec``: None if it cannot be read; then there will be no row in cell0. ``forced``: the deadline has passed, so the request
        ends even if cell0 is missing, does not answer, or holds a conflicting row.

        Returns the requests that the API database refused to end, with its errors. Raises ``errors.CellUnavailable`` or
        ``errors.DatabaseUnavailable`` if cell0 or the API database cannot be written, ``errors.NotFound`` if there is no cell0:
        nothing is decided then.
        """
        now = self.ledger.database.current_time()
        faults = {request: clean_text(reason, FAULTS_SIZE) for request, reason in reasons.items()}
        staged, unwritten = self._stage_in_cell0(spec, faults, forced=forced)
        self._adopt_refused([r.instance_uuid for r in faults if r.instance_uuid not in staged and r not in unwritten])
        ending = [request for request in faults if forced or request.instance_uuid in staged or request in unwritten]
        ended = isolate_failures(lambda requests: self._end_requests(requests, faults, now), ending)
        won = {request.instance_uuid: request.fence for requests in ended.results for request in requests}
        self._activate_rows({uuid: fence for uuid, fence in won.items() if uuid in staged})
        for request in ending:
            if request.instance_uuid in won:
                metrics.ENDED.labels("unplaced").inc()
                request_id = spec.request_id if spec is not None else None
                log_step(LOG, "error", request.instance_uuid, request_id, cell="cell0", note=faults[request])
        return ended.failed

    def _stage_in_cell0(
        self, spec: RequestSpec | None, faults: Mapping[leases.LeasedRequest, str], *, forced: bool
    ) -> tuple[set[str], set[leases.LeasedRequest]]:
        """Write rows in cell0. Returns the UUIDs staged there as requested, and the requests whose row cell0 refuses."""
        if spec is None:
            return set(), set(faults)
        rows = {request.instance_uuid: _new_instance(spec, request, fault) for request, fault in faults.items()}
        try:
            cell0 = self._registry.cell0
            now = cell0.current_time()
            done = isolate_failures(lambda new_rows: cell0.write(staging.stage_instances, spec, new_rows, now), list(rows.values()))
        except (errors.Transient, errors.NotFound) as error:  # NotFound: there is no cell0
            if not forced:
                raise
            self._complaints(str(error), logging.WARNING, "%d requests end without a row in cell0: %s", len(rows), error)
            return set(), set()
        refused = {new.instance.uuid: error for new, error in done.failed}
        for uuid, refusal in refused.items():
            text = "instance %s ends without a row, because cell0 refuses it: %s"
            self._complaints(f"row {type(refusal).__name__}", logging.ERROR, text, uuid, reason_of(refusal))
        staged = {uuid for uuids in done.results for uuid in uuids}
        return staged, {request for request in faults if request.instance_uuid in refused}

    def _adopt_refused(self, refused: Sequence[str]) -> None:
        """Adopt cell0 rows that could not be overwritten: they were buried before, and the API database has lost that."""
        if not refused:
            return
        try:
            adopt_rows(self.ledger, self._registry.cell0, refused)
        except (errors.CellUnavailable, errors.NotFound) as error:
            self._complaints(str(error), logging.WARNING, "%d rows in cell0 cannot be read: %s", len(refused), error)

    def _end_requests(
        self, requests: Sequence[leases.LeasedRequest], faults: Mapping[leases.LeasedRequest, str], now: float
    ) -> list[leases.LeasedRequest]:
        """Decide in the API database. Returns the requests that this call ended."""
        burials = [builds.Burial(instance_uuid=r.instance_uuid, fence=r.fence, fault=faults[r]) for r in requests]
        won = set(self.ledger.write(builds.bury_requests, burials, now))
        return [request for request in requests if request.instance_uuid in won]

    def _activate_rows(self, fences: Mapping[str, int]) -> None:
        """Activate the rows in cell0. If that fails, the settler does it: it reads the decided mappings."""
        if not fences:
            return

        def decide_activation(row: Instance) -> lifecycle.Outcome:
            return lifecycle.activate_row(row, fences[row.uuid], cell0=True)

        try:
            cell0 = self._registry.cell0
            cell0.write(instances.transition_rows, list(fences), decide_activation, cell0.current_time())
        except Exception as error:  # noqa: BLE001 - the requests are decided; the error is logged
            text = "%d rows in cell0 are left to the settler: %s"
            self._complaints(f"activate {type(error).__name__}", logging.WARNING, text, len(fences), reason_of(error))


def _new_instance(spec: RequestSpec, request: leases.LeasedRequest, reason: str) -> staging.NewInstance:
    row = Instance(
        uuid=request.instance_uuid, state=State.STAGED, fence=request.fence, max_attempts=spec.max_attempts, fault=reason
    )
    return staging.NewInstance(instance=row, name=request.name, launch_index=request.launch_index, created_at=request.created_at)
