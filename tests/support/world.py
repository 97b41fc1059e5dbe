"""A deployment put together by hand, so that single roles can be absent, stopped at any step, or cut off.

Everything is real: SQLite files, embedded buses, the scheduler service, the conductors' code, agents on simulated hosts. Hosts may
be ghosts: their cell has heard of them, and no agent is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec
import sqlalchemy as sa

from cells.administration import NewCell, create_cell
from cells.discovery import AGENT, discover
from cli.all_in_one import StateFolder
from cli.demo.plan import HostPlan
from cli.demo.verdict import Evidence, at_rest, gather, judge_leftovers
from compute.driver import Guest
from compute.journal import read_entries
from compute.simulated import journal_path
from conductor.cell_conductor import CellConductor
from conductor.main import CellConductorService, SuperConductorService
from conductor.opts import ConductorSettings
from conductor.sweep_cell import CellSweep
from db import builds, compute_nodes, events, feed, instances, leases, services
from db.connection import Connection
from db.engine import Database
from db.sync import sync
from db.tables.api import feed_cursors
from objects.compute_node import ComputeNode
from objects.context import RequestContext
from objects.instance import Instance
from objects.spec import RequestSpec
from rpc.compute import ComputeClient
from rpc.transport import Bus
from scheduler.main import SchedulerService
from scheduler.settings import Settings as SchedulerSettings
from service.periodic import wait_until
from tests.support import fleet
from tests.support.agents import Agents
from tests.support.conductor import Mapped, Row, read_mapped, read_requests, servers
from tests.support.conductor_process import Conductor, FaultyDatabase, LossyBus

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 20.0
"""Seconds that a test waits for what must come."""

QUICK = ConductorSettings(
    workers=4,
    lease_seconds=1.0,
    sweep_interval=0.05,
    feed_interval=0.05,
    retry_pause=0.1,
    settle_age=0.15,
    reap_interval=0.1,
    resend_age=0.2,
)
SCHEDULER = SchedulerSettings(
    warm_up=0.0, claim_window=0.0, feed_poll_interval=0.05, claims_poll_interval=0.05, service_poll_interval=0.1
)


class Sender:
    """A cell's own way to its hosts."""

    def __init__(self, name: str, bus: Bus) -> None:
        self.name = name
        self.compute: ComputeClient | None = ComputeClient(bus)

    def send(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return fn(*args, **kwargs)


def _set_back(tx: Connection, cell_uuid: str) -> None:
    tx.execute(sa.update(feed_cursors).where(feed_cursors.c.cell_uuid == cell_uuid).values(sequence=0))


class World:
    """Cells with their hosts, all of them ghosts at first, and a scheduler that knows them. Nothing else runs until started."""

    def __init__(self, path: Path, hosts: Mapping[str, Sequence[str]]) -> None:
        """``hosts``: the hosts of each cell."""
        self.folder = StateFolder(path)
        self.homes = {host: cell for cell, names in hosts.items() for host in names}
        self.cells = tuple(hosts)
        sync(self.folder.database_url("api"), "api")
        for name in ("cell0", *hosts):
            sync(self.folder.database_url(name), "cell")
        self.api = Database(self.folder.database_url("api"), name="api", max_pool_size=20)
        self._closing: list[Callable[[], object]] = [self.api.dispose, self.folder.release]
        for name in ("cell0", *hosts):
            bus = "" if name == "cell0" else self.folder.bus_url(name)
            url = self.folder.database_url(name)
            create_cell(self.api, NewCell(name=name, database_url=url, transport_url=bus, cell0=name == "cell0"))
        self.databases = {name: self._database(name) for name in ("cell0", *hosts)}
        self.buses = {name: self.bus(name) for name in hosts}
        """What the cells' own conductors send their orders on."""
        self.agents = {name: Agents(self.bus(name), self.folder.path / "hosts") for name in hosts}
        for agents in self.agents.values():
            self.closing(agents.stop)
        self.conductors: list[Conductor] = []
        self.host_plans = [HostPlan(name=host, cell=cell, vcpus=0, memory_mb=0, disk_gb=0) for host, cell in self.homes.items()]

    def begin(self) -> None:
        """Hosts appear and are mapped, and the scheduler starts."""
        for host in self.homes:
            self.appear(host)
        self.keeper = self.conductor("keeper")
        discover(self.keeper.registry, self.api)
        self.keeper.registry.refresh()
        self.keeper.keep()
        self.start_scheduler()

    def end(self) -> None:
        for close in reversed(self._closing):
            close()

    def closing(self, close: Callable[[], object]) -> None:
        self._closing.append(close)

    def conductor(self, owner: str) -> Conductor:
        """One more process of the API level's conductor, for the test to run."""
        made = Conductor(self.folder, owner)
        self.conductors.append(made)
        self.closing(made.close)
        return made

    def bus(self, name: str) -> LossyBus:
        made = LossyBus(self.folder.bus_url(name))
        self.closing(made.close)
        return made

    def _database(self, name: str) -> FaultyDatabase:
        made = FaultyDatabase(self.folder.database_url(name), name=name)
        self.closing(made.dispose)
        return made

    def appear(self, host: str) -> None:
        """The cell hears from a host: a sign of life and what it offers."""
        database, now = self.databases[self.homes[host]], time.time()
        database.write(services.heartbeat, host, AGENT, 1, now)
        node = ComputeNode(host=host, node=host, vcpus=16, memory_mb=65536, disk_gb=1000, hypervisor_type="simulated")
        database.write(compute_nodes.store, node, now)

    # -- what users do -----------------------------------------------------------------------------------------------------------

    def accept(self, count: int = 1, *, timeout: float = 60.0, **asked: Any) -> RequestSpec:
        """A batch that is durable, and that nobody was told of."""
        spec, now = fleet.spec(**asked), time.time()
        self.api.write(builds.accept, spec, servers(count), now=now, deadline=now + timeout)
        return spec

    def delete(self, instance: str) -> builds.Deleted | None:
        return self.keeper.ledger.write(builds.delete, instance, project_id=None, now=time.time())

    # -- what happens to databases -----------------------------------------------------------------------------------------------

    def set_back(self, cell_uuid: str) -> None:
        """The API level has forgotten how far it had read the cell's feed."""
        self.api.write(_set_back, cell_uuid)

    def trim_feeds(self) -> None:
        """All that is in the cells' feeds now is gone."""
        for name in self.cells:
            self.databases[name].write(feed.trim, time.time() + 1.0)

    # -- running roles -----------------------------------------------------------------------------------------------------------

    def start(self, settings: ConductorSettings = QUICK) -> None:
        """Every role that is not there yet, with all its sweeps."""
        self.start_cells(settings)
        for host, cell in self.homes.items():
            if host not in self.agents[cell].services:
                self.start_agent(host)
        self.start_conductor(settings)

    def start_scheduler(self) -> None:
        self.scheduler = SchedulerService(SCHEDULER, self.keeper.registry, self.api, self.bus("api"))
        self.scheduler.start()
        self.closing(self.scheduler.stop)

    def start_conductor(self, settings: ConductorSettings = QUICK) -> None:
        conductor = self.conductor("service")
        service = SuperConductorService(settings, conductor.registry, conductor.database, conductor.bus)
        service.start()
        self.closing(service.stop)

    def hasty_conductor(self) -> None:
        """One more conductor service, whose leases run out while it works."""
        self.start_conductor(msgspec.structs.replace(QUICK, lease_seconds=0.05, sweep_interval=0.02))

    def start_cells(self, settings: ConductorSettings = QUICK) -> None:
        for name in self.cells:
            service = CellConductorService(settings, name, self.databases[name], self.buses[name])
            service.start()
            self.closing(service.stop)

    def start_agent(self, host: str, **changes: Any) -> None:
        self.agents[self.homes[host]].start(host, **changes)

    def cell_conductor(self, name: str, *, down_time: float = 60.0, age: float = 0.0) -> tuple[CellConductor, CellSweep]:
        """A cell's conductor and its sweeps, run by the test."""
        sender = Sender(name, self.buses[name])
        endpoint = CellConductor(self.databases[name], sender)
        sweep = CellSweep(self.databases[name], sender, endpoint, resend_age=age, down_time=down_time, feed_age=86400.0)
        return endpoint, sweep

    def send_again(self, cell: str, *instances: str) -> None:
        """Their orders in force, once more."""
        self.cell_conductor(cell)[0].resend(RequestContext(request_id="req-test"), instances)

    # -- what there is -----------------------------------------------------------------------------------------------------------

    def rows(self, instance: str) -> dict[str, Instance]:
        """Its rows by cell, cell0 included. One that was handed over may have inert copies elsewhere, which the settler removes."""
        found = {name: database.read(instances.get, instance) for name, database in self.databases.items()}
        return {name: row for name, row in found.items() if row is not None}

    def row(self, instance: str) -> Instance:
        """Its row in the cell that its mapping names."""
        names = {cell.uuid: cell.name for cell in (*self.keeper.registry.cells(), self.keeper.registry.cell0)}
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
        return spec.batch_id in self.api.read(leases.waiting, time.time(), 1000)

    def cursor(self, cell_uuid: str) -> int:
        """How far the API level has read the cell's feed."""
        return self.api.write(events.cursor, cell_uuid)

    def evidence(self) -> Evidence:
        return gather(self.folder, self.host_plans)

    def settle(self) -> Evidence:
        """Wait until nothing is on its way any more, and check that claims, guests and rows agree."""
        assert wait_until(lambda: at_rest(self.evidence()), 2 * PATIENCE, pause=0.05), self.evidence()
        assert wait_until(lambda: not judge_leftovers(self.evidence()), PATIENCE, pause=0.05), judge_leftovers(self.evidence())
        return self.evidence()

    def spawned(self, host: str) -> list[Guest]:
        """Every guest that was ever spawned on the host since its agent started."""
        entries = read_entries(journal_path(str(self.folder.path / "hosts"), host))
        return [entry.spawned for entry in entries if entry.spawned is not None]


@contextmanager
def world(path: Path, hosts: Mapping[str, Sequence[str]]) -> Iterator[World]:
    """A world whose hosts are mapped and known to its scheduler, brought to an end afterwards."""
    made = World(path, hosts)
    try:
        made.begin()
        yield made
    finally:
        made.end()
