"""End holds whose time is over."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from conductor.context import ConductorContext
from db.api.queue import holds
from db.api.queue.due import SweepsDue
from db.api.rows.incarnation import Known

LOG = logging.getLogger(__name__)

PAGE_SIZE = 20
"""Holds that are read at once."""
STEP = "expire-hold"
"""The step of dead letters about holds that cannot be ended. Their keys are the IDs of the holds."""


class HoldSweep:
    """Deletes the servers of expired holds with their claims. Each call may be repeated at any time."""

    name = "holds"

    def __init__(self, context: ConductorContext) -> None:
        self._context = context
        self._ledger = context.ledger
        self._aside = context.aside

    def has_work(self, due: SweepsDue) -> bool:
        return due.expired

    def run_round(self) -> bool:
        """End one page of holds, each in a transaction; returns whether there may be more."""
        known = self._context.known
        if known is None:
            return False  # the database may be restored: a server of a hold may run
        expired_ids = self._ledger.database.read(holds.list_expired, self._ledger.database.current_time(), PAGE_SIZE)
        due = self._aside.due_items(STEP, expired_ids)
        self._aside.run(STEP, lambda hold_ids: self._expire_holds(hold_ids, known), due)
        return len(expired_ids) == PAGE_SIZE == len(due)

    def _expire_holds(self, hold_ids: Sequence[str], known: Known) -> None:
        for hold_id in hold_ids:
            if self._ledger.write(holds.expire_hold, hold_id, self._ledger.database.current_time(), known):
                LOG.info("hold %s has expired: its hosts are free again", hold_id)
