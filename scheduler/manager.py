"""The scheduler's one call: choose hosts for a batch and claim them."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from db.api import claims, places
from objects import errors, hints
from objects.choice import Choice, refused
from objects.context import RequestContext
from objects.selection import Selection
from objects.spec import RequestSpec
from scheduler.cursor import Cursor
from scheduler.drivers.base import SchedulerDriver
from scheduler.plan.claim_planner import ClaimPlanner
from scheduler.plan.job import Job, PlanContext, checked
from scheduler.plan.stripes import Stripes
from scheduler.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from service import metrics
from service.batching import GroupCommit
from service.steps import step

LOG = logging.getLogger(__name__)

TRIES = 5
"""Transactions a batch may lose to others before its caller is told to come again."""
PAUSE = 0.2
"""Seconds between two looks for hosts that this process has not heard of yet."""


class SchedulerManager:
    """Serves the topic ``scheduler``. Calls of one moment share a transaction, in which each batch stands or falls by itself."""

    def __init__(
        self,
        settings: SchedulerSettings,
        driver: SchedulerDriver,
        table: HostTable,
        cursor: Cursor,
        ledger: claims.Ledger,
        ages: Callable[[], Mapping[str, float | None]],
        topology: Callable[..., Mapping[str, int]] = lambda *, look: {},
    ) -> None:
        """``ages``: seconds since each cell's view was refreshed, by the cell's name; None where nothing is known of it.

        ``topology(look=...)``: the epochs of the cells, mappings and aggregates that the table has; with ``look`` after a new look.
        """
        self._settings = settings
        self._driver = driver
        self._table = table
        self._cursor = cursor
        self._ledger = ledger
        self._ages = ages
        self._topology = topology
        self._started = time.monotonic()
        self._stripes = Stripes()
        self.conflicts = 0
        """How often a host that was planned for an instance had been taken by another scheduler when its row was locked."""
        self._schedule: GroupCommit[Sequence[Job], None] = GroupCommit(
            self._schedule_all, window=settings.claim_window, transient=(errors.Transient, claims.Raced)
        )

    def reload(self, settings: SchedulerSettings, driver: SchedulerDriver) -> None:
        """Choose by another driver, filters and weighers from the next transaction on."""
        self._settings, self._driver = settings, driver

    def select_destinations(
        self, context: RequestContext, request_spec: RequestSpec, instance_uuids: Sequence[str]
    ) -> list[list[Selection]]:
        """A claimed host for every instance, each followed by unclaimed alternates of its cell; all of them, or none.

        In the order of ``instance_uuids``. An instance that is not leased under ``request_spec.fences`` any more gets an empty
        list; the others are not affected. So does one that finds no host where ``request_spec.min_count`` others do, which are
        enough. Asked again, the same claims come back. For a move the one uuid is the operation's, not the server's.

        Raises NoValidHost with the id of the stored decision, CellUnavailable where cells that could take them are out of reach,
        Invalid for a malformed call, Conflict where other schedulers were faster too often, DatabaseUnavailable.
        """
        job = checked(context, request_spec, instance_uuids)
        job.places = self._places(request_spec)
        job = self._try(job)
        self._log(job)
        return job.answer()

    def select_for_each(self, context: RequestContext, request_specs: Sequence[RequestSpec]) -> list[Choice]:
        """The same for several batches in one transaction, each with all instances of its fences; answers in the order asked.

        A batch that finds no host because this process does not know the fleet yet is told to come again: it holds up nobody.
        """
        found: dict[int, Choice] = {}
        jobs: dict[int, Job] = {}
        for number, spec in enumerate(request_specs):
            own = msgspec.structs.replace(context, request_id=spec.request_id, project_id=spec.project_id, user_id=spec.user_id)
            try:
                jobs[number] = checked(own, spec, list(spec.fences))
                jobs[number].places = self._places(spec)
            except errors.SuperconductorError as error:
                found[number] = refused(error)
        self._try_all([job for number, job in jobs.items() if number not in found])
        for number, job in jobs.items():
            if number not in found:
                found[number] = self._choice(job)
        return [found[number] for number in range(len(request_specs))]

    def _try_all(self, jobs: Sequence[Job]) -> None:
        for tries in range(TRIES):
            if tries:
                time.sleep(random.uniform(0.0, 0.005 * 2**tries))
            if jobs:
                self._schedule(jobs)
            jobs = [job for job in jobs if job.lost and job.error is None]

    def _choice(self, job: Job) -> Choice:
        """Errors of ours are this batch's answer. Any other ends the call: the batches are then asked about one by one."""
        try:
            if job.error is not None:
                raise job.error
            if job.lost:
                raise _lost(job)
            if job.premature:
                raise errors.Conflict(f"batch {job.spec.batch_id}: not all hosts are known yet; ask again")
            self._log(job)
            return Choice(selections=tuple(map(tuple, job.answer())))
        except errors.SuperconductorError as error:
            return refused(error)

    def _places(self, spec: RequestSpec) -> Mapping[str, str]:
        """Where the servers are that hints name."""
        named = [uuid for name in (hints.SAME_HOST, hints.DIFFERENT_HOST) for uuid in hints.servers(spec.scheduler_hints, name)]
        return self._ledger.database.read(places.of_servers, spec.project_id, named) if named else {}

    def _try(self, job: Job) -> Job:
        for tries in range(TRIES):
            if tries:  # full jitter, so that who met once does not meet again
                time.sleep(random.uniform(0.0, 0.005 * 2**tries))
            self._schedule([job])
            while job.premature and job.error is None:
                time.sleep(PAUSE)
                self._schedule([job])
            if job.error is not None:
                raise job.error
            if not job.lost:
                return job
        raise _lost(job)

    def _schedule_all(self, calls: Sequence[Sequence[Job]]) -> list[Exception | None]:
        """Calls for the same instances - a conductor that asks again while it is being answered - come one after the other."""
        waiting = [job for jobs in calls for job in jobs]
        while waiting:
            together: list[Job] = []
            taken: set[str] = set()
            later: list[Job] = []
            for job in waiting:
                if taken.isdisjoint(job.uuids):
                    taken.update(job.uuids)
                    together.append(job)
                else:
                    later.append(job)
            self._claim(together)
            waiting = later
        return [None] * len(calls)

    def _claim(self, jobs: Sequence[Job]) -> None:
        asks = [job.ask for job in jobs]
        known = sum(job.conflicts for job in jobs)
        for last in (False, False, True):
            topology = {} if last else self._topology(look=False)  # that changes all the time: go on with what is known
            now = self._now()
            attempt = ClaimPlanner(self._table, self._stripes.apply(self._driver, now.mono), self._cursor, jobs, now)
            try:
                claimed = self._ledger.write(claims.claim, asks, attempt, topology)
            except claims.Raced:
                if last:
                    raise
            except claims.Outdated:
                self._topology(look=True)
            else:
                attempt.committed(claimed.inventories)
                conflicts = sum(job.conflicts for job in jobs) - known
                self.conflicts += conflicts
                metrics.CONFLICTS.inc(conflicts)
                own = claimed.inventories[0].writer if claimed.inventories else None
                self._stripes.learn(attempt.rivals, own, now.mono, conflict=conflicts > 0)
                return

    def _now(self) -> PlanContext:
        mono = time.monotonic()
        return PlanContext(
            mono=mono,
            wall=self._ledger.database.now(),
            alive_since=mono - self._settings.service_down_time,
            young=mono - self._started < self._settings.warm_up,
            mapped_since=mono - self._settings.warm_up,
            ages=self._ages(),
            began=self._started,
        )

    def _log(self, job: Job) -> None:
        decision = job.decision
        if decision is not None and job.is_final:
            metrics.DECISIONS.labels("partial" if job.partial else "refused" if decision.refused else "placed").inc()
            metrics.DECISION.observe(decision.elapsed_ms / 1000)
            metrics.CLAIMS.inc(len(job.placements))
            for choice in decision.choices:
                what = "selected" if choice.host else "refused"
                about = (choice.instance_uuid, job.spec.request_id)
                step(LOG, what, *about, cell=choice.cell, host=choice.host, decision=decision.id)
            placed = f"{len(job.placements)} placed"
            outcome = f"{placed}; {decision.message}" if job.partial else decision.message or placed
            LOG.info("batch %s (%s): %s, decision %s", job.spec.batch_id, job.context.request_id, outcome, decision.id)


def _lost(job: Job) -> errors.Conflict:
    return errors.Conflict(f"batch {job.spec.batch_id}: hosts were taken by others {TRIES} times in a row; ask again")
