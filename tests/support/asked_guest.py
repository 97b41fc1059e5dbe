"""A server on a host whose agent is asked about its guest, on the embedded bus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compute.driver import Guest
from compute.simulated import SimulatedDriver
from rpc.transport import Bus
from tests.support.agents import Agents
from tests.support.api import TENANT, Front
from tests.support.cell_conductor import DatabaselessConductor


def active_server(front: Front) -> str:
    """A server that is ACTIVE on host h1, whose agent is alive, or seems so."""
    uuid = front.boot("web", TENANT)
    front.bring_up(uuid)
    front.heartbeat("h1")
    return uuid


@contextmanager
def its_guest(front: Front, server: str, folder: Path, *, vcpus: int = 1, memory_mb: int = 1) -> Iterator[SimulatedDriver]:
    """The hypervisor of that host, with the server's guest, and an agent."""
    bus = Bus(front.ground.bus("cell1"))
    conductor = DatabaselessConductor(bus)
    agents = Agents(bus, folder)
    agents.start("h1")
    started = Guest(
        uuid=server, name="web", node="h1", fence=1, attempt=1, builder="h1:a", vcpus=vcpus, memory_mb=memory_mb, disk_gb=1
    )
    driver = agents.drivers["h1"]
    driver._journal.add_guest(started)
    yield driver
    agents.stop()
    conductor.stop()
    bus.close()
