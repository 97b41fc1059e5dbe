"""Jobs that find no host for one of their instances: why, and whether it might be otherwise in a moment."""

from __future__ import annotations

from scheduler.drivers.base import SchedulerDriver
from scheduler.plan import engine, silence
from scheduler.plan.job import Job, PlanContext
from scheduler.plan.request import Request
from scheduler.plan.together import survey
from scheduler.table.host_table import HostTable

OUTAGE = 1800.0
"""Seconds for which cells are waited for that fell silent as a whole. After that their hosts are as down as any."""


class Refusals:
    """Tells jobs why, on the table as they have left it."""

    def __init__(self, table: HostTable, driver: SchedulerDriver, moment: PlanContext) -> None:
        self._table, self._driver, self._moment = table, driver, moment

    def refuse(self, job: Job, request: Request, step: engine.PlanningStep) -> None:
        """No host for the next instance: say why, and whether it might be otherwise in a moment."""
        job.short = len(job.rows)
        # what would be if no retry held a host and nobody moved; counted so, as that will be
        request.yielding = request.members.any_held or request.split
        job.counts = engine.survey(self._table, self._driver, request).counts
        if request.yielding and self._could(job, request, step):
            job.held = True
        elif self._table.awaited(self._moment.mapped_since):
            job.premature = True
        elif self._moment.young:
            request.assume_up = True
            unseen = any(age is None for age in self._moment.ages.values())
            job.premature = unseen or self._could(job, request, step)
        else:
            self._look_for_unheard(job, request, step)
        job.partial = not job.premature and len(job.rows) >= job.least
        if job.partial:  # it is not worth a wait
            job.held, job.unheard = False, ()

    def _could(self, job: Job, request: Request, step: engine.PlanningStep) -> bool:
        """Whether all would find hosts, as things are supposed to be now. What the job has taken is as before afterwards."""
        mark, members, missing = self._table.mark, request.members.copy(), len(job.standing.needed) - len(job.rows)
        if job.together:  # elsewhere there might be room for all of them
            step.undo()
            missing = len(job.standing.needed)
        found = survey(self._table, self._driver, request, missing)
        chosen = self._driver.place(self._table, request, found, missing)
        if job.together:
            step.undo()
            for row in job.rows.values():
                engine.take(self._table, request, row)
        else:
            self._table.give_back(mark)
            request.members.restore(members)
        return len(chosen) == missing

    def _look_for_unheard(self, job: Job, request: Request, step: engine.PlanningStep) -> None:
        """Whether cells could take it from none of whose hosts anything is heard: then it waits for them, up to its deadline."""
        since = self._moment.mono - OUTAGE
        unheard = silence.unheard(self._table, request.alive_since, since)
        if unheard:
            request.unheard_cells = frozenset(unheard)
            if self._could(job, request, step):
                job.unheard = tuple(sorted(unheard.values()))
            request.unheard_cells = frozenset()
        if not job.unheard and self._moment.began > since:
            job.unheard = tuple(sorted(silence.unseen(self._table, request, self._moment.ages)))
