"""Which host each member of a server group is on, and which hosts are held for members whose build may still move."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from db import dialect
from db.tables.api import group_slots, server_groups
from objects.group import ServerGroup
from objects.inventory import Slot

_LOCK = (
    sa.select(server_groups.c.uuid)
    .where(server_groups.c.uuid.in_(dialect.uuids()))
    .order_by(server_groups.c.uuid)
    .with_for_update()
)
_READ = sa.select(group_slots).where(group_slots.c.group_uuid.in_(dialect.uuids()))
_OF_INSTANCES = sa.delete(group_slots).where(group_slots.c.instance_uuid.in_(dialect.uuids()))
_HELD = _OF_INSTANCES.where(group_slots.c.held.is_(sa.true()))
_ONE = sa.delete(group_slots).where(
    group_slots.c.group_uuid == sa.bindparam("of_group"),
    group_slots.c.instance_uuid == sa.bindparam("uuid"),
    group_slots.c.host == sa.bindparam("on_host"),
    group_slots.c.held.is_(sa.true()),
)


def lock_and_read(tx: Connection, groups: Collection[ServerGroup]) -> list[Slot]:
    """The slots of these groups; strict ones are locked first, so that two placements of one group come after each other."""
    strict = sorted({group.uuid for group in groups if group.policy.strict})
    if strict:
        tx.execute(_LOCK, {"uuids": strict}).all()
    every = sorted({group.uuid for group in groups})
    if not every:
        return []
    return [
        Slot(group_uuid=row.group_uuid, instance_uuid=row.instance_uuid, host=row.host, held=bool(row.held))
        for row in tx.execute(_READ, {"uuids": every})
    ]


def add(tx: Connection, slots: Sequence[Slot]) -> None:
    """New slots."""
    if slots:
        rows = [{"group_uuid": s.group_uuid, "instance_uuid": s.instance_uuid, "host": s.host, "held": s.held} for s in slots]
        tx.execute(sa.insert(group_slots), rows)


def remove(tx: Connection, slots: Iterable[Slot]) -> int:
    """These very slots, as far as they are still there."""
    rows = [{"of_group": slot.group_uuid, "uuid": slot.instance_uuid, "on_host": slot.host} for slot in slots]
    return tx.execute(_ONE, rows).rowcount if rows else 0


def free(tx: Connection, uuids: Sequence[str], *, held_only: bool) -> None:
    """The slots of these instances: all of them, or only what is held for a retry."""
    statement = _HELD if held_only else _OF_INSTANCES
    ordered = sorted(uuids)
    for start in range(0, len(ordered), dialect.IN_LIST):
        tx.execute(statement, {"uuids": ordered[start : start + dialect.IN_LIST]})


def move(tx: Connection, group_uuid: str, instance_uuid: str, host: str) -> None:
    """The member is on ``host`` now: its real slot goes there, whether that was held for it or not. Other held slots stay."""
    mine = sa.and_(group_slots.c.group_uuid == group_uuid, group_slots.c.instance_uuid == instance_uuid)
    tx.execute(sa.delete(group_slots).where(mine, sa.or_(group_slots.c.held.is_(sa.false()), group_slots.c.host == host)))
    add(tx, [Slot(group_uuid=group_uuid, instance_uuid=instance_uuid, host=host)])
