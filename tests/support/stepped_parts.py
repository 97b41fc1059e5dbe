"""What a region that runs step by step is made of: databases, cells and hypervisors that stop before each thing they do.

All of it is the real code with a stop before it, and with faults that can be ordered. See ``stepped_world.py``.
"""

from __future__ import annotations

import math
import sqlite3
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from cells.bulkhead import Bulkhead, BulkheadSettings
from cells.cell import Cell
from cells.opts import RegistrySettings
from cells.registry import CellRegistry
from compute.driver import Guest, GuestSpec
from compute.opts import ComputeSettings
from compute.simulated import SimulatedDriver
from db.api.claims.claims import Ledger, Stamp
from db.api.deployment import cell_mappings, host_mappings
from db.api.projects import quotas
from db.api.rows.cache import EpochReader
from db.cell import compute_nodes, services
from db.cell.incarnation_mark import read_mark
from db.cell.services import Beat
from db.sql.engine import ApiDatabase, Database, OutcomeUnknown
from objects import errors
from objects.build import Origin
from objects.cell import CELL0_UUID, CellMapping, HostMapping
from objects.messages_version import SPAN
from objects.port import Port
from objects.process import AGENT_BINARY, About
from objects.quota import UNLIMITED, OwnLimits, QuotaLimits
from objects.spec import BootSecrets
from objects.task import DriveChanges, NewImage, Power, SendTarget, StoredContent
from service.worker_pool import WorkerPool
from tests.support import fleet
from tests.support.databases import api_database, cell_database
from tests.support.interleaving import atomic, pause

P = ParamSpec("P")
T = TypeVar("T")

HOSTS = {"cell1": ("a1", "a2", "a3"), "cell2": ("b1",)}
HOMES = {host: cell for cell, hosts in HOSTS.items() for host in hosts}
ROOM = 3
"""Servers of one vCPU that a host takes."""
CELLS = {name: str(uuid.uuid5(uuid.NAMESPACE_DNS, name)) for name in HOSTS} | {"cell0": CELL0_UUID}
EVER = 1e9
PATIENT = RegistrySettings(poll_interval=EVER, bulkhead=BulkheadSettings(failures=10**9))


