"""An agent that dies and comes back answers for its guests and hands back what it cannot finish."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compute.journal import Journal, read_guests
from compute.simulated import journal_path
from objects import errors
from objects.build import ReportKind
from objects.instance import State
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.agents import A_SPEC, Agents
from tests.support.cell_conductor import PATIENCE, MemoryCell

REMOVING: dict[str, Any] = {"unknown_guests": "remove", "unknown_guest_age": 0.0}


def test_guests_are_reported_under_their_building_start(cell: MemoryCell, agents: Agents) -> None:
    first = agents.start()
    uuids = cell.boot("h1", count=3)
    cell.wait(State.ACTIVE, *uuids)
    first.stop()
    messages, told = cell.messages["report"], {one: cell.count(ReportKind.ACTIVE, one) for one in uuids}
    second = agents.start(audit_interval=3600.0)
    assert second.builder != first.builder
    for one in uuids:
        cell.wait_report(ReportKind.ACTIVE, one, times=told[one] + 1)
    assert cell.messages["report"] == messages + 1, "all guests in one message"
    assert {report.builder for report in cell.reports if report.kind is ReportKind.ACTIVE} == {first.builder}
    assert sorted(guest.uuid for guest in agents.guests()) == sorted(uuids)
    assert wait_until(lambda: cell.stats[-1].running_vms == 3, PATIENCE)


def test_a_guest_with_a_lost_report_becomes_active(cell: MemoryCell, agents: Agents) -> None:
    """The agent dies between spawn and report: the guest is in the journal, the row is BUILDING."""
    first = agents.start(report_window=600.0)  # it stops before
    (hanging,) = cell.boot("h1", outcome="hang")  # for whose report the other one's waits
    assert wait_until(lambda: cell.count(ReportKind.ACCEPT, hanging) >= 1, PATIENCE)
    (one,) = cell.boot("h1")
    assert wait_until(lambda: len(agents.guests()) == 1, PATIENCE)
    assert cell.state(one) is State.BUILDING
    first.stop(0.0)
    assert cell.state(one) is State.BUILDING
    agents.start()
    cell.wait(State.ACTIVE, one)
    assert [guest.uuid for guest in agents.guests()] == [one]
    assert cell.count(ReportKind.FAILED, one) == 0


def test_a_build_dead_with_its_agent_is_rebuilt(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h2")
    (one,) = cell.stage("h1", "h2")
    accepted = cell.accept_for(one, "h1:an-earlier-start")
    assert accepted
    agents.start("h1")
    cell.wait(State.ACTIVE, one)
    assert (cell.rows[one].host, cell.rows[one].attempt) == ("h1", 2)
    assert cell.rows[one].history[0].failure.error == "AgentRestarted"
    assert [guest.attempt for guest in agents.guests("h1")] == [2]
    assert agents.guests("h2") == []


def test_an_order_repeated_after_restart_is_handed_back(cell: MemoryCell, agents: Agents) -> None:
    (one,) = cell.stage("h1")
    cell.accept_for(one, "h1:an-earlier-start")
    agents.start("h1")
    cell.order(one)
    cell.wait(State.ACTIVE, one)
    assert cell.rows[one].attempt == 2
    assert [guest.attempt for guest in agents.guests("h1")] == [2]


def test_a_guest_the_cell_has_replaced_is_destroyed(cell: MemoryCell, agents: Agents) -> None:
    """The host was called dead, its build went elsewhere; the agent comes back with the guest."""
    first = agents.start("h1")
    agents.start("h2")
    (one,) = cell.boot("h1", "h2")
    cell.wait(State.ACTIVE, one)
    first.stop()
    cell.lose_active(one)
    cell.call_dead(one)
    cell.sweep()
    cell.wait(State.ACTIVE, one)
    assert cell.rows[one].host == "h2"
    agents.start("h1")
    assert wait_until(lambda: agents.guests("h1") == [], PATIENCE)
    assert len(agents.guests("h2")) == 1


def test_a_false_death_leaves_one_guest(cell: MemoryCell, agents: Agents, caplog: pytest.LogCaptureFixture) -> None:
    """The host is called dead while it spawns: both build, and the one that is not in force goes, or is told to end before."""
    agents.start("h1")
    agents.start("h2")
    driver = agents.block_driver("h1")
    (one,) = cell.boot("h1", "h2")
    assert wait_until(lambda: driver.spawning == [one], PATIENCE)
    cell.call_dead(one)
    cell.sweep()
    cell.wait(State.ACTIVE, one)
    driver.gate.set()

    def h1_is_told() -> bool:
        return "cancelling it" in caplog.text or ("h1", ReportKind.ACTIVE) in {(one.host, one.kind) for one in cell.reports}

    assert wait_until(h1_is_told, PATIENCE), cell.reports
    assert wait_until(lambda: agents.guests("h1") == [], PATIENCE)
    assert len(agents.guests("h2")) == 1


def test_the_audit_queries_guests_without_a_record(cell: MemoryCell, agents: Agents) -> None:
    agents.start(**REMOVING)
    one, other = cell.boot("h1", count=2)
    cell.wait(State.ACTIVE, one, other)
    del cell.rows[one]
    assert wait_until(lambda: [guest.uuid for guest in agents.guests()] == [other], PATIENCE)
    assert cell.count(ReportKind.ACTIVE, other) == 1, "what the records confirm is not asked about"


def test_an_unreachable_cell_costs_no_guest(cell: MemoryCell, agents: Agents) -> None:
    first = agents.start()
    one = cell.boot_active("h1")
    first.stop()
    cell.stop()
    del cell.rows[one]
    agents.start(call_timeout=0.1, **REMOVING)
    asked = cell.count(ReportKind.ACTIVE, one)
    assert not wait_until(lambda: agents.guests() == [], 0.6)
    assert cell.count(ReportKind.ACTIVE, one) == asked
    cell.start_again()
    assert wait_until(lambda: agents.guests() == [], PATIENCE)


def test_a_guest_nobody_in_memory_knows_is_found(cell: MemoryCell, agents: Agents, tmp_path: Path) -> None:
    """A stray guest appears on the host while the agent runs: the next audit asks about it."""
    agents.start(**REMOVING)
    one = cell.boot_active("h1")
    driver = agents.drivers["h1"]
    (guest,) = agents.guests()
    driver.spawn(msgspec.structs.replace(guest, uuid="stray"), A_SPEC, None, threading.Event())
    assert wait_until(lambda: [guest.uuid for guest in agents.guests()] == [one], PATIENCE)


@pytest.mark.parametrize("policy", ["report", "keep"])
def test_an_unrecorded_guest_stays_unless_policy_removes_it(
    cell: MemoryCell, agents: Agents, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    """As after the cell's database was restored from an older copy: the guest may be all that is left of a server."""
    agents.start(unknown_guests=policy)
    one, other = cell.boot("h1", count=2)
    cell.wait(State.ACTIVE, one, other)
    row = cell.rows.pop(one)
    cell.wait_report(ReportKind.ACTIVE, one, times=4)
    assert sorted(guest.uuid for guest in agents.guests()) == sorted([one, other])
    assert caplog.text.count(f"The cell has no record of instance {one}") == (1 if policy == "report" else 0)
    assert wait_until(lambda: cell.stats[-1].attributes == ({"unknown_guests": 1} if policy == "report" else {}), PATIENCE)
    cell.rows[one] = row  # the record is back
    assert wait_until(lambda: cell.stats[-1].attributes == {}, PATIENCE)


