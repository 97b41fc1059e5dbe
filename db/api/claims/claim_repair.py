"""Repair claims, usage and slots of server groups. Locks are taken in the order that ``db/api/claims/claims.py`` defines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from db.api.claims import claims, group_slots, inventories, resources
from db.api.claims.inventories import UsageChange
from db.api.rows.ledger import Stamp
from db.api.rows.tables import allocations, instance_mappings
from db.api.rows.tables import group_slots as slot_table
from db.api.rows.tables import inventories as inventory_table
from db.api.servers import mappings
from db.audit import claims as audit_claims
from db.audit import groups
from db.audit.pages import execute_in_pages
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from objects import stored
from objects.amounts import Amounts
from objects.base import Object
from objects.group import ServerGroup
from objects.selection import Selection


class Unclaimed(Object, frozen=True, kw_only=True):
    """A live instance without a claim. ``takes``: the amounts to claim. ``seen``: its last applied event when it was found."""

    instance_uuid: str
    seen: int
    fence: int
    takes: Amounts
    selection: Selection
    group: ServerGroup | None
    fault_domain: str | None = None


# -- claims ----------------------------------------------------------------------------------------------------------------------

_M = instance_mappings.c
_LOCK_MAPPING = by_index(
    sa.select(_M.cell_uuid, _M.seen, _M.state).where(_M.instance_uuid == sa.bindparam("uuid")).with_for_update(),
    instance_mappings,
)
_INVENTORY = sa.select(inventory_table.c.id).where(
    inventory_table.c.host == sa.bindparam("host"),
    inventory_table.c.node == sa.bindparam("node"),
    inventory_table.c.cell_uuid == sa.bindparam("cell"),
)


def restore_claim(tx: ApiTransaction, stamp: Stamp, lost: Unclaimed) -> bool:
    """Claim for the instance again on its host, even if the host is full. False: refused, nothing is written.

    This locks the mapping, as the event of the instance's end does. An end applied since then shows in ``seen``; one that comes
    later releases the new claim. Also refused if a claim exists, or the host has no inventory in the instance's cell.
    """
    uuid, place = lost.instance_uuid, lost.selection
    mapping = tx.execute(_LOCK_MAPPING, {"uuid": uuid}).one_or_none()
    if mapping is None or (mapping.cell_uuid, mapping.seen) != (place.cell_uuid, lost.seen):
        return False
    inventory = tx.execute(_INVENTORY, {"host": place.host, "node": place.node, "cell": place.cell_uuid}).scalar_one_or_none()
    if mapping.state not in ("building", "active") or inventory is None:
        return False
    takes = lost.takes
    row = {
        "instance_uuid": uuid,
        "inventory_id": inventory,
        "fence": lost.fence,
        "vcpus": takes.vcpus,
        "memory_mb": takes.memory_mb,
        "disk_gb": takes.disk_gb,
        "resources": resources.dump_amounts(takes.resources),
        "group_uuid": lost.group.uuid if lost.group else None,
        "selection": stored.dump_value((place,)),
        "writer": stamp.writer,
        "wseq": stamp.sequence,
    }
    if not dialect.insert_new(tx, allocations, [row]):
        return False
    if lost.group:
        group_slots.lock_groups(tx, {lost.group.uuid})
    inventories.lock_rows(tx, [inventory])
    usage = UsageChange(takes.vcpus, takes.memory_mb, takes.disk_gb, 1, resources.nonzero_pairs(takes.resources))
    inventories.add_usage(tx, stamp, {inventory: usage})
    if lost.group:
        group_slots.move_slot(tx, lost.group.uuid, uuid, place.host, lost.fault_domain)
    return True


def release_orphans(tx: ApiTransaction, stamp: Stamp, uuids: Sequence[str]) -> int:
    """Release the claims among these that belong to no server or request, as the reaper does; return how many."""
    return claims.release_claims(tx, stamp, claims.list_orphans(tx, uuids))


# -- usage -----------------------------------------------------------------------------------------------------------------------

_RECOUNT = (
    sa.update(inventory_table)
    .where(inventory_table.c.id == sa.bindparam("key"))
    .values(
        used_vcpus=sa.bindparam("vcpus"),
        used_memory_mb=sa.bindparam("memory_mb"),
        used_disk_gb=sa.bindparam("disk_gb"),
        instances=sa.bindparam("count"),
        used_resources=sa.bindparam("custom"),
        generation=inventory_table.c.generation + 1,
        writer=sa.bindparam("by"),
        wseq=sa.bindparam("number"),
    )
)


def recount_usage(tx: ApiTransaction, stamp: Stamp, ids: Sequence[int]) -> int:
    """Set the usage of these inventories to the sum of their claims; return how many differed.

    Every transaction that changes claims also changes the usage, under the lock that this takes first. So all claims committed
    before the lock are counted here, and later ones are added to the result.
    """
    inventories.lock_rows(tx, ids)
    wrong = [difference for difference in audit_claims.sum_claims(tx, ids) if difference.counted != difference.claimed]
    for difference in wrong:
        vcpus, memory_mb, disk_gb, count, custom = difference.claimed
        values: dict[str, Any] = {"key": difference.id, "vcpus": vcpus, "memory_mb": memory_mb, "disk_gb": disk_gb, "count": count}
        values["custom"] = resources.dump_amounts(dict(custom))
        tx.execute(_RECOUNT, values | {"by": stamp.writer, "number": stamp.sequence})
    return len(wrong)


# -- slots in groups -------------------------------------------------------------------------------------------------------------

_LOCK_CLAIMS = by_index(
    sa.select(allocations.c.instance_uuid)
    .where(allocations.c.instance_uuid.in_(dialect.uuids_parameter()))
    .order_by(allocations.c.instance_uuid)
    .with_for_update(),
    allocations,
)
# One statement, so that it sees a concurrent claim either with its slots or not at all.
_DROP_STRAY = sa.delete(slot_table).where(
    slot_table.c.group_uuid == sa.bindparam("of_group"),
    slot_table.c.instance_uuid == sa.bindparam("uuid"),
    ~sa.exists().where(
        allocations.c.instance_uuid == slot_table.c.instance_uuid, allocations.c.group_uuid == slot_table.c.group_uuid
    ),
)


def mend_slots(tx: ApiTransaction, stamp: Stamp, uuids: Sequence[str]) -> None:
    """Give every member one real slot, on the host of its claim, and free the slots held for builds that are over.

    The claims are locked first, so that nobody moves or releases them meanwhile.
    """
    del stamp  # slots are not in the log of claims; the parameter lets ``Ledger.write`` run this
    tx.execute(_LOCK_CLAIMS, {"uuids": sorted(uuids)}).all()
    members = groups.members_by_uuid(tx, uuids)
    group_slots.lock_groups(tx, {member.group_uuid for member in members.values()})
    places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for slot in groups.list_slots(tx, uuids):
        if not slot.held:
            places[slot.instance_uuid, slot.group_uuid].append(slot.host)
        tx.execute(_DROP_STRAY, {"of_group": slot.group_uuid, "uuid": slot.instance_uuid})
    wrong = {uuid: member for uuid, member in members.items() if places[uuid, member.group_uuid] != [member.host]}
    domains = _fault_domains(tx, sorted(wrong))
    for uuid, member in sorted(wrong.items()):
        group_slots.move_slot(tx, member.group_uuid, uuid, member.host, domains.get(uuid))
    claims.free_slots(tx, sorted(groups.list_built(tx, uuids)))


_BATCHES = sa.select(_M.instance_uuid, _M.batch_id).where(_M.instance_uuid.in_(dialect.uuids_parameter()))


def _fault_domains(tx: ApiTransaction, uuids: Sequence[str]) -> dict[str, str | None]:
    """The fault domains that the requests of these members ask for, as far as their specs are there."""
    batches = {row.instance_uuid: row.batch_id for row in execute_in_pages(tx, _BATCHES, uuids)}
    specs = mappings.specs_by_batch(tx, set(batches.values()))
    return {uuid: specs[batch].fault_domain for uuid, batch in batches.items() if batch in specs}
