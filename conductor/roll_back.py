"""All-or-nothing batches: settled when all their servers are ACTIVE, rolled back when one has failed.

Only summaries are read, which feeds and burials write, and every call may be repeated. The failure is recorded in the batch's row.
Like deletes, roll-backs are sent to the cells until each cell's feed reports the end.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from cells.registry import CellRegistry
from conductor.orders import send_deletes
from conductor.quarantine import Quarantine
from db.api.queue import batches
from db.api.queue.batches import AllOrNothingBatch
from db.api.queue.due import SweepsDue
from db.cell import instances
from db.sql.connection import CellTransaction
from db.sql.engine import ApiDatabase
from objects import errors, lifecycle, text
from objects.context import RequestContext, request_of
from objects.instance import State
from objects.lifecycle import Change, Outcome
from service.logs import log_step
from service.pace import Pace
from service.periodic import Every

LOG = logging.getLogger(__name__)

BATCH_PAGE_SIZE = 200

STEP = "batch"
"""The step of dead letters about batches that cannot be decided. Their keys are the IDs of the batches."""
SERVER_STEP = "roll back"
"""The step of dead letters about servers that a cell cannot roll back. Their keys are the UUIDs of the instances."""

Reasons = Mapping[str, str]
"""Servers to roll back: UUID -> fault message."""


class BatchSweep:
    """Decides at every round while a batch is open, else every ``idle`` seconds. Repeats roll-backs every ``idle`` seconds.

    ``pace``: of the loop that calls ``sweep``. An open batch hurries it.
    """

    name = "batches"

    def __init__(
        self,
        api_database: ApiDatabase,
        registry: CellRegistry,
        idle: float,
        aside: Quarantine | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._aside = aside or Quarantine(api_database, "api")
        self._database = api_database
        self._registry = registry
        self.pace = pace or Pace(idle)
        self._due = Every(idle)
        self._open = False

    def has_work(self, due: SweepsDue) -> bool:
        return due.batches

    def run_round(self) -> None:
        """Decide the batches if that is due."""
        due = self._due()
        if due or self._open:
            self._open = self.decide_batches(repeat=due)
        if self._open:
            self.pace.hurry_for()

    def decide_batches(self, *, repeat: bool = True) -> bool:
        """Decide every batch that can be decided. Roll back those that fail now and, with ``repeat``, those that failed before.

        Return whether a batch is still open.
        """
        last, is_open = "", False
        while found := self._database.read(batches.list_after, BATCH_PAGE_SIZE, last):
            last = found[-1].batch_id
            undecided = [batch for batch in found if batch.fault is None]
            judged = self._aside.run(STEP, lambda some: judge_batches(self._database, some), undecided, key=_batch_id)
            failed = [batch for batches in judged.results for batch in batches]
            is_open = is_open or len(undecided) > len(failed)
            if repeat:
                failed += [batch for batch in found if batch.fault is not None]
            left = self._aside.run(STEP, lambda some: list_standing(self._database, some), failed, key=_batch_id)
            for by_cell in left.results:
                for cell_uuid, reasons in by_cell.items():
                    self._roll_back(cell_uuid, reasons)
        return is_open

    def _roll_back(self, cell_uuid: str, reasons: Reasons) -> None:
        try:
            cell = self._registry.get(cell_uuid)
            now = cell.current_time()
            done = self._aside.run(
                SERVER_STEP, lambda uuids: cell.write(roll_back, {uuid: reasons[uuid] for uuid in uuids}, now), list(reasons)
            )
        except (errors.CellUnavailable, errors.DatabaseUnavailable, errors.NotFound) as error:
            LOG.warning("%d servers wait for cell %s to be rolled back: %s", len(reasons), cell_uuid, error)
            return
        cell.asked()
        outcomes = [outcome for outcomes_by_uuid in done.results for outcome in outcomes_by_uuid.values()]
        changed = [outcome.row for outcome in outcomes if isinstance(outcome, Change)]
        for row in changed:
            log_step(LOG, "rolled back", row.uuid, request_of(row.batch_id), cell=cell.name, host=row.host, note=reasons[row.uuid])
        deleting = [row for row in changed if row.state is State.DELETING]
        send_deletes(cell, RequestContext(request_id=f"roll-back-{cell.name}"), deleting)  # the cell's sweep resends lost ones


def _batch_id(batch: AllOrNothingBatch) -> str:
    return batch.batch_id


def judge_batches(api_database: ApiDatabase, undecided: Sequence[AllOrNothingBatch]) -> list[AllOrNothingBatch]:
    """Settle or fail each of these open batches that can be decided; return those that this call failed."""
    members_left = api_database.read(batches.members_of, [batch.batch_id for batch in undecided], ("building", "error"))
    settled = [batch.batch_id for batch in undecided if batch.batch_id not in members_left]
    faults: dict[str, str] = {}
    for batch_id, members in members_left.items():
        culprit = next((member for member in members if member.state == "error"), None)
        if culprit is not None:
            why = culprit.fault or "The build failed."
            fault = f"Rolled back: server {culprit.name} ({culprit.uuid}) of its all-or-nothing batch failed: {why}"
            faults[batch_id] = text.clean_text(fault, text.FAULTS_SIZE)
    if not settled and not faults:
        return []
    now = api_database.current_time()
    failed = set(api_database.write(batches.decide_batches, settled, faults, now))
    for batch_id in failed:
        LOG.warning("batch %s: %s", batch_id, faults[batch_id])
    return [msgspec.structs.replace(b, fault=faults[b.batch_id], failed_at=now) for b in undecided if b.batch_id in failed]


def list_standing(api_database: ApiDatabase, failed: Sequence[AllOrNothingBatch]) -> dict[str, dict[str, str]]:
    """The remaining servers of failed batches: cell UUID -> instance UUID -> fault. Finishes batches that have none left.

    Queued requests are in no cell: the conductor that leases them buries them.
    """
    members_left = api_database.read(batches.members_of, [batch.batch_id for batch in failed], ("building", "active"))
    done = [batch.batch_id for batch in failed if batch.batch_id not in members_left]
    if done:
        api_database.write(batches.finish_batches, done)
    by_cell: dict[str, dict[str, str]] = defaultdict(dict)
    for batch in failed:
        for member in members_left.get(batch.batch_id, ()):
            if member.cell_uuid is not None:
                by_cell[member.cell_uuid][member.uuid] = batch.fault or ""
    return by_cell


def roll_back(tx: CellTransaction, reasons: Reasons, now: float) -> dict[str, Outcome]:
    """The transaction in a cell. Instances that have ended or are being deleted do not change."""
    return instances.transition_rows(tx, reasons, lambda row: lifecycle.roll_back(row, reasons[row.uuid]), now)
