"""The instances of a cell that are to change by themselves, counted for metrics by one statement."""

from __future__ import annotations

import sqlalchemy as sa

from db.cell.tables import instances
from db.sql.connection import CellTransaction
from objects.instance import State
from objects.waiting import WaitingCount

PASSING = (State.STAGED, State.SCHEDULED, State.BUILDING, State.DELETING)
"""States of a cell's instance that another one follows by itself."""
_PASSING = (
    sa.select(instances.c.state, sa.func.count().label("number"), sa.func.min(instances.c.updated_at).label("oldest"))
    .where(instances.c.state.in_(PASSING))
    .group_by(instances.c.state)
)


def passing(tx: CellTransaction) -> list[WaitingCount]:
    """The instances of a cell that are to change by themselves, by state."""
    return [WaitingCount(name=row.state, count=row.number, oldest=row.oldest) for row in tx.execute(_PASSING)]
