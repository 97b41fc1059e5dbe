"""Check whether a cell has work for its conductor's sweep: one statement on indexes, instead of one for each kind of work."""

from __future__ import annotations

import sqlalchemy as sa

from db import processes, secrets
from db.cell import feed
from db.cell.instances import BUILDS, OVERDUE
from db.cell.tables import builds, cell_dead_letters, instances, tasks
from db.sql.clock import is_stale
from db.sql.connection import CellTransaction
from objects.base import Object
from objects.instance import State
from objects.lifecycle import LIVE


class Due(Object, frozen=True, kw_only=True):
    """Kinds of work that exist in the cell. Each step reads its items itself, because they may be done by then.

    ``overdue``: builds past their deadline. ``unaccepted``: orders that no agent accepted. ``deleting``: deletes to send again.
    ``finished``: secrets to erase. ``letters``: dead letters. ``tasks``: tasks whose orders are to be sent again.
    ``live``: builds, deletes or tasks that have not ended, due or not. ``old_events``: events of the feed to trim.
    ``dead_processes``: records of processes to forget.
    """

    overdue: bool
    unaccepted: bool
    deleting: bool
    finished: bool
    letters: bool = False
    tasks: bool = False
    live: bool = False
    old_events: bool = False
    dead_processes: bool = False


_BEFORE: sa.BindParameter[float] = sa.bindparam("before", type_=sa.Double())
_BUILDS = instances.join(builds, builds.c.instance_uuid == instances.c.uuid)
_LOOK = sa.select(
    sa.exists().select_from(BUILDS).where(OVERDUE).label("overdue"),
    sa.exists()
    .select_from(_BUILDS)
    .where(instances.c.state == State.SCHEDULED, is_stale(builds.c.sent_at, _BEFORE))
    .label("unaccepted"),
    sa.exists().where(instances.c.state == State.DELETING, is_stale(instances.c.updated_at, _BEFORE)).label("deleting"),
    secrets.FINISHED.label("finished"),
    sa.exists(cell_dead_letters.c.key).label("letters"),
    sa.exists().where(is_stale(tasks.c.sent_at, _BEFORE)).label("tasks"),
    sa.or_(sa.exists().where(instances.c.state.in_((*sorted(LIVE), State.DELETING))), sa.exists(tasks.c.instance_uuid)).label(
        "live"
    ),
    feed.IS_FIRST_OLD.label("old_events"),
    processes.has_dead("cell").label("dead_processes"),
)


def look_for_work(tx: CellTransaction, now: float, before: float, events_before: float, records_age: float) -> Due:
    """Check for work. Times in seconds since the epoch.

    ``now``: for deadlines of builds. ``before``: orders sent, and deletes and builds without a record changed, before this count.
    ``events_before``: see ``feed.trim_events``. ``records_age``: see ``processes.forget_dead``.
    """
    values = {"now": now, "before": before, **feed.old_values(events_before), "records_age": records_age}
    row = tx.execute(_LOOK, values).one()
    return Due(**{name: bool(is_due) for name, is_due in row._mapping.items()})
