"""Bodies of servers that were moved, or may be, and their open operations, for an audit."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from db.api.operations import operations
from db.api.operations.accepting import turn_of
from db.api.operations.operations import Body, OpenOperation
from db.api.rows.tables import instance_mappings
from db.audit.pages import keys_of
from db.sql.connection import ApiTransaction
from objects.base import Object
from objects.operation import Operation


class BodyRole(Object, frozen=True, kw_only=True):
    """A body beside the home row of its server and the body that this points to. None: there is no such row.

    ``operation``: the open one of its server.
    """

    body: Body
    home: Body | None
    shown: Body | None
    operation: Operation | None

    @property
    def uuid_of_server(self) -> str:
        return self.body.server.uuid

    @property
    def is_shown(self) -> bool:
        return self.shown is not None and self.shown.uuid == self.body.uuid

    @property
    def is_needed(self) -> bool:
        """Whether it is its server, or its open operation's. While that has not been compared with the cells, any may be."""
        if self.operation is not None and self.operation.frozen is not None:
            return True
        bodies = (self.operation.source_uuid, self.operation.twin_uuid) if self.operation is not None else ()
        return self.is_shown or self.body.uuid in bodies

    @property
    def is_superseded(self) -> bool:
        """Whether its server is another body, which is ACTIVE; or shelved, as this one was before, on no host."""
        if self.is_shown or self.shown is None or self.shown.server.deleted:
            return False
        return self.shown.server.state == "active" or (self.shown.server.is_shelved and self.body.server.is_shelved)


_M = instance_mappings.c

bodies_after = keys_of(_M.instance_uuid, sa.or_(_M.last_number > 0, _M.server_uuid.is_not(None)))
"""The home rows of servers that have had operations, and all later bodies."""


_LATEST = sa.select(sa.func.max(_M.turn).label("turn"), sa.func.max(_M.task_number).label("number")).where(
    sa.or_(_M.instance_uuid == sa.bindparam("server"), _M.server_uuid == sa.bindparam("server"))
)
"""It reads the whole table, as no index is kept for this."""


def next_turn(tx: ApiTransaction, server: str, numbers: Collection[int]) -> int:
    """The turn of a body of this server that no database knows: it is later than all bodies that one knows.

    ``numbers``: those of the latest tasks of the server's other unknown guests. One that is held for this body has the number of
    its operation.
    """
    row = tx.execute(_LATEST, {"server": server}).one()
    known = [row.number, *numbers] if row.number is not None else numbers
    return max([(row.turn or 0) + 1, *(turn_of(number) for number in known)])


def list_roles(tx: ApiTransaction, uuids: Sequence[str]) -> list[BodyRole]:
    """How these bodies stand, by uuid."""
    bodies_read = operations.bodies_by_uuid(tx, uuids)
    homes = operations.bodies_by_uuid(tx, {body.server.uuid for body in bodies_read.values()})
    shown = operations.bodies_by_uuid(tx, {_pointed_at(home) for home in homes.values()})
    still_open = operations.open_for(tx, homes)
    known: list[BodyRole] = []
    for _, body in sorted(bodies_read.items()):
        home = homes.get(body.server.uuid)
        pointed = shown.get(_pointed_at(home)) if home is not None else None
        known.append(BodyRole(body=body, home=home, shown=pointed, operation=still_open.get(body.server.uuid)))
    return known


def _pointed_at(home: Body) -> str:
    return home.body_uuid or home.uuid


def with_bodies(tx: ApiTransaction, open_operations: Sequence[Operation]) -> list[OpenOperation]:
    """These operations, as far as they are open, with their bodies."""
    return operations.with_bodies(tx, [operation.uuid for operation in open_operations]) if open_operations else []
