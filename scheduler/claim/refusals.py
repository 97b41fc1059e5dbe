"""Decide why a job found too few hosts, and whether it should wait because the answer may change soon."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

import numpy as np

from objects.cell import CellState
from scheduler.engine import engine
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import Job, PlanContext
from scheduler.engine.surveying import survey
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.table.host_table import HostTable

OUTAGE_WAIT_S = 1800.0
"""Seconds for which requests wait for a cell that has fallen silent as a whole. After that its hosts count as down."""


class Refusals:
    """Sets the reasons in jobs that are short of hosts. The table must show what the jobs have taken."""

    def __init__(self, table: HostTable, driver: SchedulerDriver, moment: PlanContext) -> None:
        self._table, self._driver, self._moment = table, driver, moment

    def refuse_job(self, job: Job, request: Request, step: engine.Savepoint) -> None:
        """Mark the job as short of hosts, with the reason, and as waiting if more hosts may fit soon."""
        job.short = len(job.rows)
        # count as if no slot were held for a retry and no member were moving: that is how it will be soon
        request.yielding = request.members.any_held or request.is_split
        _, job.counts = engine.narrow_hosts(self._driver.chain_for(request).all_filters, Hosts(self._table, request), request)
        unread = unread_cells(self._table, request, self._moment.ages)
        silent = {cell for cell, age in self._moment.ages.items() if age is None} - set(self._moment.reading)
        if request.yielding and self._could_place(job, request, step):
            job.held = True
        elif (
            unread - silent
            or self._table.awaits_hosts(self._moment.mapped_since, silent)
            or (self._moment.young and self._could_if_up(job, request, step, silent))
        ):
            job.premature = True
        else:
            self._look_for_unheard(job, request, step, unread)
        job.partial = not job.premature and len(job.rows) >= job.least_count
        if job.partial:  # enough instances are placed, so the job does not wait for the others
            job.held, job.unheard = False, ()

    def _could_place(self, job: Job, request: Request, step: engine.Savepoint) -> bool:
        """Whether all instances would find hosts under the assumptions set in ``request``. Restores what the job has taken."""
        mark, members, missing = self._table.undo_mark, request.members.undo_mark, len(job.standing.needed) - len(job.rows)
        if job.together:  # another host might have room for all of them
            step.undo()
            missing = len(job.standing.needed)
        surveyed = survey(self._table, self._driver, request, missing)
        chosen = self._driver.place_instances(self._table, request, surveyed, missing)
        if job.together:
            step.undo()
            for row in job.rows.values():
                engine.take_row(self._table, request, row)
        else:
            self._table.give_back(mark)
            request.members.give_back(members)
        return len(chosen) == missing

    def _could_if_up(self, job: Job, request: Request, step: engine.Savepoint, silent: Container[str]) -> bool:
        """Whether all instances would find hosts if all hosts were up, but for those of ``silent`` cells, by name."""
        request.returning_cells = frozenset(n for n, cell in enumerate(self._table.cells) if cell.name not in silent)
        try:
            return self._could_place(job, request, step)
        finally:
            request.returning_cells = frozenset()

    def _look_for_unheard(self, job: Job, request: Request, step: engine.Savepoint, unread: Collection[str]) -> None:
        """If cells without any sign of life could take the job, set ``job.unheard``: it then waits for them until its deadline.

        ``unread``: those that have never answered, by name.
        """
        since = self._moment.mono - OUTAGE_WAIT_S
        cells = _unheard_cells(self._table, request.alive_since, since)
        if cells:
            request.unheard_cells = frozenset(cells)
            if self._could_place(job, request, step):
                job.unheard = tuple(sorted(cells.values()))
            request.unheard_cells = frozenset()
        if not job.unheard and self._moment.began > since:
            job.unheard = tuple(sorted(unread))


def _unheard_cells(table: HostTable, alive_since: float, after: float) -> dict[int, str]:
    """Names, by cell number, of the cells whose latest sign of life is after ``after`` but before ``alive_since``.

    The bus or database of such a cell is more likely to be down than all of its hosts. Hosts whose agents are stopping, or that
    are forced down, are not considered.
    """
    latest = np.full(len(table.cells), -np.inf)
    rows = np.flatnonzero(table.eligible[: table.size])
    np.maximum.at(latest, table.cell[rows], table.heard_at[rows])
    cell_numbers = np.flatnonzero((latest > after) & (latest < alive_since))
    return {cell: table.cells[cell].name for cell in cell_numbers.tolist()}


def unread_cells(table: HostTable, request: Request, ages: Mapping[str, float | None]) -> set[str]:
    """Names of cells that this process has never read as a whole, and that have a host with room for one server by the ledger.

    ``ages``: None for a cell that was never read. Only claims, zones and names of its hosts are known, so no other filter runs.
    """
    silent = [
        number
        for number, cell in enumerate(table.cells)
        if cell.state is CellState.ENABLED and ages.get(cell.name, 0.0) is None and number not in request.excluded_cells
    ]
    if request.only_cell is not None:
        silent = [number for number in silent if number == request.only_cell]
    if not silent:
        return set()
    home, cell = table.home[: table.size], table.cell[: table.size]
    # of a cell that is being read, nodes are in the table before anything is known of their agents
    is_on_silent = np.isin(home, silent) & ((cell < 0) | (cell == home)) & (table.inventory[: table.size] > 0)
    if request.zone is not None:
        is_on_silent &= table.zone[: table.size] == request.zone
    rows = np.flatnonzero(is_on_silent)
    hosts = Hosts(table, request, rows)
    room = hosts.free_room("vcpus") >= request.vcpus
    room &= (hosts.free_room("memory_mb") >= request.memory_mb) & (hosts.free_room("disk_gb") >= request.disk_gb)
    if request.is_forced:
        room &= hosts.bear_name(request.spec.force_hosts, request.spec.force_nodes)
    return {table.cells[number].name for number in table.home[rows[room]].tolist()}
