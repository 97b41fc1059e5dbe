"""NUMA nodes end to end: servers run on the nodes that were claimed for them, also after a retry and after moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from compute.driver import Guest
from compute.journal import read_guests
from compute.simulated import METADATA_KEY, journal_path
from db.api.claims import claims
from db.sql.engine import Database
from objects import numa
from service.periodic import wait_until
from tests.support.ground import CHOSEN
from tests.support.region import Region, agrees, host, region

NODE_MB = 32768
HOSTS = [host("a1", numa_nodes=2), host("a2", numa_nodes=2), host("b1", "cell2")]


@pytest.fixture(scope="module", params=CHOSEN)
def cloud(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Region]:
    with region(tmp_path_factory.mktemp("cloud"), HOSTS, on=request.param) as deployment:
        for name, ram, nodes in (("big", 20000, 1), ("bigger", 24000, 1), ("wide", 40000, 2)):
            specs = ("--property", f"hw:numa_nodes={nodes}") if nodes > 1 else ()
            deployment.commands.run("flavor", "create", name, "--id", name, "--vcpus", "2", "--ram", str(ram), *specs)
        deployment.commands.run("aggregate", "create", "a", "--zone", "za", "--host", "a1", "--host", "a2")
        yield deployment


@pytest.fixture(autouse=True)
def emptied(cloud: Region) -> Iterator[None]:
    """Every test begins with free hosts, and leaves a region in which everything agrees."""
    yield
    for server in cloud.named(""):
        cloud.delete(server["id"])
    assert wait_until(lambda: not cloud.named(""), 90.0)
    cloud.settle()
    assert wait_until(lambda: agrees(cloud), 90.0), "what the cells told last may still be on its way"
    assert all(not amounts for amounts in used(cloud).values())


def used(cloud: Region) -> dict[str, dict[str, int]]:
    database = Database(cloud.folder.database_url("api"))
    try:
        return {row.host: row.used_resources for row in database.read(claims.read_all)}
    finally:
        database.dispose_connections()


def guests(cloud: Region) -> dict[str, list[Guest]]:
    return {each.name: read_guests(journal_path(str(cloud.folder.path / "hosts"), each.name)) for each in HOSTS}


def runs_where_it_is_claimed(cloud: Region) -> bool:
    """Whether guests take of each node what is claimed of it, and no more than there is."""
    claimed = used(cloud)
    for name, there in guests(cloud).items():
        found = dict.fromkeys(claimed[name], 0)
        for guest in there:
            for kind, amount in numa.taken_by_class(guest.numa_nodes, guest.vcpus, guest.memory_mb).items():
                found[kind] = found.get(kind, 0) + amount
        if found != claimed[name] or any(amount > NODE_MB for amount in found.values()):
            return False
    return True


def act(cloud: Region, server: str, **action: Any) -> None:
    answer = cloud.http.post(f"{cloud.all.api_endpoint}/servers/{server}/action", json=action, timeout=30)
    assert answer.status_code in (202, 204), answer.text


def on(cloud: Region, uuid: str) -> tuple[str, tuple[int, ...]]:
    """The host of a server with one guest, and its nodes there."""
    shown = cloud.show(uuid)
    assert shown is not None
    name = shown["OS-EXT-SRV-ATTR:host"]
    found = [guest for guest in guests(cloud)[name] if uuid in (guest.uuid, guest.server_uuid)]
    return name, found[-1].numa_nodes


def test_servers_run_on_one_node_or_two(cloud: Region) -> None:
    uuids = [cloud.boot("one", flavor="big", availability_zone="za:a1") for _ in range(2)]
    places = [on(cloud, cloud.wait_for(uuid, "ACTIVE")["id"]) for uuid in uuids]
    assert sorted(places) == [("a1", (0,)), ("a1", (1,))]
    full = cloud.wait_for(cloud.boot("third", flavor="big", availability_zone="za:a1"), "ERROR")
    assert "0 by NUMATopologyFilter (not enough room on one NUMA node)." in full["fault"]["message"]
    # outside the zone is b1, which reports no nodes and may be chosen too
    wide = cloud.wait_for(cloud.boot("wide", flavor="wide", availability_zone="za"), "ACTIVE")
    assert on(cloud, wide["id"]) == ("a2", (0, 1))
    assert wait_until(lambda: runs_where_it_is_claimed(cloud), 90.0)
    assert used(cloud)["a2"] == numa.taken_by_class((0, 1), 2, 40000)


def test_a_host_without_numa_nodes_refuses(cloud: Region) -> None:
    refused = cloud.wait_for(cloud.boot("wide", flavor="wide", availability_zone="nova:b1"), "ERROR")
    assert "The server asks for NUMA nodes, and is tied to 0 of this simulated host." in refused["fault"]["message"]


def test_a_retry_runs_on_its_alternates_chosen_nodes(cloud: Region) -> None:
    for name in ("a1", "a2"):
        cloud.wait_for(cloud.boot("first", flavor="bigger", availability_zone=f"za:{name}"), "ACTIVE")
    for failing, other in (("a1", "a2"), ("a2", "a1")):
        uuid = cloud.boot("again", flavor="big", availability_zone="za", metadata={METADATA_KEY: f"fail:{failing}"})
        server = cloud.wait_for(uuid, "ACTIVE")
        assert on(cloud, server["id"]) == (other, (1,))
        assert wait_until(lambda: runs_where_it_is_claimed(cloud), 90.0)


def test_moves_choose_nodes_of_their_destination(cloud: Region) -> None:
    cloud.wait_for(cloud.boot("first", flavor="bigger", availability_zone="za:a2"), "ACTIVE")
    uuid = cloud.wait_for(cloud.boot("moves", flavor="big", availability_zone="za:a1"), "ACTIVE")["id"]
    assert on(cloud, uuid) == ("a1", (0,))
    act(cloud, uuid, migrate=None)
    cloud.wait_for(uuid, "VERIFY_RESIZE")
    act(cloud, uuid, confirmResize=None)
    cloud.wait_for(uuid, "ACTIVE")
    assert on(cloud, uuid) == ("a2", (1,))
    assert wait_until(lambda: runs_where_it_is_claimed(cloud), 90.0)
    act(cloud, uuid, **{"os-migrateLive": {"host": "a1", "block_migration": True, "disk_over_commit": False}})
    assert wait_until(lambda: on(cloud, uuid)[0] == "a1", 90.0)
    cloud.wait_for(uuid, "ACTIVE")
    assert on(cloud, uuid) == ("a1", (0,))
    assert wait_until(lambda: runs_where_it_is_claimed(cloud), 90.0)
    act(cloud, uuid, resize={"flavorRef": "wide"})
    fault = wait_until(lambda: (cloud.show(uuid) or {}).get("status") != "RESIZE", 30)
    assert fault
    assert on(cloud, uuid)[0] == "a1"
