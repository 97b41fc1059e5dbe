"""A hypervisor that is down is seen, costs no build an attempt, and delays only what needs it."""

from __future__ import annotations

import logging
import threading

import pytest

from objects.build import ReportKind
from objects.instance import FailureClass, State
from objects.task import Power, TaskKind, TaskState
from service import health
from service.periodic import wait_until
from tests.support.agents import Agents
from tests.support.cell_conductor import PATIENCE, MemoryCell
from tests.support.closing import closing_fixture
from tests.support.task_cell import HOST, TaskCell

tasks = closing_fixture(TaskCell)


def test_builds_go_elsewhere_and_use_up_no_attempt(cell: MemoryCell, agents: Agents, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    agents.start("h1", max_concurrent_builds=1)
    agents.start("h2")
    driver = agents.drivers["h1"]
    guest = cell.boot_active("h1")
    driver.gate.clear()
    uuids = cell.boot("h1", "h2", count=3)
    cell.wait(State.BUILDING, *uuids)
    assert wait_until(lambda: len(driver.spawning) == 2, PATIENCE), "the guest, and one that waits at the gate"
    driver.down = "the socket is closed"
    queued = [one for one in uuids if one not in driver.spawning]
    cell.wait(State.ACTIVE, *queued)
    driver.gate.set()
    cell.wait(State.ACTIVE, *uuids)
    assert {cell.rows[one].host for one in uuids} == {"h2"}
    for one in uuids:
        assert [(a.failure.kind, a.failure.error) for a in cell.rows[one].history] == [(FailureClass.STOPPING, "HypervisorDown")]
    assert driver.destroyed == [], "nothing was made"
    assert wait_until(lambda: cell.stopping == {"h1": True, "h2": False}, PATIENCE)
    assert ("the hypervisor of host h1", driver.down) in [(f.check, f.trouble) for f in health.BOARD.look_at_parts().findings]
    (late,) = cell.boot("h1")
    audits = cell.messages["holdings"]
    driver.down = ""
    assert wait_until(lambda: not cell.stopping["h1"] and cell.messages["holdings"] > audits, PATIENCE)
    assert cell.state(late) is State.STAGED, "its order was dropped"
    cell.order(late)
    cell.wait(State.ACTIVE, late)
    assert sorted(one.uuid for one in agents.guests()) == sorted([guest, late])
    said = [record.getMessage() for record in caplog.records if "hypervisor" in record.getMessage()]
    assert len([text for text in said if "cannot be used" in text]) == len([text for text in said if "used again" in text]) == 1
    assert not [record for record in caplog.records if record.exc_info]
    assert "Audit" not in "".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


def test_remains_of_a_spawn_are_destroyed_before_moving(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1")
    agents.start("h2")
    driver = agents.drivers["h1"]
    driver.loses_calls = True
    (one,) = cell.boot("h1", "h2")
    assert wait_until(lambda: cell.stopping.get("h1", False), PATIENCE)
    assert (cell.count(ReportKind.FAILED, one), len(agents.guests())) == (0, 1)
    driver.down = ""
    cell.wait(State.ACTIVE, one)
    assert (cell.rows[one].host, agents.guests()) == ("h2", [])
    assert [attempt.failure.kind for attempt in cell.rows[one].history] == [FailureClass.STOPPING]


def test_a_delete_waits_for_the_hypervisor(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1")
    driver = agents.drivers["h1"]
    one = cell.boot_active("h1")
    driver.down = "the socket is closed"
    assert wait_until(lambda: cell.stopping["h1"], PATIENCE)
    cell.delete(one)
    assert not wait_until(lambda: bool(driver.destroyed), 0.1), "it is not asked in vain"
    driver.down = ""
    cell.wait(State.DELETED, one)
    assert agents.guests() == []


def test_guests_are_reported_when_the_hypervisor_returns(cell: MemoryCell, agents: Agents) -> None:
    service = agents.start("h1")
    one = cell.boot_active("h1")
    service.stop()
    service = agents.make("h1")
    agents.drivers["h1"].down = "the socket is closed"
    beats = cell.heartbeats["h1"]
    service.start()
    assert wait_until(lambda: cell.heartbeats["h1"] > beats + 1 and cell.stopping["h1"], PATIENCE)
    assert cell.count(ReportKind.ACTIVE, one) == 1
    agents.drivers["h1"].down = ""
    cell.wait_report(ReportKind.ACTIVE, one, times=2)
    assert cell.state(one) is State.ACTIVE


def test_what_a_host_offers_is_read_again(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1", stats_full_interval=1.0)
    assert wait_until(lambda: bool(cell.stats), PATIENCE)
    before = cell.stats[-1].vcpus
    agents.drivers["h1"].more_vcpus = 4
    assert wait_until(lambda: cell.stats[-1].vcpus == before + 4, PATIENCE)


def test_a_task_waits_for_the_hypervisor_without_force(tasks: TaskCell) -> None:
    tasks.agents.start(HOST)
    driver = tasks.agents.drivers[HOST]
    one = tasks.boot()
    for power in (Power.HELD, Power.ON):
        driver.loses_calls = True
        tasks.ask(one, power)
        assert wait_until(lambda: bool(driver.down), PATIENCE)
        driver.down = ""
        tasks.wait_over(one)
        assert tasks.power(one) is power
    assert driver.tasks == [("held", "soft")] * 2 + [("on", "soft")] * 2
    driver.down = "the socket is closed"
    assert wait_until(lambda: tasks.agents.services[HOST].current_trouble != "", PATIENCE)
    tasks.ask(one, Power.OFF)
    assert not wait_until(lambda: len(driver.tasks) > 4, 0.1), "its order was dropped"
    driver.down = ""
    assert wait_until(lambda: tasks.sweep() or tasks.row(one).task_state is TaskState.DONE, PATIENCE, pause=0.1)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_reboot_is_repeated_only_if_nothing_happened(tasks: TaskCell, is_lost: bool) -> None:
    tasks.agents.start(HOST)
    driver = tasks.agents.drivers[HOST]
    one = tasks.boot()
    driver.gate.clear()
    tasks.ask(one, Power.ON, TaskKind.REBOOT)
    assert wait_until(lambda: bool(driver.tasks), PATIENCE)
    driver.loses_calls = is_lost
    driver.down = "" if is_lost else "the socket is closed"
    driver.gate.set()
    assert wait_until(lambda: tasks.agents.services[HOST].current_trouble != "", PATIENCE)
    driver.down = ""
    tasks.wait_over(one, TaskState.FAILED if is_lost else TaskState.DONE)
    assert driver.tasks == [("reboot", "soft")] * (1 if is_lost else 2)
    assert ("is not known" in (tasks.row(one).task_fault or "")) is is_lost


def test_a_hanging_round_is_named_without_stopping_heartbeats(
    cell: MemoryCell, agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.start("h1")
    driver = agents.drivers["h1"]
    threads: set[str] = set()
    hangs, goes_on = threading.Event(), threading.Event()

    def called(*_: object) -> list[object]:
        threads.add(threading.current_thread().name)
        hangs.set()
        goes_on.wait(PATIENCE)
        return []

    monkeypatch.setattr(driver, "guests", called)
    monkeypatch.setattr(driver, "trouble", called)
    monkeypatch.setattr(driver, "nodes", called)
    assert hangs.wait(PATIENCE)
    beats = cell.heartbeats["h1"]
    assert wait_until(lambda: cell.heartbeats["h1"] > beats + 2, PATIENCE)
    monkeypatch.setattr(health.BOARD, "stuck", 0.0)
    monkeypatch.setattr("compute.rounds.MIN_WEDGED_AFTER_S", 0.0)
    monkeypatch.setattr("compute.rounds.WEDGED_AFTER_INTERVALS", 0)
    rounds = next(part for part in health.BOARD.watched_parts() if part.name == "rounds of host h1")
    assert wait_until(lambda: "Audit has begun" in rounds.find_trouble(), PATIENCE)
    goes_on.set()
    assert all(name.startswith("rounds-h1") for name in threads), threads
    assert wait_until(lambda: cell.heartbeats["h1"] > beats + 4, PATIENCE)
