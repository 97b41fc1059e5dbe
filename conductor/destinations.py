"""Where leased batches are to be built: the scheduler's answer for each request, and the cell of each host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from cells.registry import CellRegistry
from conductor.placement import Placed, context_of
from conductor.requeue import Requeuer
from db.api.operations import operations
from db.api.queue import leases
from db.sql.engine import ApiDatabase
from objects import errors
from objects.selection import Selection
from objects.spec import RequestSpec
from rpc.errors import RemoteFault
from rpc.scheduler import SchedulerClient
from service import metrics

LOG = logging.getLogger(__name__)

CALL_SIZE = 200
"""Servers of a group that one call asks the scheduler about, unless a batch has more. A call that takes too long is repeated, so
calls do not grow with the group.
"""


class Destinations:
    """Asks the scheduler, and maps its hosts to cells. Requests that get no host are buried or left to a later try."""

    def __init__(self, database: ApiDatabase, registry: CellRegistry, scheduler: SchedulerClient, unbuilt: Requeuer) -> None:
        self._database = database
        self._registry = registry
        self._scheduler = scheduler
        self._unbuilt = unbuilt

    def find_destinations(self, batches: Sequence[leases.LeasedBatch], excluded_cells: tuple[str, ...]) -> list[Placed]:
        """Those of the requests that have a host in a cell. None of ``excluded_cells``, by UUID, is asked for."""
        with metrics.STAGE["plan"].time():
            answers = [each for some in in_groups(batches, CALL_SIZE) for each in self.select_for_batch(some, excluded_cells)]
        placed: list[Placed] = []
        for batch, answer in zip(batches, answers, strict=True):
            if answer is not None:
                placed += self.map_to_cells(batch, self.spare_refused(batch, answer, excluded_cells))
        return placed

    def select_for_batch(
        self, batches: Sequence[leases.LeasedBatch], excluded_cells: tuple[str, ...]
    ) -> list[list[list[Selection]] | None]:
        """The scheduler's answers by batch, each in request order, with one call; None for a batch that cannot continue now.

        The scheduler waits for hosts only for a batch that is alone.
        """
        specs = [self._spec_for(batch, excluded_cells) for batch in batches]
        if len(batches) > 1:
            try:
                choices = self._scheduler.select_for_each(context_of(specs[0]), specs)
            except (errors.Unsupported, RemoteFault) as error:  # an older scheduler, or one batch fails all
                LOG.info("%d batches are scheduled one by one: %s", len(batches), error)
            except errors.SuperconductorError as error:
                for batch in batches:
                    self._unbuilt.leave_batch(batch, str(error))
                return [None] * len(batches)
            else:
                pairs = zip(batches, choices, strict=True)
                return [self._answer_or_none(batch, excluded_cells, choice.get_selections) for batch, choice in pairs]
        return [
            self._answer_or_none(
                batch, excluded_cells, partial(self._scheduler.select_destinations, context_of(spec), spec, list(spec.fences))
            )
            for batch, spec in zip(batches, specs, strict=True)
        ]

    def _spec_for(self, batch: leases.LeasedBatch, excluded_cells: tuple[str, ...]) -> RequestSpec:
        """The request spec to send to the scheduler. A build that left its cell must not go back there."""
        if batch.requests[0].server_uuid is not None and batch.spec.move is None:
            left = self._database.read(operations.cells_left, [request.instance_uuid for request in batch.requests])
            excluded_cells = (*excluded_cells, *(cell for cell in left if cell not in excluded_cells))
        return msgspec.structs.replace(
            batch.spec,
            fences={request.instance_uuid: request.fence for request in batch.requests},
            excluded_cells=excluded_cells,
            rechecks_claims=any(request.held_until is not None for request in batch.requests),
        )

    def _answer_or_none(
        self, batch: leases.LeasedBatch, excluded_cells: tuple[str, ...], answer: Callable[[], list[list[Selection]]]
    ) -> list[list[Selection]] | None:
        """What ``answer`` returns; None if the batch cannot continue now."""
        try:
            return answer()
        except errors.NoValidHost as refusal:
            if excluded_cells:  # an unreachable cell may have room: wait for it, up to the deadline
                self._unbuilt.leave_batch(batch, f"{refusal} (without {len(excluded_cells)} unreachable cells)")
            else:
                self._unbuilt.bury_requests(batch, dict.fromkeys(batch.requests, str(refusal)))
        except errors.SuperconductorError as error:  # no answer in time, or a request to retry
            self._unbuilt.leave_batch(batch, str(error))
        return None

    def spare_refused(
        self, batch: leases.LeasedBatch, answers: Sequence[Sequence[Selection]], excluded_cells: tuple[str, ...]
    ) -> list[tuple[leases.LeasedRequest, Sequence[Selection]]]:
        """The requests that got selections, with these. If the batch may be smaller (``min_count``), the others are buried."""
        pairs = list(zip(batch.requests, answers, strict=True))
        selected = [(request, selections) for request, selections in pairs if selections]
        without = tuple(request for request, selections in pairs if not selections)
        if without and batch.spec.min_count is None:
            LOG.info("batch %s: claims of %d servers were refused, because they are no longer ours", batch.batch_id, len(without))
        elif without and excluded_cells:  # as in select
            rest = msgspec.structs.replace(batch, requests=without)
            self._unbuilt.leave_batch(
                rest, f"{len(without)} servers fit on no host outside {len(excluded_cells)} unreachable cells"
            )
        elif without:  # a request that is gone is not buried: its fence is old
            why = (
                f"No valid host was found: {len(without)} of the {batch.spec.num_instances} servers of the request fit on no host."
            )
            self._unbuilt.bury_requests(batch, dict.fromkeys(without, why))
        return selected

    def map_to_cells(
        self, batch: leases.LeasedBatch, answers: Iterable[tuple[leases.LeasedRequest, Sequence[Selection]]]
    ) -> list[Placed]:
        """Find each host's cell by its host mapping.

        If the Selection names another cell, the mappings are read again, as the host may just have moved. If they still differ,
        only that instance waits for a new Selection. Instances whose host has no mapping are buried.
        """
        placed: list[Placed] = []
        moving: list[leases.LeasedRequest] = []
        fresh = False
        unmapped: dict[leases.LeasedRequest, str] = {}
        for request, (selection, *alternates) in answers:
            try:
                cell = self._registry.of_host(selection.host)
                if cell.uuid != selection.cell_uuid and not fresh:
                    self._registry.refresh_cells()
                    fresh = True
                    cell = self._registry.of_host(selection.host)
            except (errors.HostNotMapped, errors.NotFound) as error:
                LOG.error("instance %s: %s; map the host with 'superconductor host discover'", request.instance_uuid, error)
                unmapped[request] = "No valid host was found. The chosen host is not mapped to a cell."
            else:
                if cell.uuid != selection.cell_uuid:
                    moving.append(request)
                    continue
                placed.append(Placed(batch=batch, request=request, selection=selection, alternates=tuple(alternates), cell=cell))
        if moving:
            rest = msgspec.structs.replace(batch, requests=tuple(moving))
            self._unbuilt.leave_batch(
                rest, f"the hosts of {len(moving)} servers have been mapped to another cell since they were chosen"
            )
        if unmapped:
            self._unbuilt.bury_requests(batch, unmapped)
        return placed


def in_groups(batches: Sequence[leases.LeasedBatch], most: int) -> list[list[leases.LeasedBatch]]:
    """The batches in their order, in groups of ``most`` servers at most or of one batch."""
    groups: list[list[leases.LeasedBatch]] = []
    room = 0
    for batch in batches:
        size = len(batch.requests)
        if not groups or size > room:
            groups.append([])
            room = max(size, most)
        groups[-1].append(batch)
        room -= size
    return groups
