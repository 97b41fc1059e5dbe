"""What a cell's database says, read in pages of keys: for whoever compares it with what the API level says. Nothing is locked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa

from db.cell import feed
from db.cell.compute_nodes import decode_node
from db.cell.instance_rows import state_of
from db.cell.instances import BUILDS, OVERDUE
from db.cell.tables import build_secrets, builds, compute_nodes, instances, services, snapshots
from db.secrets import UNFINISHED
from db.sql import clock, dialect
from db.sql.connection import CellTransaction
from db.sql.readable import convert_readable as sql_readable
from db.sql.readable import sound_rows
from objects import lifecycle, stored
from objects.base import Object
from objects.compute_node import ComputeNode
from objects.instance import State
from objects.instance_row import InstanceRow, TombstoneSnapshot
from objects.port import Port
from objects.task import Power, StoredContent, TaskState


class Rows(Object, frozen=True, kw_only=True):
    """Rows by uuid, and the newest number of the feed after they were read: what they tell of has at most that one."""

    rows: dict[str, InstanceRow]
    head: int


class AgentHeartbeat(Object, frozen=True, kw_only=True):
    """A host's agent: seconds since it was last heard of, by the database's clock, and whether an operator called it dead."""

    host: str
    age: float
    forced_down: bool


class Population(Object, frozen=True, kw_only=True):
    """The rows of one node: how many are ACTIVE, how many are on their way in or out, and when one of all last changed."""

    active: int = 0
    moving: int = 0
    changed_at: float = 0.0


def rows_after(tx: CellTransaction, after: str, limit: int) -> list[str]:
    query = sa.select(instances.c.uuid).where(instances.c.uuid > after).order_by(instances.c.uuid).limit(limit)
    return [row.uuid for row in sound_rows(tx.execute(query), instances)]


_ROWS = sa.select(*(instances.c[name] for name in InstanceRow.__struct_fields__)).where(
    instances.c.uuid.in_(dialect.uuids_parameter())
)


def read_rows(tx: CellTransaction, uuids: Iterable[str]) -> Rows:
    rows_read = sql_readable(_execute_in_pages(tx, _ROWS, uuids), _row_from_columns, instances)
    return Rows(rows={row.uuid: row for row in rows_read}, head=feed.read_head(tx))


def _row_from_columns(row: sa.Row[Any]) -> InstanceRow:
    return InstanceRow(**{**row._mapping, "state": state_of(row.state)})


_OF_SERVERS = sa.select(*_ROWS.selected_columns).where(
    sa.or_(instances.c.uuid.in_(dialect.uuids_parameter()), instances.c.server_uuid.in_(dialect.uuids_parameter()))
)


def bodies_of_servers(tx: CellTransaction, servers: Iterable[str]) -> list[InstanceRow]:
    """The rows of all bodies of these servers. It reads the whole table, as no index is kept for this."""
    return sql_readable(_execute_in_pages(tx, _OF_SERVERS, servers), _row_from_columns, instances)


_PORTS = sa.select(builds.c.instance_uuid, builds.c.ports).where(
    builds.c.instance_uuid.in_(dialect.uuids_parameter()), builds.c.ports.is_not(None)
)
_WITH_PORTS = (
    sa.select(instances.c.uuid)
    .join(builds, builds.c.instance_uuid == instances.c.uuid)
    .where(builds.c.ports.is_not(None), instances.c.state.not_in((State.STAGED, State.DELETED)))
    .order_by(instances.c.uuid)
)


def with_ports_after(tx: CellTransaction, after: str, limit: int) -> list[str]:
    """Rows that were handed over to this cell and have network interfaces."""
    return list(tx.execute(_WITH_PORTS.where(instances.c.uuid > after).limit(limit)).scalars())


def with_ports(tx: CellTransaction, uuids: Iterable[str]) -> set[str]:
    """Those of these rows."""
    return {row.uuid for row in _execute_in_pages(tx, _WITH_PORTS.where(instances.c.uuid.in_(dialect.uuids_parameter())), uuids)}


def ports_by_row(tx: CellTransaction, uuids: Iterable[str]) -> dict[str, tuple[Port, ...]]:
    """The network interfaces of these rows, of those that have some. What cannot be decoded is left out."""
    decoded_ports = {
        row.instance_uuid: stored.load_or_none(row.ports, tuple[Port, ...]) for row in _execute_in_pages(tx, _PORTS, uuids)
    }
    return {uuid: ports_of_row for uuid, ports_of_row in decoded_ports.items() if ports_of_row}


_SHELVED = (
    sa.select(snapshots, instances.c.task_stored)
    .join(instances, instances.c.uuid == snapshots.c.instance_uuid)
    .where(
        instances.c.state == State.DELETED,
        instances.c.power == Power.HELD,
        instances.c.task_state == TaskState.DONE,
        instances.c.task_number == snapshots.c.number,
    )
    .order_by(snapshots.c.instance_uuid)
)
"""Tombstones of bodies whose last task was a snapshot: their servers were shelved."""


def shelved_after(tx: CellTransaction, after: str, limit: int) -> dict[str, TombstoneSnapshot]:
    """The snapshots of bodies that ended when their servers were shelved, in order of the bodies' uuids."""
    snapshot_rows = tx.execute(_SHELVED.where(snapshots.c.instance_uuid > after).limit(limit))
    return {row.instance_uuid: _snapshot_from_row(row) for row in snapshot_rows}


