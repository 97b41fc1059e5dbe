"""Whose fault a failure is decides what happens next: on this host, on another, later, or nowhere."""

from __future__ import annotations

import pytest

from objects.build import ReportKind
from objects.instance import FailureClass, State
from service.periodic import wait_until
from tests.support.agents import Agents
from tests.support.cell_conductor import PATIENCE, MemoryCell


@pytest.mark.parametrize("outcome", ["fail", "error"])
def test_a_hosts_fault_moves_builds_and_marks_it(cell: MemoryCell, agents: Agents, outcome: str) -> None:
    agents.start("h1", failed_build_half_life=1.0)
    agents.start("h2")
    (one,) = cell.boot("h1", "h2", outcome=f"{outcome}:h1")
    cell.wait(State.ACTIVE, one)
    assert [(attempt.host, attempt.failure.kind) for attempt in cell.rows[one].history] == [("h1", FailureClass.HOST)]
    assert wait_until(lambda: 1.0 in [stats.failed_builds for stats in cell.stats if stats.host == "h1"], PATIENCE)
    assert wait_until(lambda: [s for s in cell.stats if s.host == "h1"][-1].failed_builds == 0.0, PATIENCE), "it fades by itself"
    assert {stats.failed_builds for stats in cell.stats if stats.host == "h2"} == {0.0}


def test_a_broken_policy_moves_the_build(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1")
    agents.start("h2")
    (one,) = cell.boot("h1", "h2", outcome="policy:h1")
    cell.wait(State.ACTIVE, one)
    assert [(attempt.host, attempt.failure.kind) for attempt in cell.rows[one].history] == [("h1", FailureClass.POLICY)]
    cell.boot_active("h1")
    assert wait_until(lambda: [s for s in cell.stats if s.host == "h1"][-1].running_vms == 1, PATIENCE)
    assert {stats.failed_builds for stats in cell.stats} == {0.0}


def test_a_request_fault_ends_the_build_at_once(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1")
    agents.start("h2")
    (one,) = cell.boot("h1", "h2", outcome="abort")
    cell.wait(State.ERROR, one)
    assert [(attempt.host, attempt.failure.kind) for attempt in cell.rows[one].history] == [("h1", FailureClass.REQUEST)]
    assert agents.drivers["h2"].spawning == []
    assert wait_until(lambda: len(cell.stats) >= 2, PATIENCE)
    assert {stats.failed_builds for stats in cell.stats} == {0.0}


def test_a_shared_service_outage_uses_up_no_tries(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1")
    agents.start("h2")
    driver = agents.drivers["h1"]
    driver.outage = True
    uuids = cell.boot("h1", "h2", count=2)
    assert wait_until(lambda: len(driver.spawning) >= 6, PATIENCE), "again and again"
    assert {cell.state(one) for one in uuids} == {State.BUILDING}
    driver.outage = False
    cell.wait(State.ACTIVE, *uuids)
    assert {(cell.rows[one].host, cell.rows[one].attempt, cell.rows[one].history) for one in uuids} == {("h1", 1, ())}
    assert sorted(driver.destroyed[:2]) == sorted(uuids), "nothing half made is left meanwhile"
    assert len(agents.guests("h1")) == 2
    assert {stats.failed_builds for stats in cell.stats} == {0.0}


def test_waiting_builds_hold_no_thread(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1", max_concurrent_builds=1, outage_retry_max=3600.0)
    (waiting,) = cell.boot("h1", outcome="unavailable")
    assert wait_until(lambda: agents.drivers["h1"].destroyed == [waiting], PATIENCE)
    cell.boot_active("h1")
    assert cell.state(waiting) is State.BUILDING


def test_a_delete_ends_the_wait(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1", outage_retry_max=3600.0)
    (one,) = cell.boot("h1", outcome="unavailable")
    assert wait_until(lambda: agents.drivers["h1"].destroyed == [one], PATIENCE)
    cell.delete(one)
    cell.wait(State.DELETED, one)


@pytest.mark.parametrize("outcome", ["hang", "unavailable"])
def test_a_build_whose_row_ended_is_cancelled_silently(cell: MemoryCell, agents: Agents, outcome: str) -> None:
    """Its time is over, and the order to end it was lost: the audit asks, long before the spawn's own time-out."""
    agents.start("h1", max_concurrent_builds=1)
    (one,) = cell.boot("h1", outcome=outcome)
    assert wait_until(lambda: agents.drivers["h1"].spawning[:1] == [one], PATIENCE)
    cell.time_out(one)
    cell.wait_report(ReportKind.ACCEPT, one, times=2)
    other = cell.boot_active("h1")
    assert cell.state(one) is State.ERROR
    assert cell.count(ReportKind.FAILED, one) == 0
    assert [guest.uuid for guest in agents.guests("h1")] == [other]
    assert {stats.failed_builds for stats in cell.stats} == {0.0}


def test_a_queued_build_whose_row_ended_never_begins(cell: MemoryCell, agents: Agents, caplog: pytest.LogCaptureFixture) -> None:
    agents.start("h1", max_concurrent_builds=1)
    driver = agents.block_driver("h1")
    uuids = cell.boot("h1", count=2)
    cell.wait(State.BUILDING, *uuids)
    assert wait_until(lambda: len(driver.spawning) == 1, PATIENCE)
    [queued] = [one for one in uuids if one not in driver.spawning]
    cell.time_out(queued)
    # that the cell was asked again does not show that the agent has heard the answer
    assert wait_until(lambda: f"instance {queued} is no longer ours to build" in caplog.text, PATIENCE)
    driver.gate.set()
    cell.boot_active("h1")
    assert queued not in driver.spawning


def test_a_running_build_is_queried_only_after_differences(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1")
    driver = agents.block_driver("h1")
    (one,) = cell.boot("h1")
    assert wait_until(lambda: driver.spawning == [one], PATIENCE)
    before = cell.messages["holdings"]
    assert wait_until(lambda: cell.messages["holdings"] >= before + 2, PATIENCE)  # one may have begun before it was accepted
    accepted = cell.count(ReportKind.ACCEPT, one)
    assert wait_until(lambda: cell.messages["holdings"] >= before + 5, PATIENCE)
    driver.gate.set()
    cell.wait(State.ACTIVE, one)
    assert cell.count(ReportKind.ACCEPT, one) == accepted
