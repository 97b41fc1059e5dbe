"""Make claims: one transaction claims resources for several batches and never overcommits a host.

The transaction locks in this order:

1. the build requests under their fences, so that nothing is claimed for a request that was decided;
2. the server groups;
3. the inventories of the chosen hosts, in the order of their ids.

Then the planner confirms its choice on the locked rows, with the predicate that it planned with, and the claims are written. This
is safe on READ COMMITTED because usage comes from the locked rows. Usage read before or without the lock overcommits hosts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from db.api.claims import decisions, group_slots, inventories, resources
from db.api.claims.inventories import UsageChange
from db.api.rows import epochs
from db.api.rows.ledger import Stamp
from db.api.rows.tables import allocations, build_requests
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.engine import DuplicateEntry
from db.sql.galera import compare_locks
from db.sql.keyed import by_index
from objects import numa, stored
from objects.base import Object
from objects.decision import Decision
from objects.group import ServerGroup
from objects.inventory import GroupSlots, Inventory, Placement, Slot, Standing
from objects.selection import Selection

REPAIR_ROUNDS = 3
"""Rounds in which a planner may ask for other hosts, because other claims filled those it chose."""


EVERYTHING: Mapping[str, int] = MappingProxyType({})
"""No epochs: for a planner that need not notice operators' changes. ``claim_hosts`` then checks none."""


CHANGED = "cells, host mappings or aggregates have changed since they were read"


class Raced(Exception):
    """Another scheduler has just claimed for one of these instances. Retry: ``claim_hosts`` then finds its claim."""


class Outdated(Exception):
    """An operator changed cells, host mappings or aggregates since the planner read them. Read them again, then retry."""


class Ask(Object, frozen=True, kw_only=True):
    """The claims to make for one batch.

    ``fences``: its instances in request order, each with the fence it is leased under.
    ``vcpus``, ``memory_mb`` (MiB), ``disk_gb`` (GiB), ``resources``: what each instance takes of its host.
    ``fault_domain``: of the group.
    ``excluded_cells``, ``excluded_hosts``: where an old claim is replaced instead of adopted.
    ``moves``: the instance is the twin of a server that moves.
    """

    fences: dict[str, int]
    vcpus: int
    memory_mb: int
    disk_gb: int
    resources: dict[str, int] = msgspec.field(default_factory=dict)
    group: ServerGroup | None = None
    fault_domain: str | None = None
    excluded_cells: tuple[str, ...] = ()
    excluded_hosts: tuple[str, ...] = ()
    moves: bool = False

    def amounts_on(self, numa_nodes: Sequence[int]) -> dict[str, int]:
        """The amounts by class of an instance that is tied to these NUMA nodes of its host."""
        return self.resources | numa.taken_by_class(numa_nodes, self.vcpus, self.memory_mb) if numa_nodes else self.resources


class Planner(Protocol):
    """Chooses hosts for the asks of one transaction. A second call of ``plan_jobs`` means that the transaction is run again."""

    @property
    def is_overtaken(self) -> bool:
        """Whether a row that was locked has changed since the plan was made."""

    @property
    def log_position(self) -> tuple[Mapping[int, int], int]:
        """The arguments of ``inventories.changed_since``."""

    def plan_jobs(
        self, changes: Sequence[Inventory], standings: Sequence[Standing], groups: Sequence[GroupSlots]
    ) -> Collection[int]:
        """Plan, and return the ids of the inventories chosen. ``standings`` are in the order of the asks.

        ``groups``: the slots of all groups of the asks.
        """

    def confirm_locked(self, locked: Sequence[Inventory]) -> Collection[int]:
        """Check the plan on rows that were just locked. Return the ids of inventories wanted instead; empty: the plan stands."""

    def finish_plan(self) -> tuple[Sequence[Sequence[Placement]], Sequence[Decision]]:
        """The placements to write, per ask, and the decisions.

        An ask gets placements for all its needed instances or for none. With ``min_count`` it may also get them for some.
        """


class Claimed(Object, frozen=True, kw_only=True):
    """The standing of each ask, and the changed inventories as they are after the commit."""

    standings: tuple[Standing, ...]
    inventories: tuple[Inventory, ...]


