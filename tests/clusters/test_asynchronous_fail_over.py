"""A database whose standbys were behind when its primary died: a region finds what was lost, tells it, and mends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from db.cell import unknown_guests
from db.sql.engine import Database
from db.sql.sync import sync_schema
from deploy.postgresql_replicated import PostgreSQLAsynchronous
from objects import errors
from service.periodic import wait_until
from tests.support.ground import Ground, GroundFolder
from tests.support.region import Region, host, running

PATIENCE = 150.0
HOSTS = [host(f"cell1-h{n}", "cell1", vcpus=64, memory_mb=65536, disk_gb=500) for n in range(2)]


class Replicated(Ground):
    """SQLite and an embedded bus; one of the databases is on the cluster."""

    def __init__(self, path: Path, cluster: PostgreSQLAsynchronous, name: str) -> None:
        super().__init__("lite", path)
        self.cluster, self._name = cluster, name

    def _make_database(self, name: str) -> str:
        if name != self._name:
            return super()._make_database(name)
        url = self.cluster.create_database(name, name, "secret")
        sync_schema(url, "api" if name == "api" else "cell")
        return url


@pytest.fixture
def cloud(request: pytest.FixtureRequest, tmp_path: Path, asynchronous: PostgreSQLAsynchronous) -> Iterator[Region]:
    with running(GroundFolder(Replicated(tmp_path, asynchronous, request.param)), HOSTS) as deployment:
        yield deployment


def lose(cloud: Region, cluster: PostgreSQLAsynchronous) -> tuple[list[str], list[str]]:
    """Boots before, and boots that the fail-over loses."""
    kept = [cloud.boot("kept") for _ in range(3)]
    for uuid in kept:
        cloud.wait_for(uuid, "ACTIVE", PATIENCE)
    cloud.settle(PATIENCE)
    cluster.leave_standbys_behind()
    lost = [cloud.boot("lost") for _ in range(4)]
    for uuid in lost:
        cloud.wait_for(uuid, "ACTIVE", PATIENCE)
    cluster.fail_over()
    return kept, lost


def agrees(cloud: Region) -> bool:
    try:
        cloud.commands.run("verify", "--settle", "0")
    except errors.SuperconductorError:
        return False
    return True


def status_of(cloud: Region, uuid: str) -> str:
    try:
        server = cloud.show(uuid)
    except AssertionError:  # 503: the database is not back yet
        return "unknown"
    return str(server["status"]) if server else "absent"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cloud", ["api"], indirect=True)
def test_servers_that_the_api_database_lost_are_adopted(cloud: Region, asynchronous: PostgreSQLAsynchronous) -> None:
    kept, lost = lose(cloud, asynchronous)
    assert wait_until(lambda: {status_of(cloud, uuid) for uuid in (*kept, *lost)} == {"ACTIVE"}, PATIENCE, 0.5)
    cloud.settle(PATIENCE)
    assert wait_until(lambda: agrees(cloud), PATIENCE, 1.0)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cloud", ["cell1"], indirect=True)
def test_servers_a_cell_lost_are_reported_and_adopted(cloud: Region, asynchronous: PostgreSQLAsynchronous) -> None:
    kept, lost = lose(cloud, asynchronous)
    database = Database(cloud.folder.database_url("cell1"))

    def unknown() -> set[str]:
        try:
            return {told.guest.uuid for told in database.read(unknown_guests.list_all)}
        except errors.DatabaseUnavailable:
            return set()

    assert wait_until(lambda: unknown() == set(lost), PATIENCE, 0.5), "their guests stay, and are told"
    assert not agrees(cloud)
    for uuid in lost:
        cloud.commands.run("guest", "adopt", uuid)
    assert wait_until(lambda: agrees(cloud), PATIENCE, 1.0)
    assert {status_of(cloud, uuid) for uuid in (*kept, *lost)} == {"ACTIVE"}
    cloud.settle(PATIENCE)
    database.dispose_connections()
