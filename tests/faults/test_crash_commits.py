"""A connection breaks in the moment of a commit, for every kind of transaction there is on a boot's way and a delete's.

Its client cannot know whether the transaction happened: here it did once, and did not the other time. Whoever asked is told that it
is unknown, does not simply run it again, and comes again by a way on which a second time changes nothing.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from db.api.queue.accepting import Accepted, NewServer
from db.sql.engine import OutcomeUnknown
from objects.network import PortRequest
from objects.spec import ServerProperties
from service.periodic import wait_until
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.bus import embedded_url
from tests.support.commits import CommitProxy
from tests.support.ground import Ground
from tests.support.pools import addresses_of, make_network, used
from tests.support.world import PATIENCE, World

T = TypeVar("T")

HOSTS = {"cell1": ["a1", "a2"], "cell2": ["b1", "b2"]}
API = {
    "accept": rb"INSERT INTO request_specs",
    "claim": rb"INSERT INTO allocations",
    "hand_over": rb"UPDATE instance_mappings SET cell_uuid=|SET t.cell_uuid = w.to_cell",
    "delete": rb"UPDATE instance_mappings SET deleted=",
    "apply": rb"UPDATE feed_cursors SET",
    "lease": rb"UPDATE build_requests .*SET state='leased'",
}
"""What is said in each kind of transaction of the API database; the first that fits names it."""
CELL = {
    "stage": rb"INSERT IGNORE INTO instances|INSERT INTO instances",
    "settle": rb"UPDATE instances SET state='scheduled'|'scheduled' AS new_state",
    "accept a build": rb"UPDATE instances SET state='building'|'building' AS new_state",
    "active": rb"UPDATE instances SET state='active'|'active' AS new_state",
    "delete": rb"UPDATE instances SET state='deleting'|'deleting' AS new_state",
    "gone": rb"UPDATE instances SET state='deleted'|'deleted' AS new_state",
}
ROUNDS = 40


class Cutting(Ground):
    """Databases on MariaDB, each behind a proxy that breaks commits."""

    def __init__(self, path: Path) -> None:
        super().__init__("mariadb", path)
        self.proxies: dict[str, CommitProxy] = {}

    def database(self, name: str) -> str:
        if name not in self.proxies:
            self.proxies[name] = CommitProxy(super().database(name), API if name == "api" else CELL if name != "cell0" else {})
        return self.proxies[name].url

    def bus(self, name: str) -> str:
        return self._buses.setdefault(name, embedded_url())

    def arm(self) -> None:
        for proxy in self.proxies.values():
            proxy.arm()

    @property
    def left(self) -> list[str]:
        return [f"{name}: {kind}: {cut}" for name, proxy in self.proxies.items() for kind, cut in proxy.left]

    def release(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()
        super().release()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Cutting]:
    made = Cutting(tmp_path)
    yield made
    made.end(made.release)


@pytest.fixture
def cloud(place: Cutting) -> Iterator[World]:
    made = World(place, HOSTS)
    made.begin()
    yield made
    made.end()


class Client:
    """Boots and deletes as a user does who repeats what got no answer, under the same token."""

    def __init__(self, cloud: World) -> None:
        self._cloud = cloud
        self.network = make_network(cloud.api, "10.0.0.0/24")
        self.unknown: Counter[str] = Counter()
        self.booted: list[str] = []
        self.deleted: list[str] = []

    def boot(self, count: int) -> None:
        token = str(uuid.uuid4())
        self.booted += self._insist("accept", lambda: self._accept(token, count)).uuids

    def _accept(self, token: str, count: int) -> Accepted:
        now, servers = time.time(), [NewServer(uuid=str(uuid.uuid4()), name=f"s{n}", launch_index=n) for n in range(count)]
        ports, write = (PortRequest(network=self.network),), self._cloud.api.write
        spec = fleet.spec(properties=ServerProperties(networks=self.network.uuid))
        return write(accept_batch, spec, servers, now=now, deadline=now + 120.0, token=token, ports=ports)

    def delete(self, server: str) -> None:
        self._insist("delete", lambda: self._cloud.delete(server) or True)
        self.deleted.append(server)

    def _insist(self, what: str, ask: Callable[[], T]) -> T:
        while True:
            try:
                return ask()
            except OutcomeUnknown:
                self.unknown[what] += 1


def test_every_commit_of_unknown_outcome_is_lived_with(cloud: World, place: Cutting) -> None:
    client = Client(cloud)
    for host in ("a1", "b1"):  # handed over, and never ordered: the settlers have something to do
        client.booted += cloud.conductor("dead").drive(cloud.accept(force_hosts=(host,), timeout=120.0), upto="handed over").uuids
    place.arm()
    cloud.start()
    for _ in range(ROUNDS):
        client.boot(2)
        assert wait_until(lambda: not cloud.requests(), PATIENCE)
        active = [server.uuid for server in cloud.evidence().servers if server.state == "active" and not server.deleted]
        for server in active[: len(active) // 2]:
            client.delete(server)
        if not place.left:
            break
    assert place.left == []
    assert client.unknown == {"accept": 2, "delete": 2}

    evidence = cloud.settle()

    states = {server.uuid: server.state for server in evidence.servers}
    assert states == {uuid: "deleted" if uuid in client.deleted else "active" for uuid in client.booted}
    spawned = Counter(guest.uuid for host in cloud.homes for guest in cloud.spawned(host))
    assert {uuid: spawned[uuid] for uuid in client.booted} == dict.fromkeys(client.booted, 1)
    networked = [uuid for uuid in client.booted[2:] if uuid not in client.deleted]
    every = addresses_of(cloud.api, networked)
    assert len(every) == len(set(every)) == len(networked) == used(cloud.api), "each has one, and those of the others are free"
