"""The durable queue for tests: requests put into it, taken out of it, and a look at what is written."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from db.api.deployment import cell_mappings
from db.api.queue import builds, holds, leases
from db.api.queue.accepting import NewServer
from db.api.rows import tables
from db.api.rows.incarnation import Known
from db.api.rows.tables import build_requests, client_tokens, feed_cursors, instance_mappings
from db.sql.connection import ApiTransaction, Connection
from db.sql.engine import Database
from objects.base import Object
from objects.spec import RequestSpec
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.fleet import CELLS, Site

NOW = 1000.0
"""When everything happens unless a test says otherwise, in seconds since the epoch."""
FAR = 1e12
LEASE = 30.0


class Row(Object, frozen=True, kw_only=True):
    """A build request as it is in its table."""

    uuid: str
    state: str
    fence: int
    owner: str | None
    lease_until: float


class Mapped(Object, frozen=True, kw_only=True):
    """What decides about an instance in its mapping."""

    cell_uuid: str | None
    deleted: bool
    fence: int
    seen: int
    state: str
    host: str | None


class Queue:
    """A site whose requests tests drive step by step. What others have left in the database is removed first."""

    def __init__(self, database: Database) -> None:
        self.site = Site.anew(database, [fleet.node(f"h{n}") for n in range(8)])
        self.database = database
        self.ledger = self.site.ledger
        database.write(_empty)
        for cell in fleet.cells():
            database.write(cell_mappings.create, cell)

    def accept(
        self, count: int = 1, *, now: float = NOW, deadline: float = FAR, token: str | None = None, **asked: Any
    ) -> RequestSpec:
        """A batch of ``count`` servers, queued."""
        spec = fleet.spec(**asked)
        self.database.write(accept_batch, spec, servers(count), now=now, deadline=deadline, token=token)
        return spec

    def hold(self, count: int = 1, *, until: float = NOW + 600.0, **asked: Any) -> RequestSpec:
        """A batch with a hold, queued."""
        spec = fleet.spec(**asked)
        self.database.write(accept_held, spec, servers(count), now=NOW, deadline=FAR, until=until)
        return spec

    def held(self, count: int = 1, *, until: float = NOW + 600.0, **asked: Any) -> tuple[RequestSpec, dict[str, int]]:
        """A batch that is held with its claims, and the fences that it was leased under."""
        spec = self.hold(count, until=until, **asked)
        fences = self.lease(spec.batch_id)
        self.site.scheduler().select_destinations(fleet.CONTEXT, msgspec.structs.replace(spec, fences=fences), list(fences))
        assert self.database.write(holds.park_requests, {spec.batch_id: fences}, NOW) == set(fences)
        return spec, fences

    def boot(self, spec: RequestSpec) -> bool:
        return self.database.write(holds.boot_hold, spec.batch_id, NOW, FAR)

    def release(self, spec: RequestSpec) -> bool:
        return self.ledger.write(holds.release_hold, spec.batch_id, NOW)

    def expire(self, spec: RequestSpec, known: Known | None = None, now: float = FAR) -> bool:
        return self.ledger.write(holds.expire_hold, spec.batch_id, now, known)

    def lease(self, *batches: str, owner: str = "one", now: float = NOW, seconds: float = LEASE) -> dict[str, int]:
        """Fences of what that leased."""
        leased = self.database.write(leases.lease_batches, owner, batches, now, seconds)
        return {request.instance_uuid: request.fence for batch in leased for request in batch.requests}

    def leased(self, count: int = 1, **asked: Any) -> dict[str, int]:
        """A new batch under a lease."""
        return self.lease(self.accept(count, **asked).batch_id)

    def claimed(self, count: int = 1, **asked: Any) -> dict[str, int]:
        """A new batch under a lease, with a claim for each of its instances."""
        leased = self.site.leased(fleet.spec(**asked), count)
        self.site.scheduler().select_destinations(fleet.CONTEXT, leased, list(leased.fences))
        return dict(leased.fences)

    def give_hosts_to(self, cell: str) -> None:
        """The ledger's hosts are all this cell's from now on, so that its feed may speak of each."""
        self.database.write(lambda tx: tx.execute(sa.update(tables.inventories).values(cell_uuid=cell)))

    # -- leaving -----------------------------------------------------------------------------------------------------------------

    def hand_over(self, fences: dict[str, int], cell: str = CELLS[0], host: str = "h0") -> list[str]:
        items = [
            builds.HandOver(instance_uuid=u, fence=fence, cell_uuid=cell, host=host, node=host, availability_zone="zone")
            for u, fence in fences.items()
        ]
        return self.database.write(builds.hand_over, items, NOW)

    def bury(self, fences: dict[str, int], fault: str = "No valid host was found.") -> list[str]:
        items = [builds.Burial(instance_uuid=u, fence=fence, fault=fault) for u, fence in fences.items()]
        return self.ledger.write(builds.bury_requests, items, NOW)

    def delete(self, instance: str, project_id: str | None = None, now: float = NOW) -> builds.Deleted | None:
        return self.ledger.write(builds.delete, instance, project_id=project_id, now=now)

    # -- what is written ---------------------------------------------------------------------------------------------------------

    def requests(self) -> dict[str, Row]:
        return {row.uuid: row for row in self.database.read(read_requests)}

    def mapped(self) -> dict[str, Mapped]:
        return self.database.read(read_mapped)


def accept_held(
    tx: ApiTransaction, spec: RequestSpec, some: Sequence[NewServer], *, now: float, deadline: float, until: float
) -> None:
    """Accept a batch with a hold that ends at ``until``."""
    accept_batch(tx, spec, some, now=now, deadline=deadline, held_until=until)
    holds.begin_hold(tx, spec.batch_id, spec.project_id, spec.user_id, now, until, limit=100)


def servers(count: int) -> Sequence[NewServer]:
    return [NewServer(uuid=str(uuid.uuid4()), name=f"server-{n}", launch_index=n) for n in range(count)]


def _empty(tx: Connection) -> None:
    for table in (tables.holds, client_tokens, feed_cursors, tables.cell_mappings, tables.user_quotas):
        tx.execute(sa.delete(table))


def read_requests(tx: Connection) -> list[Row]:
    """Every build request."""
    return [
        Row(uuid=r.instance_uuid, state=r.state, fence=r.fence, owner=r.owner, lease_until=r.lease_until)
        for r in tx.execute(sa.select(build_requests))
    ]


def read_mapped(tx: Connection) -> dict[str, Mapped]:
    """Every mapping by uuid."""
    return {
        r.instance_uuid: Mapped(cell_uuid=r.cell_uuid, deleted=r.deleted, fence=r.fence, seen=r.seen, state=r.state, host=r.host)
        for r in tx.execute(sa.select(instance_mappings))
    }
