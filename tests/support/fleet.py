"""Host tables, request specs and schedulers for tests, small or large, with and without a database."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from db.api.claims import claims
from db.api.queue import leases
from db.api.queue.accepting import NewServer
from db.api.rows import spec_fields
from db.api.rows.tables import (
    allocations,
    build_requests,
    decisions,
    group_slots,
    instance_mappings,
    inventories,
    operations,
    quotas,
    request_metadata,
    request_specs,
    request_tags,
    server_groups,
)
from db.sql import dialect
from db.sql.connection import Connection
from db.sql.engine import Database
from objects import stored
from objects.aggregate import Aggregate
from objects.cell import CellMapping, CellState
from objects.compute_node import ComputeNode
from objects.context import RequestContext
from objects.decision import Decision
from objects.flavor import Flavor
from objects.group import GroupPolicy, ServerGroup
from objects.inventory import GroupSlots, Inventory, Slot
from objects.move import Move, MoveKind
from objects.selection import Selection
from objects.spec import RequestSpec
from scheduler.claim.cursor import Cursor
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.survey import Survey
from scheduler.framework.batch_request import Request
from scheduler.framework.members import Members
from scheduler.framework.settings import SchedulerSettings
from scheduler.manager import SchedulerManager
from scheduler.plugins import load_driver
from scheduler.table.host_table import HostTable
from scheduler.view import FleetView
from tests.support.accepted import accept_batch
from tests.support.databases import api_database

CELLS = ("11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222")
CONTEXT = RequestContext(request_id="req-test", project_id="p")
QUICK = SchedulerSettings(warm_up=0.0, claim_window=0.0)
"""Settings of schedulers whose refusals are immediate."""


def node(host: str, **changes: Any) -> ComputeNode:
    """A host of 16 cores, 64 GiB and 1,000 GiB, not over-allocated."""
    values: dict[str, Any] = {"node": host, "vcpus": 16, "memory_mb": 65536, "disk_gb": 1000, "cpu_allocation_ratio": 1.0}
    return ComputeNode(host=host, **(values | changes))


def flavor(vcpus: int = 1, memory_mb: int = 1024, root_gb: int = 10) -> Flavor:
    return Flavor(flavor_id="f", name="f", vcpus=vcpus, memory_mb=memory_mb, root_gb=root_gb)


def flavor_asking(resources: dict[str, int], size: Flavor | None = None) -> Flavor:
    """A flavor (1 vCPU, 1 MiB) that asks for these amounts of resource classes."""
    specs = {f"resources:{name}": str(amount) for name, amount in resources.items()}
    return msgspec.structs.replace(size or flavor(1, 1, 0), extra_specs=specs)


def spec(size: Flavor | None = None, **changes: Any) -> RequestSpec:
    """A request of a batch of its own."""
    values: dict[str, Any] = {
        "batch_id": str(uuid.uuid4()),
        "request_id": "req-test",
        "project_id": "p",
        "user_id": "u",
        "name": "server",
        "flavor": size or flavor(),
    }
    return RequestSpec(**(values | changes))


def group(policy: GroupPolicy, most: int = 1) -> ServerGroup:
    return ServerGroup(uuid=str(uuid.uuid4()), name="g", project_id="p", policy=policy, max_server_per_host=most)


def racks(**hosts: Sequence[str]) -> list[Aggregate]:
    """An aggregate for each rack, with its hosts."""
    return [
        Aggregate(id=number, name=f"rack {name}", hosts=tuple(theirs), metadata={"rack": name})
        for number, (name, theirs) in enumerate(hosts.items(), 1)
    ]


def cells(*states: CellState) -> list[CellMapping]:
    """One enabled cell per entry of CELLS, or in the states given."""
    chosen = states or (CellState.ENABLED,) * len(CELLS)
    return [
        CellMapping(uuid=cell, name=f"cell{n}", database_url="", transport_url="", state=state)
        for n, (cell, state) in enumerate(zip(CELLS, chosen, strict=True), start=1)
    ]


def table(
    nodes: Sequence[ComputeNode],
    zones: dict[str, str] | None = None,
    aggregates: Sequence[Aggregate] = (),
    *,
    states: Sequence[CellState] = (),
) -> HostTable:
    """A table of hosts that are up, in the cells of CELLS by turns, with ledger rows of their own and nothing claimed."""
    made = HostTable()
    homes = {n.host: CELLS[position % len(CELLS)] for position, n in enumerate(nodes)}
    made.set_topology(cells(*states), homes, zones or {}, aggregates)
    for position, each in enumerate(nodes, start=1):
        made.set_inventory(inventory(position, each, homes[each.host]), now=0.0)
    tell_cells(made, nodes, homes)
    return made


def tell_cells(made: HostTable, nodes: Iterable[ComputeNode], homes: dict[str, str], heard_at: float | None = None) -> None:
    """What the cells would say of these nodes, whose agents were heard of just now."""
    for each in nodes:
        made.set_nodes(homes[each.host], [each])
        heard = time.monotonic() if heard_at is None else heard_at
        made.set_service(homes[each.host], each.host, heard, disabled=False, forced_down=False)


def inventory(key: int, each: ComputeNode, cell_uuid: str, generation: int = 1, **changes: Any) -> Inventory:
    room = each.total_capacity
    values: dict[str, Any] = {"cap_vcpus": room.vcpus, "cap_memory_mb": room.memory_mb, "cap_disk_gb": room.disk_gb}
    values["cap_resources"] = room.resources
    place: dict[str, Any] = {"id": key, "host": each.host, "node": each.node, "cell_uuid": cell_uuid, "generation": generation}
    return Inventory(**(place | values | changes))


def by_group(slots: Sequence[Slot], singly: Collection[Slot] = ()) -> list[GroupSlots]:
    """Slots as a transaction reads them. ``singly``: those that are told one by one."""
    return [
        GroupSlots(
            group_uuid=group,
            slots=tuple(slot for slot in singly if slot.group_uuid == group),
            placed="\n".join(slot.host for slot in others if not slot.held),
            held="\n".join(slot.host for slot in others if slot.held),
            in_domains=tuple((slot.fault_domain, slot.host) for slot in others if slot.fault_domain is not None),
        )
        for group in sorted({slot.group_uuid for slot in slots})
        for others in [[slot for slot in slots if slot.group_uuid == group and slot not in singly]]
    ]


def request(asked: RequestSpec, made: HostTable, slots: Sequence[Slot] = (), **changes: Any) -> Request:
    """The request as an attempt would make it."""
    zone, takes = asked.availability_zone, asked.flavor.taken_amounts
    values: dict[str, Any] = {
        "spec": asked,
        "vcpus": takes.vcpus,
        "memory_mb": takes.memory_mb,
        "disk_gb": takes.disk_gb,
        "resources": takes.resources,
        "seed": 7,
        "zone": None if zone is None else made.zone_number(zone),
        "excluded_cells": frozenset(made.cell_number(cell) for cell in asked.excluded_cells),
        "members": Members(slots),
    }
    return Request(**(values | changes))


def weights(found: Survey, rows: list[int]) -> dict[str, list[float]]:
    """What each weigher adds to the scores of these rows, by the weigher's name. No aggregate sets a multiplier."""
    scales = {part.weigher.name: part for part in found.parts}
    return {
        name: [
            (max(raw, scales[name].low) - scales[name].low) * (scales[name].multiplier or 0.0) / scales[name].span for raw in each
        ]
        for name, each in found.raw_weights(rows).items()
    }