class SteppedDatabase(Database):
    """Each transaction is a step. It can be told to be away, or to do what it is asked and lose the answer."""

    away = False
    lose_answer = False
    writes = 0

    def write(self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        pause(f"write {self.name} {getattr(fn, '__name__', '')}")
        self._answer()
        self.writes += 1
        lost, self.lose_answer = self.lose_answer, False
        result = super().write(fn, *args, **kwargs)
        if lost:
            raise OutcomeUnknown(f"Database {self.name} was lost during a commit: the test pulled the cable")
        return result

    def read(self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if fn is not read_mark:  # it is read under a lock that other tasks of the process want
            pause(f"read {self.name} {getattr(fn, '__name__', '')}")
        self._answer()
        return super().read(fn, *args, **kwargs)

    def _answer(self) -> None:
        if self.away:
            raise errors.DatabaseUnavailable(f"Database {self.name} cannot be used: the test pulled the cable")


class SteppedLedger(Ledger):
    """One step as a whole, because it is written under a lock."""

    def write(self, fn: Callable[Concatenate[Any, Stamp, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        pause(f"write {self.database.name} {fn.__name__}")
        with atomic():
            return super().write(fn, *args, **kwargs)


class SteppedEpochs(EpochReader):
    """Read at every look, whatever the clock says, and as a whole, because that is done under a lock."""

    def read(self, since: float) -> tuple[dict[str, int], float]:
        with atomic():
            return super().read(math.inf)


class SteppedRegistry(CellRegistry):
    """Its cells are asked in the thread of who asks."""

    def __init__(self, api_database: ApiDatabase, *arguments: Any, **options: Any) -> None:
        super().__init__(api_database, *arguments, **options)
        self.epochs = SteppedEpochs(api_database)

    def _open(self, mapping: CellMapping) -> Cell:
        cell = super()._open(mapping)
        silent = (errors.DatabaseUnavailable,)
        cell._rows = Bulkhead(f"cell {mapping.name}", "database", PATIENT.bulkhead, inline=True, silent=silent)
        return cell


class SteppedWorkers(WorkerPool):
    """Each piece of work is a task."""

    def __init__(self, spawn: Callable[[Callable[[], object]], object]) -> None:
        super().__init__("tasks", 1)
        self._spawn = spawn

    def post_call(self, function: Callable[..., object], *arguments: object) -> None:
        self._spawn(partial(function, *arguments))


class SteppedCancel(threading.Event):
    """What a spawn is cancelled by. Where the spawn waits for it, in the middle of a copy, it stops instead."""

    def __init__(self, cancel: threading.Event) -> None:
        super().__init__()
        self._cancel = cancel

    def is_set(self) -> bool:
        return self._cancel.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        pause("copy")
        return self._cancel.is_set()


class SteppedHypervisor(SimulatedDriver):
    """Spawning, tasks and destroying are steps. It can be told to fail the tasks."""

    fails_tasks = False

    def __init__(self, settings: ComputeSettings, reboots: Counter[str]) -> None:
        """``reboots``: counts them, by uuid of the body."""
        super().__init__(settings)
        self._reboots = reboots

    def spawn(
        self, guest: Guest, spec: GuestSpec, secrets: BootSecrets | None, cancel: threading.Event, origin: Origin | None = None
    ) -> None:
        pause("spawn")
        super().spawn(guest, spec, secrets, SteppedCancel(cancel), origin)
        pause("spawned")

    def set_power(self, uuid: str, power: Power, *, hard: bool) -> None:
        pause("set power")
        if self.fails_tasks:
            raise errors.TaskFailed("The test lets tasks fail.")
        super().set_power(uuid, power, hard=hard)
        pause("power set")

    def send(self, uuid: str, target: SendTarget, cancel: threading.Event) -> None:
        pause("send")
        super().send(uuid, target, SteppedCancel(cancel))
        pause("sent")

    def reboot(self, uuid: str, *, hard: bool) -> None:
        pause("reboot")
        self._reboots[uuid] += 1
        super().reboot(uuid, hard=hard)
        pause("rebooted")

    def rebuild(self, guest: Guest, changes: DriveChanges, secrets: BootSecrets | None) -> None:
        pause("rebuild")
        super().rebuild(guest, changes, secrets)
        pause("rebuilt")

    def make_image(self, uuid: str, image_id: str, image: NewImage, cancel: threading.Event) -> StoredContent:
        pause("make image")
        made = super().make_image(uuid, image_id, image, SteppedCancel(cancel))
        pause("image made")
        return made

    def rescue(self, uuid: str, image_id: str, secrets: BootSecrets | None, image_hash: str = "") -> None:
        pause("rescue")
        super().rescue(uuid, image_id, secrets, image_hash)
        pause("rescued")

    def crash_dump(self, uuid: str) -> None:
        pause("crash dump")
        super().crash_dump(uuid)
        pause("dumped")

    def set_interfaces(self, uuid: str, ports: tuple[Port, ...]) -> None:
        pause("set interfaces")
        super().set_interfaces(uuid, ports)
        pause("interfaces set")

    def destroy(self, uuid: str) -> None:
        pause("destroy")
        super().destroy(uuid)
        pause("destroyed")


class Files:
    """The databases, and how they were at a moment, to be put back to that as often as wanted."""

    def __init__(self, path: Path) -> None:
        makes = {"api": api_database} | dict.fromkeys(CELLS, cell_database)
        for name, make in makes.items():
            make(path, name).dispose_connections()
        self.databases = {name: SteppedDatabase(f"sqlite:///{path / name}.db?synchronous=OFF", name=name) for name in makes}
        self.raw = {name: sqlite3.connect(path / f"{name}.db", isolation_level=None) for name in makes}
        self._kept = {name: sqlite3.connect(":memory:") for name in makes}
        self._fill()

    @property
    def writes(self) -> int:
        """How many transactions that may write there were so far."""
        return sum(database.writes for database in self.databases.values())

    def _fill(self) -> None:
        """Cells, hosts that were heard of and are mapped, and a limit of the one user, so that its usage is recorded."""
        api, now = self.databases["api"], time.time()
        for name, key in CELLS.items():
            bus = "none:///" if key == CELL0_UUID else f"embedded://{name}/"
            mapping = CellMapping(uuid=key, name=name, database_url=self.databases[name].url_masked, transport_url=bus)
            api.write(cell_mappings.create, mapping)
        for host, cell in HOMES.items():
            database = self.databases[cell]
            about = About(release="1.0", messages=str(SPAN), pid=1, version=1)
            database.write(services.introduce_service, Beat(host=host, binary=AGENT_BINARY), about, 0.0)
            database.write(compute_nodes.store_node, fleet.node(host, vcpus=ROOM, hypervisor_type="simulated"), now)
        api.write(host_mappings.add_mappings, [HostMapping(host=host, cell_uuid=CELLS[cell]) for host, cell in HOMES.items()], now)
        api.write(quotas.change_user, "p", "u", OwnLimits(instances=UNLIMITED), QuotaLimits())

    @contextmanager
    def well(self) -> Iterator[None]:
        """What is done inside meets no fault: those that were ordered are for others."""
        ordered = {name: (database.away, database.lose_answer) for name, database in self.databases.items()}
        for database in self.databases.values():
            database.away = database.lose_answer = False
        try:
            yield
        finally:
            for name, (away, lose_answer) in ordered.items():
                self.databases[name].away, self.databases[name].lose_answer = away, lose_answer

    def keep(self) -> None:
        """This is the moment."""
        for name, connection in self.raw.items():
            connection.backup(self._kept[name])

    def put_back(self) -> None:
        for name, connection in self.raw.items():
            self._kept[name].backup(connection)
            self.databases[name].away = self.databases[name].lose_answer = False

    def close(self) -> None:
        for connection in (*self.raw.values(), *self._kept.values()):
            connection.close()
        for database in self.databases.values():
            database.dispose_connections()