def claim_hosts(
    tx: ApiTransaction, stamp: Stamp, asks: Sequence[Ask], planner: Planner, known: Mapping[str, int] = EVERYTHING
) -> Claimed:
    """Claim hosts for the instances that the planner places, and write the claims with the decisions.

    A claim under the same fence is kept. A claim under a lower fence is adopted, or replaced if its cell or host is now excluded.
    ``known``: the epochs of what the planner plans on, by name.
    Raises Raced, and Outdated if one of these epochs has risen: so no claim goes to a cell once its disabling is committed.
    """
    standings, old = _sort_instances(tx, asks)
    log = inventories.changed_since(tx, *planner.log_position)
    if _is_outdated(log.epochs, known):
        raise Outdated(CHANGED)
    members = _new_members(asks, standings)
    groups = group_slots.lock_and_read(tx, members) if members else []
    inventory_ids = planner.plan_jobs(log.rows, standings, groups)
    locked = _lock_confirmed(tx, planner, inventory_ids, {claim.inventory_id for claim in old.values()})
    # Nothing locks the epochs. The transaction that disables a cell, or changes the zone of hosts, also changes the hosts' rows. So
    # a claim that read the epochs earlier either locks these rows first, or finds them changed and reads the epochs again.
    if known and planner.is_overtaken and _is_outdated(epochs.read(tx), known):
        raise Outdated(CHANGED)
    placements, decided = planner.finish_plan()
    placed = [(ask, placement) for ask, batch in zip(asks, placements, strict=True) for placement in batch]
    written = _write(tx, stamp, placed, old, locked)
    decisions.store_all(tx, decided)
    return Claimed(standings=tuple(standings), inventories=tuple(written))


def rehearse_claim(tx: ApiTransaction, asks: Sequence[Ask], planner: Planner, known: Mapping[str, int] = EVERYTHING) -> None:
    """Have the planner plan as ``claim_hosts`` does, in a transaction that locks and writes nothing. The planner keeps the plan.

    The instances need no build requests: all of them count as needed. Raises Outdated as ``claim_hosts`` does.
    """
    log = inventories.changed_since(tx, *planner.log_position)
    if _is_outdated(log.epochs, known):
        raise Outdated(CHANGED)
    standings = [Standing(needed=tuple(ask.fences)) for ask in asks]
    inventory_ids = planner.plan_jobs(log.rows, standings, group_slots.read_to_place(tx, _new_members(asks, standings)))
    for _ in range(1 + REPAIR_ROUNDS):
        if not inventory_ids:
            break
        inventory_ids = planner.confirm_locked(inventories.read(tx, inventory_ids))
    planner.finish_plan()


def _new_members(asks: Sequence[Ask], standings: Sequence[Standing]) -> list[group_slots.NewMembers]:
    return [
        group_slots.NewMembers(group=ask.group, fault_domain=ask.fault_domain, instances=standing.needed, moves=ask.moves)
        for ask, standing in zip(asks, standings, strict=True)
        if ask.group is not None
    ]


def _is_outdated(now: Mapping[str, int], known: Mapping[str, int]) -> bool:
    return any(now.get(name, 0) != epoch for name, epoch in known.items())


_STANDING = by_index(
    sa.select(
        build_requests.c.instance_uuid,
        build_requests.c.state,
        build_requests.c.fence,
        allocations.c.fence,
        allocations.c.inventory_id,
        allocations.c.vcpus,
        allocations.c.memory_mb,
        allocations.c.disk_gb,
        allocations.c.resources,
        allocations.c.selection,
    )
    .select_from(build_requests.outerjoin(allocations, allocations.c.instance_uuid == build_requests.c.instance_uuid))
    .where(build_requests.c.instance_uuid.in_(dialect.uuids_parameter()))
    .order_by(build_requests.c.instance_uuid)
    .with_for_update(of=build_requests),
    build_requests,
)
_ADOPT = (
    sa.update(allocations)
    .where(allocations.c.instance_uuid == sa.bindparam("uuid"), allocations.c.fence == sa.bindparam("read_fence"))
    .values(fence=sa.bindparam("new_fence"), selection=sa.bindparam("new_selection"))
)


class _Old(Object, frozen=True, kw_only=True):
    """A claim to replace."""

    inventory_id: int
    fence: int
    usage: UsageChange


def _sort_instances(tx: ApiTransaction, asks: Sequence[Ask]) -> tuple[list[Standing], dict[str, _Old]]:
    """Lock the requests and sort their instances into kept, needed and gone. Adopted claims are updated here."""
    rows: dict[str, Any] = {}
    uuids = sorted(uuid for ask in asks for uuid in ask.fences)
    for page in dialect.split_pages(uuids):
        rows |= {row[0]: row for row in tx.execute(_STANDING, {"uuids": page})}
    compare_locks(tx, "request", rows)  # a claim leaves its request unchanged
    standings: list[Standing] = []
    old: dict[str, _Old] = {}
    adopted: list[dict[str, Any]] = []
    for ask in asks:
        kept_selections: dict[str, tuple[Selection, ...]] = {}
        needed: list[str] = []
        gone: list[str] = []
        for uuid, fence in ask.fences.items():
            _, state, request_fence, claim_fence, *claimed = rows.get(uuid, _NOTHING)
            if state != "leased" or request_fence != fence:
                gone.append(uuid)
            elif claim_fence is None:
                needed.append(uuid)
            elif _is_excluded(claimed[-1], ask) and claim_fence < fence:
                needed.append(uuid)
                old[uuid] = _Old(inventory_id=claimed[0], fence=claim_fence, usage=inventories.usage_of(*claimed[1:5]))
            else:
                kept_selections[uuid] = tuple(
                    msgspec.structs.replace(s, fence=fence) for s in stored.load_text(claimed[-1], tuple[Selection, ...])
                )
                if claim_fence != fence:
                    adopted.append(
                        {
                            "uuid": uuid,
                            "read_fence": claim_fence,
                            "new_fence": fence,
                            "new_selection": stored.dump_value(kept_selections[uuid]),
                        }
                    )
        standings.append(Standing(kept=kept_selections, needed=tuple(needed), gone=tuple(gone)))
    if adopted and tx.execute(_ADOPT, adopted).rowcount != len(adopted):
        raise Raced("another scheduler claimed for an instance of this transaction")
    return standings, old


