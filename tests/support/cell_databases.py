"""An API database and cells with databases of their own, for tests of what lies between them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cells.administration import NewCell, create_cell
from cells.bulkhead import BulkheadSettings
from cells.opts import RegistrySettings
from cells.registry import CellRegistry
from compute.main import VERSION
from db.api.deployment import cell_mappings
from db.cell import compute_nodes, services
from objects.cell import CellMapping
from objects.compute_node import ComputeNode
from objects.process import AGENT_BINARY
from tests.support.ground import Ground

SETTINGS = RegistrySettings(poll_interval=0.0, linger=0.0, bulkhead=BulkheadSettings(timeout=5.0, failures=2, pause=3600.0))
"""Every look at the registry is a look at the database, and a breaker that opened stays open."""


class Cells:
    """Makes cells on a ground, SQLite files in a folder where none is given, and plays their agents as cell conductors would."""

    def __init__(self, folder: Path, place: Ground | None = None) -> None:
        self.folder = folder
        self.ground = place or Ground("lite", folder)
        self.api = self.ground.open("api")

    def add(self, name: str, *, cell0: bool = False) -> CellMapping:
        """A cell whose database has its schema."""
        url = self.ground.database(name)
        return create_cell(
            self.api, NewCell(name=name, database_url=url, transport_url="" if cell0 else self.bus(name), cell0=cell0)
        )

    def add_unreachable(self, name: str, database_url: str) -> CellMapping:
        """A cell that is registered although its database cannot be used."""
        return create_cell(self.api, NewCell(name=name, database_url=database_url, transport_url=self.bus(name)))

    def bus(self, name: str) -> str:
        """A bus that no other test has."""
        return self.ground.bus(name)

    def report(self, cell: str, *hosts: str, binary: str = AGENT_BINARY, at: float | None = None, guests: int = 2) -> None:
        """Agents in ``cell`` give a sign of life and say what their hosts offer."""
        now = time.time() if at is None else at
        database = self.ground.open(cell)
        for host in hosts:
            database.write(services.record_heartbeats, [services.Beat(host=host, binary=binary, version=VERSION)], now)
            node = ComputeNode(
                host=host,
                node=host,
                vcpus=8,
                vcpus_used=2,
                memory_mb=16384,
                memory_mb_used=1024,
                disk_gb=100,
                disk_gb_used=5,
                running_vms=guests,
            )
            database.write(compute_nodes.store_node, node, now)
        database.dispose_connections()

    def change(self, mapping: CellMapping) -> None:
        """As an operator, whatever has been changed since ``mapping`` was read."""
        now = self.api.read(cell_mappings.get, mapping.uuid)
        self.api.write(cell_mappings.update_mapping, msgspec.structs.replace(mapping, epoch=now.epoch))

    @contextmanager
    def registry(self, settings: RegistrySettings = SETTINGS) -> Iterator[CellRegistry]:
        registry = CellRegistry(self.api, settings)
        try:
            yield registry
        finally:
            registry.close()


def east_and_west(folder: Path) -> Cells:
    """cell0 and two cells on SQLite files."""
    cells = Cells(folder)
    cells.add("cell0", cell0=True)
    cells.add("east")
    cells.add("west")
    return cells


@contextmanager
def cells_on(ground: str, folder: Path) -> Iterator[Cells]:
    """None yet, on one of GROUNDS."""
    place = Ground(ground, folder)
    made = Cells(folder, place)
    yield made
    place.end(made.api.dispose_connections, place.release)


def closed_port() -> int:
    """A port of this machine on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word, as a frozen server does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield listener.getsockname()[1]
