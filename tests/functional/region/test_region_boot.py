"""The main job, end to end: HTTP in, guests on hosts out, everything real but the machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from compute.simulated import METADATA_KEY
from objects.instance import State
from service.periodic import wait_until
from tests.support.ground import GROUNDS
from tests.support.region import Region, host, region

HOSTS = [host(f"{cell}-h{n}", cell, vcpus=8, memory_mb=8192, disk_gb=100) for cell in ("cell1", "cell2") for n in range(3)]


@pytest.fixture(scope="module", params=GROUNDS)
def cloud(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Region]:
    with region(tmp_path_factory.mktemp("cloud"), HOSTS, on=request.param) as deployment:
        for policy in ("affinity", "anti-affinity"):
            deployment.commands.run("group", "create", policy, "--policy", policy, "--project", "admin")
        deployment.commands.run("aggregate", "create", "east", "--zone", "east", "--host", "cell1-h0")
        deployment.flavor("huge", vcpus=1, ram=1 << 20)
        yield deployment


def group(cloud: Region, name: str) -> dict[str, str]:
    from db.api.claims import server_groups
    from db.sql.engine import Database

    database = Database(cloud.folder.database_url("api"))
    found = {g.name: g.uuid for g in database.read(server_groups.list_all)}
    database.dispose_connections()
    return {"group": found[name]}


def test_a_boot_becomes_active_with_claim_and_guest(cloud: Region) -> None:
    uuid = cloud.boot("one", metadata={"colour": "blue"})
    server = cloud.wait_for(uuid, "ACTIVE")
    assert server["name"] == "one"
    assert server["OS-EXT-SRV-ATTR:host"] in {h.name for h in HOSTS}
    assert server["OS-SRV-USG:launched_at"]
    asked = cloud.http.post(
        f"{cloud.all.api_endpoint}/servers/{uuid}/action", json={"os-getConsoleOutput": {"length": 2}}, timeout=30
    )
    assert asked.json() == {"output": "one: ready\n"}
    evidence = cloud.settle()
    assert evidence.claims[uuid] == server["OS-EXT-SRV-ATTR:host"]


def test_a_multi_create_spans_cells_with_ordered_names(cloud: Region) -> None:
    cloud.boot("many", count=12)
    assert wait_until(lambda: [s["status"] for s in cloud.named("^many-")].count("ACTIVE") == 12, 90.0)
    assert {s["name"] for s in cloud.named("^many-")} == {f"many-{n}" for n in range(1, 13)}
    cells = Counter(row.cell for row in cloud.evidence().rows if row.instance.state is State.ACTIVE)
    assert set(cells) == {"cell1", "cell2"}


def test_an_unplaceable_server_is_an_error_saying_why(cloud: Region) -> None:
    uuid = cloud.boot("giant", flavor="huge")
    server = cloud.wait_for(uuid, "ERROR")
    assert server["fault"]["message"].startswith("No valid host was found")
    explanation = cloud.http.get(f"{cloud.all.api_endpoint}/servers/{uuid}/explanation", timeout=30).json()["explanation"]
    counts = {f["name"]: (f["before"], f["after"]) for f in explanation["decisions"][-1]["filters"]}
    assert counts["RamFilter"] == (6, 0)
    assert uuid not in cloud.settle().claims


def test_a_zone_is_kept(cloud: Region) -> None:
    uuid = cloud.boot("zoned", availability_zone="east")
    server = cloud.wait_for(uuid, "ACTIVE")
    assert server["OS-EXT-SRV-ATTR:host"] == "cell1-h0"
    assert server["OS-EXT-AZ:availability_zone"] == "east"


def test_groups_are_kept(cloud: Region) -> None:
    cloud.boot("same", count=3, hints=group(cloud, "affinity"))
    cloud.boot("apart", count=4, hints=group(cloud, "anti-affinity"))
    assert wait_until(lambda: [s["status"] for s in cloud.named("^(same|apart)-")].count("ACTIVE") == 7, 90.0)
    assert len({s["OS-EXT-SRV-ATTR:host"] for s in cloud.named("^same-")}) == 1
    assert len({s["OS-EXT-SRV-ATTR:host"] for s in cloud.named("^apart-")}) == 4
    cloud.boot("crowd", count=7, hints=group(cloud, "anti-affinity"))
    assert wait_until(lambda: [s["status"] for s in cloud.named("^crowd-")].count("ERROR") == 7, 90.0)


def test_a_failing_build_tries_alternates_and_reports_all(cloud: Region) -> None:
    uuid = cloud.boot("unlucky", metadata={METADATA_KEY: "fail"})
    message = cloud.wait_for(uuid, "ERROR")["fault"]["message"]
    assert "maximum number of attempts (3)" in message
    for number in (1, 2, 3):
        assert f"Attempt {number} on " in message
    (row,) = [row for row in cloud.settle().rows if row.instance.uuid == uuid]
    tried = [attempt.host for attempt in row.instance.history]
    assert len(set(tried)) == 3
    assert {name.split("-")[0] for name in tried} == {row.cell}


def test_an_aborted_build_is_not_tried_elsewhere(cloud: Region) -> None:
    uuid = cloud.boot("broken", metadata={METADATA_KEY: "abort"})
    cloud.wait_for(uuid, "ERROR")
    (row,) = [row for row in cloud.settle().rows if row.instance.uuid == uuid]
    assert len(row.instance.history) == 1


def test_a_hanging_build_is_stopped_and_tried_elsewhere(cloud: Region) -> None:
    uuid = cloud.boot("stuck", metadata={METADATA_KEY: "hang"})
    assert "Attempt 3" in cloud.wait_for(uuid, "ERROR")["fault"]["message"]
    cloud.settle()


def test_deleting_at_any_moment_leaves_nothing(cloud: Region) -> None:
    """Deletes race with every stage of a build: at once, a little later, and when it runs."""

    def boot_and_delete(number: int) -> str:
        uuid = cloud.boot(f"brief-{number}", metadata={METADATA_KEY: "hang"} if number % 4 == 3 else {})
        wait_until(lambda: False, (number % 8) * 0.02, pause=0.005)
        assert cloud.delete(uuid) == 204
        return uuid

    with ThreadPoolExecutor(8) as pool:
        uuids = list(pool.map(boot_and_delete, range(40)))
    evidence = cloud.settle()
    assert not set(uuids) & set(evidence.claims)
    assert not set(uuids) & {uuid for guests in evidence.guests.values() for uuid in guests}
    assert all(cloud.show(uuid) is None for uuid in uuids)
    assert cloud.delete(uuids[0]) == 404


def test_an_active_servers_delete_ends_guest_and_claim(cloud: Region) -> None:
    uuid = cloud.boot("done")
    cloud.wait_for(uuid, "ACTIVE")
    assert cloud.delete(uuid) == 204
    assert cloud.show(uuid) is None or cloud.show(uuid)["status"] == "DELETED"  # type: ignore[index]  # not None here
    assert uuid not in cloud.settle().claims


def test_one_idempotency_key_answers_with_one_server(cloud: Region) -> None:
    cloud.http.headers["Idempotency-Key"] = "once"
    try:
        assert cloud.boot("once") == cloud.boot("once")
    finally:
        del cloud.http.headers["Idempotency-Key"]


def test_a_full_cloud_takes_exactly_what_fits(cloud: Region) -> None:
    """A race for slots: 30 boots of 8 GiB hosts' halves; the rest is refused with a reason and nothing is overcommitted."""
    before = cloud.settle()
    cloud.flavor("half", vcpus=1, ram=3000)
    free = sum((8192 - before.memory_used.get(h.name, 0)) // 3000 for h in HOSTS)
    with ThreadPoolExecutor(8) as pool:
        uuids = list(pool.map(lambda n: cloud.boot(f"slot-{n}", flavor="half"), range(free + 6)))
    evidence = cloud.settle()
    assert sum(uuid in evidence.claims for uuid in uuids) == free
    assert all(used <= 8192 for used in evidence.memory_used.values())