def test_a_guest_recorded_as_ended_is_removed(cell: MemoryCell, agents: Agents) -> None:
    agents.start(unknown_guests="keep")
    one = cell.boot_active("h1")
    cell.rows[one] = msgspec.structs.replace(cell.rows[one], state=State.DELETED)
    assert wait_until(lambda: agents.guests() == [], PATIENCE)


def test_a_guest_is_removed_only_after_its_age(cell: MemoryCell, agents: Agents) -> None:
    agents.start(unknown_guests="remove", unknown_guest_age=3600.0)
    one = cell.boot_active("h1")
    del cell.rows[one]
    cell.wait_report(ReportKind.ACTIVE, one, times=4)
    assert [guest.uuid for guest in agents.guests()] == [one]


def test_two_agents_cannot_hold_one_host(agents: Agents, tmp_path: Path) -> None:
    agents.start("h1")
    with pytest.raises(errors.Misconfigured, match="Another agent"):
        agents.start("h1")


HOST_PROCESS = """
import sys, time
from pathlib import Path
from rpc.transport import Bus
from objects.instance import State
from tests.support.agents import A_SPEC, Agents
from tests.support.cell_conductor import MemoryCell

bus = Bus("embedded://killed/")
cell, agents = MemoryCell(bus), Agents(bus, Path(sys.argv[1]))
agents.start("h1")
while True:
    uuids = cell.boot("h1", count=3)
    cell.wait(State.ACTIVE, *uuids)
    cell.delete(uuids[0])
    cell.wait(State.DELETED, uuids[0])
    print(*uuids[1:], flush=True)
    for one in uuids[1:-1]:
        cell.delete(one)
"""


def test_kill_9_leaves_every_guest_that_was_reported(tmp_path: Path) -> None:
    """A whole agent process is killed in the middle of its work: its journal can be read and its host taken again."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOST_PROCESS, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": "."}
    )
    assert process.stdout is not None
    kept = [process.stdout.readline().split()[-1] for _ in range(3)]
    with pytest.raises(errors.Misconfigured, match="Another agent"):
        Agents(Bus(f"embedded://{uuid.uuid4().hex}/"), tmp_path).start("h1")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    path = journal_path(str(tmp_path), "h1")
    guests = read_guests(path)
    assert set(kept) <= {guest.uuid for guest in guests}
    assert len({guest.uuid for guest in guests}) == len(guests)
    Journal(path).close()
    assert read_guests(path) == guests
    bus = Bus(f"embedded://{uuid.uuid4().hex}/")
    cell, agents = MemoryCell(bus), Agents(bus, tmp_path)
    try:
        agents.start("h1", **REMOVING)
        one = cell.boot_active("h1")
        assert wait_until(lambda: [guest.uuid for guest in agents.guests()] == [one], PATIENCE), "this cell knows none of them"
    finally:
        agents.stop()
        bus.close()
