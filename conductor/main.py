"""The composition roots of the super conductor and of a cell's conductor."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from cells.cell import Cell
from cells.registry import CellRegistry
from conductor.build import Builder
from conductor.bury import Undertaker
from conductor.cell_conductor import CellConductor
from conductor.delete import Deleter
from conductor.keep import CellKeeper, Keepers
from conductor.opts import ConductorSettings
from conductor.reap import reap
from conductor.super_conductor import SuperConductor
from conductor.sweep_cell import CellSweep
from conductor.sweep_queue import QueueSweep
from conductor.tidy import tidy
from db.claims import Ledger
from db.engine import Database
from rpc import cell_conductor, super_conductor
from rpc.compute import ComputeClient
from rpc.scheduler import SchedulerClient
from rpc.transport import Bus
from service.periodic import Periodic

SERVER = socket.gethostname()

TIDY_INTERVAL = 3600.0

P = ParamSpec("P")
T = TypeVar("T")


class SuperConductorService:
    """The API level's conductor: serves topic ``super-conductor`` and runs the API level's sweeps."""

    def __init__(self, settings: ConductorSettings, registry: CellRegistry, api_database: Database, bus: Bus) -> None:
        owner = f"{SERVER}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        ledger = Ledger(api_database, f"conductor {owner}")
        builder = Builder(
            api_database,
            registry,
            SchedulerClient(bus, timeout=settings.lease_seconds),  # past that somebody else may drive the build
            Undertaker(ledger, registry),
            owner=owner,
            lease_seconds=settings.lease_seconds,
            retry_pause=settings.retry_pause,
        )
        deleter = Deleter(api_database, registry)
        self._bus = bus
        self._settings = settings
        self._endpoint = SuperConductor(builder, deleter)
        self._queue = QueueSweep(api_database, builder, settings.workers)

        def keeper(cell: Cell) -> CellKeeper:
            return CellKeeper(api_database, ledger, registry, cell, settings.settle_age)

        self._keepers = Keepers(registry, keeper, settings.feed_interval)
        self._sweeps = [
            Periodic("queue", settings.sweep_interval, self._queue.sweep),
            Periodic("deletes", settings.sweep_interval, deleter.sweep),
            Periodic("cells", settings.sweep_interval, self._keepers.follow),
            Periodic("tidy", TIDY_INTERVAL, lambda: tidy(api_database, settings.decision_age, settings.token_age)),
            Periodic("reaper", settings.reap_interval, lambda: reap(api_database, ledger)),
        ]

    def start(self) -> None:
        self._server = super_conductor.serve(self._bus, SERVER, self._endpoint, threads=self._settings.workers)
        for sweep in self._sweeps:
            sweep.start()

    def stop(self) -> None:
        """Take no new work, finish what is under way within a few seconds; whatever is cut off goes on elsewhere."""
        self._server.stop()
        for sweep in self._sweeps:
            sweep.stop()
        self._keepers.stop()
        self._queue.stop()


class _OwnCell:
    """The cell a conductor lives in, as somewhere to send orders to."""

    def __init__(self, name: str, bus: Bus) -> None:
        self.name = name
        self.compute: ComputeClient | None = ComputeClient(bus)

    def send(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return fn(*args, **kwargs)


class CellConductorService:
    """One cell's conductor: serves topic ``cell-conductor`` and runs the cell's sweeps. It knows its own cell only."""

    def __init__(self, settings: ConductorSettings, name: str, cell_database: Database, bus: Bus) -> None:
        sender = _OwnCell(name, bus)
        self._bus = bus
        self._settings = settings
        self._endpoint = CellConductor(cell_database, sender)
        sweep = CellSweep(
            cell_database,
            sender,
            self._endpoint,
            resend_age=settings.resend_age,
            down_time=settings.service_down_time,
            feed_age=settings.feed_age,
        )
        self._sweep = Periodic(f"sweep-{name}", settings.sweep_interval, sweep.sweep)

    def start(self) -> None:
        self._server = cell_conductor.serve(self._bus, SERVER, self._endpoint, threads=self._settings.workers)
        self._sweep.start()

    def stop(self) -> None:
        self._server.stop()
        self._sweep.stop()
