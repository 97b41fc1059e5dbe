"""One process of the API level's conductor, run by a test step by step, and the connections it can lose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from cells.bulkhead import BulkheadSettings
from cells.cell import Cell
from cells.opts import RegistrySettings
from cells.registry import CellRegistry
from cli.standalone.all_in_one import StateFolder
from conductor.build import Builder
from conductor.bury import Undertaker
from conductor.context import ConductorContext
from conductor.delete import Deleter
from conductor.feed_follower import FeedFollower, FeedSettings
from conductor.operate import Operator
from conductor.orders import send_orders
from conductor.placement import Placed
from conductor.roll_back import BatchSweep
from conductor.settle import settle_staged
from db.api.claims.claims import Ledger
from db.api.queue import builds, leases
from db.cell import instances, staging
from db.sql.engine import Database, OutcomeUnknown
from objects import errors
from objects.cell import CellMapping
from objects.instance import Instance, State
from objects.selection import Selection
from objects.spec import RequestSpec
from rpc.counting import MessageCounter, Observer
from rpc.scheduler import SchedulerClient
from rpc.transport import Bus

P = ParamSpec("P")
T = TypeVar("T")

REGISTRY = RegistrySettings(poll_interval=0.0, linger=0.0, bulkhead=BulkheadSettings(failures=1000))
"""Every look at the registry is a look at the database, and no breaker opens."""

PATIENCE = 90.0

STEPS = ("leased", "claimed", "staged", "handed over", "ordered")
"""How far a conductor gets with a batch, in this order."""


class FaultyDatabase(Database):
    """A database that can be told to be away, to take its time, or to do what it is asked and lose the answer."""

    away = False
    slow_until: threading.Event | None = None
    """What is asked of it begins when that is set."""
    lose_answer_to = 0
    """Which of the writes to come, from 1 on, is committed and then reported as of unknown outcome. 0: none."""
    refuse_write = 0
    """Which of the writes to come is not made at all. 0: none."""

    def write(self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._answer()
        refused, self.refuse_write = self.refuse_write == 1, max(0, self.refuse_write - 1)
        if refused:
            raise errors.DatabaseUnavailable(f"Database {self.url_masked} cannot be used: the test pulled the cable")
        lost = self.lose_answer_to == 1
        result = super().write(fn, *args, **kwargs)
        self.lose_answer_to -= self.lose_answer_to > 0
        if lost:
            raise OutcomeUnknown(f"Database {self.url_masked} was lost during a commit: the test pulled the cable")
        return result

    def read(self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._answer()
        return super().read(fn, *args, **kwargs)

    def _answer(self) -> None:
        if self.slow_until is not None:
            assert self.slow_until.wait(PATIENCE)
        if self.away:
            raise errors.DatabaseUnavailable(f"Database {self.url_masked} cannot be used: the test pulled the cable")


class LossyBus(Bus):
    """A bus that can be told to lose what is sent. Use it for casts only: a call would be left without an answer."""

    def __init__(self, url: str, observer: Observer | None = None) -> None:
        super().__init__(url, observer=observer)
        self.losing = False
        self.lost = 0

    def send(self, send: Callable[[], T], timeout: float) -> T:
        if self.losing:
            self.lost += 1
            return cast(T, None)
        return super().send(send, timeout)


class Conductor:
    """Its own connections to everything, as a process has. Leases run out at once, so that anybody may take over."""

    def __init__(self, folder: StateFolder, owner: str, *, lease_seconds: float = 0.0, max_pool_size: int = 10) -> None:
        self.sent = MessageCounter()
        """What this process has sent to hosts."""
        self.databases: dict[str, FaultyDatabase] = {}
        self.buses: dict[str, LossyBus] = {}
        self._max_pool_size = max_pool_size
        self.database = FaultyDatabase(folder.database_url("api"), name=owner, max_pool_size=max_pool_size)
        self.bus = Bus(folder.bus_url("api"))
        self.registry = CellRegistry(self.database, REGISTRY, open_database=self._open_database, open_bus=self._open_bus)
        self.ledger = Ledger(self.database, owner)
        self.undertaker = Undertaker(self.ledger, self.registry)
        scheduler = SchedulerClient(self.bus, timeout=10.0)
        self.context = ConductorContext(self.ledger, self.registry)
        self.builder = Builder(self.context, scheduler, owner=owner, lease_seconds=lease_seconds, retry_pause=0.1)
        self.deleter = Deleter(self.database, self.registry)
        self.operator = Operator(self.context, self.deleter, self.builder)
        self.batches = BatchSweep(self.database, self.registry, idle=0.0)
        self._keepers: dict[str, FeedFollower] = {}

    def _open_database(self, mapping: CellMapping) -> Database:
        self.databases[mapping.name] = made = FaultyDatabase(
            mapping.database_url, name=mapping.name, max_pool_size=self._max_pool_size
        )
        return made

    def _open_bus(self, mapping: CellMapping) -> Bus | None:
        if mapping.is_cell0:
            return None
        self.buses[mapping.name] = made = LossyBus(mapping.transport_url, self.sent)
        return made

    def cell(self, name: str) -> Cell:
        return next(cell for cell in (*self.registry.list_cells(), self.registry.cell0) if cell.name == name)

    def keep(self) -> None:
        """One round over every cell: feeds applied to their end, what is STAGED settled whatever its age."""
        for cell in (*self.registry.list_cells(), self.registry.cell0):
            if cell.uuid not in self._keepers:
                self._keepers[cell.uuid] = FeedFollower(self.context, cell, FeedSettings(settle_age=3600.0))
            while self._keepers[cell.uuid].keep_up():
                pass
            settle_staged(self.database, cell, age=-1.0)

    def build(self, *specs: RequestSpec) -> None:
        """All that a conductor does when the doorbell rings for these batches."""
        self.builder.schedule_and_build([spec.batch_id for spec in specs])

    def lease(self, batch_id: str) -> Drive:
        """Take what nobody drives of a batch."""
        now = time.time()
        [batch] = self.database.write(leases.lease_batches, "test", [batch_id], now, 0.0)
        return Drive(self, batch)

    def drive(self, spec: RequestSpec, upto: str) -> Drive:
        """Do for a batch what conductors do, up to and including one of STEPS."""
        return self.lease(spec.batch_id).upto(upto)

    def close(self) -> None:
        self.registry.close()
        self.bus.close()
        self.database.dispose_connections()


class Drive:
    """A batch on its way through the code of one conductor, which may stop at any step and never go on."""

    def __init__(self, conductor: Conductor, batch: leases.LeasedBatch) -> None:
        self.conductor = conductor
        self.batch = batch
        self.spec = batch.spec
        self.fences = {request.instance_uuid: request.fence for request in batch.requests}
        self.uuids = list(self.fences)
        self.placed: list[Placed] = []
        self.won: list[str] = []
        self._builder = conductor.builder

    def upto(self, last: str) -> Drive:
        """Itself, driven up to one of STEPS."""
        for step in STEPS[1 : STEPS.index(last) + 1]:
            self.go(step)
        return self

    def go(self, step: str) -> None:
        """Take the step that ends in this one of STEPS."""
        steps: dict[str, Callable[[], object]] = {
            "claimed": self.claim,
            "staged": self.stage,
            "handed over": self.hand_over,
            "ordered": self.send,
        }
        steps[step]()

    def claim(self, excluded_cells: tuple[str, ...] = ()) -> list[list[Selection]]:
        """Ask the scheduler; [] for each request that is lost."""
        destinations = self._builder.destinations
        [answers] = destinations.select_for_batch([self.batch], excluded_cells)
        assert answers is not None
        self.placed = destinations.map_to_cells(self.batch, destinations.spare_refused(self.batch, answers, excluded_cells))
        return answers

    def stage(self) -> list[str]:
        """The uuids that are staged now."""
        waves = list(self._builder.stager.stage_placed(self.placed, {}))
        assert not any(unreachable for _, unreachable in waves)
        return [placed.request.instance_uuid for staged, _ in waves for placed in staged]

    def keep_only(self, *uuids: str) -> None:
        """Go on with these alone."""
        self.placed = [placed for placed in self.placed if placed.request.instance_uuid in uuids]

    def hand_over(self) -> list[str]:
        """The uuids won. The orders are not sent."""
        items = [
            builds.HandOver(
                instance_uuid=p.request.instance_uuid,
                fence=p.request.fence,
                cell_uuid=p.cell.uuid,
                host=p.selection.host,
                node=p.selection.node,
                availability_zone=p.selection.availability_zone,
            )
            for p in self.placed
        ]
        self.won = self.conductor.database.write(builds.hand_over, items, time.time())
        return self.won

    def orders(self) -> list[tuple[Cell, list[instances.Order]]]:
        """The orders of what was won, as the cells have them."""
        by_cell = {p.cell.uuid: p.cell for p in self.placed}
        return [(cell, cell.read(instances.orders_of, self.won).orders) for cell in by_cell.values()]

    def send(self) -> None:
        """Send the orders of what was won."""
        for cell, orders in self.orders():
            send_orders(cell, orders)

    def finish(self) -> None:
        """What the conductor's own code does once its rows are staged, or it believes so."""
        self._builder.hand_over.hand_over_staged(self.placed)

    def bury(self, reason: str = "No valid host was found.") -> None:
        self.conductor.undertaker.bury_requests(self.spec, dict.fromkeys(self.batch.requests, reason))

    def stage_in_cell0(self, reason: str) -> None:
        """The first step of a burial."""
        rows = [
            staging.NewInstance(
                instance=Instance(uuid=r.instance_uuid, state=State.STAGED, fence=r.fence, fault=reason),
                name=r.name,
                launch_index=r.launch_index,
                created_at=r.created_at,
            )
            for r in self.batch.requests
        ]
        self.conductor.registry.cell0.write(staging.stage_instances, self.spec, rows, time.time())

    def refence(self) -> dict[str, int]:
        """Change its mind."""
        return self.conductor.database.write(leases.refence_requests, self.fences)

    def renew(self, until: float) -> None:
        self.conductor.database.write(leases.renew_leases, self.fences, until)
