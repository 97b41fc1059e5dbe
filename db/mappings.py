"""Instance mappings read: where every server is, and the summary that lists show without asking any cell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from db import dialect
from db.keyed import by_index
from db.tables.api import build_requests, cell_mappings, instance_mappings, request_specs
from objects import errors, stored
from objects.base import Object
from objects.instance import Server
from objects.spec import RequestSpec

SORT_KEYS = {
    "created_at": instance_mappings.c.created_at,
    "updated_at": instance_mappings.c.updated_at,
    "launched_at": instance_mappings.c.launched_at,
    "display_name": instance_mappings.c.name,
    "host": instance_mappings.c.host,
    "node": instance_mappings.c.node,
    "availability_zone": instance_mappings.c.availability_zone,
    "vm_state": instance_mappings.c.state,
    "launch_index": instance_mappings.c.launch_index,
    "project_id": instance_mappings.c.project_id,
    "user_id": instance_mappings.c.user_id,
    "uuid": instance_mappings.c.instance_uuid,
}


class ServerQuery(Object, frozen=True, kw_only=True):
    """What a list asks for. ``name`` is a regular expression; ``sort`` holds (key of SORT_KEYS, "asc" or "desc")."""

    project_id: str | None = None
    name: str | None = None
    states: tuple[str, ...] = ()
    host: str | None = None
    availability_zone: str | None = None
    changed_since: float | None = None
    include_deleted: bool = False
    uuids: tuple[str, ...] = ()
    sort: tuple[tuple[str, str], ...] = (("created_at", "desc"),)
    limit: int = 1000
    marker: str | None = None


class Count(Object, frozen=True, kw_only=True):
    """How many servers that are not deleted are in this state, in this cell (None: not in any yet)."""

    cell_uuid: str | None
    state: str
    count: int


class Queue(Object, frozen=True, kw_only=True):
    """The durable queue: requests in it, and when the oldest was accepted (seconds since the epoch, None if empty)."""

    depth: int
    oldest: float | None


class Fate(Object, frozen=True, kw_only=True):
    """What the settler reads: where a uuid was decided to be. ``requested``: a build request still exists."""

    cell_uuid: str | None
    deleted: bool
    fence: int
    requested: bool


_GET = sa.select(instance_mappings).where(instance_mappings.c.instance_uuid == sa.bindparam("uuid"))


def get(tx: Connection, uuid: str, project_id: str | None = None) -> Server | None:
    """One server, deleted or not; None if it is unknown or of another project."""
    row = tx.execute(_GET, {"uuid": uuid}).one_or_none()
    return None if row is None or project_id not in (None, row.project_id) else _server(row)


def list_(tx: Connection, query: ServerQuery) -> list[Server]:
    """Servers in the order asked for, the uuid breaking ties, from just after the marker on.

    Raises ``errors.NotFound`` for an unknown marker and ``errors.Invalid`` for an unknown sort key.
    """
    columns = [(_sort_column(key), direction) for key, direction in query.sort]
    columns.append((instance_mappings.c.instance_uuid, columns[-1][1] if columns else "asc"))
    statement = sa.select(instance_mappings).where(*_conditions(query)).limit(query.limit)
    for column, direction in columns:
        if column.nullable:  # NULL sorts as the lowest value everywhere, whatever the server's own habit
            statement = statement.order_by(_null_rank(column, direction))
        statement = statement.order_by(column.desc() if direction == "desc" else column.asc())
    if query.marker is not None:
        marker = tx.execute(_GET, {"uuid": query.marker}).one_or_none()
        if marker is None or query.project_id not in (None, marker.project_id):
            raise errors.NotFound(f"marker: server {query.marker} not found")
        statement = statement.where(_after(columns, marker))
    return [_server(row) for row in tx.execute(statement)]


_OF_BATCH = (
    sa.select(instance_mappings)
    .where(instance_mappings.c.batch_id == sa.bindparam("batch"))
    .order_by(instance_mappings.c.launch_index, instance_mappings.c.instance_uuid)
)


def of_batch(tx: Connection, batch_id: str, project_id: str | None = None) -> list[Server]:
    """All servers of one request, deleted or not, in the order asked for; none if it is unknown or of another project."""
    rows = tx.execute(_OF_BATCH, {"batch": batch_id})
    return [_server(row) for row in rows if project_id in (None, row.project_id)]


def specs(tx: Connection, batch_ids: Iterable[str]) -> dict[str, RequestSpec]:
    """The request specs of these batches."""
    found: dict[str, RequestSpec] = {}
    wanted = sorted(set(batch_ids))
    for start in range(0, len(wanted), dialect.IN_LIST):
        query = sa.select(request_specs).where(request_specs.c.batch_id.in_(wanted[start : start + dialect.IN_LIST]))
        found |= {row.batch_id: stored.load(row.spec, RequestSpec) for row in tx.execute(query)}
    return found


def counts(tx: Connection) -> list[Count]:
    """Servers that are not deleted, by cell and state."""
    query = (
        sa.select(instance_mappings.c.cell_uuid, instance_mappings.c.state, sa.func.count())
        .where(instance_mappings.c.deleted.is_(sa.false()))
        .group_by(instance_mappings.c.cell_uuid, instance_mappings.c.state)
    )
    return [Count(cell_uuid=cell, state=state, count=number) for cell, state, number in tx.execute(query)]


def queue(tx: Connection) -> Queue:
    depth, oldest = tx.execute(sa.select(sa.func.count(), sa.func.min(build_requests.c.created_at))).one()
    return Queue(depth=depth, oldest=oldest)


def fates(tx: Connection, uuids: Iterable[str]) -> dict[str, Fate]:
    """What was decided about each uuid; one that is missing has no mapping at all."""
    query = (
        sa.select(instance_mappings, build_requests.c.instance_uuid.label("request"))
        .select_from(
            instance_mappings.outerjoin(build_requests, build_requests.c.instance_uuid == instance_mappings.c.instance_uuid)
        )
        .where(instance_mappings.c.instance_uuid.in_(dialect.uuids()))
    )
    found: dict[str, Fate] = {}
    wanted = sorted(uuids)
    for start in range(0, len(wanted), dialect.IN_LIST):
        for r in tx.execute(query, {"uuids": wanted[start : start + dialect.IN_LIST]}):
            found[r.instance_uuid] = Fate(cell_uuid=r.cell_uuid, deleted=r.deleted, fence=r.fence, requested=r.request is not None)
    return found


def deleting(tx: Connection, limit: int, after: str = "") -> list[Server]:
    """Deleted servers that were handed over to a cell and have not been seen to end there, by uuid from ``after`` on."""
    query = (
        sa.select(instance_mappings)
        .where(
            # said so that MariaDB, too, goes by the index: tombstones are many
            instance_mappings.c.deleted == sa.true(),
            instance_mappings.c.state.in_(("building", "active", "error")),
            instance_mappings.c.cell_uuid.is_not(None),
            instance_mappings.c.instance_uuid > after,
        )
        .order_by(instance_mappings.c.instance_uuid)
        .limit(limit)
    )
    return [_server(row) for row in tx.execute(query)]


_ENDED = by_index(
    sa.update(instance_mappings)
    .where(instance_mappings.c.instance_uuid.in_(dialect.uuids()), instance_mappings.c.deleted.is_(sa.true()))
    .values(state="deleted", terminated_at=sa.bindparam("now")),
    instance_mappings,
)


def ended(tx: Connection, uuids: Iterable[str], now: float) -> None:
    """Note that deleted servers of cell0, which has no feed, are gone there."""
    wanted = sorted(uuids)
    for start in range(0, len(wanted), dialect.IN_LIST):
        tx.execute(_ENDED, {"uuids": wanted[start : start + dialect.IN_LIST], "now": now})


_ENDED_WITH_CELL = by_index(
    sa.update(instance_mappings)
    .where(
        instance_mappings.c.instance_uuid.in_(dialect.uuids()),
        instance_mappings.c.deleted.is_(sa.true()),
        instance_mappings.c.cell_uuid.not_in(sa.select(cell_mappings.c.uuid)),
    )
    .values(state="deleted", terminated_at=sa.bindparam("now")),
    instance_mappings,
)


def ended_with_cell(tx: Connection, uuids: Iterable[str], now: float) -> int:
    """Note that deleted servers are gone whose cell was removed: nobody will confirm these deletes. Returns how many there were."""
    wanted, ended = sorted(uuids), 0
    for start in range(0, len(wanted), dialect.IN_LIST):
        ended += tx.execute(_ENDED_WITH_CELL, {"uuids": wanted[start : start + dialect.IN_LIST], "now": now}).rowcount
    return ended


def _conditions(query: ServerQuery) -> list[sa.ColumnElement[bool]]:
    c = instance_mappings.c
    conditions: list[sa.ColumnElement[bool]] = []
    if query.project_id is not None:
        conditions.append(c.project_id == query.project_id)
    if not query.include_deleted:
        conditions.append(c.deleted == sa.false())  # MariaDB finds no index for IS
    if query.states:
        conditions.append(c.state.in_(query.states))
    if query.name is not None:
        conditions.append(c.name.regexp_match(query.name))
    if query.host is not None:
        conditions.append(c.host == query.host)
    if query.availability_zone is not None:
        conditions.append(c.availability_zone == query.availability_zone)
    if query.changed_since is not None:
        conditions.append(c.updated_at >= query.changed_since)
    if query.uuids:
        conditions.append(c.instance_uuid.in_(query.uuids))
    return conditions


def _sort_column(key: str) -> sa.Column[Any]:
    if key not in SORT_KEYS:
        raise errors.Invalid(f"sort_key: {key!r} is not one of {', '.join(sorted(SORT_KEYS))}")
    return SORT_KEYS[key]


def _null_rank(column: sa.Column[Any], direction: str) -> sa.ColumnElement[int]:
    first = sa.case((column.is_(None), 0), else_=1)
    return first.desc() if direction == "desc" else first.asc()


def _after(columns: list[tuple[sa.Column[Any], str]], marker: sa.Row[Any]) -> sa.ColumnElement[bool]:
    """Rows that sort behind the marker's: greater in the first key, or equal there and greater in the next, and so on."""
    clauses: list[sa.ColumnElement[bool]] = []
    equal: list[sa.ColumnElement[bool]] = []
    for column, direction in columns:
        value = marker._mapping[column]
        if value is None:
            behind: sa.ColumnElement[bool] = column.is_not(None) if direction == "asc" else sa.false()
            same = column.is_(None)
        else:
            behind = column > value if direction == "asc" else sa.or_(column < value, column.is_(None))
            same = column == value
        clauses.append(sa.and_(*equal, behind))
        equal = [*equal, same]
    return sa.or_(*clauses)


def _server(row: sa.Row[Any]) -> Server:
    return Server(
        uuid=row.instance_uuid,
        batch_id=row.batch_id,
        project_id=row.project_id,
        user_id=row.user_id,
        name=row.name,
        state=row.state,
        created_at=row.created_at,
        updated_at=row.updated_at,
        cell_uuid=row.cell_uuid,
        deleted=row.deleted,
        launch_index=row.launch_index,
        host=row.host,
        node=row.node,
        availability_zone=row.availability_zone,
        mapped_at=row.mapped_at,
        deleted_at=row.deleted_at,
        deleted_by=row.deleted_by,
        launched_at=row.launched_at,
        terminated_at=row.terminated_at,
        fault=row.fault,
    )
