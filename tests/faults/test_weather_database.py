"""A MariaDB of the test's own is restarted, killed, made read-only, crowded and locked under load: work pauses and goes on.

With SC_TEST_WEATHER set also in the ways that ``make chaos`` brings, and for longer.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import pymysql
import pytest
import sqlalchemy as sa

from db.sql.sync import sync_schema
from deploy import processes
from deploy.servers import MariaDB
from service.periodic import wait_until
from tests.support.bus import embedded_url
from tests.support.ground import Ground, GroundFolder
from tests.support.region import PACE, Region, host, running
from tests.support.weather import ROOM, Log, Traffic, all_weather, judge, own_server, watched_log

HOSTS = [host(f"{cell}-h{n}", cell, **ROOM) for cell in ("cell1", "cell2") for n in range(3)]
SHORT_SILENCE = msgspec.structs.replace(PACE, report_interval=0.3, down_time=4.0, build_timeout=600.0)
DEADLINE = 15.0
"""Seconds within which the API must have answered, whatever the database does."""
PATIENCE = 60.0
SHORT = 8.0 if all_weather() else 1.5
"""Seconds that each weather lasts."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    made = MariaDB(tmp_path_factory.mktemp("mariadb"))
    with own_server(made):
        yield made


class Exposed(Ground):
    """Databases on a server that the test may do anything to, each with a user that has no privileges beside it; embedded buses."""

    def __init__(self, path: Path, server: MariaDB) -> None:
        super().__init__("lite", path)
        self._server = server

    def _make_database(self, name: str) -> str:
        url = self._server.create_database(f"{self.path.name.replace('-', '_')}_{name}", f"{name}_{self.path.name[-6:]}", "secret")
        sync_schema(url, "api" if name == "api" else "cell")
        return url

    def bus(self, name: str) -> str:
        return self._buses.setdefault(name, embedded_url())


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, server: MariaDB) -> Iterator[Region]:
    place = Exposed(tmp_path_factory.mktemp("weather"), server)
    with running(GroundFolder(place), HOSTS, pace=SHORT_SILENCE) as deployment:
        yield deployment


@contextmanager
def administrator(server: MariaDB) -> Iterator[pymysql.Connection]:
    url = sa.make_url(server.admin_url)
    connection = pymysql.connect(host=url.host, port=url.port, user=url.username, password=url.password, autocommit=True)
    try:
        yield connection
    finally:
        connection.close()


def execute(connection: pymysql.Connection, *statements: str) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def kill_clients(connection: pymysql.Connection) -> None:
    """All but administrators: what comes back has to be let in again."""
    query = "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND user <> 'root'"
    for (number,) in execute(connection, query):
        with suppress(pymysql.err.MySQLError):
            execute(connection, f"KILL {number}")


def restart(server: MariaDB, cloud: Region) -> None:
    server.stop()
    server.start()


def kill(server: MariaDB, cloud: Region) -> None:
    processes.end_process(server.pid, signal.SIGKILL, 10.0)
    time.sleep(SHORT / 2)  # nobody listens, as long as a service manager takes to see it
    server.start()


def read_only(server: MariaDB, cloud: Region) -> None:
    """For so long that every host has been silent for more than its down time: what is read goes on, and no heartbeat is stored."""
    with administrator(server) as root:
        execute(root, "SET GLOBAL read_only = ON")
        time.sleep(1.5 * SHORT_SILENCE.down_time)
        execute(root, "SET GLOBAL read_only = OFF")


def crowd(server: MariaDB, cloud: Region) -> None:
    """Others have taken more connections than there may be; an administrator has a place of his own."""
    with ExitStack() as others:
        root, *_ = [others.enter_context(administrator(server)) for _ in range(12)]
        execute(root, "SET GLOBAL max_connections = 10")
        kill_clients(root)
        time.sleep(SHORT)
        execute(root, "SET GLOBAL max_connections = 500")


def lock(server: MariaDB, cloud: Region) -> None:
    """Somebody locks rows in the order opposite to ours, over and over."""
    name = sa.make_url(cloud.folder.database_url("api")).database
    with administrator(server) as root:
        before = deadlocks(root)
        execute(root, "SET autocommit = 0", "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        end = time.monotonic() + SHORT
        while time.monotonic() < end or deadlocks(root) == before:
            with suppress(pymysql.err.OperationalError):  # it may be the one that is chosen to give way
                execute(root, f"SELECT count(*) FROM {name}.inventories FOR UPDATE")
                time.sleep(0.05)  # somebody of ours locks between these two
                execute(root, f"SELECT count(*) FROM {name}.instance_mappings FOR UPDATE")
                execute(root, f"SELECT count(*) FROM {name}.build_requests FOR UPDATE")
            execute(root, "ROLLBACK")
            time.sleep(0.01)  # who waited has a turn
            assert time.monotonic() < end + PATIENCE, "nobody was in the way"


def deadlocks(root: pymysql.Connection) -> int:
    [(_, count)] = execute(root, "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
    return int(str(count))


WEATHER: tuple[Callable[[MariaDB, Region], None], ...] = (kill, crowd, read_only, lock)
MORE: tuple[Callable[[MariaDB, Region], None], ...] = (restart, kill, restart)


@pytest.fixture
def log() -> Iterator[Log]:
    with watched_log() as log:
        yield log


def test_work_pauses_and_goes_on(cloud: Region, server: MariaDB, log: Log) -> None:
    traffic = Traffic(cloud)
    chosen = WEATHER + MORE * all_weather()
    try:
        for each in chosen:
            time.sleep(0.3)  # work is on its way again when the next one comes
            refused = len(traffic.refusals())
            each(server, cloud)
            assert (len(traffic.refusals()) > refused) == (each is not lock), each.__name__
            assert wait_until(lambda: traffic.answers[-1].status < 400, PATIENCE), "it goes on by itself"
    finally:
        traffic.stop()
    traffic.judge_answers(DEADLINE)
    judge(cloud, traffic, PATIENCE)
    log.judge(most=2 * len(chosen))  # each outage is told anew, and a restart has moments in between
