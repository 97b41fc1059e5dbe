"""Plan the jobs of one transaction, and repair the plan when the locked rows differ from what it was made on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from objects.decision import Decision
from objects.inventory import GroupSlots, Inventory, Placement, Standing
from scheduler.claim.cursor import Cursor
from scheduler.claim.refusals import Refusals
from scheduler.claim.result import conclude_job
from scheduler.engine import engine
from scheduler.engine.alternates import Alternates
from scheduler.engine.decision_inputs import keep_best_hosts, with_chosen
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.engine import Savepoint
from scheduler.engine.job import Job, PlanContext
from scheduler.engine.survey import Survey
from scheduler.engine.surveying import survey
from scheduler.explain.remedies import find_remedies
from scheduler.framework.batch_request import Request
from scheduler.framework.members import Members
from scheduler.table.arrays import Ints
from scheduler.table.host_table import HostTable

LOG = logging.getLogger(__name__)

WRITERS_SHOWN = 4
"""Writers of claims of which a record says how far they were read: those that were seen last."""


class ClaimPlanner:
    """Implements ``db.api.claims.claiming.Planner``: all its jobs share one transaction, and each is placed or refused by itself.

    A job is placed whole. With ``min_count`` it may be placed in part: see ``Job.least``.

    While a plan is made, the table shows what its jobs take. Afterwards the table again shows only what is committed. Room for
    alternates is not taken.
    """

    def __init__(self, table: HostTable, driver: SchedulerDriver, cursor: Cursor, jobs: Sequence[Job], moment: PlanContext) -> None:
        self._table = table
        self._driver = driver
        self._cursor = cursor
        self._jobs = jobs
        self._moment = moment
        self._requests: list[Request] = []
        self._groups: Mapping[str, GroupSlots] = {}
        self._planned: dict[int, int] = {}
        self._locked: set[int] = set()
        self._requested: set[int] = set()
        self.is_overtaken = False
        """See ``Planner``."""
        self._complete = False  # the first plan placed every job and chose the alternates: ``finish_plan`` need not plan again
        self.rivals: set[int] = set()
        """Writers of the claims log that have claimed room without this process knowing it."""

    @property
    def log_position(self) -> tuple[Mapping[int, int], int]:
        return self._cursor.recent_position()

    def plan_jobs(
        self, changes: Sequence[Inventory], standings: Sequence[Standing], groups: Sequence[GroupSlots]
    ) -> Collection[int]:
        with self._table.lock:
            if changes:
                self._note_rivals(changes)
                self._enter_inventories(changes)
                self._cursor.note_rows(changes)
            ledger = self._cursor.latest_sequences(WRITERS_SHOWN)
            self._groups = {group.group_uuid: group for group in groups}
            self._locked, self._complete, self.is_overtaken = set(), False, False
            for job, standing in zip(self._jobs, standings, strict=True):
                job.restart_planning(standing)
                job.ledger = ledger
            with self._table.take_tentatively():
                self._make_requests()
                jobs = self._open_jobs()
                for job, request in jobs:
                    self._run_step(self._plan_job, job, request)
                self._complete = all(job.short is None and job.error is None and None not in request.nodes for job, request in jobs)
                if self._complete:
                    self._give_alternates(jobs)
            rows = {row for job in self._jobs for row in job.rows.values()}
            self._planned = {self._table.inventory.item(row): self._table.generation.item(row) for row in rows}
            self._requested = set(self._planned)
            return self._requested

    def confirm_locked(self, locked: Sequence[Inventory]) -> Collection[int]:
        with self._table.lock:
            self._locked.update(row.id for row in locked)
            news = [row for row in locked if row.generation != self._planned.get(row.id)]
            if news:
                self.is_overtaken = True
                self._note_rivals(news)
                self._enter_inventories(news)
            if self._requested == self._planned.keys() <= self._locked and not any(row.id in self._planned for row in news):
                return ()  # these hosts have not changed since the plan was made
            self._complete = False
            inventory_ids: set[int] | None = None
            while inventory_ids is None:
                with self._table.take_tentatively():
                    self._make_requests()
                    inventory_ids = self._repair_choices(self._open_jobs())
            self._requested |= inventory_ids
            return inventory_ids

    def finish_plan(self) -> tuple[Sequence[Sequence[Placement]], Sequence[Decision]]:
        with self._table.lock:
            if not (self._complete and self._planned.keys() <= self._locked):
                self._settle_jobs()
            for job, request in zip(self._jobs, self._requests, strict=True):
                if job.standing.needed and not job.lost and job.error is None:
                    conclude_job(job, request, self._table, self._driver, self._moment)
            decisions = [job.decision for job in self._jobs if job.decision is not None and not job.premature]
            return [job.placements for job in self._jobs], decisions

    def enter_committed(self, inventories: Sequence[Inventory]) -> None:
        """Enter these rows into the table, as the committed transaction left them."""
        with self._table.lock:
            self._enter_inventories(inventories)
            self._cursor.note_rows(inventories)

    def _note_rivals(self, rows: Sequence[Inventory]) -> None:
        """Note the writers of rows that have gained instances: they are schedulers, because conductors only release claims."""
        for row in rows:
            known = self._table.find_inventory(row.id)
            if (
                known is not None
                and row.instances > self._table.instances[known]
                and row.generation > self._table.generation[known]
            ):
                self.rivals.add(row.writer)

    # -- planning ------------------------------------------------------------------------------------------------------------

    def _enter_inventories(self, rows: Sequence[Inventory]) -> None:
        for row in rows:
            self._table.set_inventory(row, self._moment.mono)

    def _make_requests(self) -> None:
        """Make the requests anew, with the group members that the database has. Jobs of one group share one ``Members``."""
        members: dict[str, Members] = {}
        self._requests = []
        for job in self._jobs:
            request = job.make_request(self._table, self._moment)
            if job.spec.group is not None:
                uuid = job.spec.group.uuid
                group = self._groups.get(uuid) or GroupSlots(group_uuid=uuid)
                shared = members.get(uuid) or members.setdefault(uuid, Members(group.slots, group))
                own_slots = job.own_slots(group.slots)
                request.members = shared.view_without(own_slots) if own_slots else shared
                request.companions = job.count_companions(group.slots)
            self._requests.append(request)

    def _open_jobs(self) -> list[tuple[Job, Request]]:
        pairs = zip(self._jobs, self._requests, strict=True)
        return [(job, request) for job, request in pairs if job.standing.needed and job.is_open]

    def _run_step(self, plan: Callable[[Job, Request, Savepoint], set[int]], job: Job, request: Request) -> set[int]:
        """Run one planning step for one job. An exception, such as one of a site's own filter, fails this job only.

        Undoes what the step took if the job failed, was refused or was lost. Returns the ids of the inventories to lock.
        """
        step = Savepoint(self._table, request)
        inventory_ids: set[int] = set()
        try:
            inventory_ids = plan(job, request, step)
        except Exception as error:  # noqa: BLE001 - raised again in the job's own caller
            job.error = error
        if not job.is_open:
            job.rows = {}
            step.undo()
        return inventory_ids if job.is_open else set()

    def _plan_job(self, job: Job, request: Request, step: Savepoint) -> set[int]:
        needed = job.standing.needed
        job.together = request.founds_group and len(needed) > 1
        surveyed = job.survey = survey(self._table, self._driver, request, len(needed))
        chosen = self._place_and_keep(job, request, surveyed, len(needed))
        job.first_kept = job.inputs
        job.rows = dict(zip(needed, chosen, strict=False))
        if len(chosen) < len(needed):
            Refusals(self._table, self._driver, self._moment).refuse_job(job, request, step)
        return set()

    def _place_and_keep(self, job: Job, request: Request, surveyed: Survey, count: int) -> list[int]:
        """Choose hosts of the survey, and keep what they are chosen on. The table shows nothing of the job yet."""
        inputs = keep_best_hosts(self._table, request, surveyed, count, self._driver.subset)
        if not inputs.rows:
            return self._driver.place_instances(self._table, request, surveyed, count)
        step = Savepoint(self._table, request)
        chosen = self._driver.place_instances(self._table, request, surveyed, count)
        if chosen and chosen[0] not in inputs.rows:
            step.undo()
            inputs = with_chosen(inputs, self._table, request, surveyed, chosen[0])
            for row in chosen:
                engine.take_row(self._table, request, row)
        job.inputs = inputs
        return chosen

    def _settle_jobs(self) -> None:
        """Finish a plan that was repaired or has refused jobs: take the final hosts, then choose alternates and remedies.

        A job with a host that could not be locked is lost. So is one whose NUMA nodes are not free any more. That happens only if
        other jobs were repaired, and took nodes in another order.
        """
        for job in self._jobs:
            if any(int(self._table.inventory[row]) not in self._locked for row in job.rows.values()):
                job.lost, job.rows = True, {}
        with self._table.take_tentatively():
            self._make_requests()
            for job, request in self._open_jobs():
                step = Savepoint(self._table, request)
                for row in job.rows.values():
                    engine.take_row(self._table, request, row)
                if None in request.nodes:
                    step.undo()
                    job.lost, job.rows = True, {}
            self._give_alternates(self._open_jobs())
            self._compute_remedies()

    def _give_alternates(self, jobs: Sequence[tuple[Job, Request]]) -> None:
        """Choose alternates, and note the NUMA nodes of all hosts. The table must already show what these jobs take.

        Alternates without room on nodes are dropped.
        """
        for job, request in jobs:
            if job.survey is not None:
                try:
                    job.alternates = Alternates(self._table, self._driver, request, job.survey).choose_rows(list(job.rows.items()))
                except Exception:  # a site's own filter may fail on hosts that have taken instances since it passed them
                    LOG.exception("batch %s: placed without alternates", job.spec.batch_id)
                    job.alternates = {}
            if self._table.classes.numa:
                self._note_nodes(job, request)

    def _note_nodes(self, job: Job, request: Request) -> None:
        job.numa_nodes = {place: nodes or () for place, nodes in zip(job.rows.items(), request.nodes, strict=True)}
        for uuid, others in job.alternates.items():
            nodes_by_row = {row: self._table.nodes_for(row, request.node_part) for row in others}
            job.alternates[uuid] = [row for row in others if nodes_by_row[row] is not None]
            job.numa_nodes |= {(uuid, row): nodes for row, nodes in nodes_by_row.items() if nodes is not None}

    def _compute_remedies(self) -> None:
        """Compute what would have been enough for refused jobs, with everything that was placed taken in the table."""
        for job, request in zip(self._jobs, self._requests, strict=True):
            if job.is_final and not (job.is_open or job.lost or job.error):
                needed_count = len(job.standing.needed)
                flavors = self._moment.flavors(job.spec.project_id)
                job.remedies = find_remedies(self._table, self._driver, request, needed_count, job.least_count, flavors)

    # -- confirming ------------------------------------------------------------------------------------------------------------

    def _repair_choices(self, jobs: Sequence[tuple[Job, Request]]) -> set[int] | None:
        """Keep every choice that still fits, for all jobs; then find other hosts for the rest.

        Returns the ids of the inventories to lock. Returns None if a job failed: the caller then starts again without it.
        """
        inventory_ids: set[int] = set()
        for plan in (self._keep_fitting, self._replace_losers):
            for job, request in jobs:
                inventory_ids |= self._run_step(plan, job, request)
                if not job.is_open:
                    return None
        return inventory_ids

    def _keep_fitting(self, job: Job, request: Request, step: Savepoint) -> set[int]:
        job.losers = [uuid for uuid, row in job.rows.items() if not self._still_fits(request, row)]
        job.conflicts += len(job.losers)
        if job.losers and job.together:
            job.losers = list(job.rows)
            step.undo()
        return set()

    def _replace_losers(self, job: Job, request: Request, step: Savepoint) -> set[int]:
        """Choose other hosts for the losers, locked ones if possible. Returns the ids of the inventories to lock.

        Among a few locked hosts a soft policy would have too little choice: it is only a weight.
        """
        losers = job.losers
        if not losers:
            return set()
        job.taken |= dict.fromkeys(self._table.hosts[job.rows[uuid]] for uuid in losers)
        chosen: list[int] = []
        if not job.together and not request.has_soft_policy:
            at_hand = survey(
                self._table, self._driver, request, len(losers), within=self._table.rows_of_inventories(sorted(self._locked))
            )
            chosen = self._choose_again(job, request, at_hand, len(losers))
        elsewhere = losers[len(chosen) :]
        inventory_ids: set[int] = set()
        if elsewhere:
            surveyed = survey(self._table, self._driver, request, len(elsewhere), within=self._available_rows())
            inventory_ids = self._spare_inventories(surveyed, len(elsewhere))
            further = self._choose_again(job, request, surveyed, len(elsewhere))
            inventory_ids |= {int(self._table.inventory[row]) for row in further}
            chosen += further
        remaining = {uuid: row for uuid, row in job.rows.items() if uuid not in losers}
        job.rows = remaining | dict(zip(losers, chosen, strict=False))
        if len(chosen) < len(losers):
            if self._requested - self._locked:  # another transaction has locked a host that may fit
                job.lost = True
            else:
                Refusals(self._table, self._driver, self._moment).refuse_job(job, request, step)
        return inventory_ids - self._locked

    def _choose_again(self, job: Job, request: Request, surveyed: Survey, count: int) -> list[int]:
        """Choose hosts for losers. If these are all of the job's servers, they are chosen on this survey alone."""
        if count < len(job.standing.needed):
            chosen = self._driver.place_instances(self._table, request, surveyed, count)
            job.replaced += len(chosen)
            return chosen
        return self._place_and_keep(job, request, surveyed, count)

    def _still_fits(self, request: Request, row: int) -> bool:
        if int(self._table.inventory[row]) not in self._locked:
            return False
        if not engine.fitting_rows(self._driver, self._table, request, np.array([row]))[0]:
            return False
        engine.take_row(self._table, request, row)
        return True

    def _available_rows(self) -> Ints:
        """All rows except those that another transaction holds locked."""
        refused = self._table.rows_of_inventories(sorted(self._requested - self._locked))
        return np.setdiff1d(np.arange(self._table.size), refused)

    def _spare_inventories(self, surveyed: Survey, count: int) -> set[int]:
        """The ids of a few more inventories than are needed, because other transactions may hold some of them locked."""
        best, _ = surveyed.best_rows(count + 4)
        return set(self._table.inventory[best].tolist())
