"""Count the instances of a cell in transitional states for metrics, in one statement."""

from __future__ import annotations

import sqlalchemy as sa

from db.cell.tables import instances
from db.sql.connection import CellTransaction
from objects.instance import State
from objects.waiting import WaitingCount

PASSING = (State.STAGED, State.SCHEDULED, State.BUILDING, State.DELETING)
"""Transitional states: another state follows without a user's request."""
_PASSING = (
    sa.select(instances.c.state, sa.func.count().label("number"), sa.func.min(instances.c.updated_at).label("oldest"))
    .where(instances.c.state.in_(PASSING))
    .group_by(instances.c.state)
)


def count_passing(tx: CellTransaction) -> list[WaitingCount]:
    """The instances of a cell in transitional states, by state."""
    return [WaitingCount(name=row.state, count=row.number, oldest=row.oldest) for row in tx.execute(_PASSING)]
