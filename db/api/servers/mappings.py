"""Read instance mappings: the cell of every server, and the summary that lists show without querying cells."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from db.api.rows import metering
from db.api.rows.tables import build_requests, cell_mappings, instance_mappings, request_specs
from db.api.servers import addresses
from db.api.servers.listing import SORT_KEYS as SORT_KEYS  # exported here too, because lists show mappings
from db.api.servers.listing import ServerQuery as ServerQuery
from db.api.servers.listing import list_ as list_
from db.api.servers.listing import server_of
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from db.sql.readable import convert_readable, read_one, readable_page
from objects import stored
from objects.base import Object
from objects.instance import Server
from objects.spec import RequestSpec
from service.rate_limited_log import RateLimitedLog


class StateCount(Object, frozen=True, kw_only=True):
    """How many servers that are not deleted are in this state and this cell (None: in none yet)."""

    cell_uuid: str | None
    state: str
    count: int


class Queue(Object, frozen=True, kw_only=True):
    """The durable queue. ``oldest``: when its oldest request was accepted (seconds since the epoch); None if it is empty."""

    depth: int
    oldest: float | None


class MappingState(Object, frozen=True, kw_only=True):
    """The decision about a uuid, for the settler. ``requested``: its build request still exists."""

    cell_uuid: str | None
    deleted: bool
    fence: int
    requested: bool


class ShownServer(Object, frozen=True, kw_only=True):
    """A server with its request spec; None if that cannot be decoded or is gone. ``operated``: it has had an operation."""

    server: Server
    spec: RequestSpec | None
    operated: bool


_COMPLAINTS = RateLimitedLog(logging.getLogger(__name__))
_HOME = instance_mappings.alias("home")
_GET = (
    sa.select(instance_mappings, _HOME.c.batch_id.label("boot_batch"))
    .join_from(
        _HOME, instance_mappings, instance_mappings.c.instance_uuid == sa.func.coalesce(_HOME.c.body_uuid, _HOME.c.instance_uuid)
    )
    .where(_HOME.c.instance_uuid == sa.bindparam("uuid"), _HOME.c.server_uuid.is_(None))
)
_GET_SHOWN = _GET.add_columns(request_specs.c.spec, _HOME.c.last_number.label("given_out")).outerjoin(
    request_specs, request_specs.c.batch_id == instance_mappings.c.batch_id
)


def get(tx: ApiTransaction, uuid: str, project_id: str | None = None) -> Server | None:
    """The server as the body that its home row points to, deleted or not.

    None if it is unknown or of another project, and for the uuid of a later body.
    """
    row = tx.execute(_GET, {"uuid": uuid}).one_or_none()
    return None if row is None or project_id not in (None, row.project_id) else read_one(row, server_of, instance_mappings)


def get_shown(tx: ApiTransaction, uuid: str, project_id: str | None = None) -> ShownServer | None:
    """``get`` with what a show needs, in one statement: clients repeat it until their servers are ACTIVE."""
    row = tx.execute(_GET_SHOWN, {"uuid": uuid}).one_or_none()
    if row is None or project_id not in (None, row.project_id):
        return None
    spec = None if row.spec is None else _spec_of(row.batch_id, row.spec)
    return ShownServer(server=read_one(row, server_of, instance_mappings), spec=spec, operated=bool(row.given_out))


_OF_BODIES = sa.select(instance_mappings).where(instance_mappings.c.instance_uuid.in_(dialect.uuids_parameter()))


def of_bodies(tx: ApiTransaction, uuids: Iterable[str]) -> list[Server]:
    """The servers as these bodies, shown or not, deleted or not. Unknown uuids are left out."""
    ordered_uuids = sorted(set(uuids))
    servers: list[Server] = []
    for page in dialect.split_pages(ordered_uuids):
        rows = tx.execute(_OF_BODIES, {"uuids": page})
        servers += convert_readable(rows, server_of, instance_mappings)
    return servers


_FOUND = instance_mappings.alias("found")
_OF_BATCH = (
    sa.select(instance_mappings, _HOME.c.batch_id.label("boot_batch"))
    .join_from(_FOUND, _HOME, _HOME.c.instance_uuid == sa.func.coalesce(_FOUND.c.server_uuid, _FOUND.c.instance_uuid))
    .join(instance_mappings, instance_mappings.c.instance_uuid == sa.func.coalesce(_HOME.c.body_uuid, _HOME.c.instance_uuid))
    .where(_FOUND.c.batch_id == sa.bindparam("batch"))
    .order_by(_FOUND.c.launch_index, _FOUND.c.instance_uuid)
)


def of_batch(tx: ApiTransaction, batch_id: str, project_id: str | None = None) -> list[Server]:
    """All servers that have a body of this batch, deleted or not, in launch order; none if it is unknown or of another project.

    Each is shown as the body that its home row points to, which may be of a later batch.
    """
    rows = tx.execute(_OF_BATCH, {"batch": batch_id})
    return convert_readable([row for row in rows if project_id in (None, row.project_id)], server_of, instance_mappings)


def specs_by_batch(tx: ApiTransaction, batch_ids: Iterable[str]) -> dict[str, RequestSpec]:
    """The request specs of these batches. One that cannot be decoded is logged and left out, so that lists still work."""
    spec_by_batch: dict[str, RequestSpec] = {}
    ordered_ids = sorted(set(batch_ids))
    for page in dialect.split_pages(ordered_ids):
        query = sa.select(request_specs).where(request_specs.c.batch_id.in_(page))
        for row in tx.execute(query):
            if (spec := _spec_of(row.batch_id, row.spec)) is not None:
                spec_by_batch[row.batch_id] = spec
    return spec_by_batch


def _spec_of(batch_id: str, text: str) -> RequestSpec | None:
    try:
        return stored.load_text(text, RequestSpec)
    except stored.UNREADABLE as error:
        _COMPLAINTS("spec", logging.ERROR, "the request spec of batch %s cannot be decoded: %s", batch_id, error)
        return None


def count_by_state(tx: ApiTransaction) -> list[StateCount]:
    """Servers that are not deleted, by cell and state."""
    query = (
        sa.select(instance_mappings.c.cell_uuid, instance_mappings.c.state, sa.func.count())
        .where(instance_mappings.c.deleted.is_(sa.false()), instance_mappings.c.hidden.is_(sa.false()))
        .group_by(instance_mappings.c.cell_uuid, instance_mappings.c.state)
    )
    return [StateCount(cell_uuid=cell, state=state, count=number) for cell, state, number in tx.execute(query)]


def measure_queue(tx: ApiTransaction) -> Queue:
    depth, oldest = tx.execute(sa.select(sa.func.count(), sa.func.min(build_requests.c.created_at)).where(metering.WAITS)).one()
    return Queue(depth=depth, oldest=oldest)


def states_by_uuid(tx: ApiTransaction, uuids: Iterable[str]) -> dict[str, MappingState]:
    """The decision about each uuid. A missing uuid has no mapping."""
    query = (
        sa.select(instance_mappings, build_requests.c.instance_uuid.label("request"))
        .select_from(
            instance_mappings.outerjoin(build_requests, build_requests.c.instance_uuid == instance_mappings.c.instance_uuid)
        )
        .where(instance_mappings.c.instance_uuid.in_(dialect.uuids_parameter()))
    )
    state_by_uuid: dict[str, MappingState] = {}
    ordered_uuids = sorted(uuids)
    for page in dialect.split_pages(ordered_uuids):
        for r in tx.execute(query, {"uuids": page}):
            state_by_uuid[r.instance_uuid] = MappingState(
                cell_uuid=r.cell_uuid, deleted=r.deleted, fence=r.fence, requested=r.request is not None
            )
    return state_by_uuid


def list_deleting(tx: ApiTransaction, limit: int, after: str = "") -> list[Server]:
    """At most ``limit`` deleted servers whose cell has not confirmed the delete, by uuid, after ``after``."""
    query = (
        sa.select(instance_mappings)
        .where(
            # spelled so that MariaDB, too, uses the index: there are many tombstones
            instance_mappings.c.deleted == sa.true(),
            instance_mappings.c.state.in_(("building", "active", "error")),
            instance_mappings.c.cell_uuid.is_not(None),
            instance_mappings.c.instance_uuid > sa.bindparam("after"),
        )
        .order_by(instance_mappings.c.instance_uuid)
        .limit(limit)
    )

    def read(start: str) -> Sequence[sa.Row[Any]]:
        return tx.execute(query, {"after": start}).all()

    return readable_page(read, after, server_of, instance_mappings, "instance_uuid")


_ENDED = by_index(
    sa.update(instance_mappings)
    .where(instance_mappings.c.instance_uuid.in_(dialect.uuids_parameter()), instance_mappings.c.deleted.is_(sa.true()))
    .values(state="deleted", terminated_at=sa.bindparam("now")),
    instance_mappings,
)


def confirm_deletes(tx: ApiTransaction, uuids: Iterable[str], now: float) -> None:
    """Confirm the deletes of servers of cell0, because cell0 has no feed."""
    ordered_uuids = sorted(uuids)
    for page in dialect.split_pages(ordered_uuids):
        tx.execute(_ENDED, {"uuids": page, "now": now})
    addresses.free_addresses(tx, ordered_uuids, now)


_ENDED_WITH_CELL = by_index(
    sa.update(instance_mappings)
    .where(
        instance_mappings.c.instance_uuid.in_(dialect.uuids_parameter()),
        instance_mappings.c.deleted.is_(sa.true()),
        instance_mappings.c.cell_uuid.not_in(sa.select(cell_mappings.c.uuid)),
    )
    .values(state="deleted", terminated_at=sa.bindparam("now")),
    instance_mappings,
)


def ended_with_cell(tx: ApiTransaction, uuids: Iterable[str], now: float) -> int:
    """Confirm the deletes of servers whose cell was removed, because no feed will; return how many there were."""
    ordered_uuids, ended = sorted(uuids), 0
    for page in dialect.split_pages(ordered_uuids):
        ended += tx.execute(_ENDED_WITH_CELL, {"uuids": page, "now": now}).rowcount
    addresses.free_addresses(tx, ordered_uuids, now)
    return ended
