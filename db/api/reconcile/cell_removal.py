"""List what the API database holds of one cell, and remove it when the cell's database will never answer again.

Every function is one transaction, changes only rows that are still in the expected state, and may be repeated. ``docs/protocol.md``
defines the guards: requests leave the cell under a new fence, so no conductor with an old fence can hand them over to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from db.api.claims import claims, inventories
from db.api.deployment import cell_mappings, host_mappings
from db.api.deployment.cell_mappings import UnfinishedWork
from db.api.operations import operations, shelving, steps
from db.api.operations.operations import OpenOperation
from db.api.queue import builds
from db.api.reconcile import operation_repair
from db.api.rows import epochs, tables
from db.api.rows.epochs import Epoch
from db.api.rows.ledger import Stamp
from db.api.servers import addresses
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.galera import compare_locks
from db.sql.keyed import by_index
from objects.base import Object
from objects.cell import CellMapping, CellState
from objects.task import Power, TaskState

SERVERS_PER_TRANSACTION = 100
"""Servers that one transaction ends. It is small because the transaction locks the quota rows of their projects."""

_M, _R, _A, _I = tables.instance_mappings, tables.build_requests, tables.allocations, tables.inventories
_AMOUNTS = ("vcpus", "memory_mb", "disk_gb")


class CellClaim(Object, frozen=True, kw_only=True):
    """The amounts of a claim on a host of the cell: vCPUs, MiB and GiB."""

    host: str
    vcpus: int
    memory_mb: int
    disk_gb: int


class Resident(Object, frozen=True, kw_only=True):
    """A body of a server that was handed over to the cell.

    ``state``: of its summary. ``charged``: vCPUs and MiB charged to the quota; None: never charged. ``hidden``: its server is
    another body. ``operation``: the open one that it is the source or the twin of.
    """

    uuid: str
    name: str
    project_id: str
    state: str
    host: str | None
    deleted: bool
    fault: str | None
    charged: tuple[int, int] | None
    claim: CellClaim | None
    hidden: bool = False
    operation: OpenOperation | None = None


class UnfinishedClaim(Object, frozen=True, kw_only=True):
    """A claim on a host of the cell for a server that was not handed over to it.

    ``requested``: its build request still exists. Otherwise the claim was left behind.
    """

    uuid: str
    name: str
    project_id: str
    requested: bool
    claim: CellClaim


class CellContents(Object, frozen=True, kw_only=True):
    """All that the API database holds of a cell. ``aggregates``: the names of the aggregates that each host is in, by host."""

    residents: tuple[Resident, ...]
    guests: tuple[UnfinishedClaim, ...]
    hosts: tuple[str, ...]
    aggregates: Mapping[str, tuple[str, ...]]


_MINE = _M.c.cell_uuid == sa.bindparam("cell")
_UNENDED = sa.or_(_M.c.deleted == sa.false(), _M.c.state != "deleted")
_CLAIMED = _A.outerjoin(_I, _I.c.id == _A.c.inventory_id)
_CLAIM = (
    _A.c.vcpus.label("c_vcpus"),
    _A.c.memory_mb.label("c_memory_mb"),
    _A.c.disk_gb.label("c_disk_gb"),
    _I.c.host.label("c_host"),
)
_RESIDENTS = (
    sa.select(_M, *_CLAIM)
    .select_from(_M.outerjoin(_CLAIMED, _A.c.instance_uuid == _M.c.instance_uuid))
    .where(_MINE, sa.or_(_UNENDED, _M.c.fault == sa.bindparam("ended_with")))
    .order_by(_M.c.instance_uuid)
)
_GUESTS = (
    sa.select(_A.c.instance_uuid, _M.c.name, _M.c.project_id, _R.c.instance_uuid.label("request"), *_CLAIM)
    .select_from(
        _A.join(_I, _I.c.id == _A.c.inventory_id)
        .outerjoin(_R, _R.c.instance_uuid == _A.c.instance_uuid)
        .outerjoin(_M, _M.c.instance_uuid == _A.c.instance_uuid)
    )
    .where(_I.c.cell_uuid == sa.bindparam("cell"), sa.or_(_M.c.cell_uuid.is_(None), _M.c.cell_uuid != sa.bindparam("cell")))
    .order_by(_A.c.instance_uuid)
)
_AGGREGATES = (
    sa.select(tables.aggregate_hosts.c.host, tables.aggregates.c.name)
    .join(tables.aggregates, tables.aggregates.c.id == tables.aggregate_hosts.c.aggregate_id)
    .join(tables.host_mappings, tables.host_mappings.c.host == tables.aggregate_hosts.c.host)
    .where(tables.host_mappings.c.cell_uuid == sa.bindparam("cell"))
    .order_by(tables.aggregates.c.name)
)
_HOSTS = sa.select(tables.host_mappings.c.host).where(tables.host_mappings.c.cell_uuid == sa.bindparam("cell"))


def survey_cell(tx: ApiTransaction, cell_uuid: str, ended_with: str) -> CellContents:
    """List what the API database holds of the cell, including servers that an earlier removal ended with fault ``ended_with``."""
    aggregates: dict[str, tuple[str, ...]] = {}
    for host, name in tx.execute(_AGGREGATES, {"cell": cell_uuid}):
        aggregates[host] = (*aggregates.get(host, ()), name)
    rows = tx.execute(_RESIDENTS, {"cell": cell_uuid, "ended_with": ended_with}).all()
    still_open = _operations_by_body(
        tx, [row.server_uuid or row.instance_uuid for row in rows if row.last_number or row.server_uuid]
    )
    return CellContents(
        residents=tuple(_resident_from_row(row, still_open.get(row.instance_uuid)) for row in rows),
        guests=tuple(_guest_from_row(row) for row in tx.execute(_GUESTS, {"cell": cell_uuid})),
        hosts=tuple(tx.execute(_HOSTS.order_by(tables.host_mappings.c.host), {"cell": cell_uuid}).scalars()),
        aggregates=aggregates,
    )


def _operations_by_body(tx: ApiTransaction, servers: Sequence[str]) -> dict[str, OpenOperation]:
    """The open operations of these servers, by source and by twin."""
    uuids = sorted(operation.uuid for operation in operations.open_for(tx, set(servers)).values())
    opened_by_body: dict[str, OpenOperation] = {}
    for piece in dialect.split_pages(uuids):
        for opened in operations.with_bodies(tx, piece):
            opened_by_body |= {body.uuid: opened for body in (opened.source, opened.twin) if body is not None}
    return opened_by_body


def _resident_from_row(row: Any, operation: OpenOperation | None) -> Resident:
    return Resident(
        uuid=row.instance_uuid,
        name=row.name,
        project_id=row.project_id,
        state=row.state,
        host=row.host,
        deleted=row.deleted,
        fault=row.fault,
        charged=None if row.vcpus is None else (row.vcpus, row.memory_mb),
        claim=None if row.c_vcpus is None else _claim_from_row(row),
        hidden=row.hidden,
        operation=operation,
    )


def _guest_from_row(row: Any) -> UnfinishedClaim:
    return UnfinishedClaim(
        uuid=row.instance_uuid,
        name=row.name or "",
        project_id=row.project_id or "",
        requested=row.request is not None,
        claim=_claim_from_row(row),
    )


def _claim_from_row(row: Any) -> CellClaim:
    return CellClaim(host=row.c_host or "", **{name: getattr(row, f"c_{name}") for name in _AMOUNTS})


# -- requests that were not handed over yet ---------------------------------------------------------------------------------------

_LOCK_REQUESTS = by_index(
    sa.select(_R.c.instance_uuid)
    .where(_R.c.instance_uuid.in_(dialect.uuids_parameter()))
    .order_by(_R.c.instance_uuid)
    .with_for_update(),
    _R,
)
_STILL_THERE = (
    sa.select(_A.c.instance_uuid)
    .join(_I, _I.c.id == _A.c.inventory_id)
    .where(_A.c.instance_uuid.in_(dialect.uuids_parameter()), _I.c.cell_uuid == sa.bindparam("cell"))
)
_TAKE_OVER = by_index(
    sa.update(_R)
    .where(_R.c.instance_uuid.in_(dialect.uuids_parameter()))
    .values(fence=_R.c.fence + 1, lease_until=sa.bindparam("now"), owner=sa.bindparam("taker")),
    _R,
)


def send_elsewhere(tx: ApiTransaction, stamp: Stamp, cell_uuid: str, uuids: Sequence[str], now: float) -> int:
    """Give requests with a claim in the cell a new fence and release the claim; their next driver asks the scheduler again.

    A conductor with the old fence can neither hand them over nor claim for them. ``uuids``: at most
    SERVERS_PER_TRANSACTION. Returns how many requests had a claim in the cell.
    """
    requests = tx.execute(_LOCK_REQUESTS, {"uuids": list(uuids)}).scalars().all()
    compare_locks(tx, "request", requests)
    # A claim needs the lock of its request, so the claims read now cannot change before the commit.
    request_uuids = sorted(tx.execute(_STILL_THERE, {"uuids": list(requests), "cell": cell_uuid}).scalars())
    if request_uuids:
        tx.execute(_TAKE_OVER, {"uuids": request_uuids, "now": now, "taker": "cell delete"})
        claims.release_claims(tx, stamp, request_uuids)
    return len(request_uuids)


# -- servers that were handed over ---------------------------------------------------------------------------------------------

_FAIL = by_index(
    sa.update(_M)
    .where(_M.c.instance_uuid.in_(dialect.uuids_parameter()), _MINE, _M.c.deleted == sa.false(), _M.c.state == "building")
    .values(state="error", fault=sa.bindparam("why"), updated_at=sa.bindparam("now")),
    _M,
)
_CONFIRM = by_index(
    sa.update(_M)
    .where(_M.c.instance_uuid.in_(dialect.uuids_parameter()), _MINE, _M.c.deleted == sa.true(), _M.c.state != "deleted")
    .values(state="deleted", terminated_at=sa.bindparam("now")),
    _M,
)
_SAY_WHY = by_index(sa.update(_M).where(_M.c.instance_uuid.in_(dialect.uuids_parameter())).values(fault=sa.bindparam("why")), _M)


def fail_builds(tx: ApiTransaction, stamp: Stamp, cell_uuid: str, uuids: Sequence[str], why: str, now: float) -> None:
    """Set builds that were handed over to the cell to ERROR and release their claims, as an *ended* event of its feed would."""
    tx.execute(_FAIL, {"uuids": list(uuids), "cell": cell_uuid, "why": why, "now": now})
    claims.release_claims(tx, stamp, uuids)


def delete_servers(tx: ApiTransaction, stamp: Stamp, cell_uuid: str, uuids: Sequence[str], why: str, now: float) -> None:
    """Delete servers that are these bodies of the cell, release their quota and confirm the deletes.

    Of a server that is another body only this one is deleted, unless an open operation needs it. ``uuids``: at most
    SERVERS_PER_TRANSACTION.
    """
    mine: list[str] = []
    for uuid, body in sorted(operations.bodies_by_uuid(tx, uuids).items()):
        server = body.server.uuid
        if body.hidden and not operations.open_for(tx, [server]):
            operation_repair.delete_ended(tx, stamp, uuid, now)
        elif builds.delete(tx, stamp, server, project_id=None, now=now) is not None:
            mine.append(uuid)
    tx.execute(_SAY_WHY, {"uuids": mine, "why": why})
    confirm_deletes(tx, stamp, cell_uuid, uuids, now)


# -- operations ------------------------------------------------------------------------------------------------------------------

_OFF = (
    sa.update(_M)
    .where(_M.c.instance_uuid == sa.bindparam("uuid"), _MINE, _M.c.deleted == sa.false())
    .values(power=Power.HELD, task_number=sa.bindparam("number"), task_state=TaskState.DONE)
)


def give_up(
    tx: ApiTransaction, stamp: Stamp, cell_uuid: str, opened_operations: Sequence[OpenOperation], why: str, now: float
) -> None:
    """Give up operations whose twins are in the cell, and confirm the ends of these."""
    faults = {opened.operation.uuid: why for opened in opened_operations}
    done = steps.give_up(tx, stamp, faults, now, dead=faults)
    confirm_deletes(tx, stamp, cell_uuid, done.deleted, now)


def go_on(
    tx: ApiTransaction, stamp: Stamp, cell_uuid: str, opened_operations: Sequence[OpenOperation], why: str, now: float
) -> None:
    """Bring operations to their goals whose twins run elsewhere: nobody can return to the sources, which are in the cell."""
    uuids = [opened.operation.uuid for opened in opened_operations]
    switched = steps.switch_servers(tx, stamp, uuids, now)
    confirmed = steps.confirm_moves(tx, stamp, uuids, now)
    ended = [*switched.deleted, *confirmed.deleted]
    tx.execute(_SAY_WHY, {"uuids": ended, "why": why})
    confirm_deletes(tx, stamp, cell_uuid, ended, now)


def ask_twins(tx: ApiTransaction, stamp: Stamp, cell_uuid: str, opened_operations: Sequence[OpenOperation]) -> None:
    """Let the twins of live migrations be asked whether the guests have gone over to them; the sources are in the cell.

    The cell cannot tell any more that the sources are off; the operator who removes it says so.
    """
    for opened in opened_operations:
        tx.execute(_OFF, {"uuid": opened.operation.source_uuid, "cell": cell_uuid, "number": opened.operation.number})
    steps.recall_migrations(tx, [opened.operation.uuid for opened in opened_operations], 0.0)


def offload_servers(
    tx: ApiTransaction, stamp: Stamp, cell_uuid: str, opened_operations: Sequence[OpenOperation], why: str, now: float
) -> None:
    """Let shelved servers leave their hosts, which are in the cell: their snapshots are complete."""
    done = shelving.offload_servers(tx, stamp, [opened.operation.uuid for opened in opened_operations], now)
    tx.execute(_SAY_WHY, {"uuids": list(done.deleted), "why": why})
    confirm_deletes(tx, stamp, cell_uuid, done.deleted, now)


def turn_back(
    tx: ApiTransaction, stamp: Stamp, cell_uuid: str, opened_operations: Sequence[OpenOperation], why: str, now: float
) -> None:
    """Let servers whose twins are in the cell be their sources again, which are elsewhere and wait for their users' confirmation.

    The cell cannot tell any more that the twins are off; the operator who removes it says so.
    """
    uuids = [opened.operation.uuid for opened in opened_operations]
    steps.revert_moves(tx, uuids, now)
    for opened in opened_operations:
        tx.execute(_OFF, {"uuid": opened.operation.twin_uuid, "cell": cell_uuid, "number": opened.operation.number + 2})
    done = steps.point_back(tx, stamp, uuids, (), now)
    tx.execute(_SAY_WHY, {"uuids": list(done.deleted), "why": why})
    confirm_deletes(tx, stamp, cell_uuid, done.deleted, now)


def confirm_deletes(tx: ApiTransaction, stamp: Stamp, cell_uuid: str, uuids: Sequence[str], now: float) -> None:
    """Confirm the deletes of servers of the cell, because the cell cannot do so any more. Release their claims and addresses."""
    tx.execute(_CONFIRM, {"uuids": list(uuids), "cell": cell_uuid, "now": now})
    claims.release_claims(tx, stamp, uuids)
    addresses.free_addresses(tx, uuids, now)


def release_orphans(tx: ApiTransaction, stamp: Stamp, uuids: Sequence[str]) -> None:
    """Release the claims among these that belong to no server or request, without waiting for the reaper."""
    claims.release_claims(tx, stamp, claims.list_orphans(tx, uuids))


# -- the cell ----------------------------------------------------------------------------------------------------------------------

_CURSOR = sa.delete(tables.feed_cursors).where(tables.feed_cursors.c.cell_uuid == sa.bindparam("cell"))
_ELSEWHERE = sa.select(tables.host_mappings.c.host).where(tables.host_mappings.c.cell_uuid != sa.bindparam("cell"))
_INVENTORIES = sa.select(_I.c.id).where(_I.c.cell_uuid == sa.bindparam("cell"), _I.c.host.not_in(_ELSEWHERE))


def forget_cell(tx: ApiTransaction, cell_uuid: str, *, failed_with: str | None = None) -> None:
    """Delete the cell, its hosts, their inventories and their memberships in aggregates, in one transaction.

    ``failed_with``: builds that ``fail_builds`` ended with this fault do not count.
    Raises NotFound, and Conflict while the cell has claims or servers.
    """
    # first: a transaction that starts its feed or maps hosts to it waits, then finds no cell
    cell_mappings.lock_cell(tx, cell_uuid)
    tx.execute(_CURSOR, {"cell": cell_uuid})  # without a cursor nobody applies the feed, which would create inventories again
    ids = list(tx.execute(_INVENTORIES, {"cell": cell_uuid}).scalars())
    locked = [row.id for row in inventories.lock_rows(tx, ids)]  # a concurrent claim waits for these locks, then finds no inventory
    claimed = 0
    for piece in dialect.split_pages(locked):
        claimed += tx.execute(sa.select(sa.func.count()).where(_A.c.inventory_id.in_(piece))).scalar_one()
    if claimed:
        cell_mappings.check_empty(
            tx, cell_uuid, failed_with=failed_with
        )  # names the servers of the claims, which says more than the count of claims
        raise _unfinished_claims(cell_mappings.get(tx, cell_uuid), claimed)
    for piece in dialect.split_pages(locked):
        tx.execute(sa.delete(_I).where(_I.c.id.in_(piece)))
    hosts = tx.execute(_HOSTS, {"cell": cell_uuid}).scalars().all()
    memberships = 0
    for piece in dialect.split_pages(hosts):
        memberships += tx.execute(sa.delete(tables.aggregate_hosts).where(tables.aggregate_hosts.c.host.in_(piece))).rowcount
    if memberships:
        epochs.bump_epoch(tx, Epoch.AGGREGATES)
    host_mappings.delete_of(tx, cell_uuid)
    cell_mappings.delete(tx, cell_uuid, failed_with=failed_with)


def _unfinished_claims(cell: CellMapping, count: int) -> UnfinishedWork:
    """The error for a cell without servers that still has claims of builds."""
    advice = "disable it, and" if cell.state is CellState.ENABLED else f"it is {cell.state} and takes no more, so"
    return UnfinishedWork(
        f"Cell '{cell.name}' still has room claimed for {count} servers: {advice} wait until their builds are in it or have ended"
    )
