"""End holds whose time is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from conductor.quarantine import SetAside
from db.api.claims.claims import Ledger
from db.api.queue import holds
from db.api.rows.incarnation import Known

LOG = logging.getLogger(__name__)

PAGE_SIZE = 20
"""Holds that are read at once."""
STEP = "expire-hold"
"""The step of dead letters about holds that cannot be ended. Their keys are the IDs of the holds."""


class HoldSweep:
    """Deletes the servers of expired holds with their claims. Each call may be repeated at any time.

    ``known``: returns the incarnation of the API database that was compared with the cells; None: not yet.
    """

    def __init__(self, ledger: Ledger, aside: SetAside, known: Callable[[], Known | None]) -> None:
        self._ledger = ledger
        self._aside = aside
        self._known = known

    def sweep(self) -> bool:
        """End one page of holds, each in a transaction; returns whether there may be more."""
        known = self._known()
        if known is None:
            return False  # the database may be restored: a server of a hold may run
        found = self._ledger.database.read(holds.expired, self._ledger.database.now(), PAGE_SIZE)
        due = self._aside.due(STEP, found)
        self._aside.run(STEP, lambda some: self._expire(some, known), due)
        return len(found) == PAGE_SIZE == len(due)

    def _expire(self, hold_ids: Sequence[str], known: Known) -> None:
        for hold_id in hold_ids:
            if self._ledger.write(holds.expire, hold_id, self._ledger.database.now(), known):
                LOG.info("hold %s has expired: its hosts are free again", hold_id)
