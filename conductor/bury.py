"""What never gets a host ends in cell0, as ERROR, with the reason."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from cells.registry import CellRegistry
from db import builds, instances, leases, staging
from db.claims import Ledger
from objects import lifecycle
from objects.instance import Instance, State
from objects.spec import RequestSpec
from service import metrics
from service.steps import step

LOG = logging.getLogger(__name__)


class Undertaker:
    """Stage in cell0, hand over to cell0, activate to ERROR: the same three steps as for any cell, with no host at the end."""

    def __init__(self, ledger: Ledger, registry: CellRegistry) -> None:
        self._ledger = ledger
        self._registry = registry

    def bury(self, spec: RequestSpec, reasons: Mapping[leases.Request, str]) -> None:
        """Bury each request with its reason; one that was lost to a delete or a successor is left alone.

        Raises ``errors.CellUnavailable`` or ``errors.DatabaseUnavailable`` if cell0 cannot be written, ``errors.NotFound`` if there
        is none: nothing is decided then.
        """
        now = time.time()
        rows = [_new_instance(spec, request, reason) for request, reason in reasons.items()]
        staged = set(self._registry.cell0.write(staging.stage, spec, rows, now))
        burials = [
            builds.Burial(instance_uuid=request.instance_uuid, fence=request.fence, fault=reason)
            for request, reason in reasons.items()
            if request.instance_uuid in staged
        ]
        fences = {burial.instance_uuid: burial.fence for burial in burials}
        won = self._ledger.write(builds.bury, burials, now)
        self._registry.cell0.write(
            instances.transition, won, lambda row: lifecycle.activate(row, fences[row.uuid], cell0=True), now
        )
        for burial in burials:
            if burial.instance_uuid in won:
                metrics.ENDED.labels("unplaced").inc()
                step(LOG, "error", burial.instance_uuid, spec.request_id, cell="cell0", note=burial.fault)


def _new_instance(spec: RequestSpec, request: leases.Request, reason: str) -> staging.NewInstance:
    row = Instance(
        uuid=request.instance_uuid, state=State.STAGED, fence=request.fence, max_attempts=spec.max_attempts, fault=reason
    )
    return staging.NewInstance(instance=row, name=request.name, launch_index=request.launch_index, created_at=request.created_at)
