"""Slots of server groups: the host of each member, and the hosts held for members whose build may still retry elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from db.api.tables import group_slots, instance_mappings, server_groups
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.galera import compare_locks
from db.sql.keyed import KeyedDelete, by_index
from objects.group import ServerGroup
from objects.inventory import Slot

_LOCK = by_index(
    sa.select(server_groups.c.uuid)
    .where(server_groups.c.uuid.in_(dialect.uuids()))
    .order_by(server_groups.c.uuid)
    .with_for_update(),
    server_groups,
)
_SHOWN = sa.and_(instance_mappings.c.hidden == sa.false(), instance_mappings.c.deleted == sa.false())
_READ = (
    sa.select(group_slots, instance_mappings.c.instance_uuid.label("shown"))
    .outerjoin(instance_mappings, sa.and_(instance_mappings.c.instance_uuid == group_slots.c.instance_uuid, _SHOWN))
    .where(group_slots.c.group_uuid.in_(dialect.uuids()))
)
_COLUMNS = group_slots.c.keys()
_KEY, _INDEX = group_slots.c.instance_uuid, "ix_group_slots_instance_uuid"
_OF_INSTANCES = KeyedDelete(_KEY, returning=[_KEY], index=_INDEX)
_HELD = KeyedDelete(_KEY, returning=[_KEY], where=[group_slots.c.held.is_(sa.true())], index=_INDEX)


def lock_and_read(tx: ApiTransaction, groups: Collection[ServerGroup], domains: Collection[ServerGroup] = ()) -> list[Slot]:
    """The slots of these groups. Strict groups are locked first, so that placements of one group are serialized.

    ``domains``: those of which a member of a fault domain is placed. They are locked whatever their policy.
    """
    lock(tx, {group.uuid for group in groups if group.policy.strict} | {group.uuid for group in domains})
    return read(tx, groups)


def read(tx: ApiTransaction, groups: Collection[ServerGroup]) -> list[Slot]:
    """The slots of these groups, without a lock."""
    every = sorted({group.uuid for group in groups})
    if not every:
        return []
    return [
        Slot(
            group_uuid=row.group_uuid,
            instance_uuid=row.instance_uuid,
            host=row.host,
            held=bool(row.held),
            moving=row.shown is None,
            fault_domain=row.fault_domain,
        )
        for row in tx.execute(_READ, {"uuids": every})
    ]


def lock(tx: ApiTransaction, uuids: Collection[str]) -> None:
    """Lock these groups, in the order of their uuids, to the end of the transaction."""
    if uuids:
        tx.execute(_LOCK, {"uuids": sorted(uuids)}).all()
        compare_locks(tx, "group", uuids)  # who places a member changes only the slots


def add(tx: ApiTransaction, slots: Sequence[Slot]) -> None:
    """Insert slots."""
    if slots:
        tx.execute(sa.insert(group_slots), [{name: getattr(slot, name) for name in _COLUMNS} for slot in slots])


def free(tx: ApiTransaction, uuids: Sequence[str], *, held_only: bool) -> None:
    """Delete the slots of these instances. ``held_only``: only those held for retries."""
    (_HELD if held_only else _OF_INSTANCES)(tx, sorted(uuids))


def move(tx: ApiTransaction, group_uuid: str, instance_uuid: str, host: str, fault_domain: str | None = None) -> None:
    """Move the member's real slot to ``host``, replacing a slot held for it there. Its other held slots stay.

    The member stays in its fault domain. ``fault_domain``: that of a member without a slot.
    """
    mine = sa.and_(group_slots.c.group_uuid == group_uuid, group_slots.c.instance_uuid == instance_uuid)
    known = tx.execute(sa.select(group_slots.c.fault_domain).where(mine)).scalars().all()
    fault_domain = next((domain for domain in known if domain is not None), fault_domain)
    tx.execute(sa.delete(group_slots).where(mine, sa.or_(group_slots.c.held.is_(sa.false()), group_slots.c.host == host)))
    add(tx, [Slot(group_uuid=group_uuid, instance_uuid=instance_uuid, host=host, fault_domain=fault_domain)])
