"""What the API database says, read in pages of keys: for whoever compares it with what the cells say.

A function ``..._after(tx, after, limit)`` gives the next keys in their order; the others tell all about some keys. Nothing is
locked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from db import claims, dialect, resources
from db.inventories import Usage
from db.tables.api import (
    allocations,
    build_requests,
    feed_cursors,
    group_slots,
    host_mappings,
    instance_mappings,
    inventories,
    request_secrets,
    request_specs,
    server_groups,
)
from objects import stored
from objects.base import Object
from objects.cell import HostMapping
from objects.inventory import Inventory, Slot
from objects.spec import RequestSpec

KeysAfter = Callable[[Connection, str, int], list[str]]


class Place(Object, frozen=True, kw_only=True):
    """Where a claim is. Empty strings: on an inventory that is not there."""

    host: str
    node: str


class Record(Object, frozen=True, kw_only=True):
    """A server's mapping, whether a build request is beside it, and where its claim is."""

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
    claim: Place | None


class Request(Object, frozen=True, kw_only=True):
    """A build request; ``mapped``: the mapping that was accepted with it is there. Times in seconds since the epoch."""

    uuid: str
    state: str
    fence: int
    owner: str | None
    lease_until: float
    deadline: float
    created_at: float
    mapped: bool


class Orphan(Object, frozen=True, kw_only=True):
    """A claim that nothing stands on."""

    uuid: str
    host: str
    cell_uuid: str
    vcpus: int


class Sum(Object, frozen=True, kw_only=True):
    """What an inventory counts as used, and what its claims come to."""

    id: int
    host: str
    node: str
    cell_uuid: str
    counted: Usage
    claimed: Usage


class Member(Object, frozen=True, kw_only=True):
    """A claim of a member of a group that exists: its one real slot is to be on this host."""

    uuid: str
    group_uuid: str
    host: str
    cell_uuid: str


def _keys(column: sa.Column[Any], *conditions: sa.ColumnElement[bool]) -> KeysAfter:
    def after_key(tx: Connection, after: str, limit: int) -> list[str]:
        query = sa.select(column).where(column > after, *conditions).order_by(column).distinct().limit(limit)
        return list(tx.execute(query).scalars())

    return after_key


servers_after = _keys(instance_mappings.c.instance_uuid)
requests_after = _keys(build_requests.c.instance_uuid)
claims_after = _keys(allocations.c.instance_uuid)
grouped_after = _keys(allocations.c.instance_uuid, allocations.c.group_uuid.is_not(None))
slots_after = _keys(group_slots.c.instance_uuid)
hosts_after = _keys(host_mappings.c.host)


def inventories_after(tx: Connection, after: str, limit: int) -> list[str]:
    """Their ids as text."""
    query = sa.select(inventories.c.id).where(inventories.c.id > int(after or 0)).order_by(inventories.c.id).limit(limit)
    return [str(key) for key in tx.execute(query).scalars()]


def _chunked(tx: Connection, query: sa.Select[Any], keys: Iterable[Any]) -> Iterator[sa.Row[Any]]:
    wanted = sorted(set(keys))
    for start in range(0, len(wanted), dialect.IN_LIST):
        yield from tx.execute(query, {"uuids": wanted[start : start + dialect.IN_LIST]})


# -- servers ---------------------------------------------------------------------------------------------------------------------

_M = instance_mappings.c
_HOMES = sa.select(_M.instance_uuid, _M.cell_uuid).where(_M.instance_uuid.in_(dialect.uuids()))
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
    .where(_M.instance_uuid.in_(dialect.uuids()))
)


def homes(tx: Connection, uuids: Iterable[str]) -> dict[str, str | None]:
    """The cells that these servers are mapped to."""
    return {row.instance_uuid: row.cell_uuid for row in _chunked(tx, _HOMES, uuids)}


def cursors(tx: Connection) -> dict[str, int]:
    """How far each cell's feed has been applied."""
    return {row.cell_uuid: row.sequence for row in tx.execute(sa.select(feed_cursors))}


def records(tx: Connection, uuids: Iterable[str]) -> tuple[dict[str, int], dict[str, Record]]:
    """The feeds' cursors, and after them the servers: these are at least as new."""
    read_so_far = cursors(tx)
    return read_so_far, {row.instance_uuid: _record(row) for row in _chunked(tx, _RECORDS, uuids)}


