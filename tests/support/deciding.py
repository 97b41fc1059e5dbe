"""A real scheduler behind a ``Front``, and hosts that it may choose."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from db.api.claims import claims
from db.api.deployment import host_mappings
from db.api.queue import leases
from db.cell import compute_nodes
from objects.cell import HostMapping
from objects.compute_node import ComputeNode
from rpc.scheduler import SchedulerClient
from scheduler.framework.settings import SchedulerSettings
from scheduler.main import SchedulerService
from tests.support.api import CELL1_UUID, Front
from tests.support.fleet import CONTEXT, Site
from tests.support.ground import USUAL, Ground

FAST = SchedulerSettings(
    service_poll_interval=0.05,
    feed_poll_interval=0.05,
    claims_poll_interval=0.05,
    idle_interval=0.2,
    warm_up=0.0,
)


def add_hosts(front: Front, nodes: Sequence[ComputeNode]) -> None:
    """Hosts of cell1, mapped and alive, with room for claims."""
    now = time.time()
    for node in nodes:
        front.heartbeat(node.host)
        front.cell.write(compute_nodes.store_node, node, now)
    front.database.write(host_mappings.add_mappings, [HostMapping(host=node.host, cell_uuid=CELL1_UUID) for node in nodes], now)
    front.ledger.write(claims.set_inventory, list(nodes), CELL1_UUID)


@contextmanager
def scheduler_of(front: Front, settings: SchedulerSettings = FAST) -> Iterator[SchedulerService]:
    """A scheduler that listens on the bus of the API level."""
    service = SchedulerService(settings, front.registry, front.database, front.bus)
    service.start()
    try:
        yield service
    finally:
        service.stop()


def decide(front: Front) -> list[str]:
    """What a super conductor does first with all that is queued: a scheduler chooses and claims. Returns the hosts, in order."""
    now, hosts = time.time(), []
    for batch in front.database.write(leases.lease_batches, "test", front.database.read(leases.list_waiting, now, 1000), now, 60.0):
        spec = batch.spec.__replace__(fences={request.instance_uuid: request.fence for request in batch.requests})
        answers = SchedulerClient(front.bus).select_destinations(CONTEXT, spec, list(spec.fences))
        hosts += [selections[0].host for selections in answers if selections]
    return hosts


def contents(front: Front) -> dict[str, list[str]]:
    """Everything in the databases of a Front on SQLite files."""
    found = {}
    for name in ("api", "cell0", "cell1"):
        database = sqlite3.connect(front.ground.database(name).removeprefix("sqlite:///"))
        found[name] = list(database.iterdump())
        database.close()
    return found


def site_fixture(nodes: Callable[[], list[ComputeNode]], *, embedded: bool = False) -> object:
    """A fixture: a ``Site`` with these nodes on each usual ground."""

    @pytest.fixture(params=USUAL)
    def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
        place = Ground(request.param, tmp_path, embedded=embedded)
        made = Site(place.open("api", 12), nodes())
        yield made
        place.end(made.database.dispose_connections, place.release)

    return site
