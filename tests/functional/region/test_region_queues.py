"""The queues of a running region: which kinds there are, and that every role gets over losing them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from service.periodic import wait_until
from tests.support.queues import Administrator, Queue, queues
from tests.support.region import Region, host, region

HOSTS = [host(f"{cell}-h{n}", cell, vcpus=64, memory_mb=65536, disk_gb=500) for cell in ("cell1", "cell2") for n in range(2)]
KINDS = ("reply_", "_fanout_", "compute.", "cell-conductor", "scheduler", "super-conductor")
PATIENCE = 60.0


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    with region(tmp_path_factory.mktemp("queues"), HOSTS, on="mariadb") as deployment:
        deployment.wait_for(deployment.boot("first"), "ACTIVE")
        yield deployment


@pytest.fixture(scope="module")
def buses(cloud: Region) -> list[str]:
    return [cloud.folder.bus_url(name) for name in ("api", "cell1", "cell2")]


@pytest.fixture(scope="module")
def brokers(buses: list[str]) -> Iterator[dict[str, Administrator]]:
    made = {url: Administrator(url) for url in buses}
    yield made
    for administrator in made.values():
        administrator.close()


@pytest.fixture(scope="module")
def listed(buses: list[str]) -> dict[str, list[Queue]]:
    return {url: queues(url) for url in buses}


@pytest.fixture(scope="module")
def names(listed: dict[str, list[Queue]]) -> dict[str, list[str]]:
    """The queues of each bus that have consumers all the time."""
    return {url: [queue.name for queue in found if "dead-letters" not in queue.name] for url, found in listed.items()}


def test_newer_brokers_accept_the_kind_of_every_queue(listed: dict[str, list[Queue]]) -> None:
    found = [queue for queues_of_bus in listed.values() for queue in queues_of_bus]
    assert {kind for kind in KINDS if any(kind in queue.name for queue in found)} == set(KINDS)
    assert [queue for queue in found if not queue.durable and not queue.exclusive] == []


@pytest.mark.parametrize(
    ("kind", "loaded"), [("", False), ("reply_", True), ("", True)], ids=["all idle", "answers under load", "all under load"]
)
def test_every_role_recovers_when_its_queues_are_deleted(
    cloud: Region, brokers: dict[str, Administrator], names: dict[str, list[str]], kind: str, *, loaded: bool
) -> None:
    uuids: list[str] = []
    stopping = threading.Event()

    def load() -> None:
        while not stopping.wait(0.1):
            uuids.append(cloud.boot("under-load"))

    loader = threading.Thread(target=load)
    if loaded:
        loader.start()
        assert wait_until(lambda: len(uuids) > 3, PATIENCE)
    for url, broker in brokers.items():
        broker.delete(name for name in names[url] if kind in name)
    if loaded:
        asked = len(uuids)
        assert wait_until(lambda: len(uuids) > asked + 3, PATIENCE)
        stopping.set()
        loader.join()

    def consumed() -> bool:
        return all(broker.consumers(name) for url, broker in brokers.items() for name in names[url])

    assert wait_until(consumed, PATIENCE), "all of them are declared anew, and consumed"
    uuids += [cloud.boot("after") for _ in range(4)]
    for uuid in uuids:
        cloud.wait_for(uuid, "ACTIVE", PATIENCE)
    for uuid in uuids:
        cloud.delete(uuid)
    cloud.settle(PATIENCE)
