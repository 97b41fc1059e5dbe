"""A delete wins over a build at every moment of it, and leaves nothing on the host."""

from __future__ import annotations

import threading

from objects.build import Report, ReportKind
from objects.instance import State
from service.periodic import wait_until
from tests.support.agents import Agents
from tests.support.cell_conductor import PATIENCE, MemoryCell


class Hold:
    """Keeps the answer to one kind of report back until let go."""

    def __init__(self, kind: ReportKind) -> None:
        self._kind = kind
        self.reached = threading.Event()
        self.free = threading.Event()

    def __call__(self, report: Report) -> None:
        if report.kind is self._kind:
            self.reached.set()
            assert self.free.wait(PATIENCE)


def assert_nothing_left(cell: MemoryCell, agents: Agents, one: str) -> None:
    cell.wait(State.DELETED, one)
    (probe,) = cell.boot("h1")  # what was under way for the deleted one has had its time when this one is through
    cell.wait(State.ACTIVE, probe)
    assert [guest.uuid for guest in agents.guests()] == [probe]
    assert wait_until(lambda: bool(cell.stats) and cell.stats[-1].running_vms == 1, PATIENCE)


def test_before_the_order_arrives(cell: MemoryCell, agents: Agents) -> None:
    agents.start()
    (one,) = cell.stage("h1")
    cell.delete(one)
    cell.order(one)
    cell.wait_report(ReportKind.ACCEPT, one)
    assert_nothing_left(cell, agents, one)
    assert one not in agents.drivers["h1"].spawning


def test_while_the_grant_is_on_its_way(cell: MemoryCell, agents: Agents) -> None:
    agents.start()
    cell.hold = hold = Hold(ReportKind.ACCEPT)
    (one,) = cell.boot("h1")
    assert hold.reached.wait(PATIENCE)
    assert cell.state(one) is State.BUILDING
    cell.delete(one)
    assert wait_until(lambda: one in agents.drivers["h1"].destroyed, PATIENCE)
    cell.hold = None
    hold.free.set()
    assert_nothing_left(cell, agents, one)
    assert one not in agents.drivers["h1"].spawning


def test_while_it_waits_for_a_thread(cell: MemoryCell, agents: Agents) -> None:
    agents.start(max_concurrent_builds=1)
    driver = agents.block_driver("h1")
    first, second = cell.boot("h1", count=2)
    cell.wait(State.BUILDING, first, second)
    cell.delete(second)
    cell.wait(State.DELETED, second)
    driver.gate.set()
    cell.wait(State.ACTIVE, first)
    assert driver.spawning == [first]
    assert [guest.uuid for guest in agents.guests()] == [first]


def test_while_it_spawns(cell: MemoryCell, agents: Agents) -> None:
    agents.start()
    driver = agents.block_driver("h1")
    (one,) = cell.boot("h1")
    assert wait_until(lambda: driver.spawning == [one], PATIENCE)
    cell.delete(one)
    cell.wait(State.DELETED, one)
    driver.gate.set()
    assert_nothing_left(cell, agents, one)
    assert [cell.count(kind, one) for kind in (ReportKind.ACTIVE, ReportKind.FAILED)] == [0, 0]


def test_while_a_hanging_spawn_blocks_its_thread(cell: MemoryCell, agents: Agents) -> None:
    agents.start(max_concurrent_builds=1)
    (one,) = cell.boot("h1", outcome="hang")
    assert wait_until(lambda: agents.drivers["h1"].spawning == [one], PATIENCE)
    cell.delete(one)
    assert_nothing_left(cell, agents, one)


def test_while_active_is_on_its_way(cell: MemoryCell, agents: Agents) -> None:
    agents.start()
    cell.hold = hold = Hold(ReportKind.ACTIVE)
    (one,) = cell.boot("h1")
    assert hold.reached.wait(PATIENCE)
    cell.delete(one)
    assert wait_until(lambda: one in agents.drivers["h1"].destroyed, PATIENCE)
    cell.hold = None
    hold.free.set()
    assert_nothing_left(cell, agents, one)


def test_a_running_guest(cell: MemoryCell, agents: Agents) -> None:
    agents.start()
    one = cell.boot_active("h1")
    cell.delete(one)
    assert_nothing_left(cell, agents, one)


def test_many_at_once_share_messages(cell: MemoryCell, agents: Agents) -> None:
    agents.start(audit_interval=3600.0)
    uuids = cell.boot("h1", count=20)
    cell.wait(State.ACTIVE, *uuids)
    before = cell.messages["report"]
    for one in uuids:
        cell.delete(one)
    cell.wait(State.DELETED, *uuids)
    assert cell.messages["report"] - before < 20
    assert agents.guests() == []


def test_a_doubled_delete_is_answered_again(cell: MemoryCell, agents: Agents) -> None:
    agents.start()
    one, other = cell.boot("h1", count=2)
    cell.wait(State.ACTIVE, one, other)
    cell.hold = hold = Hold(ReportKind.GONE)
    cell.lose_answers = 2
    cell.delete(one)
    assert hold.reached.wait(PATIENCE)
    hold.free.set()
    cell.wait_report(ReportKind.GONE, one, times=3)
    assert [guest.uuid for guest in agents.guests()] == [other]


def test_a_lost_delete_is_found_in_the_records(cell: MemoryCell, agents: Agents) -> None:
    """No order arrives at all: the audit reads DELETING and carries it out."""
    agents.start()
    one = cell.boot_active("h1")
    cell.mark_deleting(one)
    assert_nothing_left(cell, agents, one)


def test_a_failed_destroy_is_retried_before_any_report(cell: MemoryCell, agents: Agents) -> None:
    agents.start()
    driver = agents.drivers["h1"]
    one = cell.boot_active("h1")
    driver.destroy_errors = 3
    cell.delete(one)
    cell.wait(State.DELETED, one)
    assert driver.destroyed.count(one) >= 4
    assert agents.guests() == []
