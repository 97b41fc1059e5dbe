"""What the API database holds of one cell, and how it is given back where the cell will never answer again.

Every function is one transaction, changes only what still is as it says, and may be repeated. The guards are those of
``docs/protocol.md``: requests leave the cell under a new fence, so that nobody who drives them can hand them over to it any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from db.api import builds, cell_mappings, claims, epochs, host_mappings, inventories, tables
from db.api.cell_mappings import NotOver
from db.api.epochs import Epoch
from db.api.ledger import Stamp
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from objects.base import Object
from objects.cell import CellMapping, CellState

PAGE = 100
"""Servers that end in one transaction: it holds the quota of their projects, which others wait for."""

_M, _R, _A, _I = tables.instance_mappings, tables.build_requests, tables.allocations, tables.inventories
_AMOUNTS = ("vcpus", "memory_mb", "disk_gb")


class CellClaim(Object, frozen=True, kw_only=True):
    """What is claimed on a host of the cell."""

    host: str
    vcpus: int
    memory_mb: int
    disk_gb: int


class Resident(Object, frozen=True, kw_only=True):
    """A server that was handed over to the cell. ``state`` is that of its summary, ``charged`` its vCPUs and MiB of the quota."""

    uuid: str
    name: str
    project_id: str
    state: str
    host: str | None
    deleted: bool
    fault: str | None
    charged: tuple[int, int] | None
    claim: CellClaim | None


class UnfinishedClaim(Object, frozen=True, kw_only=True):
    """A claim on a host of the cell by what is not handed over to it: a build under way (``requested``), or one left behind."""

    uuid: str
    name: str
    project_id: str
    requested: bool
    claim: CellClaim


class Estate(Object, frozen=True, kw_only=True):
    """All that the API database holds of a cell. ``aggregates``: the names of those that each host is in."""

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


def survey(tx: ApiTransaction, cell_uuid: str, ended_with: str) -> Estate:
    """What there is. Servers that a removal before this one has ended with this fault are told again."""
    aggregates: dict[str, tuple[str, ...]] = {}
    for host, name in tx.execute(_AGGREGATES, {"cell": cell_uuid}):
        aggregates[host] = (*aggregates.get(host, ()), name)
    return Estate(
        residents=tuple(_resident(row) for row in tx.execute(_RESIDENTS, {"cell": cell_uuid, "ended_with": ended_with})),
        guests=tuple(_guest(row) for row in tx.execute(_GUESTS, {"cell": cell_uuid})),
        hosts=tuple(tx.execute(_HOSTS.order_by(tables.host_mappings.c.host), {"cell": cell_uuid}).scalars()),
        aggregates=aggregates,
    )


def _resident(row: Any) -> Resident:
    return Resident(
        uuid=row.instance_uuid,
        name=row.name,
        project_id=row.project_id,
        state=row.state,
        host=row.host,
        deleted=row.deleted,
        fault=row.fault,
        charged=None if row.vcpus is None else (row.vcpus, row.memory_mb),
        claim=None if row.c_vcpus is None else _claim(row),
    )


def _guest(row: Any) -> UnfinishedClaim:
    return UnfinishedClaim(
        uuid=row.instance_uuid,
        name=row.name or "",
        project_id=row.project_id or "",
        requested=row.request is not None,
        claim=_claim(row),
    )


def _claim(row: Any) -> CellClaim:
    return CellClaim(host=row.c_host or "", **{name: getattr(row, f"c_{name}") for name in _AMOUNTS})


# -- what has not been handed over yet ---------------------------------------------------------------------------------------------

_LOCK_REQUESTS = by_index(
    sa.select(_R.c.instance_uuid).where(_R.c.instance_uuid.in_(dialect.uuids())).order_by(_R.c.instance_uuid).with_for_update(), _R
)
_STILL_THERE = (
    sa.select(_A.c.instance_uuid)
    .join(_I, _I.c.id == _A.c.inventory_id)
    .where(_A.c.instance_uuid.in_(dialect.uuids()), _I.c.cell_uuid == sa.bindparam("cell"))
)
_TAKE_OVER = by_index(
    sa.update(_R)
    .where(_R.c.instance_uuid.in_(dialect.uuids()))
    .values(fence=_R.c.fence + 1, lease_until=sa.bindparam("now"), owner=sa.bindparam("taker")),
    _R,
)


def send_elsewhere(tx: ApiTransaction, stamp: Stamp, cell_uuid: str, uuids: Sequence[str], now: float) -> int:
    """Requests with a claim in the cell get a new fence and lose the claim; whoever leases them next asks the scheduler anew.

    Who drives them now holds an old fence, and can neither hand them over nor claim for them. Returns how many there were; at most
    PAGE ``uuids``.
    """
    requests = tx.execute(_LOCK_REQUESTS, {"uuids": list(uuids)}).scalars().all()
    # whoever claims holds the request, so what is read now stays
    here = sorted(tx.execute(_STILL_THERE, {"uuids": list(requests), "cell": cell_uuid}).scalars())
    if here:
        tx.execute(_TAKE_OVER, {"uuids": here, "now": now, "taker": "cell delete"})
        claims.release(tx, stamp, here)
    return len(here)


# -- what has ------------------------------------------------------------------------------------------------------------------

_FAIL = by_index(
    sa.update(_M)
    .where(_M.c.instance_uuid.in_(dialect.uuids()), _MINE, _M.c.deleted == sa.false(), _M.c.state == "building")
    .values(state="error", fault=sa.bindparam("why"), updated_at=sa.bindparam("now")),
    _M,
)
_CONFIRM = by_index(
    sa.update(_M)
    .where(_M.c.instance_uuid.in_(dialect.uuids()), _MINE, _M.c.deleted == sa.true(), _M.c.state != "deleted")
    .values(state="deleted", terminated_at=sa.bindparam("now")),
    _M,
)
_SAY_WHY = by_index(sa.update(_M).where(_M.c.instance_uuid.in_(dialect.uuids())).values(fault=sa.bindparam("why")), _M)


def fail_builds(tx: ApiTransaction, stamp: Stamp, cell_uuid: str, uuids: Sequence[str], why: str, now: float) -> None:
    """Builds that were handed over to the cell end as ERROR: an *ended* event that no feed will bring."""
    tx.execute(_FAIL, {"uuids": list(uuids), "cell": cell_uuid, "why": why, "now": now})
    claims.release(tx, stamp, uuids)


def delete_servers(tx: ApiTransaction, stamp: Stamp, cell_uuid: str, uuids: Sequence[str], why: str, now: float) -> None:
    """Servers of the cell are deleted, their quota is freed with that, and the delete is confirmed. At most PAGE ``uuids``."""
    mine = [uuid for uuid in sorted(uuids) if builds.delete(tx, stamp, uuid, project_id=None, now=now) is not None]
    tx.execute(_SAY_WHY, {"uuids": mine, "why": why})
    confirm_deletes(tx, stamp, cell_uuid, uuids, now)


def confirm_deletes(tx: ApiTransaction, stamp: Stamp, cell_uuid: str, uuids: Sequence[str], now: float) -> None:
    """Deleted servers of the cell are gone, as it cannot say itself any more."""
    tx.execute(_CONFIRM, {"uuids": list(uuids), "cell": cell_uuid, "now": now})
    claims.release(tx, stamp, uuids)


def release_orphans(tx: ApiTransaction, stamp: Stamp, uuids: Sequence[str]) -> None:
    """Release those of these claims that nothing stands on, before the reaper does."""
    claims.release(tx, stamp, claims.orphans(tx, uuids))


# -- the cell ----------------------------------------------------------------------------------------------------------------------

_CURSOR = sa.delete(tables.feed_cursors).where(tables.feed_cursors.c.cell_uuid == sa.bindparam("cell"))
_ELSEWHERE = sa.select(tables.host_mappings.c.host).where(tables.host_mappings.c.cell_uuid != sa.bindparam("cell"))
_INVENTORIES = sa.select(_I.c.id).where(_I.c.cell_uuid == sa.bindparam("cell"), _I.c.host.not_in(_ELSEWHERE))


def forget(tx: ApiTransaction, cell_uuid: str, *, failed_with: str | None = None) -> None:
    """Delete the cell, its hosts, their inventories and their places in aggregates, in one transaction.

    Raises NotFound, and Conflict while anything is claimed or lives in the cell, but for builds that ``fail_builds`` has ended with
    the fault ``failed_with``.
    """
    cell_mappings.hold(tx, cell_uuid)  # first: whoever begins to apply its feed, or maps hosts to it, waits and finds no cell
    tx.execute(_CURSOR, {"cell": cell_uuid})  # from now on nobody applies its feed, which would make inventories again
    ids = list(tx.execute(_INVENTORIES, {"cell": cell_uuid}).scalars())
    locked = [row.id for row in inventories.lock(tx, ids)]  # whoever claims waits, and then finds nothing
    claimed = 0
    for some in _pieces(locked):
        claimed += tx.execute(sa.select(sa.func.count()).where(_A.c.inventory_id.in_(some))).scalar_one()
    if claimed:
        cell_mappings.check_empty(
            tx, cell_uuid, failed_with=failed_with
        )  # what claims of servers are there for is more to the point
        raise _claimed(cell_mappings.get(tx, cell_uuid), claimed)
    for some in _pieces(locked):
        tx.execute(sa.delete(_I).where(_I.c.id.in_(some)))
    hosts = tx.execute(_HOSTS, {"cell": cell_uuid}).scalars().all()
    left = 0
    for some in _pieces(hosts):
        left += tx.execute(sa.delete(tables.aggregate_hosts).where(tables.aggregate_hosts.c.host.in_(some))).rowcount
    if left:
        epochs.bump(tx, Epoch.AGGREGATES)
    host_mappings.delete_of(tx, cell_uuid)
    cell_mappings.delete(tx, cell_uuid, failed_with=failed_with)


def _claimed(cell: CellMapping, count: int) -> NotOver:
    """No servers are in the cell, but builds are on their way there."""
    advice = "disable it, and" if cell.state is CellState.ENABLED else f"it is {cell.state} and takes no more, so"
    return NotOver(
        f"Cell '{cell.name}' still has room claimed for {count} servers: {advice} wait until their builds are in it or have ended"
    )


def _pieces(items: Sequence[Any]) -> list[list[Any]]:
    return [list(items[start : start + dialect.IN_LIST]) for start in range(0, len(items), dialect.IN_LIST)]