def _is_excluded(selection: str, ask: Ask) -> bool:
    if not (ask.excluded_cells or ask.excluded_hosts):
        return False
    claimed = stored.load_text(selection, tuple[Selection, ...])[0]
    return claimed.cell_uuid in ask.excluded_cells or claimed.host.lower() in {host.lower() for host in ask.excluded_hosts}


_NOTHING = (None,) * 10


def _lock_confirmed(
    tx: ApiTransaction, planner: Planner, inventory_ids: Collection[int], leaving: Collection[int]
) -> dict[int, Inventory]:
    """Lock the chosen inventories. If some have filled up, let the planner repair its plan on others."""
    if not inventory_ids:
        return {}
    locked = {row.id: row for row in inventories.lock_rows(tx, {*inventory_ids, *leaving})}
    more = planner.confirm_locked(list(locked.values()))
    for _ in range(REPAIR_ROUNDS):
        if not more:
            break
        fresh = inventories.lock_rows(tx, [key for key in more if key not in locked], only_free=True)
        locked |= {row.id: row for row in fresh}
        more = planner.confirm_locked(fresh)
    return locked


# -- writing -----------------------------------------------------------------------------------------------------------------


_INSERT = sa.insert(allocations)
_DELETE = sa.delete(allocations).where(
    allocations.c.instance_uuid == sa.bindparam("uuid"), allocations.c.fence == sa.bindparam("read_fence")
)


def _write(
    tx: ApiTransaction,
    stamp: Stamp,
    placed: Iterable[tuple[Ask, Placement]],
    old: Mapping[str, _Old],
    locked: Mapping[int, Inventory],
) -> list[Inventory]:
    """Write allocations, slots and usage; return the changed inventories."""
    rows: list[dict[str, Any]] = []
    slots: list[Slot] = []
    changes: defaultdict[int, UsageChange] = defaultdict(lambda: UsageChange(0, 0, 0, 0))
    for ask, placement in placed:
        uuid, inventory_id = placement.instance_uuid, placement.inventory_id
        amounts = ask.amounts_on(placement.selections[0].numa_nodes)
        usage = UsageChange(ask.vcpus, ask.memory_mb, ask.disk_gb, 1, resources.nonzero_pairs(amounts))
        changes[inventory_id] = changes[inventory_id].add_change(usage)
        rows.append(
            {
                "instance_uuid": uuid,
                "inventory_id": inventory_id,
                "fence": ask.fences[uuid],
                "vcpus": ask.vcpus,
                "memory_mb": ask.memory_mb,
                "disk_gb": ask.disk_gb,
                "resources": resources.dump_amounts(amounts),
                "group_uuid": ask.group.uuid if ask.group else None,
                "selection": stored.dump_value(placement.selections),
                "writer": stamp.writer,
                "wseq": stamp.sequence,
            }
        )
        if ask.group is not None:  # the member's own slot, and the slots held for its retries
            hosts = [(locked[inventory_id].host, False), *((alternate, True) for alternate in placement.held)]
            slots += [
                Slot(group_uuid=ask.group.uuid, instance_uuid=uuid, host=host, held=held, fault_domain=ask.fault_domain)
                for host, held in hosts
            ]
    replaced = [row["instance_uuid"] for row in rows if row["instance_uuid"] in old]
    for uuid in replaced:
        changes[old[uuid].inventory_id] = changes[old[uuid].inventory_id].add_change(old[uuid].usage.negate_change())
    if replaced:
        _remove_old_claims(tx, {uuid: old[uuid].fence for uuid in replaced})
    if rows:
        try:
            tx.execute(_INSERT, rows)
        except DuplicateEntry as error:
            raise Raced("another scheduler claimed for an instance of this transaction") from error
    if slots:
        group_slots.add_slots(tx, slots)
    inventories.add_usage(tx, stamp, changes)
    return [inventories.row_after_change(locked[key], change, stamp) for key, change in changes.items()]


def _remove_old_claims(tx: ApiTransaction, fences: Mapping[str, int]) -> None:
    """Delete old claims. Raises Raced if one changed: PostgreSQL may have read it before it waited for its request's lock."""
    rows = [{"uuid": uuid, "read_fence": fences[uuid]} for uuid in sorted(fences)]
    if tx.execute(_DELETE, rows).rowcount != len(rows):
        raise Raced("another scheduler claimed for an instance of this transaction")
    group_slots.free_slots(tx, sorted(fences), held_only=False)
