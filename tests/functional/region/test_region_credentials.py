"""New credentials under load: operators change how a running API level logs in to a cell, and nobody who boots a server notices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from urllib.parse import quote, urlsplit

import pytest
import sqlalchemy as sa

from service.periodic import wait_until
from tests.support import vhosts
from tests.support.databases import MARIADB
from tests.support.region import Region, host, region
from tests.support.scratch import new_name

HOSTS = [host(f"h{n}", "cell1", vcpus=1000, memory_mb=1 << 20, disk_gb=10_000) for n in range(2)]
ENOUGH = 8
"""Boots that are to go through each phase."""
OPEN = 20
"""Boots that may be on their way at a time. A slow machine would otherwise have hundreds before those that are awaited."""
PATIENCE = 60.0


class Load:
    """Boots one server after the other, and notes what was not as it should be."""

    def __init__(self, cloud: Region) -> None:
        self._cloud = cloud
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._boot)
        self.uuids: list[str] = []
        self.failures: list[str] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(PATIENCE)

    def go_on(self) -> None:
        """Until so many have been asked for from now on and run."""
        before = len(self.uuids)
        assert wait_until(lambda: len(self.uuids) >= before + ENOUGH, PATIENCE), self.failures
        for uuid in self.uuids[before : before + ENOUGH]:
            self._cloud.wait_for(uuid, "ACTIVE", PATIENCE)

    def _boot(self) -> None:
        while not self._ended.wait(0.02):
            if len(self.uuids) >= OPEN and self._status(self.uuids[-OPEN]) == "BUILD":
                continue
            answer = self._cloud.post("web")
            if answer.status_code != 202:
                self.failures.append(answer.text)
                continue
            self.uuids.append(str(answer.json()["server"]["id"]))
            self._status(self.uuids[-1])

    def _status(self, uuid: str) -> str | None:
        answer = self._cloud.http.get(f"{self._cloud.all.api_endpoint}/servers/{uuid}", timeout=30)
        if answer.status_code != 200:
            self.failures.append(answer.text)
            return None
        return str(answer.json()["server"]["status"])


def logged_in(url: str, user: str, password: str) -> str:
    """The URL of the same place for another user."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}:{quote(password)}@{parts.netloc.rpartition('@')[2]}").geturl()


def change(cloud: Region, option: str, url: str) -> None:
    """As an operator; then wait until the processes have followed."""
    cloud.commands.run("cell", "update", "cell1", f"--{option}", url)
    key = {"database-connection": "database_url", "transport-url": "transport_url"}[option]
    assert wait_until(lambda: getattr(cloud.registry.list_cells()[0].current_mapping, key) == url, PATIENCE)


def rotate(cloud: Region, option: str, first: str, second: str, drop_first: Callable[[], None]) -> None:
    before = cloud.registry.list_cells()[0].current_mapping
    change(cloud, option, first)
    with Load(cloud) as load:
        load.go_on()
        change(cloud, option, second)
        load.go_on()
        drop_first()
        load.go_on()
    assert load.failures == []
    for uuid in load.uuids:
        cloud.wait_for(uuid, "ACTIVE", PATIENCE)
    cloud.settle()
    change(cloud, option, before.database_url if option == "database-connection" else before.transport_url)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    with region(tmp_path_factory.mktemp("cloud"), HOSTS, on="mariadb") as deployment:
        yield deployment


def test_a_database_user_is_replaced_and_dropped(cloud: Region) -> None:
    url = cloud.folder.database_url("cell1")
    users = [new_name()[-24:] for _ in range(2)]
    administration = sa.create_engine(MARIADB, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def drop(user: str) -> None:
        with administration.connect() as server:
            server.execute(sa.text(f"DROP USER IF EXISTS '{user}'@'%'"))
            query = sa.text("SELECT id FROM information_schema.processlist WHERE user = :user")
            for number in server.execute(query, {"user": user}).scalars().all():
                server.execute(sa.text(f"KILL {int(number)}"))

    try:
        with administration.connect() as server:
            for user in users:
                server.execute(sa.text(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'pass'"))
                server.execute(sa.text(f"GRANT ALL ON `{sa.make_url(url).database}`.* TO '{user}'@'%'"))
        first, second = (logged_in(url, user, "pass") for user in users)
        rotate(cloud, "database-connection", first, second, lambda: drop(users[0]))
    finally:
        for user in users:
            drop(user)


def test_a_bus_user_is_replaced_and_deleted(cloud: Region) -> None:
    url = cloud.folder.bus_url("cell1")
    users = [new_name() for _ in range(2)]
    try:
        vhosts.create_users(users, "pass", urlsplit(url).path.lstrip("/"))
        first, second = (logged_in(url, user, "pass") for user in users)
        rotate(cloud, "transport-url", first, second, lambda: vhosts.delete_users(users[:1]))
    finally:
        vhosts.delete_users(users)
