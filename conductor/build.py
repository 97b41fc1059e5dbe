"""The super conductor's main job: leased batches become instances in their cells.

``docs/life-of-a-boot.md`` describes the steps. A conductor loses an instance if a delete came first or a successor holds a newer
fence. It then does nothing more: the settler reads the decided mapping and removes the staged row.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import msgspec

from cells.bulkhead import PendingCall
from cells.cell import Cell
from cells.registry import CellRegistry
from conductor.bury import Undertaker
from conductor.lease_renewer import LeaseRenewer
from conductor.orders import send_orders
from conductor.placed import Placed, asked, by_batch, by_cell, context_of
from conductor.restored import RestoreWatch
from conductor.set_aside import SetAside
from conductor.whereabouts import CellLookup
from db import dead_letters
from db.api import batches, builds, holds, leases, operation_steps, operations
from db.api.incarnation import Known
from db.cell import staging
from db.sql.connection import CellTransaction
from db.sql.engine import ApiDatabase, Database
from objects import errors
from objects.selection import Selection
from objects.spec import BootSecrets, RequestSpec
from rpc.errors import RemoteFault
from rpc.scheduler import SchedulerClient
from service import metrics
from service.isolate import isolate
from service.rate_limited_log import RateLimitedLog
from service.steps import step
from service.vault import OPTION, Vault

LOG = logging.getLogger(__name__)

LARGE_BATCH_SIZE = 50
"""Batches of this many servers or more are built after the others, so that small batches do not wait for them."""

GROUP_SIZE = 500
"""Large batches are built together, up to so many servers: each cell has one transaction for all of them."""

CALL_SIZE = 200
"""Servers of a group that one call asks the scheduler about, unless a batch has more. A call that takes too long is repeated, so
calls do not grow with the group.
"""

BUSY_S = 0.3
"""A round that follows another within so many seconds takes all batches that wait."""
ROUND_SIZE = 50
"""Most batches that such a round looks for."""
CLOCK_SLACK_S = 60.0
"""Seconds by which the clock of the process that accepted a batch may be ahead."""

STAGE_WAIT_S = 0.5
"""Seconds to wait for all cells to stage. Staged builds are then handed over without waiting for slower cells."""

STEP = "build"
"""The step of dead letters about requests. Their keys are the UUIDs of the instances."""

NONE: Mapping[str, BootSecrets | None] = MappingProxyType({})


class Builder:
    """Drives leased batches. Stateless between calls: everything that must survive is in the databases."""

    def __init__(
        self,
        api_database: ApiDatabase,
        registry: CellRegistry,
        scheduler: SchedulerClient,
        undertaker: Undertaker,
        *,
        owner: str,
        lease_seconds: float,
        retry_pause: float,
        vault: Vault | None = None,
        aside: SetAside | None = None,
        restored: RestoreWatch | None = None,
        operate: Callable[[Collection[str]], None] = lambda operations: None,
    ) -> None:
        """``restored``: knows which incarnation of the API database requests may be leased from; None: any.

        ``operate``: called with operations whose twins are staged, or that were given up.
        """
        self._database = api_database
        self._aside = aside or SetAside(api_database, "api")
        self._registry = registry
        self._scheduler = scheduler
        self._undertaker = undertaker
        self._batch_secrets = BatchSecrets(vault or Vault())
        self._owner = owner
        self.lease_seconds = lease_seconds
        self.driving = LeaseRenewer(api_database, lease_seconds)
        """Requests in progress here. The builder's owner calls ``renew`` periodically."""
        self._retry_pause = retry_pause
        self._restored = restored
        self._operate = operate
        self._cell_lookup = CellLookup(undertaker.ledger, registry)
        self._rung_at = -math.inf
        self._complaints = RateLimitedLog(LOG)

    def build_rung(self, batch_ids: Sequence[str]) -> None:
        """Build the batches that this conductor was told of. Under load it builds all that wait, whichever conductor was told.

        Rounds of several conductors then have as many batches as those of one, and none waits for the pace of its own conductor.
        """
        now = time.monotonic()
        busy, self._rung_at = now - self._rung_at < BUSY_S, now
        if busy and not self._is_held:
            args = (self._database.now(), ROUND_SIZE, -CLOCK_SLACK_S, self.lease_seconds)
            found = self._database.read(leases.waiting, *args)
            # Where these are all that wait, another conductor has leased those that are missing.
            batch_ids = found if len(found) < ROUND_SIZE else batch_ids
        if batch_ids:
            self.schedule_and_build(batch_ids)

    def schedule_and_build(self, batch_ids: Sequence[str]) -> None:
        """Lease those of these batches that no conductor drives, and build them. Large batches do not delay small ones."""
        if self._is_held:
            return  # the queue's sweep finds them after the API database has been compared with its cells
        found = isolate(self._lease, batch_ids)
        self._aside.failed("lease", dict(found.failed))
        self._begin([batch for batches in found.results for batch in batches])

    def refresh(self) -> None:
        """Remove the dead letters of requests that are gone, and read the others again. Call it periodically."""
        if self._aside.holds(STEP):
            self._database.write(dead_letters.forget_ended_builds, STEP)
        self._aside.refresh()

    def end_without_spec(self) -> None:
        """End requests past their deadline whose spec is missing: nothing else leases them."""
        if self._is_held:
            return
        args = (self._owner, self._database.now(), self.lease_seconds, LARGE_BATCH_SIZE, self._known)
        self._begin(self._database.write(leases.lease_without_spec, *args))

    def _lease(self, batch_ids: Sequence[str]) -> list[leases.LeasedBatch]:
        args = (self._owner, batch_ids, self._database.now(), self.lease_seconds, self._known)
        return self._database.write(leases.lease, *args)

    @property
    def _known(self) -> Known | None:
        """The incarnation that leases must match."""
        return self._restored.known if self._restored else None

    @property
    def _is_held(self) -> bool:
        """Whether the API database has yet to be compared with its cells."""
        return self._restored is not None and self._known is None

    def _begin(self, leased: Sequence[leases.LeasedBatch]) -> None:
        for leased_batch in leased:
            for request in leased_batch.requests:
                step(LOG, "leased", request.instance_uuid, leased_batch.spec.request_id, fence=request.fence)
        with self.driving.each(leased):
            for batch in leased:
                if batch.requests[0].held_until is None:  # else it may have waited for its user
                    metrics.since(metrics.STAGE["queue"], batch.requests[0].created_at)
            for batches in _grouped(_apart(leased)):
                self.build(*batches)

    def build(self, *batches: leases.LeasedBatch, excluded_cells: tuple[str, ...] = ()) -> None:
        """One scheduler call for these batches, one transaction per cell, one hand-over, one cast per host and batch.

        Batches do not affect each other: after an unexpected error they are retried in smaller and smaller groups. Every step can
        safely be repeated. A batch that fails alone is set aside, and ends at its deadline.
        """
        with self.driving.each(batches):  # ``_go_elsewhere`` calls with new fences
            done = isolate(lambda some: self._drive(some, excluded_cells), batches)
            for batch, error in done.failed:
                self._set_aside(dict.fromkeys(batch.requests, error))

    def _drive(self, batches: Sequence[leases.LeasedBatch], excluded_cells: tuple[str, ...]) -> None:
        secrets: dict[str, BootSecrets | None] = {}
        ready = [timely for batch in batches if (timely := self._ready(batch, secrets)) is not None]
        placed: list[Placed] = []
        for batch, answers in zip(ready, self._select_all(ready, excluded_cells), strict=True):
            if answers is not None:
                placed += self._map_to_cells(batch, self._spare(batch, answers, excluded_cells))
        for staged, refused in self._stage(self._without_held(placed), secrets):
            self._hand_over(staged)
            for members in by_batch(refused).values():
                self._go_elsewhere(members, excluded_cells)

    def _ready(self, batch: leases.LeasedBatch, secrets: dict[str, BootSecrets | None]) -> leases.LeasedBatch | None:
        """The requests of the batch that may be built now; None if there are none. Adds the batch's secrets to ``secrets``."""
        if adopted := self._cell_lookup.adopt_found(batch.requests):
            left = tuple(request for request in batch.requests if request.instance_uuid not in adopted)
            batch = msgspec.structs.replace(batch, requests=left)
        if not batch.requests or self._bury_rolled_back(batch):
            return None
        timely = self._without_skipped(self._bury_overdue(batch))
        if not timely.requests:
            return None
        if timely.unreadable is not None:
            self._set_aside(dict.fromkeys(timely.requests, errors.Invalid(timely.unreadable)))
            return None
        try:
            secrets[batch.batch_id] = self._batch_secrets.of(timely)  # before claiming for a batch that cannot be built
        except (errors.NotFound, errors.Misconfigured) as error:
            self._withhold(timely, error)
            return None
        return timely

    def _without_skipped(self, batch: leases.LeasedBatch) -> leases.LeasedBatch:
        """The batch without requests that have a dead letter and are not due for a retry, or that an operator has skipped."""
        due = self._aside.due(STEP, batch.requests, key=_uuid)
        if len(due) == len(batch.requests):
            return batch
        waiting = [request for request in batch.requests if request not in set(due)]
        for request in waiting:
            self._leave_until(request, self._aside.wait(STEP, request.instance_uuid))
        return msgspec.structs.replace(batch, requests=tuple(due))

    # -- the steps, in their order ---------------------------------------------------------------------------------------------

    def _bury_rolled_back(self, batch: leases.LeasedBatch) -> bool:
        """Bury an all-or-nothing batch that has failed; return whether it has. If it fails later, its cells roll it back."""
        if batch.unreadable is not None:
            return False
        fault = self._database.read(batches.fault_of, batch.batch_id) if batch.spec.all_or_nothing else None
        if fault is not None:
            self._bury(batch, dict.fromkeys(batch.requests, fault))
        return fault is not None

    def _bury_overdue(self, batch: leases.LeasedBatch) -> leases.LeasedBatch:
        """Until hand-over the super conductor enforces the deadline: bury overdue requests, return the batch without them."""
        now = self._database.now()
        late = {r: "Build timed out in scheduling." for r in batch.requests if r.deadline < now}
        if late:
            self._bury(batch, late)
        return msgspec.structs.replace(batch, requests=tuple(r for r in batch.requests if r not in late))

    @metrics.stage("plan")
    def _select_all(
        self, batches: Sequence[leases.LeasedBatch], excluded_cells: tuple[str, ...]
    ) -> Sequence[list[list[Selection]] | None]:
        """The scheduler's answers by batch, each in request order; None for a batch that cannot continue now."""
        return [answer for some in _in_groups(batches, CALL_SIZE) for answer in self._select_together(some, excluded_cells)]

    def _select_together(
        self, batches: Sequence[leases.LeasedBatch], excluded_cells: tuple[str, ...]
    ) -> Sequence[list[list[Selection]] | None]:
        """The same, with one call."""
        if len(batches) < 2:
            return [self._select(batch, excluded_cells) for batch in batches]
        specs = [self._asked(batch, excluded_cells) for batch in batches]
        try:
            choices = self._scheduler.select_for_each(context_of(specs[0]), specs)
        except (errors.Unsupported, RemoteFault) as error:  # an older scheduler, or one batch fails all
            LOG.info("%d batches are scheduled one by one: %s", len(batches), error)
            return [self._select(batch, excluded_cells) for batch in batches]
        except errors.SuperconductorError as error:
            for batch in batches:
                self._leave(batch, str(error))
            return [None] * len(batches)
        pairs = zip(batches, choices, strict=True)
        return [self._answered(batch, excluded_cells, choice.answer) for batch, choice in pairs]

    def _select(self, batch: leases.LeasedBatch, excluded_cells: tuple[str, ...]) -> list[list[Selection]] | None:
        spec = self._asked(batch, excluded_cells)
        ask = partial(self._scheduler.select_destinations, context_of(spec), spec, list(spec.fences))
        return self._answered(batch, excluded_cells, ask)

    def _asked(self, batch: leases.LeasedBatch, excluded_cells: tuple[str, ...]) -> RequestSpec:
        """The request spec to send to the scheduler. A build that left its cell must not go back there."""
        if batch.requests[0].server_uuid is None or batch.spec.move is not None:
            return asked(batch, excluded_cells)
        sources = self._database.read(operations.cells_left, [request.instance_uuid for request in batch.requests])
        return asked(batch, (*excluded_cells, *(cell for cell in sources if cell not in excluded_cells)))

    def _answered(
        self, batch: leases.LeasedBatch, excluded_cells: tuple[str, ...], answer: Callable[[], list[list[Selection]]]
    ) -> list[list[Selection]] | None:
        """The scheduler's answer in request order; None if the batch cannot continue now."""
        try:
            return answer()
        except errors.NoValidHost as refusal:
            if excluded_cells:  # an unreachable cell may have room: wait for it, up to the deadline
                self._leave(batch, f"{refusal} (without {len(excluded_cells)} unreachable cells)")
            else:
                self._bury(batch, dict.fromkeys(batch.requests, str(refusal)))
        except errors.SuperconductorError as error:  # no answer in time, or a request to retry
            self._leave(batch, str(error))
        return None

    def _spare(
        self, batch: leases.LeasedBatch, answers: Sequence[Sequence[Selection]], excluded_cells: tuple[str, ...]
    ) -> list[tuple[leases.LeasedRequest, Sequence[Selection]]]:
        """The requests that got selections, with these. If the batch may be smaller (``min_count``), the others are buried."""
        pairs = list(zip(batch.requests, answers, strict=True))
        found = [(request, selections) for request, selections in pairs if selections]
        without = tuple(request for request, selections in pairs if not selections)
        if without and batch.spec.min_count is None:
            LOG.info("batch %s: claims of %d servers were refused, because they are no longer ours", batch.batch_id, len(without))
        elif without and excluded_cells:  # as in _select
            rest = msgspec.structs.replace(batch, requests=without)
            self._leave(rest, f"{len(without)} servers fit on no host outside {len(excluded_cells)} unreachable cells")
        elif without:  # a request that is gone is not buried: its fence is old
            why = (
                f"No valid host was found: {len(without)} of the {batch.spec.num_instances} servers of the request fit on no host."
            )
            self._bury(batch, dict.fromkeys(without, why))
        return found

    def _map_to_cells(
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
                    self._registry.refresh()
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
            self._leave(rest, f"the hosts of {len(moving)} servers have been mapped to another cell since they were chosen")
        if unmapped:
            self._bury(batch, unmapped)
        return placed

    def _without_held(self, placed: Sequence[Placed]) -> Sequence[Placed]:
        """Park those of open holds with their claims, and return the others. A hold that has ended never comes back."""
        waiting = by_batch([p for p in placed if p.request.held_until is not None])
        if not waiting:
            return placed
        fences = {batch: {p.request.instance_uuid: p.request.fence for p in members} for batch, members in waiting.items()}
        parked = self._database.write(holds.park, fences, self._database.now())
        self._aside.succeeded(STEP, parked)
        for p in placed:
            if p.request.instance_uuid in parked:
                step(LOG, "held", p.request.instance_uuid, p.batch.spec.request_id, cell=p.cell.name, host=p.selection.host)
        return [p for p in placed if p.request.instance_uuid not in parked]

    def _stage(
        self, placed: Sequence[Placed], secrets: Mapping[str, BootSecrets | None] = NONE
    ) -> Iterator[tuple[list[Placed], list[Placed]]]:
        """Stage in one transaction per cell, all concurrently. ``secrets``: by batch ID.

        Yields (staged, refused): once for all cells that answer within ``STAGE_WAIT_S``, then once for each slower cell.
        Refused: the instances whose cell could not take them.
        """
        under_way = []
        for cell, members in by_cell(placed).items():
            under_way.append((cell, members, self._begin_stage(cell, members, secrets), time.monotonic()))
        end = time.monotonic() + STAGE_WAIT_S
        late = [each for each in under_way if not each[2].ends_within(end - time.monotonic())]
        soon = [self._staged(*each, secrets) for each in under_way if each not in late]
        yield [p for staged, _ in soon for p in staged], [p for _, refused in soon for p in refused]
        for each in late:
            yield self._staged(*each, secrets)

    def _staged(
        self,
        cell: Cell,
        members: list[Placed],
        written: PendingCall[list[str]],
        began: float,
        secrets: Mapping[str, BootSecrets | None],
    ) -> tuple[list[Placed], list[Placed]]:
        """Wait for one cell's transaction; return (staged, refused)."""
        try:
            accepted = self._accepted(cell, members, written, secrets)
        except errors.Transient as error:
            cell.complaints("builds", logging.WARNING, "cell %s cannot take %d builds: %s", cell.name, len(members), error)
            return [], members
        finally:
            metrics.STAGE["stage"].observe(time.monotonic() - began)
        staged = [p for p in members if p.request.instance_uuid in accepted]
        if len(staged) < len(members):
            refused = [p.request.instance_uuid for p in members if p.request.instance_uuid not in accepted]
            self._cell_lookup.adopt_refused(cell, refused)
        for p in staged:
            step(LOG, "staged", p.request.instance_uuid, p.batch.spec.request_id, cell=cell.name, host=p.selection.host)
        return staged, []

    def _accepted(
        self, cell: Cell, members: list[Placed], written: PendingCall[list[str]], secrets: Mapping[str, BootSecrets | None]
    ) -> set[str]:
        """The UUIDs staged in the cell as requested. A row that the cell refuses is set aside, the others are written."""
        try:
            return set(written())
        except errors.Transient:
            raise
        except Exception as error:  # noqa: BLE001 - one row causes it: halves are retried, a row that fails alone is set aside
            if len(members) == 1:
                self._set_aside({members[0].request: error})
                return set()
        done = isolate(lambda some: self._begin_stage(cell, some, secrets)(), members)
        self._set_aside({p.request: error for p, error in done.failed})
        return {uuid for uuids in done.results for uuid in uuids}

    def _begin_stage(
        self, cell: Cell, members: Sequence[Placed], secrets: Mapping[str, BootSecrets | None]
    ) -> PendingCall[list[str]]:
        parts = [self._part(cell, batch, secrets) for batch in by_batch(members).values()]
        return cell.begin_write(_stage, cell.database, parts, self._database.now())

    def _part(self, cell: Cell, members: Sequence[Placed], secrets: Mapping[str, BootSecrets | None]) -> staging.StagedPart:
        batch = members[0].batch
        sealed = self._batch_secrets.sealed_for(cell.uuid, batch.batch_id, secrets.get(batch.batch_id))
        return staging.StagedPart(spec=batch.spec, news=tuple(p.new_instance for p in members), sealed=sealed)

    def _hand_over(self, staged: Sequence[Placed]) -> None:
        """Decide the cell of each instance, finally and in one transaction. Then send the orders, one cast per host and batch."""
        if twins := [p for p in staged if p.request.server_uuid is not None]:
            self._hand_over_twins(twins)
            staged = [p for p in staged if p not in twins]
        if not staged:
            return
        with metrics.STAGE["hand_over"].time():
            done = isolate(self._decide, staged)
        won = {uuid for uuids in done.results for uuid in uuids}
        self._set_aside({p.request: error for p, error in done.failed})
        self._handed_over(staged, won)
        for p in staged:
            if p.request.instance_uuid not in won and all(p is not failed for failed, _ in done.failed):
                LOG.info(
                    "batch %s: %s was not handed over: a delete or another conductor came first",
                    p.batch.batch_id,
                    p.request.instance_uuid,
                )

    def _handed_over(self, staged: Sequence[Placed], won: Collection[str]) -> None:
        """Send the orders of those that were won."""
        self._aside.succeeded(STEP, won)
        mine = [p for p in staged if p.request.instance_uuid in won]
        for p in mine:
            step(LOG, "handed over", p.request.instance_uuid, p.batch.spec.request_id, cell=p.cell.name, host=p.selection.host)
        for cell, members in by_cell(mine).items():
            send_orders(cell, [p.order for p in members])

    def _hand_over_twins(self, staged: Sequence[Placed]) -> None:
        """Hand over the twins whose sources are off. The others wait for that with their claims, leased and staged."""
        fences = {p.request.instance_uuid: p.request.fence for p in staged}
        now = self._database.now()
        until = {p.request.instance_uuid: self._end_of_wait(p.request, max(0.0, p.request.deadline - now), now) for p in staged}
        held = self._database.write(operation_steps.hold, fences, until, now)
        ready = [p for p in staged if p.request.instance_uuid in held]
        decided = isolate(lambda some: self._database.write(builds.hand_over_twins, _hand_overs(some), self._database.now()), ready)
        self._set_aside({p.request: error for p, error in decided.failed})
        won = {uuid for uuids in decided.results for uuid in uuids}
        self._handed_over(ready, won)
        self.driving.forget([twin for twin in held if twin not in won])
        if waiting := [operation for twin, operation in held.items() if twin not in won]:
            self._operate(waiting)

    def _decide(self, staged: Sequence[Placed]) -> list[str]:
        whole = [batch for batch, members in by_batch(staged).items() if _has_whole(members)]
        return self._database.write(builds.hand_over, _hand_overs(staged), self._database.now(), whole)

    def _go_elsewhere(self, refused: Sequence[Placed], excluded_cells: tuple[str, ...]) -> None:
        """Build in other cells, under new fences: a copy left in the first cell can then never be handed over."""
        batch = refused[0].batch
        fences = self._database.write(leases.refence, {p.request.instance_uuid: p.request.fence for p in refused})
        requests = tuple(
            msgspec.structs.replace(r, fence=fences[r.instance_uuid]) for r in batch.requests if r.instance_uuid in fences
        )
        excluded = (*excluded_cells, *sorted({p.cell.uuid for p in refused}))
        self.build(msgspec.structs.replace(batch, requests=requests), excluded_cells=excluded)

    # -- not now, or never -------------------------------------------------------------------------------------------------------

    def _withhold(self, batch: leases.LeasedBatch, error: errors.SuperconductorError) -> None:
        """Do not build without the secrets. If a key is missing, wait for it up to the deadline; if secrets are lost, bury."""
        if isinstance(error, errors.Misconfigured):
            LOG.error("batch %s cannot be built: %s", batch.batch_id, error)
            self._leave(batch, "its secrets cannot be decrypted")
        else:  # if it was decided meanwhile, the fence is old and the burial is refused
            self._bury(batch, dict.fromkeys(batch.requests, f"Build aborted: {error}."))

    def _bury(self, batch: leases.LeasedBatch, reasons: Mapping[leases.LeasedRequest, str]) -> None:
        """Bury these requests. Past its deadline a request ends even if it or cell0 is faulty."""
        now = self._database.now()
        late = {request: reason for request, reason in reasons.items() if request.deadline < now}
        timely = {request: reason for request, reason in reasons.items() if request not in late}
        for some, forced in ((late, True), (timely, False)):
            if some:
                self._bury_some(batch, some, forced=forced)

    def _bury_some(self, batch: leases.LeasedBatch, reasons: Mapping[leases.LeasedRequest, str], *, forced: bool) -> None:
        reasons = self._give_up(reasons)
        if not reasons:
            return
        spec = batch.spec if batch.unreadable is None else None
        try:
            failed = self._undertaker.bury(spec, reasons, forced=forced)
        except (errors.Transient, errors.NotFound) as error:  # NotFound: there is no cell0
            self._leave(msgspec.structs.replace(batch, requests=tuple(reasons)), str(error))
            return
        self._set_aside(dict(failed))
        refused = {request for request, _ in failed}
        self._aside.succeeded(STEP, [request.instance_uuid for request in reasons if request not in refused])

    def _give_up(self, reasons: Mapping[leases.LeasedRequest, str]) -> Mapping[leases.LeasedRequest, str]:
        """Give up the operations of twins among these requests: their servers stay where they are. Returns the other requests."""
        twins = {request.instance_uuid: request for request in reasons if request.server_uuid is not None}
        found = self._database.read(operations.of_twins, twins) if twins else {}
        if found:
            faults = {operation.uuid: reasons[twins[twin]] for twin, operation in found.items()}
            fences = {twin: twins[twin].fence for twin in found}
            self._undertaker.ledger.write(operation_steps.give_up, faults, self._database.now(), fences)
            self._operate(sorted(faults))
        return {request: why for request, why in reasons.items() if request.instance_uuid not in found}

    def _set_aside(self, faults: Mapping[leases.LeasedRequest, Exception]) -> None:
        """Postpone these requests to a later try, at the latest at their deadline, when they end."""
        if not faults:
            return
        self._aside.failed(STEP, {request.instance_uuid: error for request, error in faults.items()})
        for request in faults:
            self._leave_until(request, self._aside.wait(STEP, request.instance_uuid))

    def _leave_until(self, request: leases.LeasedRequest, wait: float) -> None:
        """Let the lease expire after ``wait`` seconds, after the longest valid lease or at the deadline, whichever is first."""
        until = self._end_of_wait(request, wait, self._database.now())
        self.driving.leave({request.instance_uuid: request.fence}, until)

    def _end_of_wait(self, request: leases.LeasedRequest, wait: float, now: float) -> float:
        until = min(now + wait, leases.furthest(now, self.lease_seconds) - leases.LEASE_SLACK_S)
        return request.deadline if until > request.deadline > now else until

    def _leave(self, batch: leases.LeasedBatch, why: str) -> None:
        """Let the lease expire after ``retry_pause``, so that the queue's sweep tries again."""
        self._complaints(why, logging.WARNING, "batch %s waits and is retried: %s", batch.batch_id, why)
        self.driving.leave({r.instance_uuid: r.fence for r in batch.requests}, self._database.now() + self._retry_pause)


def _hand_overs(placed: Sequence[Placed]) -> list[builds.HandOver]:
    return [p.hand_over for p in placed]


def _has_whole(members: Sequence[Placed]) -> bool:
    """Whether these are all servers of a batch that has secrets."""
    spec = members[0].batch.spec
    return spec.has_secrets and len(members) == spec.num_instances


def _uuid(request: leases.LeasedRequest) -> str:
    return request.instance_uuid


def _apart(leased: Sequence[leases.LeasedBatch]) -> list[leases.LeasedBatch]:
    """The batches, those that boots leave to another cell apart from their siblings: only these must leave their cell."""
    apart: list[leases.LeasedBatch] = []
    for batch in leased:
        again = tuple(r for r in batch.requests if r.server_uuid is not None and batch.spec.move is None)
        others = tuple(r for r in batch.requests if r not in again)
        apart += [msgspec.structs.replace(batch, requests=some) for some in (again, others) if some]
    return apart


def _grouped(leased: Sequence[leases.LeasedBatch]) -> list[list[leases.LeasedBatch]]:
    """All small batches in one group, then the large ones, in groups of ``GROUP_SIZE`` servers at most or of one batch."""
    small = [batch for batch in leased if len(batch.requests) < LARGE_BATCH_SIZE]
    large = [batch for batch in leased if len(batch.requests) >= LARGE_BATCH_SIZE]
    return [*([small] if small else []), *_in_groups(large, GROUP_SIZE)]


def _in_groups(batches: Sequence[leases.LeasedBatch], most: int) -> list[list[leases.LeasedBatch]]:
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


def _stage(tx: CellTransaction, database: Database, parts: Sequence[staging.StagedPart], api_now: float) -> list[str]:
    """The transaction in a cell. Deadlines are converted to the clock of the cell's database: the remaining time stays the same."""
    now = database.now()
    return staging.stage_all(tx, [part.postponed(now - api_now) for part in parts], now)


class BatchSecrets:
    """Decrypts and encrypts secrets, and stores none of them."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def of(self, batch: leases.LeasedBatch) -> BootSecrets | None:
        """The secrets of a leased batch; None if it has none.

        Raises errors.NotFound if they are no longer stored, errors.Misconfigured if no key opens them.
        """
        if not batch.spec.has_secrets:
            return None
        if not self._vault.sealing:
            raise errors.Misconfigured(
                f"{OPTION}: no master key; it is needed to decrypt the secrets of a request and encrypt them for a cell."
            )
        if batch.sealed is None:
            raise errors.NotFound("its user data and password are no longer stored")
        return self._vault.open(batch.batch_id, batch.sealed)

    def sealed_for(self, cell_uuid: str, batch_id: str, content: BootSecrets | None) -> str | None:
        """The secrets encrypted for that cell; None for None."""
        return self._vault.seal(cell_uuid, batch_id, content) if content is not None else None
