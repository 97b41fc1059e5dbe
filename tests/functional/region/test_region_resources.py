"""Custom resource classes end to end: an operator's flavor, a tenant's boot, guests on the hosts that have what is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from compute.driver import Guest
from compute.journal import read_guests
from compute.simulated import journal_path
from db.api.claims import claims
from db.api.rows.tables import inventories
from db.sql.connection import Connection
from db.sql.engine import Database
from service.periodic import wait_until
from tests.support.ground import CHOSEN
from tests.support.region import Region, agrees, host, region

GPU = "CUSTOM_GPU"
HOSTS = [
    host("a1", resources={GPU: 2}),
    host("a2", resources={GPU: 1, "CUSTOM_NIC": 1}),
    host("a3"),
    host("b1", "cell2", resources={GPU: 3}),
]


@pytest.fixture(scope="module", params=CHOSEN)
def cloud(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Region]:
    with region(tmp_path_factory.mktemp("cloud"), HOSTS, on=request.param) as deployment:
        for name, extra in (("gpu", f"{GPU}=1"), ("gpus", f"{GPU}=2"), ("both", f"{GPU}=1"), ("qat", "CUSTOM_QAT=1")):
            more = ("--property", "resources:CUSTOM_NIC=1", "--property", "resources:VCPU=0") if name == "both" else ()
            deployment.commands.run(
                *("flavor", "create", name, "--id", name, "--vcpus", "1", "--ram", "64", "--property", f"resources:{extra}"), *more
            )
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
    assert used(cloud) == {}


def used(cloud: Region) -> dict[str, dict[str, int]]:
    database = Database(cloud.folder.database_url("api"))
    try:
        return {row.host: row.used_resources for row in database.read(claims.read_all) if row.used_resources}
    finally:
        database.dispose_connections()


def guests(cloud: Region, name: str) -> list[Guest]:
    return read_guests(journal_path(str(cloud.folder.path / "hosts"), name))


def statuses(cloud: Region, name: str) -> Counter[str]:
    return Counter(server["status"] for server in cloud.named(name))


def test_as_many_run_as_units_exist_others_fail(cloud: Region) -> None:
    uuids = [cloud.boot(f"gpu-{n}", flavor="gpu") for n in range(8)]
    assert wait_until(lambda: statuses(cloud, "^gpu-") == {"ACTIVE": 6, "ERROR": 2}, 90.0), statuses(cloud, "^gpu-")
    assert used(cloud) == {"a1": {GPU: 2}, "a2": {GPU: 1}, "b1": {GPU: 3}}
    assert {each.name: len(guests(cloud, each.name)) for each in HOSTS} == {"a1": 2, "a2": 1, "a3": 0, "b1": 3}
    assert all(guest.resources == {GPU: 1} for each in HOSTS for guest in guests(cloud, each.name))
    faults = [server["fault"]["message"] for uuid in uuids if (server := cloud.show(uuid) or {})["status"] == "ERROR"]
    assert faults == ["No valid host was found: of 4 hosts 0 were left by ResourceClassFilter (not enough CUSTOM_GPU)."] * 2
    active = next(server["id"] for server in cloud.named("^gpu-") if server["status"] == "ACTIVE")
    cloud.delete(active)
    assert wait_until(lambda: sum(each[GPU] for each in used(cloud).values()) == 5, 90.0)
    cloud.wait_for(cloud.boot("next", flavor="gpu"), "ACTIVE")


def test_a_batch_is_placed_all_or_nothing(cloud: Region) -> None:
    cloud.boot("pair", flavor="gpus", count=3)
    assert wait_until(lambda: statuses(cloud, "^pair-") == {"ERROR": 3}, 90.0), statuses(cloud, "^pair-")
    cloud.boot("fits", flavor="gpus", count=2)
    assert wait_until(lambda: statuses(cloud, "^fits-") == {"ACTIVE": 2}, 90.0), statuses(cloud, "^fits-")
    assert used(cloud) == {"a1": {GPU: 2}, "b1": {GPU: 2}}


def test_several_classes_share_a_host_claiming_overridden_sizes(cloud: Region) -> None:
    server = cloud.wait_for(cloud.boot("both", flavor="both"), "ACTIVE")
    assert server["OS-EXT-SRV-ATTR:host"] == "a2"
    assert used(cloud) == {"a2": {GPU: 1, "CUSTOM_NIC": 1}}
    evidence = cloud.settle()
    assert (evidence.charged["a2"], evidence.memory_used["a2"]) == (0, 64)
    [guest] = guests(cloud, "a2")
    assert (guest.vcpus, guest.taken_amounts.vcpus) == (1, 0)


def test_a_class_that_no_host_offers_is_named(cloud: Region) -> None:
    server = cloud.wait_for(cloud.boot("qat", flavor="qat"), "ERROR")
    reason = "of 4 hosts 0 were left by ResourceClassFilter (no host offers CUSTOM_QAT)"
    assert server["fault"]["message"] == f"No valid host was found: {reason}."


def test_the_host_has_the_last_word(cloud: Region) -> None:
    """Whatever the ledger believes that it offers."""
    database = Database(cloud.folder.database_url("api"))

    def believe(tx: Connection) -> None:
        wrong = sa.update(inventories).values(cap_resources='{"CUSTOM_GPU":9}', generation=inventories.c.generation + 1000)
        tx.execute(wrong.where(inventories.c.host == "b1").values(writer=10**6, wseq=1))

    database.write(believe)
    database.dispose_connections()
    uuids = [cloud.boot(f"many-{n}", flavor="gpu", availability_zone="nova:b1") for n in range(5)]
    assert wait_until(lambda: statuses(cloud, "^many-") == {"ACTIVE": 3, "ERROR": 2}, 90.0), statuses(cloud, "^many-")
    assert len(guests(cloud, "b1")) == 3
    faults = {(cloud.show(uuid) or {}).get("fault", {}).get("message") for uuid in uuids} - {None}
    attempt = "Attempt 1 on b1: NoRoom: No room for CUSTOM_GPU (3 used + 1 > 3)."
    assert faults == {f"Exceeded maximum number of attempts (1). {attempt}"}
    assert used(cloud) == {"b1": {GPU: 3}}
    cloud.commands.run("verify", "--settle", "0", "--repair")