def driver(**changes: Any) -> SchedulerDriver:
    return load_driver(SchedulerSettings(**changes))


class StillFleet:
    """A fleet of two cells that has just been read, and of which nothing is read any more."""

    def current_view(self) -> FleetView:
        return FleetView({"cell1": 0.0, "cell2": 0.0})

    def topology_epochs(self, *, look: bool) -> dict[str, int]:
        return {}

    def usable_flavors(self, project_id: str) -> list[Flavor]:
        return []

    def hurry_cells(self, cells: Collection[str] | None = None) -> None:
        """Nothing is read."""


class Site:
    """An API database with hosts and queued requests, and as many schedulers on it as a test wants. Tests speak for the cells."""

    def __init__(self, database: Database, nodes: Sequence[ComputeNode]) -> None:
        self.database = database
        self.nodes = list(nodes)
        self.homes = {n.host: CELLS[position % len(CELLS)] for position, n in enumerate(nodes)}
        self.ledger = claims.Ledger(database, "test")
        for cell in CELLS:
            self.ledger.write(claims.set_inventory, [n for n in self.nodes if self.homes[n.host] == cell], cell)

    @classmethod
    def on_sqlite(cls, folder: Path, nodes: Sequence[ComputeNode]) -> Site:
        return cls(api_database(folder, max_pool_size=12), nodes)

    @classmethod
    def anew(cls, database: Database, nodes: Sequence[ComputeNode]) -> Site:
        """On a database that other tests have used: nothing of theirs is left."""
        database.write(_empty)
        return cls(database, nodes)

    def scheduler(
        self,
        settings: SchedulerSettings = QUICK,
        zones: dict[str, str] | None = None,
        states: Sequence[CellState] = (),
        aggregates: Sequence[Aggregate] = (),
    ) -> SchedulerManager:
        """One more scheduler process, with a table of its own that has just been read. ``states``: of the cells."""
        made, cursor = HostTable(settings.default_availability_zone), Cursor()
        made.set_topology(cells(*states), self.homes, zones or {}, aggregates)
        for row in self.database.read(claims.read_all):
            made.set_inventory(row, now=0.0)
            cursor.note_rows([row])
        tell_cells(made, self.nodes, self.homes)
        ledger = claims.Ledger(self.database, "scheduler")
        return SchedulerManager(settings, load_driver(settings), made, cursor, ledger, StillFleet())

    # -- requests --------------------------------------------------------------------------------------------------------------

    def leased(self, asked: RequestSpec, count: int = 1) -> RequestSpec:
        """Accept ``count`` servers of the request and lease them; the spec comes back with their fences."""
        now = time.time()
        servers = [NewServer(uuid=str(uuid.uuid4()), name=f"server-{n}", launch_index=n) for n in range(count)]
        if asked.group is not None:
            self.database.write(_ensure_group, asked.group)
        self.database.write(accept_batch, asked, servers, now=now, deadline=now + 600)
        fences: dict[str, int] = {}
        while len(fences) < count:  # rows that another transaction is looking at just now are skipped by a lease
            for batch in self.database.write(leases.lease_batches, "test", [asked.batch_id], now, 600.0):
                fences |= {r.instance_uuid: r.fence for r in batch.requests}
        return _fenced(asked, {server.uuid: fences[server.uuid] for server in servers})

    def moving(self, kind: MoveKind, asked: RequestSpec, server: str, source: str, **changes: Any) -> RequestSpec:
        """A move of a server of the request that is on ``source``, queued and leased as an operation would do it."""
        move = Move(kind=kind, instance_uuid=server, source_host=source, source_cell_uuid=self.homes[source])
        spec = asked.for_move(move, str(uuid.uuid4()), **changes)
        operation = str(uuid.uuid4())
        self.database.write(_queue_move, spec, operation)
        return _fenced(spec, {operation: 1})

    def end_move(self, asked: RequestSpec) -> None:
        """The operation is over, one way or the other."""
        self.database.write(_drop_requests, list(asked.fences))

    def refenced(self, asked: RequestSpec, **changes: Any) -> RequestSpec:
        """The same request under the next fence."""
        return _fenced(asked, self.database.write(leases.refence_requests, asked.fences), **changes)

    def boot(self, scheduler: SchedulerManager, asked: RequestSpec | None = None, count: int = 1) -> list[list[Selection]]:
        """Accept, lease, choose."""
        leased = self.leased(asked or spec(), count)
        return scheduler.select_destinations(CONTEXT, leased, list(leased.fences))

    # -- what the database says ------------------------------------------------------------------------------------------------

    def inventories(self) -> dict[str, Inventory]:
        return {row.host: row for row in self.database.read(claims.read_all)}

    def claimed(self) -> dict[str, str]:
        """Instance -> host."""
        return self.database.read(_claimed)

    def built(self) -> None:
        """All builds are over: no host is held for a retry any more."""
        uuids = [slot.instance_uuid for slot in self.slots()]
        self.ledger.write(lambda tx, stamp: claims.free_slots(tx, uuids))

    def slots(self) -> list[Slot]:
        return self.database.read(_slots)

    def decisions(self) -> list[Decision]:
        return self.database.read(_decisions)

    def overfull(self) -> list[str]:
        """Hosts whose claims exceed their capacity, by the sum of the allocations; raises if usage is not that sum."""
        sums = self.database.read(_sums)
        found: list[str] = []
        for host, row in self.inventories().items():
            vcpus, memory_mb, disk_gb, count = sums.get(row.id, (0, 0, 0, 0))
            usage = (row.used_vcpus, row.used_memory_mb, row.used_disk_gb, row.instances)
            if usage != (vcpus, memory_mb, disk_gb, count):
                raise AssertionError(f"{host}: usage {usage} is not the sum of its claims {(vcpus, memory_mb, disk_gb, count)}")
            if vcpus > row.cap_vcpus or memory_mb > row.cap_memory_mb or disk_gb > row.cap_disk_gb:
                found.append(host)
        return found


