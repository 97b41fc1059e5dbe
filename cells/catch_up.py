"""Take over rows of a cell before its feed tells of them."""

from __future__ import annotations

from collections.abc import Sequence

from cells.cell import Cell
from db.api.claims.claims import Ledger
from db.api.reconcile import events
from db.api.reconcile.events import FeedPosition
from objects import errors
from objects.feed import InstanceEvent

TRIES = 3
"""How often the events are applied, if the reader of the feed moves the cursor meanwhile."""


def apply_rows(ledger: Ledger, cell: Cell, row_events: Sequence[InstanceEvent]) -> bool:
    """Apply these events of the cell as a reader of its feed would; the cursor stays.

    Returns false if the cursor was moved each time.
    """
    for _ in range(TRIES):
        try:
            cursor = ledger.database.write(events.lock_cursor, cell.uuid)
            position = FeedPosition(cell_uuid=cell.uuid, cursor=cursor, upto=cursor)
            ledger.write(events.apply_page, position, row_events, now=ledger.database.current_time())
        except errors.Conflict:
            continue
        return True
    return False
