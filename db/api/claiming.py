"""Making claims: one transaction that takes room for whole batches, and nothing it may not take.

Requests are read under their fence and locked, so that nothing is claimed for one that was decided; then groups, then the hosts'
rows in the order of their ids; on these rows the planner confirms, with the predicate that planned, what it chose; then everything
is written. Locking first and using the values of the locked rows is what makes it safe on READ COMMITTED; any read of usage before
the lock, or apart from it, was seen to place more than there is room for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from db.api import decisions, epochs, group_slots, inventories, resources
from db.api.inventories import UsageChange
from db.api.ledger import Stamp
from db.api.tables import allocations, build_requests
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.engine import DuplicateEntry
from db.sql.keyed import by_index
from objects import stored
from objects.base import Object
from objects.decision import Decision
from objects.group import ServerGroup
from objects.inventory import Inventory, Placement, Slot, Standing
from objects.selection import Selection

REPAIRS = 3
"""Rounds in which a planner may ask for other hosts' rows, because others took the room on those it chose."""


EVERYTHING: Mapping[str, int] = MappingProxyType({})
"""Stands for the epochs of a planner that no operator can surprise."""


CHANGED = "cells, host mappings or aggregates are not any more what the plan would be made on"


class Raced(Exception):
    """Another scheduler has just claimed for one of these instances. Claim again: its answer will be found."""


class Outdated(Exception):
    """An operator has changed cells, mappings or zones since the planner learnt of them. Claim again when it has read them."""


class Ask(Object, frozen=True, kw_only=True):
    """One batch: its instances in request order with the fences they are leased under, and what each takes of a host."""

    fences: dict[str, int]
    vcpus: int
    memory_mb: int
    disk_gb: int
    resources: dict[str, int] = msgspec.field(default_factory=dict)
    group: ServerGroup | None = None
    excluded_cells: tuple[str, ...] = ()
    excluded_hosts: tuple[str, ...] = ()

    @property
    def usage(self) -> UsageChange:
        return UsageChange(self.vcpus, self.memory_mb, self.disk_gb, 1, resources.pairs(self.resources))


class Planner(Protocol):
    """Chooses hosts for the asks of one transaction. ``begin`` may be called again: the transaction is then being run anew."""

    @property
    def log_position(self) -> tuple[Mapping[int, int], int]:
        """What ``changed_since`` is to be asked."""

    def begin(self, changes: Sequence[Inventory], standings: Sequence[Standing], slots: Sequence[Slot]) -> Collection[int]:
        """Plan, and return the ids of the inventories chosen. ``standings`` are in the order of the asks."""

    def confirm(self, locked: Sequence[Inventory]) -> Collection[int]:
        """Look at rows that were locked just now. Return the ids of others that are wanted instead; none: the plan stands."""

    def finish(self) -> tuple[Sequence[Sequence[Placement]], Sequence[Decision]]:
        """What is to be written, per ask: all its needed instances, or none."""


class Claimed(Object, frozen=True, kw_only=True):
    """The changed inventories as they are once the transaction is committed."""

    standings: tuple[Standing, ...]
    inventories: tuple[Inventory, ...]


def claim(
    tx: ApiTransaction, stamp: Stamp, asks: Sequence[Ask], planner: Planner, known: Mapping[str, int] = EVERYTHING
) -> Claimed:
    """Find room for every batch that has any, each whole or not at all, and write it down with the decisions.

    Instances that have a claim under the same fence are answered from it; one under a lower fence is adopted, or replaced if its
    cell or host is excluded now. ``known``: the epochs of what the planner plans on, by name. Raises Raced, and Outdated where one
    of these has risen, so that a cell that was disabled is out of it from the moment on in which that was committed.
    """
    standings, old = _stand(tx, asks)
    log = inventories.changed_since(tx, *planner.log_position)
    if _is_outdated(log.epochs, known):
        raise Outdated(CHANGED)
    slots = group_slots.lock_and_read(tx, [ask.group for ask in asks if ask.group is not None])
    wanted = planner.begin(log.rows, standings, slots)
    locked = _confirmed(tx, planner, wanted, {claim.inventory_id for claim in old.values()})
    # Nothing locks the epochs. Whoever disables a cell changes its hosts' rows under a younger writer before the commit, so a claim
    # that has read the epochs before either holds these rows first, or finds them changed and reads the epochs again.
    if known and any(row.writer > log.newest for row in locked.values()) and _is_outdated(epochs.read(tx), known):
        raise Outdated(CHANGED)
    placements, made = planner.finish()
    placed = [(ask, placement) for ask, batch in zip(asks, placements, strict=True) for placement in batch]
    written = _write(tx, stamp, placed, old, locked)
    decisions.store_all(tx, made)
    return Claimed(standings=tuple(standings), inventories=tuple(written))


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
    .where(build_requests.c.instance_uuid.in_(dialect.uuids()))
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
    """A claim that is to be replaced."""

    inventory_id: int
    fence: int
    usage: UsageChange


