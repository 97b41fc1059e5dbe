"""The servers on some hosts, by their claims: what would have to go elsewhere if these hosts were lost."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from db.api.claims import group_slots
from db.api.rows.tables import allocations, instance_mappings
from db.api.servers import mappings
from db.api.servers.listing import image_of_rebuild
from db.sql import dialect
from db.sql.connection import ApiTransaction
from objects import errors
from objects.base import Object
from objects.inventory import Slot
from objects.spec import Image, RequestSpec

_M = instance_mappings.c
_ON = (
    sa.select(
        allocations.c.instance_uuid,
        allocations.c.inventory_id,
        sa.func.coalesce(_M.server_uuid, _M.instance_uuid).label("server_uuid"),
        _M.batch_id,
        _M.name,
        _M.image_id,
        _M.rebuilt_from,
    )
    .join(instance_mappings, _M.instance_uuid == allocations.c.instance_uuid)
    .where(allocations.c.inventory_id.in_(dialect.uuids_parameter("ids")), _M.deleted == sa.false())
    .order_by(allocations.c.instance_uuid)
    .limit(sa.bindparam("most"))
)


class ClaimedBody(Object, frozen=True, kw_only=True):
    """A body of a server that has a claim on an inventory. ``image``: of its last rebuild; None: that of its request."""

    uuid: str
    server_uuid: str
    name: str
    batch_id: str
    inventory_id: int
    image: Image | None = None


class DisplacedServers(Object, frozen=True, kw_only=True):
    """Bodies, the request specs of their batches by id, and the slots of their server groups. Bodies without a spec are missing."""

    bodies: tuple[ClaimedBody, ...]
    specs: dict[str, RequestSpec]
    slots: tuple[Slot, ...]


def read(tx: ApiTransaction, inventory_ids: Collection[int], limit: int) -> DisplacedServers:
    """Everything that claims room on these inventories and is not deleted. Raises TooCostly for more than ``limit`` servers."""
    bodies: list[ClaimedBody] = []
    for ids in dialect.split_pages(sorted(inventory_ids)):
        bodies += [
            ClaimedBody(
                uuid=row.instance_uuid,
                server_uuid=row.server_uuid,
                name=row.name,
                batch_id=row.batch_id,
                inventory_id=row.inventory_id,
                image=image_of_rebuild(row),
            )
            for row in tx.execute(_ON, {"ids": ids, "most": limit + 1 - len(bodies)})
        ]
        if len(bodies) > limit:
            raise errors.TooCostly(f"More than {limit} servers would have to go elsewhere: ask what happens after losing less.")
    specs = mappings.specs_by_batch(tx, {body.batch_id for body in bodies})
    groups = {spec.group.uuid: spec.group for spec in specs.values() if spec.group is not None}
    return DisplacedServers(
        bodies=tuple(body for body in bodies if body.batch_id in specs),
        specs=specs,
        slots=tuple(group_slots.read(tx, list(groups.values()))),
    )
