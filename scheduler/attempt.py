"""Plan the jobs of one transaction, and keep the plan true on the rows that transaction locks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from objects.decision import Decision
from objects.group import Policy
from objects.inventory import Inventory, Placement, Slot, Standing
from scheduler import engine
from scheduler.alternates import Alternates
from scheduler.arrays import Ints, word_of
from scheduler.conclude import conclude
from scheduler.cursor import Cursor
from scheduler.drivers.base import Driver
from scheduler.job import Job, Moment
from scheduler.members import Members
from scheduler.request import Request
from scheduler.table import HostTable


class Attempt:
    """A planner in the sense of ``db.claims.Planner``: all its jobs share one transaction, each is placed whole or not at all.

    What jobs take is put into the table while a plan is made and taken out again at its end, so the table always tells what is
    committed. Room for alternates is not taken.
    """

    def __init__(self, table: HostTable, driver: Driver, cursor: Cursor, jobs: Sequence[Job], moment: Moment) -> None:
        self._table = table
        self._driver = driver
        self._cursor = cursor
        self._jobs = jobs
        self._moment = moment
        self._requests: list[Request] = []
        self._slots: Sequence[Slot] = ()
        self._planned: dict[int, int] = {}
        self._locked: set[int] = set()
        self._asked: set[int] = set()

    @property
    def log_position(self) -> tuple[Mapping[int, int], int]:
        return self._cursor.position()

    def begin(self, changes: Sequence[Inventory], standings: Sequence[Standing], slots: Sequence[Slot]) -> Collection[int]:
        with self._table.lock:
            self._learn(changes)
            self._cursor.advance(changes)
            self._slots, self._locked = slots, set()
            for job, standing in zip(self._jobs, standings, strict=True):
                job.restart(standing)
            with self._table.tentative():
                self._open()
                for job, request in self._open_jobs():
                    self._guarded(self._plan, job, request)
            rows = {row for job in self._jobs for row in job.rows.values()}
            self._planned = {int(self._table.inventory[row]): int(self._table.generation[row]) for row in rows}
            self._asked = set(self._planned)
            return self._asked

    def confirm(self, locked: Sequence[Inventory]) -> Collection[int]:
        with self._table.lock:
            self._locked.update(row.id for row in locked)
            moved = any(row.generation != self._planned.get(row.id, row.generation) for row in locked)
            self._learn(locked)
            if not moved and self._asked == self._planned.keys() <= self._locked:
                return ()  # nothing happened to these hosts since the plan was made
            wanted: set[int] | None = None
            while wanted is None:
                with self._table.tentative():
                    self._open()
                    wanted = self._mend(self._open_jobs())
            self._asked |= wanted
            return wanted

    def finish(self) -> tuple[Sequence[Sequence[Placement]], Sequence[Decision]]:
        with self._table.lock:
            for job in self._jobs:
                if any(int(self._table.inventory[row]) not in self._locked for row in job.rows.values()):
                    job.lost, job.rows = True, {}
            with self._table.tentative():
                self._open()
                self._complete()
            for job, request in zip(self._jobs, self._requests, strict=True):
                if job.standing.needed and not job.lost and job.error is None:
                    conclude(job, request, self._table, self._driver, self._moment)
            decisions = [job.decision for job in self._jobs if job.decision is not None and not job.premature]
            return [job.placements for job in self._jobs], decisions

    def committed(self, inventories: Sequence[Inventory]) -> None:
        """The transaction is committed: these rows are as it left them."""
        with self._table.lock:
            self._learn(inventories)
            self._cursor.advance(inventories)

    # -- planning ------------------------------------------------------------------------------------------------------------

    def _learn(self, rows: Sequence[Inventory]) -> None:
        for row in rows:
            self._table.set_inventory(row, self._moment.mono)

    def _open(self) -> None:
        """Requests anew, with groups as the database has them; jobs of one group share what they know of it."""
        leaving = {uuid for job in self._jobs for uuid in job.standing.needed}
        slots: defaultdict[str, list[Slot]] = defaultdict(list)
        for slot in self._slots:
            slots[slot.group_uuid].append(slot)
        members: dict[str, Members] = {}
        self._requests = []
        for job in self._jobs:
            request = _request(self._table, job, self._moment)
            if job.spec.group is not None:
                group = job.spec.group.uuid
                request.members = members.setdefault(group, Members(slots[group], leaving))
            self._requests.append(request)

    def _open_jobs(self) -> list[tuple[Job, Request]]:
        pairs = zip(self._jobs, self._requests, strict=True)
        return [(job, request) for job, request in pairs if job.standing.needed and job.open]

    def _guarded(self, step: Callable[[Job, Request], set[int]], job: Job, request: Request) -> set[int]:
        """One step for one job. Whatever fails in it - a filter of the site, say - fails this job alone, and leaves no trace."""
        mark, members = self._table.mark, request.members.copy()
        wanted: set[int] = set()
        try:
            wanted = step(job, request)
        except Exception as error:  # noqa: BLE001 - raised again in the job's own caller
            job.error = error
        if not job.open:
            job.rows = {}
            self._table.give_back(mark)
            request.members.restore(members)
        return wanted if job.open else set()

    def _plan(self, job: Job, request: Request) -> set[int]:
        needed = job.standing.needed
        request.yielding = request.members.any_held  # the widest view; the engine narrows it while it can
        job.survey = engine.survey(self._table, self._driver, request)
        chosen = engine.choose(self._table, self._driver, request, job.survey, len(needed))
        if len(chosen) < len(needed):
            self._refuse(job, request, len(chosen))
        else:
            job.rows = dict(zip(needed, chosen, strict=True))
        return set()

    def _refuse(self, job: Job, request: Request, found: int) -> None:
        """No host for the next instance: say why, and whether hosts not heard of yet might have taken it."""
        job.short = found
        request.yielding = request.members.any_held
        job.counts = engine.survey(self._table, self._driver, request).counts
        if self._moment.young:
            request.assume_up = True
            could = engine.survey(self._table, self._driver, request)
            missing = len(job.standing.needed) - found
            unseen = any(age is None for age in self._moment.ages.values())
            job.premature = unseen or len(engine.choose(self._table, self._driver, request, could, missing)) == missing

    def _complete(self) -> None:
        """Put all jobs where they go; then held slots yield where they must, and each instance gets its alternates."""
        jobs = self._open_jobs()
        for job, request in jobs:
            for row in job.rows.values():
                engine.take(self._table, request, row)
        for job, request in jobs:
            group = request.group
            if group is not None and group.policy is Policy.ANTI_AFFINITY:
                hosts = {uuid: self._table.hosts[row] for uuid, row in job.rows.items()}
                job.evicted = {uuid: request.members.evict(host, group.max_server_per_host) for uuid, host in hosts.items()}
            if job.survey is not None:
                job.alternates = Alternates(self._table, self._driver, request, job.survey).of(list(job.rows.items()))

    # -- confirming ------------------------------------------------------------------------------------------------------------

    def _mend(self, jobs: Sequence[tuple[Job, Request]]) -> set[int] | None:
        """Keep all that still fits, of every job; then find other hosts for the rest.

        Returns the inventories to be locked for that; None if a job failed at it, so that what it took must first be free again.
        """
        wanted: set[int] = set()
        for step in (self._keep, self._replace):
            for job, request in jobs:
                wanted |= self._guarded(step, job, request)
                if not job.open:
                    return None
        return wanted

    def _keep(self, job: Job, request: Request) -> set[int]:
        request.yielding = request.members.any_held
        job.losers = [uuid for uuid, row in job.rows.items() if not self._still_fits(request, row)]
        return set()

    def _replace(self, job: Job, request: Request) -> set[int]:
        """Other hosts for the losers, locked ones if possible. Returns inventories to be locked."""
        losers = job.losers
        if not losers:
            return set()
        request.yielding = request.members.any_held
        at_hand = engine.survey(self._table, self._driver, request, self._table.rows(sorted(self._locked)))
        chosen = engine.choose(self._table, self._driver, request, at_hand, len(losers))
        elsewhere = losers[len(chosen) :]
        wanted: set[int] = set()
        if elsewhere:
            request.yielding = request.members.any_held
            found = engine.survey(self._table, self._driver, request, self._available())
            wanted = self._spares(found, len(elsewhere))
            further = engine.choose(self._table, self._driver, request, found, len(elsewhere))
            wanted |= {int(self._table.inventory[row]) for row in further}
            chosen += further
        if len(chosen) < len(losers):
            if self._asked - self._locked:  # somebody else holds a host that may fit
                job.lost = True
            else:
                self._refuse(job, request, len(job.standing.needed) - len(losers) + len(chosen))
            return set()
        job.rows |= dict(zip(losers, chosen, strict=True))
        return wanted - self._locked

    def _still_fits(self, request: Request, row: int) -> bool:
        if int(self._table.inventory[row]) not in self._locked:
            return False
        if not engine.fits(self._driver, self._table, request, np.array([row]))[0]:
            return False
        engine.take(self._table, request, row)
        return True

    def _available(self) -> Ints:
        """All rows but those another transaction would not let us have."""
        refused = self._table.rows(sorted(self._asked - self._locked))
        return np.setdiff1d(np.arange(self._table.size), refused)

    def _spares(self, found: engine.Survey, wanted: int) -> set[int]:
        """A few good rows more than are needed, because some of them may be locked by others."""
        best = np.argsort(-found.scores, kind="stable")[: wanted + 4]
        return {int(key) for key in self._table.inventory[found.rows[best]]}


def _request(table: HostTable, job: Job, moment: Moment) -> Request:
    spec = job.spec
    cells = (table.cell_number(cell) for cell in spec.excluded_cells)
    return Request(
        spec=spec,
        vcpus=spec.flavor.vcpus,
        memory_mb=spec.flavor.memory_mb,
        disk_gb=spec.flavor.disk_gb,
        seed=word_of(spec.batch_id),
        zone=None if spec.availability_zone is None else table.zone_number(spec.availability_zone),
        excluded_cells=frozenset(cell for cell in cells if cell >= 0),
        alive_since=moment.alive_since,
    )