def snapshots_of(tx: CellTransaction, uuids: Iterable[str]) -> dict[str, TombstoneSnapshot]:
    """The same of these bodies."""
    query = _SHELVED.where(snapshots.c.instance_uuid.in_(dialect.uuids_parameter()))
    return {row.instance_uuid: _snapshot_from_row(row) for row in _execute_in_pages(tx, query, uuids)}


def _snapshot_from_row(row: sa.Row[Any]) -> TombstoneSnapshot:
    return TombstoneSnapshot(number=row.number, image_id=row.image_id, content=stored.load_or_none(row.task_stored, StoredContent))


def _execute_in_pages(tx: CellTransaction, query: sa.Select[Any], keys: Iterable[str]) -> Iterator[sa.Row[Any]]:
    ordered_keys = sorted(key for key in set(keys) if isinstance(key, str))  # SQLite may have given others
    for page in dialect.split_pages(ordered_keys):
        yield from tx.execute(query, {"uuids": page})


_LATE = sa.select(instances.c.uuid).select_from(BUILDS).where(OVERDUE).order_by(instances.c.uuid)


def late_after(tx: CellTransaction, after: str, limit: int, before: float) -> list[str]:
    """Builds under way whose deadline passed before ``before``, by uuid."""
    return list(tx.execute(_LATE.where(instances.c.uuid > after).limit(limit), {"now": before, "before": before}).scalars())


def list_late(tx: CellTransaction, uuids: Iterable[str], before: float) -> set[str]:
    """Those of these builds."""
    query = _LATE.where(instances.c.uuid.in_(dialect.uuids_parameter())).params(now=before, before=before)
    return {row.uuid for row in _execute_in_pages(tx, query, uuids)}


_S = build_secrets.c
_UNFINISHED = sa.exists().where(instances.c.batch_id == _S.batch_id, instances.c.state.in_(UNFINISHED))
_KEPT = sa.select(_S.batch_id).where(~_UNFINISHED).order_by(_S.batch_id)


def kept_secrets_after(tx: CellTransaction, after: str, limit: int, before: float) -> list[str]:
    """Batches of which nothing is unfinished here, whose secrets have been kept since before ``before``."""
    return list(tx.execute(_KEPT.where(_S.batch_id > after, _S.created_at < before).limit(limit)).scalars())


def kept_secrets(tx: CellTransaction, batches: Iterable[str]) -> list[str]:
    """Those of these batches of which nothing is unfinished here, and whose secrets are kept."""
    return [row.batch_id for row in _execute_in_pages(tx, _KEPT.where(_S.batch_id.in_(dialect.uuids_parameter())), batches)]


# -- hosts -----------------------------------------------------------------------------------------------------------------------


def agents_after(tx: CellTransaction, after: str, limit: int, binary: str) -> list[str]:
    """Hosts whose agent has reported."""
    c = services.c
    query = sa.select(c.host).where(c.host > after, c.binary == binary).order_by(c.host).limit(limit)
    return list(tx.execute(query).scalars())


def nodes_after(tx: CellTransaction, after: str, limit: int) -> list[str]:
    """Hosts with compute nodes."""
    c = compute_nodes.c
    return list(tx.execute(sa.select(c.host).distinct().where(c.host > after).order_by(c.host).limit(limit)).scalars())


_AGENTS = sa.select(services, (clock.Now() - services.c.last_seen).label("age")).where(
    services.c.host.in_(dialect.uuids_parameter()), services.c.binary == sa.bindparam("binary")
)
_NODES = (
    sa.select(compute_nodes.c.stats)
    .where(compute_nodes.c.host.in_(dialect.uuids_parameter()))
    .order_by(compute_nodes.c.host, compute_nodes.c.node)
)
_COUNTS = (
    sa.select(
        instances.c.host,
        instances.c.node,
        instances.c.state,
        sa.func.count().label("rows"),
        sa.func.max(instances.c.updated_at).label("changed_at"),
    )
    .where(instances.c.host.in_(dialect.uuids_parameter()))
    .group_by(instances.c.host, instances.c.node, instances.c.state)
)


def agents_by_host(tx: CellTransaction, hosts: Iterable[str], binary: str) -> dict[str, AgentHeartbeat]:
    return {
        row.host: AgentHeartbeat(host=row.host, age=row.age, forced_down=bool(row.forced_down))
        for row in _execute_in_pages(tx, _AGENTS.params(binary=binary), hosts)
    }


def list_nodes(tx: CellTransaction, hosts: Iterable[str]) -> list[ComputeNode]:
    return [node for row in _execute_in_pages(tx, _NODES, hosts) if (node := decode_node(row.stats)) is not None]


def population_by_node(tx: CellTransaction, hosts: Iterable[str]) -> dict[tuple[str, str], Population]:
    """The rows of these hosts' nodes, counted, by (host, node). A node that no row names is left out."""
    population_of: dict[tuple[str, str], Population] = {}
    for row in _execute_in_pages(tx, _COUNTS, hosts):
        key = (row.host, row.node or "")
        before = population_of.get(key, Population())
        moving = row.state in (State.STAGED, *lifecycle.LIVE, State.DELETING)
        population_of[key] = Population(
            active=before.active + (row.rows if row.state == State.ACTIVE else 0),
            moving=before.moving + (row.rows if moving else 0),
            changed_at=max(before.changed_at, row.changed_at),
        )
    return population_of