def _stand(tx: ApiTransaction, asks: Sequence[Ask]) -> tuple[list[Standing], dict[str, _Old]]:
    """Lock the requests and sort their instances into kept, needed and gone. Adopting is written here already."""
    rows: dict[str, Any] = {}
    uuids = sorted(uuid for ask in asks for uuid in ask.fences)
    for start in range(0, len(uuids), dialect.IN_LIST):
        rows |= {row[0]: row for row in tx.execute(_STANDING, {"uuids": uuids[start : start + dialect.IN_LIST]})}
    standings: list[Standing] = []
    old: dict[str, _Old] = {}
    adopted: list[dict[str, Any]] = []
    for ask in asks:
        kept: dict[str, tuple[Selection, ...]] = {}
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
                kept[uuid] = tuple(msgspec.structs.replace(s, fence=fence) for s in stored.load(claimed[-1], tuple[Selection, ...]))
                if claim_fence != fence:
                    adopted.append(
                        {"uuid": uuid, "read_fence": claim_fence, "new_fence": fence, "new_selection": stored.dump(kept[uuid])}
                    )
        standings.append(Standing(kept=kept, needed=tuple(needed), gone=tuple(gone)))
    if adopted and tx.execute(_ADOPT, adopted).rowcount != len(adopted):
        raise Raced("another scheduler claimed for an instance of this transaction")
    return standings, old


def _is_excluded(selection: str, ask: Ask) -> bool:
    if not (ask.excluded_cells or ask.excluded_hosts):
        return False
    claimed = stored.load(selection, tuple[Selection, ...])[0]
    return claimed.cell_uuid in ask.excluded_cells or claimed.host.lower() in {host.lower() for host in ask.excluded_hosts}


_NOTHING = (None,) * 10


def _confirmed(tx: ApiTransaction, planner: Planner, wanted: Collection[int], leaving: Collection[int]) -> dict[int, Inventory]:
    """Lock what the planner chose, and let it repair its plan on other rows where these have filled up meanwhile."""
    if not wanted:
        return {}
    locked = {row.id: row for row in inventories.lock(tx, {*wanted, *leaving})}
    more = planner.confirm(list(locked.values()))
    for _ in range(REPAIRS):
        if not more:
            break
        fresh = inventories.lock(tx, [key for key in more if key not in locked], only_free=True)
        locked |= {row.id: row for row in fresh}
        more = planner.confirm(fresh)
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
    """Allocations, slots and usage. Returns the inventories as they are now."""
    rows: list[dict[str, Any]] = []
    slots: list[Slot] = []
    changes: defaultdict[int, UsageChange] = defaultdict(lambda: UsageChange(0, 0, 0, 0))
    for ask, placement in placed:
        rows.append(_allocation(ask, placement, stamp))
        changes[placement.inventory_id] = changes[placement.inventory_id].plus(ask.usage)
        slots += _slots(ask, placement, locked[placement.inventory_id].host)
    replaced = [row["instance_uuid"] for row in rows if row["instance_uuid"] in old]
    for uuid in replaced:
        changes[old[uuid].inventory_id] = changes[old[uuid].inventory_id].plus(old[uuid].usage.negated())
    if replaced:
        _remove(tx, {uuid: old[uuid].fence for uuid in replaced})
    if rows:
        try:
            tx.execute(_INSERT, rows)
        except DuplicateEntry as error:
            raise Raced("another scheduler claimed for an instance of this transaction") from error
    group_slots.add(tx, slots)
    inventories.add_usage(tx, stamp, changes)
    return [inventories.after(locked[key], change, stamp) for key, change in changes.items()]


def _allocation(ask: Ask, placement: Placement, stamp: Stamp) -> dict[str, Any]:
    return {
        "instance_uuid": placement.instance_uuid,
        "inventory_id": placement.inventory_id,
        "fence": ask.fences[placement.instance_uuid],
        "vcpus": ask.vcpus,
        "memory_mb": ask.memory_mb,
        "disk_gb": ask.disk_gb,
        "resources": resources.dump(ask.resources),
        "group_uuid": ask.group.uuid if ask.group else None,
        "selection": stored.dump(placement.selections),
        "writer": stamp.writer,
        "wseq": stamp.sequence,
    }


def _slots(ask: Ask, placement: Placement, host: str) -> Iterable[Slot]:
    """The member's own slot, and those held for its retries."""
    if ask.group is None:
        return
    for name, held in ((host, False), *((alternate, True) for alternate in placement.held)):
        yield Slot(group_uuid=ask.group.uuid, instance_uuid=placement.instance_uuid, host=name, held=held)


def _remove(tx: ApiTransaction, fences: Mapping[str, int]) -> None:
    """PostgreSQL may have shown them as they were before it waited for their requests: then they are not these any more."""
    rows = [{"uuid": uuid, "read_fence": fences[uuid]} for uuid in sorted(fences)]
    if tx.execute(_DELETE, rows).rowcount != len(rows):
        raise Raced("another scheduler claimed for an instance of this transaction")
    group_slots.free(tx, sorted(fences), held_only=False)