def _record(row: sa.Row[Any]) -> Record:
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
        claim=None if row.claim is None else Place(host=row.claim_host or "", node=row.claim_node or ""),
    )


# -- the queue -------------------------------------------------------------------------------------------------------------------

_REQUESTS = (
    sa.select(build_requests, _M.instance_uuid.label("mapping"))
    .select_from(build_requests.outerjoin(instance_mappings, _M.instance_uuid == build_requests.c.instance_uuid))
    .where(build_requests.c.instance_uuid.in_(dialect.uuids()))
    .order_by(build_requests.c.instance_uuid)
)


def requests(tx: Connection, uuids: Iterable[str]) -> list[Request]:
    return [
        Request(
            uuid=r.instance_uuid,
            state=r.state,
            fence=r.fence,
            owner=r.owner,
            lease_until=r.lease_until,
            deadline=r.deadline,
            created_at=r.created_at,
            mapped=r.mapping is not None,
        )
        for r in _chunked(tx, _REQUESTS, uuids)
    ]


_SPECS = (
    sa.select(build_requests.c.instance_uuid, request_specs.c.spec)
    .join_from(build_requests, request_specs, request_specs.c.batch_id == build_requests.c.batch_id)
    .where(build_requests.c.instance_uuid.in_(dialect.uuids()))
)


def moves(tx: Connection, uuids: Iterable[str]) -> set[str]:
    """Those of these requests that are for a move: no server was accepted with them."""
    found = {row.instance_uuid: stored.load(row.spec, RequestSpec) for row in _chunked(tx, _SPECS, uuids)}
    return {uuid for uuid, spec in found.items() if spec.move is not None}


_S = request_secrets.c
_KEPT = sa.select(_S.batch_id).where(~sa.exists().where(build_requests.c.batch_id == _S.batch_id)).order_by(_S.batch_id)


def kept_secrets_after(tx: Connection, after: str, limit: int, before: float) -> list[str]:
    """Batches of which nothing is queued, whose secrets have been kept since before ``before``."""
    return list(tx.execute(_KEPT.where(_S.batch_id > after, _S.created_at < before).limit(limit)).scalars())


def kept_secrets(tx: Connection, batches: Sequence[str]) -> list[str]:
    """Those of these batches of which nothing is queued, and whose secrets are kept."""
    return [row.batch_id for row in _chunked(tx, _KEPT.where(_S.batch_id.in_(dialect.uuids())), batches)]


# -- claims ----------------------------------------------------------------------------------------------------------------------

_CLAIMED = (
    sa.select(allocations.c.instance_uuid, allocations.c.vcpus, inventories.c.host, inventories.c.cell_uuid)
    .select_from(allocations.outerjoin(inventories, inventories.c.id == allocations.c.inventory_id))
    .where(allocations.c.instance_uuid.in_(dialect.uuids()))
    .order_by(allocations.c.instance_uuid)
)
_A = allocations.c
_SUMMED = (_A.vcpus, _A.memory_mb, _A.disk_gb)
# No server adds up amounts that are text: so claims that take custom resource classes come one by one, the others in one sum.
_SUMS = (
    sa.select(
        inventories,
        *(sa.func.coalesce(sa.func.sum(column), 0).label(f"sum_{n}") for n, column in enumerate(_SUMMED)),
        sa.func.count(_A.instance_uuid).label("sum_3"),
        sa.func.max(_A.resources).label("resources"),
    )
    .select_from(inventories.outerjoin(allocations, _A.inventory_id == inventories.c.id))
    .where(inventories.c.id.in_(dialect.uuids()))
    .group_by(inventories.c.id, sa.case((_A.resources.is_not(None), _A.instance_uuid)))
    .order_by(inventories.c.id)
)


def orphans(tx: Connection, uuids: Sequence[str]) -> list[Orphan]:
    """Claims of these instances that nothing stands on (``claims.orphans``)."""
    return [
        Orphan(uuid=row.instance_uuid, host=row.host or "", cell_uuid=row.cell_uuid or "", vcpus=row.vcpus)
        for row in _chunked(tx, _CLAIMED, claims.orphans(tx, uuids))
    ]


