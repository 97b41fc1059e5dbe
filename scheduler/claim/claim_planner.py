"""Plan the jobs of one transaction, and repair the plan when the locked rows differ from what it was made on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from objects.decision import Decision
from objects.inventory import GroupSlots, Inventory, Placement, Standing
from scheduler.claim.cursor import Cursor
from scheduler.claim.refusals import Refusals
from scheduler.claim.result import conclude
from scheduler.engine import engine
from scheduler.engine.alternates import Alternates
from scheduler.engine.decision_inputs import keep, with_chosen
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.engine import PlanningStep
from scheduler.engine.job import Job, PlanContext
from scheduler.engine.survey import Survey
from scheduler.engine.surveying import survey
from scheduler.explain.remedies import remedies
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
        self._asked: set[int] = set()
        self._overtaken = False
        self._complete = False  # the first plan placed every job and chose the alternates: ``finish`` need not plan again
        self._refusals = Refusals(table, driver, moment)
        self.rivals: set[int] = set()
        """Writers of the claims log that have claimed room without this process knowing it."""

    @property
    def overtaken(self) -> bool:
        return self._overtaken

    @property
    def log_position(self) -> tuple[Mapping[int, int], int]:
        return self._cursor.position()

    def begin(self, changes: Sequence[Inventory], standings: Sequence[Standing], groups: Sequence[GroupSlots]) -> Collection[int]:
        with self._table.lock:
            if changes:
                self._meet(changes)
                self._learn(changes)
                self._cursor.advance(changes)
            ledger = self._cursor.latest(WRITERS_SHOWN)
            self._groups = {group.group_uuid: group for group in groups}
            self._locked, self._complete, self._overtaken = set(), False, False
            for job, standing in zip(self._jobs, standings, strict=True):
                job.restart(standing)
                job.ledger = ledger
            with self._table.tentative():
                self._open()
                jobs = self._open_jobs()
                for job, request in jobs:
                    self._guarded(self._plan, job, request)
                self._complete = all(job.short is None and job.error is None and None not in request.nodes for job, request in jobs)
                if self._complete:
                    self._give_alternates(jobs)
            rows = {row for job in self._jobs for row in job.rows.values()}
            self._planned = {self._table.inventory.item(row): self._table.generation.item(row) for row in rows}
            self._asked = set(self._planned)
            return self._asked

    def confirm(self, locked: Sequence[Inventory]) -> Collection[int]:
        with self._table.lock:
            self._locked.update(row.id for row in locked)
            news = [row for row in locked if row.generation != self._planned.get(row.id)]
            if news:
                self._overtaken = True
                self._meet(news)
                self._learn(news)
            if self._asked == self._planned.keys() <= self._locked and not any(row.id in self._planned for row in news):
                return ()  # these hosts have not changed since the plan was made
            self._complete = False
            wanted: set[int] | None = None
            while wanted is None:
                with self._table.tentative():
                    self._open()
                    wanted = self._repair_choices(self._open_jobs())
            self._asked |= wanted
            return wanted

    def finish(self) -> tuple[Sequence[Sequence[Placement]], Sequence[Decision]]:
        with self._table.lock:
            if not (self._complete and self._planned.keys() <= self._locked):
                self._settle()
            for job, request in zip(self._jobs, self._requests, strict=True):
                if job.standing.needed and not job.lost and job.error is None:
                    conclude(job, request, self._table, self._driver, self._moment)
            decisions = [job.decision for job in self._jobs if job.decision is not None and not job.premature]
            return [job.placements for job in self._jobs], decisions

    def committed(self, inventories: Sequence[Inventory]) -> None:
        """Enter these rows into the table, as the committed transaction left them."""
        with self._table.lock:
            self._learn(inventories)
            self._cursor.advance(inventories)

    def _meet(self, rows: Sequence[Inventory]) -> None:
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

    def _learn(self, rows: Sequence[Inventory]) -> None:
        for row in rows:
            self._table.set_inventory(row, self._moment.mono)

    def _open(self) -> None:
        """Make the requests anew, with the group members that the database has. Jobs of one group share one ``Members``."""
        members: dict[str, Members] = {}
        self._requests = []
        for job in self._jobs:
            request = job.request(self._table, self._moment)
            if job.spec.group is not None:
                uuid = job.spec.group.uuid
                group = self._groups.get(uuid) or GroupSlots(group_uuid=uuid)
                shared = members.get(uuid) or members.setdefault(uuid, Members(group.slots, group))
                own = job.own(group.slots)
                request.members = shared.without(own) if own else shared
                request.companions = job.companions(group.slots)
            self._requests.append(request)

    def _open_jobs(self) -> list[tuple[Job, Request]]:
        pairs = zip(self._jobs, self._requests, strict=True)
        return [(job, request) for job, request in pairs if job.standing.needed and job.open]

    def _guarded(self, plan: Callable[[Job, Request, PlanningStep], set[int]], job: Job, request: Request) -> set[int]:
        """Run one planning step for one job. An exception, such as one of a site's own filter, fails this job only.

        Undoes what the step took if the job failed, was refused or was lost. Returns the ids of the inventories to lock.
        """
        step = PlanningStep(self._table, request)
        wanted: set[int] = set()
        try:
            wanted = plan(job, request, step)
        except Exception as error:  # noqa: BLE001 - raised again in the job's own caller
            job.error = error
        if not job.open:
            job.rows = {}
            step.undo()
        return wanted if job.open else set()

    def _plan(self, job: Job, request: Request, step: PlanningStep) -> set[int]:
        needed = job.standing.needed
        job.together = request.founding and len(needed) > 1
        found = job.survey = survey(self._table, self._driver, request, len(needed))
        chosen = self._place_and_keep(job, request, found, len(needed))
        job.first_kept = job.kept
        job.rows = dict(zip(needed, chosen, strict=False))
        if len(chosen) < len(needed):
            self._refusals.refuse(job, request, step)
        return set()

    def _place_and_keep(self, job: Job, request: Request, found: Survey, count: int) -> list[int]:
        """Choose hosts of the survey, and keep what they are chosen on. The table shows nothing of the job yet."""
        kept = keep(self._table, request, found, count, self._driver.subset)
        if not kept.rows:
            return self._driver.place(self._table, request, found, count)
        step = PlanningStep(self._table, request)
        chosen = self._driver.place(self._table, request, found, count)
        if chosen and chosen[0] not in kept.rows:
            step.undo()
            kept = with_chosen(kept, self._table, request, found, chosen[0])
            for row in chosen:
                engine.take(self._table, request, row)
        job.kept = kept
        return chosen

    def _settle(self) -> None:
        """Finish a plan that was repaired or has refused jobs: take the final hosts, then choose alternates and remedies.

        A job with a host that could not be locked is lost. So is one whose NUMA nodes are not free any more. That happens only if
        other jobs were repaired, and took nodes in another order.
        """
        for job in self._jobs:
            if any(int(self._table.inventory[row]) not in self._locked for row in job.rows.values()):
                job.lost, job.rows = True, {}
        with self._table.tentative():
            self._open()
            for job, request in self._open_jobs():
                step = PlanningStep(self._table, request)
                for row in job.rows.values():
                    engine.take(self._table, request, row)
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
                    job.alternates = Alternates(self._table, self._driver, request, job.survey).of(list(job.rows.items()))
                except Exception:  # a site's own filter may fail on hosts that have taken instances since it passed them
                    LOG.exception("batch %s: placed without alternates", job.spec.batch_id)
                    job.alternates = {}
            if self._table.classes.numa:
                self._note_nodes(job, request)

    def _note_nodes(self, job: Job, request: Request) -> None:
        job.numa_nodes = {place: nodes or () for place, nodes in zip(job.rows.items(), request.nodes, strict=True)}
        for uuid, others in job.alternates.items():
            found = {row: self._table.nodes_for(row, request.part) for row in others}
            job.alternates[uuid] = [row for row in others if found[row] is not None]
            job.numa_nodes |= {(uuid, row): nodes for row, nodes in found.items() if nodes is not None}

    def _compute_remedies(self) -> None:
        """Compute what would have been enough for refused jobs, with everything that was placed taken in the table."""
        for job, request in zip(self._jobs, self._requests, strict=True):
            if job.is_final and not (job.open or job.lost or job.error):
                wanted = len(job.standing.needed)
                flavors = self._moment.flavors(job.spec.project_id)
                job.remedies = remedies(self._table, self._driver, request, wanted, job.least, flavors)

    # -- confirming ------------------------------------------------------------------------------------------------------------

    def _repair_choices(self, jobs: Sequence[tuple[Job, Request]]) -> set[int] | None:
        """Keep every choice that still fits, for all jobs; then find other hosts for the rest.

        Returns the ids of the inventories to lock. Returns None if a job failed: the caller then starts again without it.
        """
        wanted: set[int] = set()
        for plan in (self._keep, self._replace):
            for job, request in jobs:
                wanted |= self._guarded(plan, job, request)
                if not job.open:
                    return None
        return wanted

    def _keep(self, job: Job, request: Request, step: PlanningStep) -> set[int]:
        job.losers = [uuid for uuid, row in job.rows.items() if not self._still_fits(request, row)]
        job.conflicts += len(job.losers)
        if job.losers and job.together:
            job.losers = list(job.rows)
            step.undo()
        return set()

    def _replace(self, job: Job, request: Request, step: PlanningStep) -> set[int]:
        """Choose other hosts for the losers, locked ones if possible. Returns the ids of the inventories to lock.

        Among a few locked hosts a soft policy would have too little choice: it is only a weight.
        """
        losers = job.losers
        if not losers:
            return set()
        job.taken |= dict.fromkeys(self._table.hosts[job.rows[uuid]] for uuid in losers)
        chosen: list[int] = []
        if not job.together and not request.has_soft_policy:
            at_hand = survey(self._table, self._driver, request, len(losers), within=self._table.rows(sorted(self._locked)))
            chosen = self._choose_again(job, request, at_hand, len(losers))
        elsewhere = losers[len(chosen) :]
        wanted: set[int] = set()
        if elsewhere:
            found = survey(self._table, self._driver, request, len(elsewhere), within=self._available())
            wanted = self._spares(found, len(elsewhere))
            further = self._choose_again(job, request, found, len(elsewhere))
            wanted |= {int(self._table.inventory[row]) for row in further}
            chosen += further
        kept = {uuid: row for uuid, row in job.rows.items() if uuid not in losers}
        job.rows = kept | dict(zip(losers, chosen, strict=False))
        if len(chosen) < len(losers):
            if self._asked - self._locked:  # another transaction has locked a host that may fit
                job.lost = True
            else:
                self._refusals.refuse(job, request, step)
        return wanted - self._locked

    def _choose_again(self, job: Job, request: Request, found: Survey, count: int) -> list[int]:
        """Choose hosts for losers. If these are all of the job's servers, they are chosen on this survey alone."""
        if count < len(job.standing.needed):
            chosen = self._driver.place(self._table, request, found, count)
            job.replaced += len(chosen)
            return chosen
        return self._place_and_keep(job, request, found, count)

    def _still_fits(self, request: Request, row: int) -> bool:
        if int(self._table.inventory[row]) not in self._locked:
            return False
        if not engine.fits(self._driver, self._table, request, np.array([row]))[0]:
            return False
        engine.take(self._table, request, row)
        return True

    def _available(self) -> Ints:
        """All rows except those that another transaction holds locked."""
        refused = self._table.rows(sorted(self._asked - self._locked))
        return np.setdiff1d(np.arange(self._table.size), refused)

    def _spares(self, found: Survey, wanted: int) -> set[int]:
        """The ids of a few more inventories than are needed, because other transactions may hold some of them locked."""
        best, _ = found.best(wanted + 4)
        return set(self._table.inventory[best].tolist())
