"""How long servers ran: their summaries in the API database, from their first launch to their delete. No cell is asked."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from db.api.rows.tables import instance_mappings
from db.api.servers.listing import server_of
from db.sql.connection import ApiTransaction
from db.sql.readable import convert_readable
from objects import errors
from objects.base import Object
from objects.instance import Server


class UsageQuery(Object, frozen=True, kw_only=True):
    """Servers that ran between two times (seconds since the epoch), by uuid, after the server ``marker``.

    ``project_id`` None: of all projects.
    """

    project_id: str | None
    start: float
    stop: float
    limit: int
    marker: str | None = None


class Run(Object, frozen=True, kw_only=True):
    """A server with its first launch and its delete, in seconds since the epoch; ``ended`` None: it was not deleted."""

    server: Server
    launched: float
    ended: float | None


_HOME = instance_mappings.alias("home")
_C = instance_mappings.c
_LAUNCHED = sa.func.coalesce(_HOME.c.launched_at, _C.launched_at)
"""That of the first body: a server that moves goes on running."""
_ENDED = sa.case((_C.deleted == sa.true(), sa.func.coalesce(_C.deleted_at, _C.terminated_at, _C.updated_at)))
_RUNS = (
    sa.select(instance_mappings, _LAUNCHED.label("launched"), _ENDED.label("ended"))
    .join_from(_HOME, instance_mappings, _C.instance_uuid == sa.func.coalesce(_HOME.c.body_uuid, _HOME.c.instance_uuid))
    .where(
        _HOME.c.server_uuid.is_(None),
        sa.bindparam("stop") >= _LAUNCHED,
        sa.or_(_ENDED.is_(None), sa.bindparam("start") <= _ENDED),
    )
    .order_by(_HOME.c.instance_uuid)  # the primary key: a page reads no further than its last server
)
_KNOWN = sa.select(_HOME.c.project_id).where(_HOME.c.instance_uuid == sa.bindparam("uuid"), _HOME.c.server_uuid.is_(None))


def list_runs(tx: ApiTransaction, query: UsageQuery) -> list[Run]:
    """A page of servers, deleted ones too until they are purged. Raises errors.NotFound for an unknown marker."""
    statement, values = _RUNS.limit(query.limit), {"start": query.start, "stop": query.stop}
    if query.project_id is not None:
        statement = statement.where(_HOME.c.project_id == query.project_id)
    if query.marker is not None:
        is_known = tx.execute(_KNOWN, {"uuid": query.marker}).scalar()
        if is_known is None or query.project_id not in (None, is_known):
            raise errors.NotFound(f"marker [{query.marker[:80]}] not found")
        statement = statement.where(_HOME.c.instance_uuid > query.marker)
    return convert_readable(tx.execute(statement, values), _run, instance_mappings)


def _run(row: sa.Row[Any]) -> Run:
    return Run(server=server_of(row), launched=row.launched, ended=row.ended)
