"""Slots of server groups: the host of each member, and the hosts held for members whose build may still retry elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from db.api.rows.tables import group_slots, instance_mappings, server_groups
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.galera import compare_locks
from db.sql.keyed import KeyedDelete, by_index
from objects.base import Object
from objects.group import GroupPolicy, ServerGroup
from objects.inventory import GroupSlots, Slot

_LOCK = by_index(
    sa.select(server_groups.c.uuid)
    .where(server_groups.c.uuid.in_(dialect.uuids_parameter()))
    .order_by(server_groups.c.uuid)
    .with_for_update(),
    server_groups,
)
_SHOWN = sa.and_(instance_mappings.c.hidden == sa.false(), instance_mappings.c.deleted == sa.false())
_READ = (
    sa.select(group_slots, instance_mappings.c.instance_uuid.label("shown"))
    .outerjoin(instance_mappings, sa.and_(instance_mappings.c.instance_uuid == group_slots.c.instance_uuid, _SHOWN))
    .where(group_slots.c.group_uuid.in_(dialect.uuids_parameter()))
)
# One row for all hosts of a group and its fault domain, as a group may have thousands, and rows for instances that are placed:
#
#   group_uuid | owner | held | fault_domain | number | length | hosts
#   g          | NULL  | 0    | NULL         | 3      | 6      | h1\nh2\nh7
#   g          | i4    | 0    | NULL         | 1      | 2      | h3
#
# A server may cut off a long text, and a name may contain anything: ``number`` and ``length`` tell.
_SEPARATOR = "\n"
_OWNER = sa.case((group_slots.c.instance_uuid.in_(dialect.uuids_parameter("placed")), group_slots.c.instance_uuid)).label("owner")
_BY_GROUP = (
    sa.select(
        group_slots.c.group_uuid,
        _OWNER,
        group_slots.c.held,
        group_slots.c.fault_domain,
        sa.func.count().label("number"),
        sa.func.sum(sa.func.char_length(group_slots.c.host)).label("length"),
        sa.func.aggregate_strings(group_slots.c.host, _SEPARATOR).label("hosts"),
    )
    .where(group_slots.c.group_uuid.in_(dialect.uuids_parameter()))
    .group_by(group_slots.c.group_uuid, sa.literal_column("owner"), group_slots.c.held, group_slots.c.fault_domain)
)
_COLUMNS = group_slots.c.keys()
_KEY, _INDEX = group_slots.c.instance_uuid, "ix_group_slots_instance_uuid"
_OF_INSTANCES = KeyedDelete(_KEY, returning=[_KEY], index=_INDEX)
_HELD = KeyedDelete(_KEY, returning=[_KEY], where=[group_slots.c.held.is_(sa.true())], index=_INDEX)


class NewMembers(Object, frozen=True, kw_only=True):
    """What is placed into a group.

    ``instances``: those that are placed; they do not restrict themselves. ``moves``: they include twins of servers that move.
    """

    group: ServerGroup
    fault_domain: str | None
    instances: tuple[str, ...]
    moves: bool = False


def lock_and_read(tx: ApiTransaction, placed: Sequence[NewMembers]) -> list[GroupSlots]:
    """The slots of the groups that these are placed into. The groups are locked first, so that placements see each other.

    So members of a soft group that are placed at once share a host only if they would one after the other. The slots of moves and
    of large batches are read one by one. Of other groups the slots of the instances that are placed are.
    """
    lock_groups(tx, {new_members.group.uuid for new_members in placed})
    return read_to_place(tx, placed)


def read_to_place(tx: ApiTransaction, placed: Sequence[NewMembers]) -> list[GroupSlots]:
    """The same without locks."""
    groups = {entry.group.uuid: entry.group for entry in placed}
    instances = sorted({uuid for entry in placed for uuid in entry.instances})
    if len(instances) > dialect.IN_LIST_SIZE:
        return _read_singly(tx, groups.values())
    moving = {entry.group.uuid for entry in placed if entry.moves}
    group_slots_read = _by_group(tx, [group for uuid, group in groups.items() if uuid not in moving], instances)
    return group_slots_read + _read_singly(
        tx, [group for uuid, group in groups.items() if uuid not in {entry.group_uuid for entry in group_slots_read}]
    )


def _read_singly(tx: ApiTransaction, groups: Collection[ServerGroup]) -> list[GroupSlots]:
    """These groups with all slots and their instances."""
    slots: dict[str, list[Slot]] = {group.uuid: [] for group in groups}
    for slot in read(tx, groups):
        slots[slot.group_uuid].append(slot)
    return [GroupSlots(group_uuid=uuid, slots=tuple(theirs)) for uuid, theirs in slots.items()]


def _by_group(tx: ApiTransaction, groups: Collection[ServerGroup], placed: Sequence[str]) -> list[GroupSlots]:
    """Those of these groups that can be told by their hosts. Others are left out.

    Of an affinity group on several hosts it must be known which members move.
    """
    if not groups:
        return []
    texts_by_group = {group.uuid: _SlotTexts() for group in groups}
    for row in tx.execute(_BY_GROUP, {"uuids": sorted(texts_by_group), "placed": list(placed)}):
        texts_by_group[row.group_uuid].add_row(row)
    return [
        texts_by_group[group.uuid].slots_of(group.uuid)
        for group in groups
        if texts_by_group[group.uuid].is_known
        and not (group.policy is GroupPolicy.AFFINITY and texts_by_group[group.uuid].are_several)
    ]


@dataclass(slots=True)
class _SlotTexts:
    """The hosts of one group's slots, from the rows of ``_BY_GROUP``. ``is_known``: no row was cut off."""

    placed: list[str] = field(default_factory=list)  # texts of several
    held: list[str] = field(default_factory=list)
    in_domains: list[tuple[str, str]] = field(default_factory=list)
    owned: list[tuple[str, str, bool, str | None]] = field(default_factory=list)
    is_known: bool = True

    def add_row(self, row: sa.Row[Any]) -> None:
        self.is_known &= row.hosts.count(_SEPARATOR) == row.number - 1 and len(row.hosts) == row.length + row.number - 1
        if row.owner is not None:
            self.owned += [(row.owner, host, bool(row.held), row.fault_domain) for host in row.hosts.split(_SEPARATOR)]
            return
        (self.held if row.held else self.placed).append(row.hosts)
        if row.fault_domain is not None:
            self.in_domains += [(row.fault_domain, host) for host in row.hosts.split(_SEPARATOR)]

    @property
    def are_several(self) -> bool:
        texts = (*self.placed, *(host for _, host, held, _ in self.owned if not held))
        return len({host for text in texts for host in text.lower().split(_SEPARATOR)}) > 1

    def slots_of(self, group_uuid: str) -> GroupSlots:
        return GroupSlots(
            group_uuid=group_uuid,
            slots=tuple(
                Slot(group_uuid=group_uuid, instance_uuid=uuid, host=host, held=held, fault_domain=domain)
                for uuid, host, held, domain in self.owned
            ),
            placed=_SEPARATOR.join(self.placed),
            held=_SEPARATOR.join(self.held),
            in_domains=tuple(self.in_domains),
        )


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


