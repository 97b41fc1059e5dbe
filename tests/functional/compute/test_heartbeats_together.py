"""Agents that share a process: one message has their heartbeats, one thread says when their work is due."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compute.heartbeats import Heartbeats
from compute.machine import identify
from compute.main import VERSION, ComputeService, make_reporter
from compute.rounds import AgentThreads
from objects.instance import State
from rpc import compute
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.agents import settings
from tests.support.cell_conductor import PATIENCE, MemoryCell

HOSTS = ("h1", "h2", "h3")


@pytest.fixture
def services(bus: Bus, tmp_path: Path) -> Iterator[dict[str, ComputeService]]:
    """Agents of several hosts that share all that can be shared."""
    reporter = make_reporter(settings(tmp_path), bus).start()
    threads, heartbeats = AgentThreads("hosts", 4).start(), Heartbeats(bus, 0.05, VERSION, identify(str(tmp_path)).id)
    made = {
        host: ComputeService(
            settings(tmp_path, host, stats_interval=0.05), bus, reporter=reporter, threads=threads, heartbeats=heartbeats
        )
        for host in HOSTS
    }
    for service in made.values():
        service.prepare_start()
    for service in made.values():
        service.begin_serving(is_served=True)
    assert all(service.wait_for_admission(PATIENCE) for service in made.values())
    server = compute.serve_each(bus, {host: service.make_endpoint() for host, service in made.items()})
    heartbeats.start()
    yield made
    heartbeats.stop()
    server.stop()
    for service in made.values():
        service.stop(0.0)
    reporter.stop()
    threads.stop()


def test_one_message_says_that_all_are_alive(cell: MemoryCell, services: dict[str, ComputeService]) -> None:
    assert wait_until(lambda: all(host in cell.introduced for host in services), PATIENCE)
    assert wait_until(lambda: all(cell.heartbeats[host] > 3 for host in services), PATIENCE)
    assert cell.messages["report_states"] >= 3


def test_agents_build_their_orders_and_report_their_stats(cell: MemoryCell, services: dict[str, ComputeService]) -> None:
    uuids = {host: cell.boot(host)[0] for host in services}
    cell.wait(State.ACTIVE, *uuids.values())
    assert {host: cell.rows[uuid].host for host, uuid in uuids.items()} == {host: host for host in services}
    assert wait_until(lambda: {node.host for node in cell.stats if node.running_vms == 1} == set(services), PATIENCE)


def test_an_idle_agent_reports_order_changes_early(cell: MemoryCell, services: dict[str, ComputeService]) -> None:
    assert wait_until(lambda: {node.host for node in cell.stats} == set(services), PATIENCE)
    uuid = cell.boot_active("h2")
    assert wait_until(lambda: any(node.running_vms == 1 for node in cell.stats if node.host == "h2"), PATIENCE)
    cell.delete(uuid)
    assert wait_until(lambda: [node.running_vms for node in cell.stats if node.host == "h2"][-1] == 0, PATIENCE)


def test_a_stopped_agent_alone_is_no_longer_reported(cell: MemoryCell, services: dict[str, ComputeService]) -> None:
    assert wait_until(lambda: all(cell.heartbeats[host] for host in services), PATIENCE)
    services.pop("h1").stop(0.0)
    assert wait_until(lambda: cell.stopping["h1"], PATIENCE)
    beats = cell.messages["report_states"]
    assert wait_until(lambda: cell.messages["report_states"] > beats + 2, PATIENCE)
    assert cell.stopping["h1"]
    assert not cell.stopping["h2"]
