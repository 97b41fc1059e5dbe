"""Claims: the resources that each instance holds on a host.

Only schedulers make claims. The transaction that ends or moves an instance releases or moves its claim. ``docs/protocol.md``
defines the guards. Every writer locks in this order: build requests, allocations, server groups, inventories by id, group slots.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import RetryRequest

from db.api.claims import group_slots, inventories, resources
from db.api.claims.claiming import Ask, Claimed, Outdated, Planner, Raced, claim_hosts, rehearse_claim
from db.api.claims.inventories import (
    UsageChange,
    changed_since,
    forget_lost_events,
    last_positions,
    read_after,
    read_all,
    set_inventory,
    tell_service,
)
from db.api.rows.ledger import Ledger, Stamp
from db.api.rows.tables import allocations, build_requests, instance_mappings
from db.api.rows.tables import inventories as inventory_table
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import KeyedDelete, by_index
from db.sql.readable import whole_row
from objects import numa, stored
from objects.base import Object
from objects.cell import CELL0_UUID
from objects.selection import Selection

__all__ = [
    "Ask",
    "ClaimMove",
    "Claimed",
    "Ledger",
    "Outdated",
    "Planner",
    "Raced",
    "Stamp",
    "changed_since",
    "claim_hosts",
    "forget_lost_events",
    "free_slots",
    "last_positions",
    "list_orphans",
    "lock_places",
    "move_claims",
    "read_after",
    "read_all",
    "rehearse_claim",
    "release_claims",
    "set_inventory",
    "tell_service",
]

LOG = logging.getLogger(__name__)


class ClaimMove(Object, frozen=True, kw_only=True):
    """The instance is on this host now, whatever it had claimed.

    ``cell_uuid``: the cell that reports the move, which may name only its own hosts; None: an operator.
    """

    instance_uuid: str
    host: str
    node: str
    cell_uuid: str | None = None


_RELEASE = KeyedDelete(
    allocations.c.instance_uuid,
    returning=[
        allocations.c.instance_uuid,
        allocations.c.inventory_id,
        allocations.c.vcpus,
        allocations.c.memory_mb,
        allocations.c.disk_gb,
        allocations.c.resources,
        allocations.c.group_uuid,
    ],
)


def release_claims(tx: ApiTransaction, stamp: Stamp, uuids: Sequence[str]) -> int:
    """Release the claims and group slots of these instances; return how many had a claim. Idempotent."""
    changes: defaultdict[int, UsageChange] = defaultdict(lambda: UsageChange(0, 0, 0, 0))
    grouped: list[str] = []
    released = 0
    for row in _RELEASE(tx, sorted(set(uuids))):
        whole_row(row, allocations)  # before anything is changed: usage that is subtracted twice or never is worse than a refusal
        released += 1
        changes[row.inventory_id] = changes[row.inventory_id].add_change(_usage_of_claim(row).negate_change())
        if row.group_uuid is not None:
            grouped.append(row.instance_uuid)
    _change_usage(tx, stamp, changes)
    if grouped:  # after the inventories: the lock order of claims
        group_slots.free_slots(tx, grouped, held_only=False)
    return released


def free_slots(tx: ApiTransaction, uuids: Sequence[str]) -> None:
    """Free the slots held for retries of these instances, because their builds are over."""
    group_slots.free_slots(tx, uuids, held_only=True)


def _usage_of_claim(row: sa.Row[Any]) -> UsageChange:
    """The usage that a claim adds to its inventory."""
    return inventories.usage_of(row.vcpus, row.memory_mb, row.disk_gb, row.resources)


def _change_usage(tx: ApiTransaction, stamp: Stamp, changes: Mapping[int, UsageChange], needed: Set[int] = frozenset()) -> None:
    """Change the usage of inventories, skipping those that are gone.

    ``needed``: ids that must exist; raises RetryRequest if one does not.
    """
    if len(changes) > 1:  # an UPDATE of several rows locks them in no defined order, so lock them first
        there = {row.id for row in inventories.lock_rows(tx, changes)}
        if needed - there:
            raise RetryRequest(LookupError("an inventory that an instance was to move to has just been deleted"))
        changes = {inventory: usage for inventory, usage in changes.items() if inventory in there}
    inventories.add_usage(tx, stamp, changes)


# -- moves ---------------------------------------------------------------------------------------------------------------------

_CLAIMS = by_index(
    sa.select(allocations)
    .where(allocations.c.instance_uuid.in_(dialect.uuids_parameter()))
    .order_by(allocations.c.instance_uuid)
    .with_for_update(),
    allocations,
)
_MOVE = (
    sa.update(allocations)
    .where(allocations.c.instance_uuid == sa.bindparam("uuid"))
    .values(inventory_id=sa.bindparam("to"), resources=sa.bindparam("custom"))
)
_FIND = sa.select(inventory_table.c.id, inventory_table.c.host, inventory_table.c.node, inventory_table.c.cell_uuid).where(
    inventory_table.c.host.in_(dialect.uuids_parameter("hosts"))
)
_CELLS = sa.select(inventory_table.c.id, inventory_table.c.cell_uuid).where(
    inventory_table.c.id.in_(dialect.uuids_parameter("ids"))
)


def move_claims(tx: ApiTransaction, stamp: Stamp, moves: Sequence[ClaimMove]) -> None:
    """Move claims to the hosts where the instances are now, even if these are full. An instance without a claim gets none.

    A host without an inventory gets one without capacity, so that usage is right and nothing else is claimed there. A move that a
    cell reports to a host of another cell is refused and logged.
    """
    move_by_instance = {move.instance_uuid: move for move in moves}
    claimed = _read_claims(tx, sorted(move_by_instance))
    targets = _target_inventories(tx, stamp, [(move_by_instance[row.instance_uuid], row.inventory_id) for row in claimed])
    changes: defaultdict[int, UsageChange] = defaultdict(lambda: UsageChange(0, 0, 0, 0))
    moved: list[dict[str, Any]] = []
    grouped: list[tuple[str, str]] = []
    for row in claimed:
        move = move_by_instance[row.instance_uuid]
        to, home = targets[move.host, move.node]
        if to == row.inventory_id:
            continue
        if move.cell_uuid is not None and home not in (move.cell_uuid, ""):
            LOG.error(
                "cell %s says that %s moved to host %s of cell %s: refused", move.cell_uuid, row.instance_uuid, move.host, home
            )
            continue
        amounts = _amounts_at(row, move)
        changes[row.inventory_id] = changes[row.inventory_id].add_change(_usage_of_claim(row).negate_change())
        changes[to] = changes[to].add_change(
            UsageChange(row.vcpus, row.memory_mb, row.disk_gb, 1, resources.nonzero_pairs(amounts))
        )
        moved.append({"uuid": row.instance_uuid, "to": to, "custom": resources.dump_amounts(amounts)})
        if row.group_uuid is not None:
            grouped.append((row.group_uuid, row.instance_uuid))
    if moved:
        tx.execute(_MOVE, moved)
    _change_usage(tx, stamp, changes, {row["to"] for row in moved})
    for group_uuid, uuid in grouped:
        group_slots.move_slot(tx, group_uuid, uuid, move_by_instance[uuid].host)


def _amounts_at(row: sa.Row[Any], move: ClaimMove) -> dict[str, int]:
    """The amounts by class of a claim on its new host: on the NUMA nodes there that the scheduler chose, if it is an alternate."""
    chosen = stored.load_or_none(row.selection, tuple[Selection, ...]) or ()
    nodes = next((selection.numa_nodes for selection in chosen if (selection.host, selection.node) == (move.host, move.node)), ())
    return numa.without_nodes(resources.load_amounts(row.resources)) | numa.taken_by_class(nodes, row.vcpus, row.memory_mb)


def lock_places(tx: ApiTransaction, uuids: Sequence[str], hosts: Sequence[str]) -> None:
    """Lock the inventories of these instances' claims and all inventories of these hosts, in the order of their ids.

    For a transaction that changes some of them now and others later, which would break the lock order.
    """
    ids = {row.inventory_id for row in _read_claims(tx, sorted(set(uuids)))}
    inventories.lock_rows(tx, ids | {key for key, _ in _find_inventories(tx, sorted(set(hosts))).values()})


def _read_claims(tx: ApiTransaction, uuids: Sequence[str]) -> list[sa.Row[Any]]:
    rows: list[sa.Row[Any]] = []
    for page in dialect.split_pages(uuids):
        rows += tx.execute(_CLAIMS, {"uuids": page})
    return rows


def _target_inventories(
    tx: ApiTransaction, stamp: Stamp, moves: Sequence[tuple[ClaimMove, int]]
) -> dict[tuple[str, str], tuple[int, str]]:
    """Ids and cells of the inventories moved to, by (host, node). Missing ones are created."""
    places = {(move.host, move.node): inventory_id for move, inventory_id in moves}
    targets = _find_inventories(tx, sorted({host for host, _ in places}))
    missing = sorted(place for place in places if place not in targets)
    if not missing:
        return targets
    cells = {row.id: row.cell_uuid for row in tx.execute(_CELLS, {"ids": sorted({places[place] for place in missing})})}
    empty = {"cap_vcpus": 0.0, "cap_memory_mb": 0.0, "cap_disk_gb": 0.0, "writer": stamp.writer, "wseq": stamp.sequence}
    for host, node in missing:
        LOG.warning(
            "an instance moved to host %s, node %s, which has no inventory yet: one without capacity is created",
            host,
            node,
        )
    inventories.insert_rows(tx, [{"host": h, "node": n, "cell_uuid": cells.get(places[h, n], ""), **empty} for h, n in missing])
    return _find_inventories(tx, sorted({host for host, _ in places}))


def _find_inventories(tx: ApiTransaction, hosts: Sequence[str]) -> dict[tuple[str, str], tuple[int, str]]:
    """Id and cell of each inventory of these hosts, by (host, node)."""
    inventory_by_node: dict[tuple[str, str], tuple[int, str]] = {}
    for page in dialect.split_pages(hosts):
        rows = tx.execute(_FIND, {"hosts": page})
        inventory_by_node |= {(row.host, row.node): (row.id, row.cell_uuid) for row in rows}
    return inventory_by_node


# -- the audit -----------------------------------------------------------------------------------------------------------------

_ORPHANS = (
    sa.select(allocations.c.instance_uuid)
    .outerjoin(build_requests, build_requests.c.instance_uuid == allocations.c.instance_uuid)
    .outerjoin(instance_mappings, instance_mappings.c.instance_uuid == allocations.c.instance_uuid)
    .where(
        build_requests.c.instance_uuid.is_(None),
        sa.or_(
            instance_mappings.c.instance_uuid.is_(None),
            instance_mappings.c.cell_uuid == CELL0_UUID,
            instance_mappings.c.state.in_(("error", "deleted")),
            sa.and_(instance_mappings.c.cell_uuid.is_(None), instance_mappings.c.deleted.is_(sa.true())),
        ),
    )
    .order_by(allocations.c.instance_uuid)
)
_ORPHANS_AMONG = _ORPHANS.where(allocations.c.instance_uuid.in_(dialect.uuids_parameter()))


def list_orphans(tx: ApiTransaction, among: Sequence[str] | None = None) -> list[str]:
    """Instances with an orphaned claim: no build request, and no server that still needs it. That is final, so release it any time.

    ``among``: check only these, at most ``dialect.IN_LIST_SIZE``.
    """
    if among is None:
        return list(tx.execute(_ORPHANS).scalars())
    return list(tx.execute(_ORPHANS_AMONG, {"uuids": list(among)}).scalars())


_TAKEN = (
    sa.select(allocations.c.instance_uuid, allocations.c.inventory_id, inventory_table.c.host)
    .join_from(allocations, inventory_table, inventory_table.c.id == allocations.c.inventory_id)
    .where(allocations.c.instance_uuid.in_(dialect.uuids_parameter()))
    .order_by(allocations.c.instance_uuid)
)


def list_claimed(tx: ApiTransaction, uuids: Sequence[str]) -> list[tuple[str, int, str]]:
    """Of the instances that have a claim: uuid, inventory and host."""
    claimed: list[tuple[str, int, str]] = []
    for page in dialect.split_pages(sorted(uuids)):
        rows = tx.execute(_TAKEN, {"uuids": page})
        claimed += [(row.instance_uuid, row.inventory_id, row.host) for row in rows]
    return claimed


# the home row of a server names the body that has the claim
_PLACES = (
    sa.select(instance_mappings.c.instance_uuid, inventory_table.c.host)
    .join_from(
        instance_mappings,
        allocations,
        allocations.c.instance_uuid == sa.func.coalesce(instance_mappings.c.body_uuid, instance_mappings.c.instance_uuid),
    )
    .join(inventory_table, inventory_table.c.id == allocations.c.inventory_id)
    .where(
        instance_mappings.c.instance_uuid.in_(dialect.uuids_parameter()),
        instance_mappings.c.server_uuid.is_(None),
        instance_mappings.c.project_id == sa.bindparam("project"),
    )
)


def hosts_of(tx: ApiTransaction, project_id: str, uuids: Sequence[str]) -> dict[str, str]:
    """The hosts of these servers, by uuid. Servers of other projects and servers without a claim are left out.

    ``uuids``: at most ``dialect.IN_LIST_SIZE``.
    """
    return {row.instance_uuid: row.host for row in tx.execute(_PLACES, {"uuids": list(uuids), "project": project_id})}
