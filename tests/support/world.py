"""A deployment put together by hand, so that single roles can be absent, stopped at any step, or cut off.

Everything is real: databases, buses, the scheduler service, the conductors' code, agents on simulated hosts. Hosts may be ghosts:
their cell has heard of them, and no agent is there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

import msgspec
import pytest
import sqlalchemy as sa

from cells.administration import NewCell, create_cell
from cells.discovery import discover_hosts
from cli.standalone.demo import evidence
from cli.standalone.demo.evidence import Evidence, at_rest, list_leftovers
from compute.driver import Guest
from compute.journal import JournalEntry, read_entries
from compute.simulated import journal_path
from conductor.cell_conductor import CellConductor
from conductor.main import CellConductorService, SuperConductorService
from conductor.opts import ConductorSettings
from conductor.sweep_cell import CellSweep
from db.api.operations import accepting, operations
from db.api.operations.accepting import NewOperation
from db.api.queue import builds, holds, leases
from db.api.reconcile import events
from db.api.rows.tables import feed_cursors
from db.cell import compute_nodes, feed, instances, services
from db.sql.connection import Connection
from db.sql.engine import Database
from objects.compute_node import ComputeNode
from objects.instance import Instance
from objects.operation import Operation, OperationKind, OperationState
from objects.process import AGENT_BINARY
from objects.spec import RequestSpec
from rpc.compute import ComputeClient
from rpc.transport import Bus
from scheduler.framework.settings import SchedulerSettings
from scheduler.main import SchedulerService
from service.periodic import wait_until
from service.rate_limited_log import RateLimitedLog
from service.vault import Vault
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.agents import Agents
from tests.support.closing import Closing
from tests.support.conductor import Mapped, Row, accept_held, read_mapped, read_requests, servers
from tests.support.conductor_process import Conductor, FaultyDatabase, LossyBus
from tests.support.databases import Scope, folder_of
from tests.support.ground import Ground, GroundFolder

P = ParamSpec("P")
T = TypeVar("T")

TWO_CELLS = {"cell1": ["a1", "a2"], "cell2": ["b1"]}
"""Cells, and the hosts of each."""
PATIENCE = 90.0
"""Seconds that a test waits for what must come."""

QUICK = ConductorSettings(
    workers=4,
    lease_seconds=1.0,
    sweep_interval=0.1,
    feed_interval=0.1,
    retry_pause=0.1,
    reap_interval=0.2,
    resend_age=0.2,
    idle_interval=0.5,
)
EVER = 1e6
"""Seconds. Ghosts give one sign of life; they are up for as long as a file's tests may take on a slow machine."""
SCHEDULER = SchedulerSettings(
    warm_up=0.0,
    claim_window=0.0,
    feed_poll_interval=0.1,
    claims_poll_interval=0.1,
    service_poll_interval=0.2,
    idle_interval=0.5,
    service_down_time=EVER,
)
# On servers a look takes several times longer than in a file: as many of them as above would take all of the machine.
QUICK_ON_SERVERS = msgspec.structs.replace(QUICK, sweep_interval=0.15, feed_interval=0.15, reap_interval=0.3)
SCHEDULER_ON_SERVERS = msgspec.structs.replace(
    SCHEDULER, feed_poll_interval=0.15, claims_poll_interval=0.15, service_poll_interval=0.3
)


