"""An agent that is told to stop leaves its cell nothing to wait for."""

from __future__ import annotations

import threading

from objects.instance import FailureClass, State
from service.periodic import wait_until
from tests.support.agents import Agents
from tests.support.cell_conductor import PATIENCE, MemoryCell


def test_what_spawns_comes_to_its_end(cell: MemoryCell, agents: Agents) -> None:
    service = agents.start(simulated={"spawn_delay_min": 0.2, "spawn_delay_max": 0.2})
    uuids = cell.boot("h1", count=4)
    assert wait_until(lambda: len(agents.drivers["h1"].spawning) == 4, PATIENCE)
    service.stop()
    assert {cell.state(one) for one in uuids} == {State.ACTIVE}


def test_a_build_waiting_for_a_thread_moves(cell: MemoryCell, agents: Agents) -> None:
    service = agents.start("h1", max_concurrent_builds=1, drain_timeout=PATIENCE)
    agents.start("h2")
    driver = agents.block_driver("h1")
    uuids = cell.boot("h1", "h2", count=3)
    cell.wait(State.BUILDING, *uuids)
    assert wait_until(lambda: len(driver.spawning) == 1, PATIENCE)
    stopping = threading.Thread(target=service.stop)
    stopping.start()
    handed_over = [one for one in uuids if one not in driver.spawning]
    cell.wait(State.ACTIVE, *handed_over)
    assert cell.stopping == {"h1": True, "h2": False}
    assert {cell.rows[one].host for one in handed_over} == {"h2"}
    for one in handed_over:
        assert [attempt.failure.kind for attempt in cell.rows[one].history] == [FailureClass.STOPPING]
    assert cell.state(driver.spawning[0]) is State.BUILDING
    driver.gate.set()
    stopping.join(PATIENCE)
    cell.wait(State.ACTIVE, *uuids)
    assert cell.rows[driver.spawning[0]].host == "h1"
    assert len(driver.spawning) == 1


def test_a_build_that_outlasts_the_stop_moves(cell: MemoryCell, agents: Agents) -> None:
    service = agents.start("h1", drain_timeout=0.3)
    agents.start("h2")
    agents.drivers["h1"].gate.clear()
    (one,) = cell.boot("h1", "h2")
    assert wait_until(lambda: agents.drivers["h1"].spawning == [one], PATIENCE)
    service.stop()
    assert cell.rows[one].history[0].failure.error == "AgentStopping", "the cell knows before the agent ends"
    assert agents.guests("h1") == []
    cell.wait(State.ACTIVE, one)
    assert (cell.rows[one].host, cell.rows[one].attempt) == ("h2", 2)


def test_a_build_without_alternatives_waits_without_penalty(cell: MemoryCell, agents: Agents) -> None:
    """A server of an affinity group: an upgrade of its host must not end it."""
    service = agents.start("h1", drain_timeout=0.2)
    agents.drivers["h1"].gate.clear()
    (one,) = cell.boot("h1")
    assert wait_until(lambda: agents.drivers["h1"].spawning == [one], PATIENCE)
    service.stop()
    assert cell.state(one) is State.SCHEDULED
    agents.start("h1")
    assert wait_until(lambda: not cell.stopping["h1"], PATIENCE)
    assert wait_until(lambda: cell.sweep() or cell.state(one) is State.ACTIVE, PATIENCE)
    assert (cell.rows[one].host, cell.rows[one].attempt) == ("h1", 2)


def test_a_build_waiting_for_a_service_moves(cell: MemoryCell, agents: Agents) -> None:
    service = agents.start("h1", outage_retry_max=3600.0)
    agents.start("h2")
    agents.drivers["h1"].outage = True
    (one,) = cell.boot("h1", "h2")
    assert wait_until(lambda: agents.drivers["h1"].destroyed == [one], PATIENCE)
    service.stop()
    cell.wait(State.ACTIVE, one)
    assert cell.rows[one].host == "h2"


def test_without_its_cell_it_ends_all_the_same(cell: MemoryCell, agents: Agents) -> None:
    service = agents.start("h1", drain_timeout=0.2, call_timeout=0.1)
    agents.drivers["h1"].gate.clear()
    (one,) = cell.boot("h1")
    assert wait_until(lambda: agents.drivers["h1"].spawning == [one], PATIENCE)
    cell.stop()
    service.stop()
    assert agents.guests("h1") == []
    assert cell.state(one) is State.BUILDING
    cell.start_again()
    agents.start("h1")
    cell.wait(State.ACTIVE, one)
    assert cell.rows[one].history[0].failure.error in ("AgentStopping", "AgentRestarted"), (
        "its last word may have waited on the bus"
    )