def sums(tx: Connection, ids: Iterable[int]) -> list[Sum]:
    """One statement for a page, so that what is counted and what is claimed are of one moment."""
    rows: dict[int, sa.Row[Any]] = {}
    claimed: defaultdict[int, Usage] = defaultdict(lambda: Usage(0, 0, 0, 0))
    for row in _chunked(tx, _SUMS, ids):
        rows[row.id] = row
        claimed[row.id] = claimed[row.id].plus(_usage(row.sum_0, row.sum_1, row.sum_2, row.sum_3, row.resources))
    return [
        Sum(
            id=row.id,
            host=row.host,
            node=row.node,
            cell_uuid=row.cell_uuid,
            counted=_usage(row.used_vcpus, row.used_memory_mb, row.used_disk_gb, row.instances, row.used_resources),
            claimed=claimed[row.id],
        )
        for row in rows.values()
    ]


def _usage(vcpus: Any, memory_mb: Any, disk_gb: Any, instances: int, custom: str | None) -> Usage:
    """Servers give sums as decimal numbers."""
    return Usage(int(vcpus), int(memory_mb), int(disk_gb), instances, resources.pairs(resources.load(custom)))


# -- groups ----------------------------------------------------------------------------------------------------------------------

_MEMBERS = (
    sa.select(_A.instance_uuid, _A.group_uuid, inventories.c.host, inventories.c.cell_uuid)
    .select_from(
        allocations.join(inventories, inventories.c.id == _A.inventory_id).join(
            server_groups, server_groups.c.uuid == _A.group_uuid
        )
    )
    .where(_A.instance_uuid.in_(dialect.uuids()))
)
_SLOTS = (
    sa.select(group_slots)
    .where(group_slots.c.instance_uuid.in_(dialect.uuids()))
    .order_by(group_slots.c.instance_uuid, group_slots.c.group_uuid, group_slots.c.host)
)
_BUILT = sa.select(_M.instance_uuid).where(_M.instance_uuid.in_(dialect.uuids()), _M.state != "building")
_CLAIMING = sa.select(_A.instance_uuid).where(_A.instance_uuid.in_(dialect.uuids()))


def members(tx: Connection, uuids: Sequence[str]) -> dict[str, Member]:
    return {
        row.instance_uuid: Member(uuid=row.instance_uuid, group_uuid=row.group_uuid, host=row.host, cell_uuid=row.cell_uuid)
        for row in _chunked(tx, _MEMBERS, uuids)
    }


def slots(tx: Connection, uuids: Sequence[str]) -> list[Slot]:
    return [
        Slot(group_uuid=row.group_uuid, instance_uuid=row.instance_uuid, host=row.host, held=bool(row.held))
        for row in _chunked(tx, _SLOTS, uuids)
    ]


def claiming(tx: Connection, uuids: Sequence[str]) -> set[str]:
    """Those of these instances that have a claim."""
    return {row.instance_uuid for row in _chunked(tx, _CLAIMING, uuids)}


def built(tx: Connection, uuids: Sequence[str]) -> set[str]:
    """Those of these instances whose build is over, however it ended: that is final."""
    return {row.instance_uuid for row in _chunked(tx, _BUILT, uuids)}


# -- hosts -----------------------------------------------------------------------------------------------------------------------

_HOSTS = sa.select(host_mappings.c.host, host_mappings.c.cell_uuid).where(host_mappings.c.host.in_(dialect.uuids()))
_OFFERED = sa.select(inventories).where(inventories.c.host.in_(dialect.uuids()))


def hosts(tx: Connection, names: Iterable[str]) -> dict[str, HostMapping]:
    return {row.host: HostMapping(host=row.host, cell_uuid=row.cell_uuid) for row in _chunked(tx, _HOSTS, names)}


def offered(tx: Connection, names: Iterable[str]) -> dict[tuple[str, str], Inventory]:
    """The inventories of these hosts as far as they say what is offered, by (host, node)."""
    return {
        (row.host, row.node): Inventory(
            id=row.id,
            host=row.host,
            node=row.node,
            cell_uuid=row.cell_uuid,
            generation=row.generation,
            cap_vcpus=row.cap_vcpus,
            cap_memory_mb=row.cap_memory_mb,
            cap_disk_gb=row.cap_disk_gb,
            cap_resources=resources.load(row.cap_resources),
        )
        for row in _chunked(tx, _OFFERED, names)
    }