def lock_groups(tx: ApiTransaction, uuids: Collection[str]) -> None:
    """Lock these groups, in the order of their uuids, to the end of the transaction."""
    if uuids:
        tx.execute(_LOCK, {"uuids": sorted(uuids)}).all()
        compare_locks(tx, "group", uuids)  # who places a member changes only the slots


def add_slots(tx: ApiTransaction, slots: Sequence[Slot]) -> None:
    """Insert at least one slot."""
    tx.execute(sa.insert(group_slots), [{name: getattr(slot, name) for name in _COLUMNS} for slot in slots])


def free_slots(tx: ApiTransaction, uuids: Sequence[str], *, held_only: bool) -> None:
    """Delete the slots of these instances. ``held_only``: only those held for retries."""
    (_HELD if held_only else _OF_INSTANCES)(tx, sorted(uuids))


def move_slot(tx: ApiTransaction, group_uuid: str, instance_uuid: str, host: str, fault_domain: str | None = None) -> None:
    """Move the member's real slot to ``host``, replacing a slot held for it there. Its other held slots stay.

    The member stays in its fault domain. ``fault_domain``: that of a member without a slot.
    """
    mine = sa.and_(group_slots.c.group_uuid == group_uuid, group_slots.c.instance_uuid == instance_uuid)
    known = tx.execute(sa.select(group_slots.c.fault_domain).where(mine)).scalars().all()
    fault_domain = next((domain for domain in known if domain is not None), fault_domain)
    tx.execute(sa.delete(group_slots).where(mine, sa.or_(group_slots.c.held.is_(sa.false()), group_slots.c.host == host)))
    add_slots(tx, [Slot(group_uuid=group_uuid, instance_uuid=instance_uuid, host=host, fault_domain=fault_domain)])
