"""Check whether the API level has work for its sweeps: one statement on indexes, instead of one for each kind of work."""

from __future__ import annotations

import sqlalchemy as sa

from db import secrets
from db.api.queue import leases
from db.api.rows.tables import (
    all_or_nothing,
    api_dead_letters,
    build_requests,
    cell_silences,
    epochs,
    holds,
    instance_mappings,
    operations,
)
from db.api.servers import image_removals
from db.sql.connection import ApiTransaction
from objects.base import Object
from objects.hold import HELD


class SweepsDue(Object, frozen=True, kw_only=True):
    """Kinds of work that exist. Each sweep reads its items itself, because they may be done by then.

    ``requests``: any queued request, also one that a conductor drives. ``waiting``: requests that nobody drives. ``overdue``:
    requests past their deadline. Held requests are none of these. ``expired``: holds whose time is over. ``deletes``: deletes to
    send again. ``unconfirmed``: deletes that a cell has not confirmed. ``operations``: open ones. ``batches``: all-or-nothing
    batches that are open. ``secrets``: secrets to erase. ``silences``: cells recorded as not answering. ``building``: servers
    handed over to a cell, and not ACTIVE yet. ``letters``: dead letters. ``images``: images to remove.

    ``epochs``: of all kinds of rows that processes cache.
    """

    requests: bool
    waiting: bool
    overdue: bool
    expired: bool
    deletes: bool
    unconfirmed: bool
    operations: bool
    batches: bool
    secrets: bool
    silences: bool
    building: bool
    letters: bool
    images: bool
    epochs: dict[str, int]

    @property
    def is_open(self) -> bool:
        """Whether something is under way in a cell or at the API level."""
        return self.requests or self.unconfirmed or self.operations or self.batches or self.building


_M = instance_mappings.c
# spelled so that MariaDB uses the index on both columns: most rows are ACTIVE servers or tombstones
_UNCONFIRMED = sa.and_(_M.deleted == sa.true(), _M.state.in_(("building", "active", "error")), _M.cell_uuid.is_not(None))
_BUILDING = sa.and_(_M.deleted == sa.false(), _M.state == "building", _M.cell_uuid.is_not(None))
_OPEN = operations.c.open_for > ""
_NOT_HELD = build_requests.c.state != HELD
_FLAGS = (
    sa.exists().where(_NOT_HELD).label("requests"),
    sa.exists().where(leases.WAITS).label("waiting"),
    sa.exists().where(_NOT_HELD, build_requests.c.deadline < sa.bindparam("now")).label("overdue"),
    sa.exists().where(holds.c.expires_at <= sa.bindparam("now")).label("expired"),
    sa.exists().where(_UNCONFIRMED, _M.updated_at <= sa.bindparam("told_before")).label("deletes"),
    sa.exists().where(_UNCONFIRMED).label("unconfirmed"),
    sa.exists().where(_OPEN).label("operations"),
    sa.exists(all_or_nothing.c.batch_id).label("batches"),
    secrets.DECIDED.label("secrets"),
    sa.exists(cell_silences.c.cell_uuid).label("silences"),
    sa.exists().where(_BUILDING).label("building"),
    sa.exists(api_dead_letters.c.key).label("letters"),
    image_removals.ANY_DUE.label("images"),
)
_ONE_ROW = sa.select(sa.literal(1).label("one")).subquery()
_LOOK = sa.select(*_FLAGS, epochs.c.name, epochs.c.epoch).select_from(_ONE_ROW.outerjoin(epochs, sa.true()))
"""A row for each epoch, all with the same flags; one row if there is no epoch."""
_CELLS = sa.union(
    sa.select(_M.cell_uuid).where(_BUILDING),
    sa.select(_M.cell_uuid).where(_UNCONFIRMED),
    sa.select(_M.cell_uuid).where(_OPEN, _M.instance_uuid == operations.c.source_uuid, _M.cell_uuid.is_not(None)),
    sa.select(_M.cell_uuid).where(_OPEN, _M.instance_uuid == operations.c.twin_uuid, _M.cell_uuid.is_not(None)),
)


def look_for_work(tx: ApiTransaction, now: float, queue_age: float, lease_seconds: float, resend_age: float) -> SweepsDue:
    """Check for work; ``now`` by this database's clock.

    ``queue_age``, ``lease_seconds``: see ``leases.list_waiting``. ``resend_age``: see ``Deleter``.
    """
    values = leases.waiting_values(now, queue_age, lease_seconds) | {"told_before": now - resend_age}
    rows = tx.execute(_LOOK, values).all()
    flags = {flag.name: bool(rows[0]._mapping[flag.name]) for flag in _FLAGS}
    return SweepsDue(**flags, epochs={row.name: row.epoch for row in rows if row.name is not None})


def busy_cells(tx: ApiTransaction) -> set[str]:
    """The cells that have been asked for something of which their feeds have not told the end: their UUIDs."""
    return set(tx.execute(_CELLS).scalars())
