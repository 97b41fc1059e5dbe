"""The super conductor's main job: a leased batch becomes instances in their cells.

``docs/life-of-a-boot.md`` walks the hops. Whoever loses - a delete came first, a successor holds a newer fence - is left alone:
what a losing conductor staged is settled by a sweep that reads the decided mapping.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from cells.cell import Cell
from cells.registry import CellRegistry
from conductor.bury import Undertaker
from conductor.confidential import Confidential
from conductor.driving import Driving
from conductor.orders import send_orders
from db import batches, builds, instances, leases, staging
from db.engine import Database
from objects import errors
from objects.context import RequestContext
from objects.instance import Instance, State
from objects.selection import Selection
from objects.spec import BootSecrets, RequestSpec
from rpc.scheduler import SchedulerClient
from service import metrics
from service.complaints import Complaints
from service.vault import Vault

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placed:
    """One request with the host it was given, and the cell that host is mapped to."""

    request: leases.Request
    selection: Selection
    alternates: tuple[Selection, ...]
    cell: Cell


class Builder:
    """Drives leased batches. Stateless between two calls: everything that must survive is in rows."""

    def __init__(
        self,
        api_database: Database,
        registry: CellRegistry,
        scheduler: SchedulerClient,
        undertaker: Undertaker,
        *,
        owner: str,
        lease_seconds: float,
        retry_pause: float,
        vault: Vault | None = None,
    ) -> None:
        self._database = api_database
        self._registry = registry
        self._scheduler = scheduler
        self._undertaker = undertaker
        self._confidential = Confidential(api_database, vault or Vault())
        self._owner = owner
        self._lease_seconds = lease_seconds
        self.driving = Driving(api_database, lease_seconds)
        """What is under way here; its owner calls ``renew``."""
        self._retry_pause = retry_pause
        self._complaints = Complaints(LOG)

    def schedule_and_build(self, batch_ids: Sequence[str]) -> None:
        """Lease what nobody drives of these batches, and build it."""
        leased = self._database.write(leases.lease, self._owner, batch_ids, time.time(), self._lease_seconds)
        with self.driving.of(request for batch in leased for request in batch.requests):
            for batch in leased:
                metrics.since(metrics.STAGE["queue"], batch.requests[0].created_at)
                self.build(batch)

    def build(self, batch: leases.Batch, excluded_cells: tuple[str, ...] = ()) -> None:
        """One scheduler call for the batch, one transaction per cell, one hand-over, one cast per host."""
        with self.driving.of(batch.requests):  # under new fences, where it comes from elsewhere
            self._drive(batch, excluded_cells)

    def _drive(self, batch: leases.Batch, excluded_cells: tuple[str, ...]) -> None:
        context = context_of(batch.spec)
        if self._bury_rolled_back(batch):
            return
        timely = self._bury_overdue(batch)
        if not timely.requests:
            return
        try:
            secrets = self._confidential.of(timely)  # before anything is claimed that could not be built
        except (errors.NotFound, errors.Misconfigured) as error:
            self._withhold(timely, error)
            return
        answers = self._select(context, timely, excluded_cells)
        if answers is None:
            return
        placed = self._map_to_cells(timely, self._spare(timely, answers, excluded_cells))
        staged, refused = self._stage(timely.spec, placed, secrets)
        self._hand_over(context, timely.spec, staged)
        if refused:
            self._go_elsewhere(timely, refused, excluded_cells)

    # -- the steps, in their order ---------------------------------------------------------------------------------------------

    def _bury_rolled_back(self, batch: leases.Batch) -> bool:
        """Nothing more is built of an all-or-nothing batch that has failed. One that fails later is found in its cell."""
        fault = self._database.read(batches.fault_of, batch.batch_id) if batch.spec.all_or_nothing else None
        if fault is not None:
            self._bury(batch, dict.fromkeys(batch.requests, fault))
        return fault is not None

    def _bury_overdue(self, batch: leases.Batch) -> leases.Batch:
        """The deadline is owned here until hand-over: what is late ends as ERROR, whatever held it up."""
        now = time.time()
        late = {r: "Build timed out in scheduling." for r in batch.requests if r.deadline < now}
        if late:
            self._bury(batch, late)
        return msgspec.structs.replace(batch, requests=tuple(r for r in batch.requests if r not in late))

    @metrics.stage("plan")
    def _select(
        self, context: RequestContext, batch: leases.Batch, excluded_cells: tuple[str, ...]
    ) -> list[list[Selection]] | None:
        """The scheduler's answer in request order; None if there is nothing to go on with now."""
        fences = {r.instance_uuid: r.fence for r in batch.requests}
        spec = msgspec.structs.replace(batch.spec, fences=fences, excluded_cells=excluded_cells)
        try:
            return self._scheduler.select_destinations(context, spec, list(fences))
        except errors.NoValidHost as refusal:
            if excluded_cells:  # a cell that cannot be reached may be the one with room: wait for it, up to the deadline
                self._leave(batch, f"{refusal} (without {len(excluded_cells)} unreachable cells)")
            else:
                self._bury(batch, dict.fromkeys(batch.requests, str(refusal)))
        except errors.SuperconductorError as trouble:  # no answer in time, or one that says "come again"
            self._leave(batch, str(trouble))
        return None

    def _spare(
        self, batch: leases.Batch, answers: Sequence[Sequence[Selection]], excluded_cells: tuple[str, ...]
    ) -> list[tuple[leases.Request, Sequence[Selection]]]:
        """The servers that found a host, with it. Of a batch that may be smaller the others end: it goes on without them."""
        pairs = list(zip(batch.requests, answers, strict=True))
        found = [(request, selections) for request, selections in pairs if selections]
        without = tuple(request for request, selections in pairs if not selections)
        if without and batch.spec.min_count is None:
            LOG.info("batch %s: claims of %d servers refused, they are no longer ours", batch.batch_id, len(without))
        elif without and excluded_cells:  # as in _select
            rest = msgspec.structs.replace(batch, requests=without)
            self._leave(rest, f"{len(without)} servers find no host without {len(excluded_cells)} unreachable cells")
        elif without:  # one whose request is gone is not buried: its fence is old
            why = f"No valid host was found: {len(without)} of the {batch.spec.num_instances} servers of the request fit nowhere."
            self._bury(batch, dict.fromkeys(without, why))
        return found

    def _map_to_cells(self, batch: leases.Batch, answers: Iterable[tuple[leases.Request, Sequence[Selection]]]) -> list[Placed]:
        """host -> host mapping -> cell. A Selection that names another cell than the mapping is refused: that instance only."""
        placed: list[Placed] = []
        unmapped: dict[leases.Request, str] = {}
        for request, (selection, *alternates) in answers:
            try:
                cell = self._registry.of_host(selection.host)
                if cell.uuid != selection.cell_uuid:
                    raise errors.HostNotMapped(
                        f"host {selection.host} is mapped to cell {cell.name}, not to the one it was chosen in"
                    )
            except (errors.HostNotMapped, errors.NotFound) as error:
                LOG.error("instance %s: %s; map the host with 'superconductor host discover'", request.instance_uuid, error)
                unmapped[request] = "No valid host was found. The chosen host is not mapped to a cell."
            else:
                placed.append(Placed(request=request, selection=selection, alternates=tuple(alternates), cell=cell))
        if unmapped:
            self._bury(batch, unmapped)
        return placed

    @metrics.stage("stage")
    def _stage(
        self, spec: RequestSpec, placed: Sequence[Placed], secrets: BootSecrets | None = None
    ) -> tuple[list[Placed], list[Placed]]:
        """One transaction per cell. Returns (staged, in a cell that could not take them)."""
        staged: list[Placed] = []
        unreachable: list[Placed] = []
        for cell, members in _by_cell(placed).items():
            rows = [_new_instance(spec, p) for p in members]
            sealed = self._confidential.sealed_for(cell.uuid, spec.batch_id, secrets)
            try:
                accepted = set(cell.write(staging.stage, spec, rows, time.time(), sealed))
            except (errors.CellUnavailable, errors.DatabaseUnavailable) as error:
                cell.complaints("builds", logging.WARNING, "cell %s cannot take %d builds: %s", cell.name, len(members), error)
                unreachable += members
            else:
                staged += [p for p in members if p.request.instance_uuid in accepted]
        return staged, unreachable

    def _hand_over(self, context: RequestContext, spec: RequestSpec, staged: Sequence[Placed]) -> None:
        """The point of no return, for the whole batch in one transaction; then the orders, one cast per host."""
        if not staged:
            return
        items = [
            builds.HandOver(
                instance_uuid=p.request.instance_uuid,
                fence=p.request.fence,
                cell_uuid=p.cell.uuid,
                host=p.selection.host,
                node=p.selection.node,
                availability_zone=p.selection.availability_zone,
            )
            for p in staged
        ]
        with metrics.STAGE["hand_over"].time():
            won = set(self._database.write(builds.hand_over, items, time.time()))
        mine = [p for p in staged if p.request.instance_uuid in won]
        if len(mine) < len(staged):
            LOG.info(
                "batch %s: %d of %d hand-overs lost to a delete or a successor", spec.batch_id, len(staged) - len(mine), len(staged)
            )
        for cell, members in _by_cell(mine).items():
            orders = [instances.Order(instance=_instance(spec, p), name=p.request.name, spec=spec) for p in members]
            send_orders(cell, context, orders)

    def _go_elsewhere(self, batch: leases.Batch, refused: Sequence[Placed], excluded_cells: tuple[str, ...]) -> None:
        """A new fence before a new Selection: a copy left in the first cell can then never be handed over."""
        fences = self._database.write(leases.refence, {p.request.instance_uuid: p.request.fence for p in refused})
        requests = tuple(
            msgspec.structs.replace(r, fence=fences[r.instance_uuid]) for r in batch.requests if r.instance_uuid in fences
        )
        excluded = (*excluded_cells, *sorted({p.cell.uuid for p in refused}))
        self.build(msgspec.structs.replace(batch, requests=requests), excluded)

    # -- not now, or never -------------------------------------------------------------------------------------------------------

    def _withhold(self, batch: leases.Batch, error: errors.SuperconductorError) -> None:
        """No guest is built without its secrets. A missing key can be added, up to the deadline; what is not stored is lost."""
        if isinstance(error, errors.Misconfigured):
            LOG.error("batch %s cannot be built: %s", batch.batch_id, error)
            self._leave(batch, "its secrets cannot be opened")
        else:  # unless it was decided meanwhile: then the fence is old, and the burial is refused
            self._bury(batch, dict.fromkeys(batch.requests, f"Build aborted: {error}."))

    def _bury(self, batch: leases.Batch, reasons: Mapping[leases.Request, str]) -> None:
        try:
            self._undertaker.bury(batch.spec, reasons)
        except (errors.CellUnavailable, errors.DatabaseUnavailable, errors.NotFound) as error:  # NotFound: there is no cell0
            self._leave(msgspec.structs.replace(batch, requests=tuple(reasons)), str(error))

    def _leave(self, batch: leases.Batch, why: str) -> None:
        """Let the lease run out soon, so that the queue's sweep tries again."""
        self._complaints(why, logging.WARNING, "batch %s waits, and is tried again and again: %s", batch.batch_id, why)
        self.driving.leave({r.instance_uuid: r.fence for r in batch.requests}, time.time() + self._retry_pause)


def context_of(spec: RequestSpec) -> RequestContext:
    """The identity under which the work for a request goes on."""
    return RequestContext(request_id=spec.request_id, project_id=spec.project_id, user_id=spec.user_id)


def _by_cell(placed: Iterable[Placed]) -> dict[Cell, list[Placed]]:
    groups: dict[Cell, list[Placed]] = defaultdict(list)
    for p in placed:
        groups[p.cell].append(p)
    return groups


def _instance(spec: RequestSpec, p: Placed) -> Instance:
    return Instance(
        uuid=p.request.instance_uuid,
        state=State.STAGED,
        fence=p.request.fence,
        host=p.selection.host,
        node=p.selection.node,
        limits=p.selection.limits,
        availability_zone=p.selection.availability_zone,
        alternates=p.alternates,
        max_attempts=spec.max_attempts,
        deadline=p.request.deadline,
        has_group=spec.group is not None and spec.group.policy.strict,
    )


def _new_instance(spec: RequestSpec, p: Placed) -> staging.NewInstance:
    return staging.NewInstance(
        instance=_instance(spec, p), name=p.request.name, launch_index=p.request.launch_index, created_at=p.request.created_at
    )
