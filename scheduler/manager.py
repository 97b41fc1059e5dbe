"""The scheduler's one call: choose hosts for a batch and claim them."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence

from db import claims
from objects import errors
from objects.context import RequestContext
from objects.selection import Selection
from objects.spec import RequestSpec
from scheduler.attempt import Attempt
from scheduler.cursor import Cursor
from scheduler.drivers.base import Driver
from scheduler.job import Job, Moment, checked
from scheduler.settings import Settings
from scheduler.table import HostTable
from service.coalesce import Coalescer

LOG = logging.getLogger(__name__)

TRIES = 5
"""Transactions a batch may lose to others before its caller is told to come again."""
PAUSE = 0.2
"""Seconds between two looks for hosts that this process has not heard of yet."""


class SchedulerManager:
    """Serves the topic ``scheduler``. Calls of one moment share a transaction, in which each batch stands or falls by itself."""

    def __init__(
        self,
        settings: Settings,
        driver: Driver,
        table: HostTable,
        cursor: Cursor,
        ledger: claims.Ledger,
        ages: Callable[[], Mapping[str, float | None]],
        topology: Callable[..., int] = lambda *, look: 0,
    ) -> None:
        """``ages``: seconds since each cell's view was refreshed, by the cell's name; None where nothing is known of it.

        ``topology(look=...)``: the number of the cells, mappings and zones that the table has; with ``look`` after a new look.
        """
        self._settings = settings
        self._driver = driver
        self._table = table
        self._cursor = cursor
        self._ledger = ledger
        self._ages = ages
        self._topology = topology
        self._started = time.monotonic()
        self._schedule: Coalescer[Job, Job] = Coalescer(self._schedule_all, window=settings.claim_window)

    def select_destinations(
        self, context: RequestContext, request_spec: RequestSpec, instance_uuids: Sequence[str]
    ) -> list[list[Selection]]:
        """A claimed host for every instance, each followed by unclaimed alternates of its cell; all of them, or none.

        In the order of ``instance_uuids``. An instance that is not leased under ``request_spec.fences`` any more gets an empty
        list; the others are not affected. Asked again, the same answer comes back. Raises NoValidHost with the id of the stored
        decision, Invalid for a malformed call, Conflict where other schedulers were faster too often, DatabaseUnavailable.
        """
        planned_on = self._topology(look=False)
        job = self._try(checked(context, request_spec, instance_uuids))
        if job.short is not None and self._topology(look=True) != planned_on:  # an operator has just changed something
            job = self._try(job)
        self._log(job)
        return job.answer()

    def _try(self, job: Job) -> Job:
        for tries in range(TRIES):
            if tries:  # full jitter, so that who met once does not meet again
                time.sleep(random.uniform(0.0, 0.005 * 2**tries))
            job = self._schedule(job)
            while job.premature:
                time.sleep(PAUSE)
                job = self._schedule(job)
            if not job.lost:
                return job
        raise errors.Conflict(f"batch {job.spec.batch_id}: hosts were taken by others {TRIES} times in a row; ask again")

    def _schedule_all(self, jobs: Sequence[Job]) -> list[Job | Exception]:
        """Calls for the same instances - a conductor that asks again while it is being answered - come one after the other."""
        waiting = list(jobs)
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
        return [job.error or job for job in jobs]

    def _claim(self, jobs: Sequence[Job]) -> None:
        asks = [job.ask for job in jobs]
        for last in (False, False, True):
            attempt = Attempt(self._table, self._driver, self._cursor, jobs, self._now())
            try:
                claimed = self._ledger.write(claims.claim, asks, attempt)
            except claims.Raced:
                if last:
                    raise
            else:
                attempt.committed(claimed.inventories)
                return

    def _now(self) -> Moment:
        mono = time.monotonic()
        return Moment(
            mono=mono,
            wall=time.time(),
            alive_since=mono - self._settings.service_down_time,
            young=mono - self._started < self._settings.warm_up,
            ages=self._ages(),
        )

    def _log(self, job: Job) -> None:
        decision = job.decision
        if decision is not None:
            outcome = decision.message or f"{len(job.placements)} placed"
            LOG.info("batch %s (%s): %s, decision %s", job.spec.batch_id, job.context.request_id, outcome, decision.id)
