"""Jobs that find no host for one of their instances: why, and whether it might be otherwise in a moment."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from objects.cell import CellState
from scheduler.drivers.base import SchedulerDriver
from scheduler.plan import engine
from scheduler.plan.job import Job, PlanContext
from scheduler.plan.request import Request
from scheduler.plan.together import survey
from scheduler.table.host_table import HostTable
from scheduler.table.hosts import Hosts

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
        cells = _unheard(self._table, request.alive_since, since)
        if cells:
            request.unheard_cells = frozenset(cells)
            if self._could(job, request, step):
                job.unheard = tuple(sorted(cells.values()))
            request.unheard_cells = frozenset()
        if not job.unheard and self._moment.began > since:
            job.unheard = tuple(sorted(unseen(self._table, request, self._moment.ages)))


def _unheard(table: HostTable, alive_since: float, after: float) -> dict[int, str]:
    """Cells, by number, none of whose hosts was heard of since ``alive_since`` and one was after ``after``, with their names.

    Such a cell's bus or database may be away rather than all of its hosts. Hosts whose agents have said that they stop, or that
    were called down, tell nothing.
    """
    latest = np.full(len(table.cells), -np.inf)
    rows = np.flatnonzero(table.eligible[: table.size])
    np.maximum.at(latest, table.cell[rows], table.heard_at[rows])
    found = np.flatnonzero((latest > after) & (latest < alive_since))
    return {cell: table.cells[cell].name for cell in found.tolist()}


def unseen(table: HostTable, request: Request, ages: Mapping[str, float | None]) -> set[str]:
    """Names of cells that this process never had an answer from, and that have a host with room for one server by the ledger.

    ``ages``: None for a cell that never answered. Of its hosts only claims, zones and names are known; other filters are not asked.
    """
    silent = [
        number
        for number, cell in enumerate(table.cells)
        if cell.state is CellState.ENABLED and ages.get(cell.name, 0.0) is None and number not in request.excluded_cells
    ]
    if request.only_cell is not None:
        silent = [number for number in silent if number == request.only_cell]
    there = np.isin(table.home[: table.size], silent) & (table.cell[: table.size] < 0) & (table.inventory[: table.size] > 0)
    if request.zone is not None:
        there &= table.zone[: table.size] == request.zone
    rows = np.flatnonzero(there)
    hosts = Hosts(table, request, rows)
    room = hosts.room("vcpus") >= request.vcpus
    room &= (hosts.room("memory_mb") >= request.memory_mb) & (hosts.room("disk_gb") >= request.disk_gb)
    if request.forced:
        room &= hosts.named(request.spec.force_hosts, request.spec.force_nodes)
    return {table.cells[number].name for number in table.home[rows[room]].tolist()}
