"""Servers as the API database knows them, for an audit: their mappings, requests and claims, and how far feeds were applied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from db.api.rows.tables import allocations, build_requests, feed_cursors, instance_mappings, inventories
from db.audit.pages import execute_in_pages, keys_of
from db.sql import dialect
from db.sql.connection import ApiTransaction
from objects.base import Object
from objects.task import Power, TaskState


class ClaimPlace(Object, frozen=True, kw_only=True):
    """Where a claim is. Empty strings: on an inventory that is not there."""

    host: str
    node: str


class Record(Object, frozen=True, kw_only=True):
    """A body's mapping, whether a build request is beside it, and where its claim is. ``power``, ``task_state``: as written."""

    uuid: str
    batch_id: str
    cell_uuid: str | None
    deleted: bool
    fence: int
    seen: int
    state: str
    host: str | None
    node: str | None
    updated_at: float
    requested: bool
    claim: ClaimPlace | None
    server_uuid: str | None = None
    hidden: bool = False
    power: str = Power.ON
    task_number: int = 0
    task_state: str = TaskState.DONE

    @property
    def uuid_of_server(self) -> str:
        """The server whose body this is."""
        return self.server_uuid or self.uuid


servers_after = keys_of(instance_mappings.c.instance_uuid)

_M = instance_mappings.c
_HOMES = sa.select(_M.instance_uuid, _M.cell_uuid).where(_M.instance_uuid.in_(dialect.uuids_parameter()))
_RECORDS = (
    sa.select(
        instance_mappings,
        build_requests.c.instance_uuid.label("request"),
        allocations.c.instance_uuid.label("claim"),
        inventories.c.host.label("claim_host"),
        inventories.c.node.label("claim_node"),
    )
    .select_from(
        instance_mappings.outerjoin(build_requests, build_requests.c.instance_uuid == _M.instance_uuid)
        .outerjoin(allocations, allocations.c.instance_uuid == _M.instance_uuid)
        .outerjoin(inventories, inventories.c.id == allocations.c.inventory_id)
    )
    .where(_M.instance_uuid.in_(dialect.uuids_parameter()))
)


def cells_of_servers(tx: ApiTransaction, uuids: Iterable[str]) -> dict[str, str | None]:
    """The cells that these servers are mapped to."""
    return {row.instance_uuid: row.cell_uuid for row in execute_in_pages(tx, _HOMES, uuids)}


def cursors_by_cell(tx: ApiTransaction) -> dict[str, int]:
    """How far each cell's feed has been applied."""
    return {row.cell_uuid: row.sequence for row in tx.execute(sa.select(feed_cursors))}


def read_records(tx: ApiTransaction, uuids: Iterable[str]) -> tuple[dict[str, int], dict[str, Record]]:
    """The feeds' cursors, and after them the servers: these are at least as new."""
    read_so_far = cursors_by_cell(tx)
    return read_so_far, {row.instance_uuid: _record_from_row(row) for row in execute_in_pages(tx, _RECORDS, uuids)}


def _record_from_row(row: sa.Row[Any]) -> Record:
    return Record(
        uuid=row.instance_uuid,
        batch_id=row.batch_id,
        cell_uuid=row.cell_uuid,
        deleted=bool(row.deleted),
        fence=row.fence,
        seen=row.seen,
        state=row.state,
        host=row.host,
        node=row.node,
        updated_at=row.updated_at,
        requested=row.request is not None,
        claim=None if row.claim is None else ClaimPlace(host=row.claim_host or "", node=row.claim_node or ""),
        server_uuid=row.server_uuid,
        hidden=bool(row.hidden),
        power=row.power,
        task_number=row.task_number,
        task_state=row.task_state,
    )
