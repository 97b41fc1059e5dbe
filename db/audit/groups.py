"""Members of server groups and their slots, for an audit."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from db.api.rows.tables import allocations, group_slots, instance_mappings, inventories, server_groups
from db.audit.pages import execute_in_pages, keys_of
from db.sql import dialect
from db.sql.connection import ApiTransaction
from objects.base import Object
from objects.inventory import Slot


class ClaimedMember(Object, frozen=True, kw_only=True):
    """A claim of a member of a group that exists: its one real slot is to be on this host."""

    uuid: str
    group_uuid: str
    host: str
    cell_uuid: str


grouped_after = keys_of(allocations.c.instance_uuid, allocations.c.group_uuid.is_not(None))
slots_after = keys_of(group_slots.c.instance_uuid)

_A, _M = allocations.c, instance_mappings.c
_MEMBERS = (
    sa.select(_A.instance_uuid, _A.group_uuid, inventories.c.host, inventories.c.cell_uuid)
    .select_from(
        allocations.join(inventories, inventories.c.id == _A.inventory_id).join(
            server_groups, server_groups.c.uuid == _A.group_uuid
        )
    )
    .where(_A.instance_uuid.in_(dialect.uuids_parameter()))
)
_SLOTS = (
    sa.select(group_slots)
    .where(group_slots.c.instance_uuid.in_(dialect.uuids_parameter()))
    .order_by(group_slots.c.instance_uuid, group_slots.c.group_uuid, group_slots.c.host)
)
_BUILT = sa.select(_M.instance_uuid).where(_M.instance_uuid.in_(dialect.uuids_parameter()), _M.state != "building")
_CLAIMING = sa.select(_A.instance_uuid).where(_A.instance_uuid.in_(dialect.uuids_parameter()))


def members_by_uuid(tx: ApiTransaction, uuids: Sequence[str]) -> dict[str, ClaimedMember]:
    return {
        row.instance_uuid: ClaimedMember(uuid=row.instance_uuid, group_uuid=row.group_uuid, host=row.host, cell_uuid=row.cell_uuid)
        for row in execute_in_pages(tx, _MEMBERS, uuids)
    }


def list_slots(tx: ApiTransaction, uuids: Sequence[str]) -> list[Slot]:
    return [
        Slot(group_uuid=row.group_uuid, instance_uuid=row.instance_uuid, host=row.host, held=bool(row.held))
        for row in execute_in_pages(tx, _SLOTS, uuids)
    ]


def list_claiming(tx: ApiTransaction, uuids: Sequence[str]) -> set[str]:
    """Those of these instances that have a claim."""
    return {row.instance_uuid for row in execute_in_pages(tx, _CLAIMING, uuids)}


def list_built(tx: ApiTransaction, uuids: Sequence[str]) -> set[str]:
    """Those of these instances whose build is over, however it ended: that is final."""
    return {row.instance_uuid for row in execute_in_pages(tx, _BUILT, uuids)}
