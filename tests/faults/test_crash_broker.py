"""A broker of the test's own is restarted, loses what it holds, freezes, takes nothing more, or closes to us.

What is ordered is kept on its disk, and in rows besides; work pauses and goes on by itself. With SC_TEST_WEATHER set for longer.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import amqp  # type: ignore[import-untyped]  # the library ships no types
import msgspec
import pytest

from deploy import processes
from deploy.servers import RabbitMQ
from objects.context import RequestContext
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.cell_conductor import DatabaselessConductor
from tests.support.cell_site import Host, Site
from tests.support.ground import Ground, GroundFolder
from tests.support.region import PACE, Region, host, running
from tests.support.weather import ROOM, Traffic, all_weather, judge, own_server, watched_log
from tests.support.world import PATIENCE, World

CONTEXT = RequestContext(request_id="req-test")
LOGIN = ("tester", "secret")
HOSTS = {"cell1": ["a1", "a2"], "cell2": ["b1"]}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    made = RabbitMQ(tmp_path_factory.mktemp("broker"))
    with own_server(made):
        yield made


class Broken(Ground):
    """SQLite files, and virtual hosts of a broker that the test may break."""

    def __init__(self, path: Path, broker: RabbitMQ, query: str = "") -> None:
        super().__init__("lite", path)
        self._broker = broker
        self._query = query

    def bus(self, name: str) -> str:
        if name not in self._buses:
            self._buses[name] = self._broker.create_vhost(self.vhost(name), *LOGIN) + self._query
        return self._buses[name]

    def vhost(self, name: str) -> str:
        return f"{self.path.name}-{name}"


def queues(broker: RabbitMQ, vhost: str) -> dict[str, tuple[str, str, int]]:
    """Name -> durable, type, messages."""
    told = broker.run_ctl("list_queues", "-p", vhost, "--no-table-headers", "name", "durable", "type", "messages")
    rows = [line.split("\t") for line in told.splitlines() if line.count("\t") == 3]
    return {name: (durable, kind, int(messages)) for name, durable, kind, messages in rows}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("query", "kind"), [("", "classic"), ("?rabbit_quorum_queue=true", "quorum")])
def test_an_order_outlives_a_restart_of_its_broker(tmp_path: Path, broker: RabbitMQ, query: str, kind: str) -> None:
    """Nobody sends it again: it is what was cast before."""
    place = Broken(tmp_path, broker, query)
    site = Site(place)
    site.hosts["h1"].server.stop()
    assert queues(broker, place.vhost("cell1"))["compute.h1"] == ("true", kind, 0)
    site.stage("u1", "u2")
    site.activate("u1", "u2")
    site.conductor.resend_orders(["u1", "u2"])
    assert wait_until(lambda: queues(broker, place.vhost("cell1"))["compute.h1"][2] == 1, PATIENCE)
    broker.stop()
    broker.start()
    kept = ("true", kind, 1)  # a quorum queue counts again once it has a leader
    assert wait_until(lambda: queues(broker, place.vhost("cell1"))["compute.h1"] == kept, PATIENCE)
    bus = Bus(place.bus("cell1"))
    late = Host(bus, "h1")
    assert wait_until(lambda: late.orders == [("u1", 1), ("u2", 1)], PATIENCE)
    bus.close()
    site.close()


def test_messages_lost_by_the_broker_are_sent_again(tmp_path: Path, broker: RabbitMQ) -> None:
    """Orders and doorbells are in their queues when all queues are emptied; then everything starts."""
    place = Broken(tmp_path, broker)
    cloud = World(place, HOSTS)
    try:
        cloud.begin()
        conductors = [DatabaselessConductor(bus) for bus in cloud.buses.values()]
        cloud.start_agents()
        for agents in cloud.agents.values():
            agents.stop()
            agents.services.clear()
        for conductor in conductors:
            conductor.stop()
        specs = [cloud.accept(3, timeout=20 * PATIENCE) for _ in range(4)]  # the broker's commands take seconds each
        uuids = [uuid for spec in specs for uuid in cloud.conductor("one").drive(spec, upto="ordered").uuids]
        held = sum(lose(broker, place.vhost(cell)) for cell in cloud.cells)
        assert held >= 4
        assert not any(cloud.spawned(host) for host in cloud.homes)
        cloud.start()
        evidence = cloud.settle()
        assert {row.instance.uuid: str(row.instance.state) for row in evidence.rows} == dict.fromkeys(uuids, "active")
        assert sum(len(cloud.spawned(host)) for host in cloud.homes) == len(uuids)
        for uuid in uuids:
            assert cloud.delete(uuid) is not None
        assert all(row.instance.state == "deleted" for row in cloud.settle().rows)
    finally:
        cloud.end()
        place.release()


def lose(broker: RabbitMQ, vhost: str) -> int:
    """Empty every queue; how many messages there were."""
    lost = 0
    for name, (_, _, messages) in queues(broker, vhost).items():
        lost += messages
        if messages:
            broker.run_ctl("purge_queue", "-p", vhost, name)
    return lost


# -- weather under load ------------------------------------------------------------------------------------------------------------

LONG = 20.0 if all_weather() else 5.0
"""Seconds that weather lasts: more than any sender waits for a broker that says nothing."""
PATIENT = msgspec.structs.replace(PACE, build_timeout=600.0)
"""No build is late because the weather lasts."""
DEADLINE = 10.0
"""Seconds within which the API must have answered: it never waits for a bus."""


class Open(Broken):
    """Virtual hosts that are called as the levels are."""

    def vhost(self, name: str) -> str:
        return name


@pytest.fixture
def cloud(tmp_path: Path, broker: RabbitMQ) -> Iterator[Region]:
    hosts = [host(f"{cell}-h{n}", cell, **ROOM) for cell in ("cell1", "cell2") for n in range(2)]
    with running(GroundFolder(Open(tmp_path, broker)), hosts, pace=PATIENT) as deployment:
        yield deployment


def kill(broker: RabbitMQ) -> None:
    processes.end_process(broker.pid, signal.SIGKILL, 10.0)
    broker.start()


def freeze(broker: RabbitMQ) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        time.sleep(LONG)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def close(broker: RabbitMQ) -> None:
    """It believes to have no memory left: it keeps connections and takes nothing more from them.

    Meanwhile one cell's virtual host goes, in the other the user may do nothing any more, and at the API level queues are deleted.
    """
    broker.run_ctl("set_vm_memory_high_watermark", "0")
    time.sleep(LONG)
    with amqp.Connection(f"127.0.0.1:{broker.port}", *LOGIN, virtual_host="api") as connection:
        for queue in ("super-conductor", "scheduler"):
            connection.channel().queue_delete(queue)
    broker.run_ctl("delete_vhost", "cell1")
    broker.run_ctl("clear_permissions", "-p", "cell2", LOGIN[0])
    broker.run_ctl("close_all_connections", "--vhost", "cell2", "weather")
    broker.run_ctl("set_vm_memory_high_watermark", "0.4")
    time.sleep(LONG / 5)  # long enough for refused logins to be tried again
    for cell in ("cell1", "cell2"):
        broker.create_vhost(cell, *LOGIN)


def test_boots_are_accepted_in_any_weather(cloud: Region, broker: RabbitMQ, caplog: pytest.LogCaptureFixture) -> None:
    with watched_log() as log:
        traffic = Traffic(cloud)
        try:
            for weather in (freeze, close, *([kill] * 2 * all_weather())):
                time.sleep(0.5)  # boots are on their way again when the next one comes
                weather(broker)
        finally:
            traffic.stop()
        traffic.judge_answers(DEADLINE)
        assert traffic.refusals() == [], "the API needs no bus"
        judge(cloud, traffic, 90.0)
        log.judge(most=8)
        refused = [record.created for record in caplog.records if "NOT_ALLOWED" in record.getMessage()]
        assert refused
        assert len(refused) < 100 * (max(refused) - min(refused) + LONG), "nobody asks again without a pause"