def _empty(tx: Connection) -> None:
    boots = (build_requests, instance_mappings, quotas, request_specs, request_tags, request_metadata, operations)
    for each in (*boots, allocations, decisions, group_slots, inventories, server_groups):
        tx.execute(sa.delete(each))


def _fenced(asked: RequestSpec, fences: dict[str, int], **changes: Any) -> RequestSpec:
    return msgspec.structs.replace(asked, fences=fences, **changes)


def _queue_move(tx: Connection, asked: RequestSpec, operation: str) -> None:
    now = time.time()
    tx.execute(
        sa.insert(request_specs),
        {"batch_id": asked.batch_id, "spec": stored.dump_value(asked), "created_at": now, **spec_fields.columns_of(asked)},
    )
    row = {"instance_uuid": operation, "batch_id": asked.batch_id, "state": "leased", "owner": "operation", "fence": 1}
    tx.execute(sa.insert(build_requests), row | {"lease_until": now + 600, "deadline": now + 600, "priority": 0, "created_at": now})


def _drop_requests(tx: Connection, uuids: Sequence[str]) -> None:
    tx.execute(sa.delete(build_requests).where(build_requests.c.instance_uuid.in_(uuids)))


def _ensure_group(tx: Connection, made: ServerGroup) -> None:
    dialect.insert_new(tx, server_groups, [msgspec.structs.asdict(made)])  # several may boot into it at once


def _claimed(tx: Connection) -> dict[str, str]:
    query = sa.select(allocations.c.instance_uuid, inventories.c.host).join_from(
        allocations, inventories, inventories.c.id == allocations.c.inventory_id
    )
    return {row.instance_uuid: row.host for row in tx.execute(query)}


def _slots(tx: Connection) -> list[Slot]:
    rows = tx.execute(sa.select(group_slots).order_by(group_slots.c.instance_uuid, group_slots.c.held, group_slots.c.host))
    return [Slot(**row) for row in rows.mappings()]


def _decisions(tx: Connection) -> list[Decision]:
    return [
        stored.load_text(text, Decision) for text in tx.execute(sa.select(decisions.c.decision).order_by(decisions.c.at)).scalars()
    ]


def _sums(tx: Connection) -> dict[int, tuple[int, int, int, int]]:
    of = allocations.c
    query = sa.select(
        of.inventory_id, sa.func.sum(of.vcpus), sa.func.sum(of.memory_mb), sa.func.sum(of.disk_gb), sa.func.count()
    ).group_by(of.inventory_id)
    return {key: (int(v), int(m), int(d), int(n)) for key, v, m, d, n in tx.execute(query)}
