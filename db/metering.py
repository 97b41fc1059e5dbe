"""What waits, counted for who measures: one statement each, whose cost grows with what waits and nothing else."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from db.tables.api import build_requests, instance_mappings
from db.tables.cell import instances
from objects.base import Object
from objects.instance import State

LOOKED_AT = 20_000
"""Requests whose project is looked up; the rest of a longer queue is counted without."""
PASSING = (State.STAGED, State.SCHEDULED, State.BUILDING, State.DELETING)
"""States of a cell's instance that another one follows by itself."""


class Waiting(Object, frozen=True, kw_only=True):
    """How many wait under a name, and since when the oldest does, in seconds since the epoch. No name: those that are not told."""

    name: str
    count: int
    oldest: float


_SOME = sa.select(build_requests.c.instance_uuid, build_requests.c.created_at).limit(LOOKED_AT).subquery()
_ALL = sa.select(sa.func.count().label("depth"), sa.func.min(build_requests.c.created_at).label("oldest")).subquery()
_QUEUE = (
    sa.select(
        instance_mappings.c.project_id,
        sa.func.count().label("number"),
        sa.func.min(_SOME.c.created_at).label("oldest"),
        sa.select(_ALL.c.depth).scalar_subquery().label("depth"),
    )
    .select_from(_SOME.join(instance_mappings, instance_mappings.c.instance_uuid == _SOME.c.instance_uuid))
    .group_by(instance_mappings.c.project_id)
)
_PASSING = (
    sa.select(instances.c.state, sa.func.count().label("number"), sa.func.min(instances.c.updated_at).label("oldest"))
    .where(instances.c.state.in_(PASSING))
    .group_by(instances.c.state)
)


def queue(tx: Connection, names: int) -> list[Waiting]:
    """The durable queue by project: the ``names`` projects with most in it, and the rest together."""
    rows = sorted(tx.execute(_QUEUE).all(), key=lambda row: (-row.number, row.project_id))
    told = [Waiting(name=row.project_id, count=row.number, oldest=row.oldest) for row in rows[:names]]
    rest = (rows[0].depth if rows else 0) - sum(waiting.count for waiting in told)
    if rest > 0:
        told.append(Waiting(name="", count=rest, oldest=min(row.oldest for row in rows[names:] or rows)))
    return told


def passing(tx: Connection) -> list[Waiting]:
    """The instances of a cell that are to change by themselves, by state."""
    return [Waiting(name=row.state, count=row.number, oldest=row.oldest) for row in tx.execute(_PASSING)]
