"""Real brokers and databases freeze, are cut off and come back while a region runs: nobody is held, nothing is lost or built twice.

A proxy stands before everything that fails here. What is frozen still takes connections, and says nothing any more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
import requests

from compute.journal import read_entries
from compute.simulated import journal_path
from service.periodic import wait_until
from tests.support.bus import FaultProxy
from tests.support.ground import CHOSEN, Ground, ProxiedFolder
from tests.support.region import PACE, Region, host, running

HOSTS = [host(f"{cell}-h{n}", cell) for cell in ("cell1", "cell2") for n in range(2)]
DEADLINE = 15.0
"""Seconds within which every answer of the API must come: a cell is given up after 3, the API database after 3 and a try more."""
PATIENCE = 60.0
PATIENT = msgspec.structs.replace(PACE, down_time=600.0)
"""No host is called dead because its cell could not hear it."""


@pytest.fixture(scope="module", params=[ground for ground in CHOSEN if ground != "lite"] or ["mariadb"])
def cloud(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Region]:
    place = Ground(request.param, tmp_path_factory.mktemp("cloud"))
    folder = ProxiedFolder(place, ("bus api", "database api", "bus cell2", "database cell2"), database_options="read_timeout=3")
    try:
        with running(folder, HOSTS, pace=PATIENT) as deployment:
            for zone, cell in (("east", "cell1"), ("west", "cell2")):
                members = [word for each in HOSTS if each.cell == cell for word in ("--host", each.name)]
                deployment.commands.run("aggregate", "create", zone, "--zone", zone, *members)
            yield deployment
    finally:
        folder.close()
        place.release()


def proxy(cloud: Region, what: str) -> FaultProxy:
    assert isinstance(cloud.folder, ProxiedFolder)
    return cloud.folder.proxies[what]


@contextmanager
def fault(cloud: Region, what: str, kind: str = "freeze") -> Iterator[None]:
    failing = proxy(cloud, what)
    failing.freeze() if kind == "freeze" else failing.cut()
    try:
        yield
    finally:
        failing.thaw() if kind == "freeze" else failing.restore()


def soon(ask: Callable[[], requests.Response]) -> requests.Response:
    """The answer; fails if it took longer than DEADLINE."""
    began = time.monotonic()
    answer = ask()
    assert time.monotonic() - began < DEADLINE
    return answer


def boot(cloud: Region, name: str, zone: str) -> str:
    answer = soon(lambda: cloud.post(name, availability_zone=zone))
    assert answer.status_code == 202, answer.text
    return str(answer.json()["server"]["id"])


def get(cloud: Region, path: str) -> requests.Response:
    return soon(lambda: cloud.http.get(f"{cloud.all.api_endpoint}{path}", timeout=PATIENCE))


def judge(cloud: Region) -> None:
    """At rest everything agrees, and no guest was made twice."""
    evidence = cloud.settle(PATIENCE)
    spawned: Counter[str] = Counter()
    for each in HOSTS:
        entries = read_entries(journal_path(str(cloud.folder.path / "hosts"), each.name))
        spawned.update(entry.spawned.uuid for entry in entries if entry.spawned is not None)
    assert {uuid: spawned[uuid] for uuid in evidence.claims} == dict.fromkeys(evidence.claims, 1)


@pytest.mark.parametrize(("what", "kind"), [("bus cell2", "freeze"), ("bus cell2", "cut"), ("database cell2", "freeze")])
def test_a_sick_cell_delays_nobody_and_recovers(cloud: Region, what: str, kind: str) -> None:
    there = boot(cloud, "there", "west")
    cloud.wait_for(there, "ACTIVE")
    with fault(cloud, what, kind):
        waiting = [boot(cloud, f"west-{n}", "west") for n in range(8)]  # more than there are threads to hold
        for number in range(4):
            cloud.wait_for(boot(cloud, f"east-{number}", "east"), "ACTIVE", timeout=DEADLINE)
        for path in ("/servers", "/servers/detail", f"/servers/{there}", f"/servers/{waiting[0]}"):
            assert get(cloud, path).status_code == 200
        assert soon(lambda: cloud.http.delete(f"{cloud.all.api_endpoint}/servers/{there}", timeout=PATIENCE)).status_code == 204
        cloud.wait_for(boot(cloud, "east-last", "east"), "ACTIVE", timeout=DEADLINE)
        assert {server["status"] for server in cloud.named("^west-") if server["id"] in waiting} == {"BUILD"}
    for uuid in waiting:
        cloud.wait_for(uuid, "ACTIVE", timeout=PATIENCE)
    judge(cloud)
    assert cloud.show(there) is None


@pytest.mark.parametrize("kind", ["freeze", "cut"])
def test_boots_without_the_api_bus_are_built_later(cloud: Region, kind: str) -> None:
    with fault(cloud, "bus api", kind):
        uuids = [boot(cloud, f"late-{n}", zone) for n in range(4) for zone in ("east", "west")]
        assert get(cloud, "/servers/detail").status_code == 200
        assert soon(lambda: cloud.http.delete(f"{cloud.all.api_endpoint}/servers/{uuids[0]}", timeout=PATIENCE)).status_code == 204
        assert {get(cloud, f"/servers/{uuid}").json()["server"]["status"] for uuid in uuids[1:]} == {"BUILD"}
    for uuid in uuids[1:]:
        cloud.wait_for(uuid, "ACTIVE", timeout=PATIENCE)
    judge(cloud)


def test_a_frozen_api_database_is_503_in_time(cloud: Region) -> None:
    before = boot(cloud, "before", "east")
    cloud.wait_for(before, "ACTIVE")
    with fault(cloud, "database api"):
        for _ in range(3):
            assert get(cloud, f"/servers/{before}").status_code == 503
            assert soon(lambda: cloud.post("refused")).status_code == 503
    assert wait_until(lambda: get(cloud, "/servers").status_code == 200, PATIENCE)
    cloud.wait_for(boot(cloud, "after", "west"), "ACTIVE", timeout=PATIENCE)
    judge(cloud)
