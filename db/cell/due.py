"""Whether a cell has anything for its conductor's sweep to do: one statement, on indexes, instead of one for each kind of work."""

from __future__ import annotations

import sqlalchemy as sa

from db import secrets
from db.cell.instances import BUILDS, OVERDUE
from db.cell.tables import builds, cell_dead_letters, instances
from db.sql.connection import CellTransaction
from objects.base import Object
from objects.instance import State


class Due(Object, frozen=True, kw_only=True):
    """What there is something of. Whoever goes to do it reads it for himself: it may be done by then. ``letters``: dead ones."""

    overdue: bool
    unaccepted: bool
    deleting: bool
    finished: bool
    letters: bool = False


_BUILDS = instances.join(builds, builds.c.instance_uuid == instances.c.uuid)
_LOOK = sa.select(
    sa.exists().select_from(BUILDS).where(OVERDUE).label("overdue"),
    sa.exists()
    .select_from(_BUILDS)
    .where(instances.c.state == State.SCHEDULED, builds.c.sent_at < sa.bindparam("before"))
    .label("unaccepted"),
    sa.exists().where(instances.c.state == State.DELETING, instances.c.updated_at < sa.bindparam("before")).label("deleting"),
    secrets.FINISHED.label("finished"),
    sa.exists(cell_dead_letters.c.key).label("letters"),
)


def look(tx: CellTransaction, now: float, before: float) -> Due:
    """At ``now``; orders and deletes count that were sent before ``before``, both in seconds since the epoch."""
    row = tx.execute(_LOOK, {"now": now, "before": before}).one()
    return Due(**{name: bool(found) for name, found in row._mapping.items()})