class Sender:
    """A cell's own way to its hosts."""

    def __init__(self, name: str, bus: Bus) -> None:
        self.name = name
        self.compute: ComputeClient | None = ComputeClient(bus)
        self.complaints = RateLimitedLog(logging.getLogger(__name__))

    def send(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return fn(*args, **kwargs)


def _set_back(tx: Connection, cell_uuid: str) -> None:
    tx.execute(sa.update(feed_cursors).where(feed_cursors.c.cell_uuid == cell_uuid).values(sequence=0))


class World:
    """Cells with their hosts, all of them ghosts at first, and a scheduler that knows them. Nothing else runs until started."""

    def __init__(self, place: Ground, hosts: Mapping[str, Sequence[str]]) -> None:
        """``hosts``: the hosts of each cell."""
        self.folder = GroundFolder(place)
        self._pool_size = 3 if place.real else 20
        self.images = self.folder.path / "hosts" / "images"
        self.quick = msgspec.structs.replace(QUICK_ON_SERVERS if place.real else QUICK, images_folder=str(self.images))
        self.homes = {host: cell for cell, names in hosts.items() for host in names}
        self.cells = tuple(hosts)
        self.api = Database(self.folder.database_url("api"), name="api", max_pool_size=self._pool_size)
        self.closing = Closing()
        self.closing.databases += [self.api.dispose_connections, self.folder.release_lock]
        for name in ("cell0", *hosts):
            bus = "" if name == "cell0" else self.folder.bus_url(name)
            url = self.folder.database_url(name)
            create_cell(self.api, NewCell(name=name, database_url=url, transport_url=bus, cell0=name == "cell0"))
        self.databases = {name: self._database(name) for name in ("cell0", *hosts)}
        self.buses = {name: self.bus(name) for name in hosts}
        """What the cells' own conductors send their orders on."""
        self.agents = {name: Agents(self.bus(name), self.folder.path / "hosts") for name in hosts}
        self.closing.services += [agents.stop for agents in self.agents.values()]
        self.conductors: list[Conductor] = []
        self.vault = Vault()
        """The keys of services that are started."""

    def begin(self) -> None:
        """Hosts appear and are mapped, and the scheduler starts."""
        for host in self.homes:
            self.appear(host)
        self.keeper = self.conductor("keeper")
        discover_hosts(self.keeper.registry, self.api)
        self.keeper.registry.refresh_cells()
        self.keeper.keep()
        self.start_scheduler()

    def end(self) -> None:
        self.closing.close()

    def conductor(self, owner: str) -> Conductor:
        """One more process of the API level's conductor, for the test to run."""
        made = Conductor(self.folder, owner, max_pool_size=self._pool_size)
        self.conductors.append(made)
        self.closing.buses.append(made.close)
        return made

    def bus(self, name: str) -> LossyBus:
        made = LossyBus(self.folder.bus_url(name))
        self.closing.buses.append(made.close)
        return made

    def _database(self, name: str) -> FaultyDatabase:
        made = FaultyDatabase(self.folder.database_url(name), name=name, max_pool_size=self._pool_size)
        self.closing.databases.append(made.dispose_connections)
        return made

    def appear(self, host: str) -> None:
        """The cell hears from a host: a sign of life and what it offers."""
        database, now = self.databases[self.homes[host]], time.time()
        database.write(services.record_heartbeats, [services.Beat(host=host, binary=AGENT_BINARY)], now)
        node = ComputeNode(host=host, node=host, vcpus=16, memory_mb=65536, disk_gb=1000, hypervisor_type="simulated")
        database.write(compute_nodes.store_node, node, now)

    # -- what users do -----------------------------------------------------------------------------------------------------------

    def accept(self, count: int = 1, *, timeout: float = 60.0, **asked: Any) -> RequestSpec:
        """A batch that is durable, and that nobody was told of."""
        spec, now = fleet.spec(**asked), self.api.current_time()
        self.api.write(accept_batch, spec, servers(count), now=now, deadline=now + timeout)
        return spec

    def hold(self, count: int = 1, *, seconds: float = 60.0, timeout: float = 60.0, **asked: Any) -> RequestSpec:
        """A batch with a hold, that nobody was told of."""
        spec, now = fleet.spec(**asked), self.api.current_time()
        self.api.write(accept_held, spec, servers(count), now=now, deadline=now + timeout, until=now + seconds)
        return spec

    def boot_held(self, spec: RequestSpec) -> bool:
        now = self.api.current_time()
        return self.api.write(holds.boot_hold, spec.batch_id, now, now + 60.0)

    def operate(self, server: str, kind: OperationKind, *, timeout: float = 60.0, **asked: Any) -> Operation:
        """An operation that is durable, and that nobody was told of."""
        now = self.api.current_time()
        values: dict[str, Any] = {"scope": None, "user_id": "u", "request_id": f"req-{uuid4()}", "deadline": now + timeout}
        if kind.is_move:
            values |= {"twin_uuid": str(uuid4()), "batch_id": str(uuid4())}
        wanted = NewOperation(uuid=str(uuid4()), server_uuid=server, kind=kind, **(values | asked))
        return self.api.write(accepting.accept_operation, wanted, now)

    def delete(self, instance: str) -> builds.Deleted | None:
        return self.keeper.ledger.write(builds.delete, instance, project_id=None, now=time.time())

    def ended(self, operation: Operation) -> Operation:
        """The operation once it has ended, or once it waits for its user."""
        assert wait_until(lambda: self._is_over(operation), PATIENCE), self.api.read(operations.with_bodies, [operation.uuid])
        [found] = self.api.read(operations.get, [operation.uuid])
        return found

    def _is_over(self, operation: Operation) -> bool:
        [found] = self.api.read(operations.get, [operation.uuid])
        return found.outcome is not None or found.state is OperationState.VERIFY

    # -- what happens to databases -----------------------------------------------------------------------------------------------

    def set_back(self, cell_uuid: str) -> None:
        """The API level has forgotten how far it had read the cell's feed."""
        self.api.write(_set_back, cell_uuid)

    def trim_feeds(self) -> None:
        """All that is in the cells' feeds now is gone."""
        for name in self.cells:
            self.databases[name].write(feed.trim_events, time.time() + 1.0)

    # -- running roles -----------------------------------------------------------------------------------------------------------

    def start(self, settings: ConductorSettings | None = None) -> None:
        """Every role that is not there yet, with all its sweeps."""
        self.start_cells(settings)
        for host, cell in self.homes.items():
            if host not in self.agents[cell].services:
                self.start_agent(host)
        self.start_conductor(settings)

    def start_scheduler(self) -> None:
        settings = SCHEDULER_ON_SERVERS if self.folder.ground.real else SCHEDULER
        self.scheduler = SchedulerService(settings, self.keeper.registry, self.api, self.bus("api"))
        self.scheduler.start()
        self.closing.services.append(self.scheduler.stop)

    def start_conductor(self, settings: ConductorSettings | None = None) -> None:
        conductor = self.conductor("service")
        service = SuperConductorService(settings or self.quick, conductor.registry, conductor.database, conductor.bus, self.vault)
        service.start()
        self.closing.services.append(service.stop)

    def hasty_conductor(self) -> None:
        """One more conductor service, whose leases run out while it works: a server takes longer for each step than a file."""
        seconds, pause = (0.7, 0.1) if self.folder.ground.real else (0.3, 0.05)
        self.start_conductor(msgspec.structs.replace(self.quick, lease_seconds=seconds, sweep_interval=pause))

    def start_cells(self, settings: ConductorSettings | None = None) -> None:
        for name in self.cells:
            service = CellConductorService(settings or self.quick, name, self.databases[name], self.buses[name], self.vault)
            service.start()
            self.closing.services.append(service.stop)

    def start_agent(self, host: str, **changes: Any) -> None:
        self.agents[self.homes[host]].start(host, **changes)

    def start_agents(self) -> None:
        """That of every host."""
        for host in self.homes:
            self.start_agent(host)

    def start_cells_and_agents(self) -> None:
        self.start_cells()
        self.start_agents()

    def cell_conductor(self, name: str, *, down_time: float = 60.0, age: float = 0.0) -> tuple[CellConductor, CellSweep]:
        """A cell's conductor and its sweeps, run by the test."""
        sender = Sender(name, self.buses[name])
        endpoint = CellConductor(self.databases[name], sender)
        sweep = CellSweep(self.databases[name], sender, endpoint, resend_age=age, down_time=down_time, feed_age=86400.0)
        return endpoint, sweep

    def send_again(self, cell: str, *instances: str) -> None:
        """Their orders in force, once more."""
        self.cell_conductor(cell)[0].resend_orders(instances)

    # -- what there is -----------------------------------------------------------------------------------------------------------

    def rows(self, instance: str) -> dict[str, Instance]:
        """Its rows by cell, cell0 included. One that was handed over may have inert copies elsewhere, which the settler removes."""
        found = {name: database.read(instances.get, instance) for name, database in self.databases.items()}
        return {name: row for name, row in found.items() if row is not None}

    def row(self, instance: str) -> Instance:
        """Its row in the cell that its mapping names."""
        names = {cell.uuid: cell.name for cell in (*self.keeper.registry.list_cells(), self.keeper.registry.cell0)}
        return self.rows(instance)[names[self.mapped(instance).cell_uuid or ""]]

    def uuids(self, spec: RequestSpec) -> list[str]:
        """The servers of a batch."""
        return [server.uuid for server in self.evidence().servers if server.batch_id == spec.batch_id]

    def requests(self) -> dict[str, Row]:
        return {row.uuid: row for row in self.api.read(read_requests)}

    def mapped(self, instance: str) -> Mapped:
        return self.api.read(read_mapped)[instance]

    def waits(self, spec: RequestSpec) -> bool:
        """Whether something of the batch could be leased now."""
        return spec.batch_id in self.api.read(leases.list_waiting, time.time(), 1000)

    def cursor(self, cell_uuid: str) -> int:
        """How far the API level has read the cell's feed."""
        return self.api.write(events.lock_cursor, cell_uuid)

    def evidence(self) -> Evidence:
        """As ``cli.standalone.demo.evidence.gather_evidence`` has it, on connections that stay open: opening them takes longest."""
        guests = {host: [guest.uuid for guest in self.agents[cell].guests(host)] for host, cell in self.homes.items()}
        return evidence.read(self.api, self.databases, guests)

    def settle(self) -> Evidence:
        """Wait until nothing is on its way any more, and check that claims, guests and rows agree."""
        assert wait_until(lambda: at_rest(self.evidence()), 2 * PATIENCE, pause=0.1), self.evidence()
        assert wait_until(lambda: not list_leftovers(self.evidence()), PATIENCE, pause=0.1), list_leftovers(self.evidence())
        return self.evidence()

    def spawned(self, host: str) -> list[Guest]:
        """Every guest that was ever spawned on the host since its agent started."""
        return [entry.spawned for entry in self.journal(host) if entry.spawned is not None]

    def journal(self, host: str) -> list[JournalEntry]:
        """What came and went on the host since its agent started."""
        return read_entries(journal_path(str(self.folder.path / "hosts"), host))


@contextmanager
def world(path: Path, hosts: Mapping[str, Sequence[str]], on: str = "lite", *, embedded: bool = False) -> Iterator[World]:
    """A world on this ground whose hosts are mapped and known to its scheduler, brought to an end afterwards.

    ``embedded``: its buses are, see ``Ground``.
    """
    place = Ground(on, path, embedded=embedded)
    place.wait_for_room()
    made: World | None = None
    try:
        made = World(place, hosts)
        made.begin()
        yield made
    finally:
        ends = [made.end, place.release] if made else [place.release]
        place.end(*ends)


def world_fixture(
    hosts: Mapping[str, Sequence[str]] = TWO_CELLS,
    grounds: Sequence[str] | None = None,
    *,
    embedded: bool = False,
    scope: Scope = "function",
    prepare: Callable[[World], object] | None = None,
    of: Callable[[World], object] | None = None,
) -> object:
    """A fixture: a ``world`` on each of these grounds, on the light one if none is given.

    ``prepare`` runs before the test. The fixture yields the world, or what ``of`` makes of it.
    """

    @pytest.fixture(scope=scope, params=grounds)
    def cloud(request: pytest.FixtureRequest) -> Iterator[object]:
        with world(folder_of(request), hosts, getattr(request, "param", "lite"), embedded=embedded) as made:
            if prepare is not None:
                prepare(made)
            yield made if of is None else of(made)

    return cloud


def states(cloud: World, uuids: list[str]) -> list[str]:
    """Of their rows, at rest."""
    rows = {row.instance.uuid: row.instance.state for row in cloud.settle().rows}
    return [str(rows.get(uuid, "no row")) for uuid in uuids]
