"""The super conductor's main job: leased batches become instances in their cells.

``docs/life-of-a-boot.md`` walks the hops. Whoever loses - a delete came first, a successor holds a newer fence - is left alone:
what a losing conductor staged is settled by a sweep that reads the decided mapping.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import msgspec

from cells.bulkhead import Begun
from cells.cell import Cell
from cells.registry import CellRegistry
from conductor.bury import Undertaker
from conductor.confidential import Confidential
from conductor.driving import Driving
from conductor.orders import send_orders
from conductor.placed import Placed, asked, by_batch, by_cell, context_of
from db import batches, builds, leases, staging
from db.engine import Database
from objects import errors
from objects.selection import Selection
from objects.spec import BootSecrets
from rpc.errors import RemoteFault
from rpc.scheduler import SchedulerClient
from service import metrics
from service.complaints import Complaints
from service.steps import step
from service.vault import Vault

LOG = logging.getLogger(__name__)

LARGE = 50
"""Servers of a batch that is not built together with others: they would wait for it."""

SOON = 0.5
"""Seconds after which builds that their cells have taken are handed over without waiting for those of a cell that is slower."""

NONE: Mapping[str, BootSecrets | None] = MappingProxyType({})


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
        self._confidential = Confidential(vault or Vault())
        self._owner = owner
        self._lease_seconds = lease_seconds
        self.driving = Driving(api_database, lease_seconds)
        """What is under way here; its owner calls ``renew``."""
        self._retry_pause = retry_pause
        self._complaints = Complaints(LOG)

    def schedule_and_build(self, batch_ids: Sequence[str]) -> None:
        """Lease what nobody drives of these batches, and build it: small ones together, a large one holds up none of them."""
        leased = self._database.write(leases.lease, self._owner, batch_ids, time.time(), self._lease_seconds)
        for leased_batch in leased:
            for request in leased_batch.requests:
                step(LOG, "leased", request.instance_uuid, leased_batch.spec.request_id, fence=request.fence)
        with self.driving.each(leased):
            for batch in leased:
                metrics.since(metrics.STAGE["queue"], batch.requests[0].created_at)
            for batches in _grouped(leased):
                self.build(*batches)

    def build(self, *batches: leases.Batch, excluded_cells: tuple[str, ...] = ()) -> None:
        """One scheduler call for these batches, one transaction per cell, one hand-over, one cast per host and batch.

        Each stands or falls by itself: where something fails that was not foreseen, each is tried alone, which repeats nothing
        that counts twice.
        """
        with self.driving.each(batches):  # under new fences, where it comes from elsewhere
            try:
                self._drive(batches, excluded_cells)
            except errors.DatabaseUnavailable:  # the API level's: none of them could be built
                raise
            except Exception:
                if len(batches) < 2:
                    raise
                LOG.exception("%d batches could not be built together: each is tried alone", len(batches))
                self._build_each(batches, excluded_cells)

    def _build_each(self, batches: Sequence[leases.Batch], excluded_cells: tuple[str, ...]) -> None:
        """Raises what the last of those raised that cannot be built; the others are."""
        fault: Exception | None = None
        for batch in batches:
            try:
                self.build(batch, excluded_cells=excluded_cells)
            except Exception as error:  # noqa: BLE001 - raised when the others have had their turn
                fault = error
        if fault is not None:
            raise fault

    def _drive(self, batches: Sequence[leases.Batch], excluded_cells: tuple[str, ...]) -> None:
        secrets: dict[str, BootSecrets | None] = {}
        ready = [timely for batch in batches if (timely := self._ready(batch, secrets)) is not None]
        placed: list[Placed] = []
        for batch, answers in zip(ready, self._select_all(ready, excluded_cells), strict=True):
            if answers is not None:
                placed += self._map_to_cells(batch, self._spare(batch, answers, excluded_cells))
        for staged, refused in self._stage(placed, secrets):
            self._hand_over(staged)
            for members in by_batch(refused).values():
                self._go_elsewhere(members, excluded_cells)

    def _ready(self, batch: leases.Batch, secrets: dict[str, BootSecrets | None]) -> leases.Batch | None:
        """What of the batch may be built now, its secrets put with the others'; None: nothing."""
        if self._bury_rolled_back(batch):
            return None
        timely = self._bury_overdue(batch)
        if not timely.requests:
            return None
        try:
            secrets[batch.batch_id] = self._confidential.of(timely)  # before anything is claimed that could not be built
        except (errors.NotFound, errors.Misconfigured) as error:
            self._withhold(timely, error)
            return None
        return timely

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
    def _select_all(
        self, batches: Sequence[leases.Batch], excluded_cells: tuple[str, ...]
    ) -> Sequence[list[list[Selection]] | None]:
        """The scheduler's answers, each in request order; None where there is nothing to go on with now."""
        if len(batches) < 2:
            return [self._select(batch, excluded_cells) for batch in batches]
        specs = [asked(batch, excluded_cells) for batch in batches]
        try:
            choices = self._scheduler.select_for_each(context_of(specs[0]), specs)
        except (errors.Unsupported, RemoteFault) as trouble:  # a scheduler of the release before; or one of them is at fault
            LOG.info("%d batches are scheduled one by one: %s", len(batches), trouble)
            return [self._select(batch, excluded_cells) for batch in batches]
        except errors.SuperconductorError as trouble:
            for batch in batches:
                self._leave(batch, str(trouble))
            return [None] * len(batches)
        pairs = zip(batches, choices, strict=True)
        return [self._answered(batch, excluded_cells, choice.answer) for batch, choice in pairs]

    def _select(self, batch: leases.Batch, excluded_cells: tuple[str, ...]) -> list[list[Selection]] | None:
        spec = asked(batch, excluded_cells)
        ask = partial(self._scheduler.select_destinations, context_of(spec), spec, list(spec.fences))
        return self._answered(batch, excluded_cells, ask)

    def _answered(
        self, batch: leases.Batch, excluded_cells: tuple[str, ...], answer: Callable[[], list[list[Selection]]]
    ) -> list[list[Selection]] | None:
        """What the scheduler answers, in request order; None if there is nothing to go on with now."""
        try:
            return answer()
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
                placed.append(Placed(batch=batch, request=request, selection=selection, alternates=tuple(alternates), cell=cell))
        if unmapped:
            self._bury(batch, unmapped)
        return placed

    def _stage(
        self, placed: Sequence[Placed], secrets: Mapping[str, BootSecrets | None] = NONE
    ) -> Iterator[tuple[list[Placed], list[Placed]]]:
        """One transaction per cell, all at the same time. ``secrets``: by batch.

        Yields (staged, in a cell that could not take them): of all cells that answer soon together, then of each other by itself.
        """
        under_way = []
        for cell, members in by_cell(placed).items():
            parts = [self._part(cell, batch, secrets) for batch in by_batch(members).values()]
            under_way.append((cell, members, _begin_write(cell, parts), time.monotonic()))
        end = time.monotonic() + SOON
        late = [each for each in under_way if not each[2].ends_within(end - time.monotonic())]
        soon = [self._staged(*each) for each in under_way if each not in late]
        yield [p for staged, _ in soon for p in staged], [p for _, refused in soon for p in refused]
        for each in late:
            yield self._staged(*each)

    def _staged(
        self, cell: Cell, members: list[Placed], written: Begun[list[str]], began: float
    ) -> tuple[list[Placed], list[Placed]]:
        """What became of one cell's transaction."""
        try:
            accepted = set(written())
        except (errors.CellUnavailable, errors.DatabaseUnavailable) as error:
            cell.complaints("builds", logging.WARNING, "cell %s cannot take %d builds: %s", cell.name, len(members), error)
            return [], members
        finally:
            metrics.STAGE["stage"].observe(time.monotonic() - began)
        staged = [p for p in members if p.request.instance_uuid in accepted]
        for p in staged:
            step(LOG, "staged", p.request.instance_uuid, p.batch.spec.request_id, cell=cell.name, host=p.selection.host)
        return staged, []

    def _part(self, cell: Cell, members: Sequence[Placed], secrets: Mapping[str, BootSecrets | None]) -> staging.Part:
        batch = members[0].batch
        sealed = self._confidential.sealed_for(cell.uuid, batch.batch_id, secrets.get(batch.batch_id))
        return staging.Part(spec=batch.spec, news=tuple(p.new_instance for p in members), sealed=sealed)

    def _hand_over(self, staged: Sequence[Placed]) -> None:
        """The point of no return, for all of them in one transaction; then the orders, one cast per host and batch."""
        if not staged:
            return
        with metrics.STAGE["hand_over"].time():
            won = set(self._database.write(builds.hand_over, [p.hand_over for p in staged], time.time()))
        mine = [p for p in staged if p.request.instance_uuid in won]
        for p in mine:
            step(LOG, "handed over", p.request.instance_uuid, p.batch.spec.request_id, cell=p.cell.name, host=p.selection.host)
        for p in staged:
            if p.request.instance_uuid not in won:
                LOG.info("batch %s: hand-over of %s lost to a delete or a successor", p.batch.batch_id, p.request.instance_uuid)
        for cell, members in by_cell(mine).items():
            send_orders(cell, [p.order for p in members])

    def _go_elsewhere(self, refused: Sequence[Placed], excluded_cells: tuple[str, ...]) -> None:
        """A new fence before a new Selection: a copy left in the first cell can then never be handed over."""
        batch = refused[0].batch
        fences = self._database.write(leases.refence, {p.request.instance_uuid: p.request.fence for p in refused})
        requests = tuple(
            msgspec.structs.replace(r, fence=fences[r.instance_uuid]) for r in batch.requests if r.instance_uuid in fences
        )
        excluded = (*excluded_cells, *sorted({p.cell.uuid for p in refused}))
        self.build(msgspec.structs.replace(batch, requests=requests), excluded_cells=excluded)

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


def _grouped(leased: Sequence[leases.Batch]) -> list[list[leases.Batch]]:
    """The small batches together, each large one by itself after them."""
    small = [batch for batch in leased if len(batch.requests) < LARGE]
    return [*([small] if small else []), *([batch] for batch in leased if len(batch.requests) >= LARGE)]


def _begin_write(cell: Cell, parts: Sequence[staging.Part]) -> Begun[list[str]]:
    if len(parts) == 1:
        return cell.begin_write(staging.stage, parts[0].spec, parts[0].news, time.time(), parts[0].sealed)
    return cell.begin_write(staging.stage_all, parts, time.time())
