"""Agents and a cell whose records do not agree: no guest is destroyed unless the record proves that it is superseded."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from compute.main import ComputeService
from conductor.main import CellConductorService
from conductor.opts import ConductorSettings
from db.cell import instances, unknown_guests
from objects import errors, lifecycle
from objects.build import DeleteOrder
from objects.instance import Failure, FailureClass, Instance, State
from objects.lifecycle import Change, Outcome
from objects.process import AGENT_BINARY
from rpc.compute import HostOrders
from service.periodic import wait_until
from tests.support.cell_site import CONTEXT, Site
from tests.support.closing import closing_fixture
from tests.support.ground import Ground
from tests.support.hypervisor import Hypervisor
from tests.support.world import PATIENCE

UUIDS = ("g1", "g2", "g3")
LATE = Failure(kind=FailureClass.DEADLINE, error="BuildTimeout", message="timed out in building", at=1.0)


class Machines:
    """A cell with its conductor, and one machine whose three guests are ACTIVE on record, built by a real agent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.place = Ground("lite", path)
        self.site = Site(self.place)
        for host in self.site.hosts.values():
            host.server.stop()  # here agents listen
        self.conductor = CellConductorService(ConductorSettings(), "cell1", self.site.database, self.site.bus)
        self.conductor.start()
        self.machine = Hypervisor("h1")
        self.agents: list[ComputeService] = []
        self.start()
        self.site.stage(*UUIDS)
        self.site.activate(*UUIDS)
        self.site.conductor.resend_orders(UUIDS)
        self.wait(State.ACTIVE)

    def start(self, machine: Hypervisor | None = None) -> ComputeService:
        agent = (machine or self.machine).agent(self.site.bus, str(self._path / "hosts"))
        agent.start()
        self.agents.append(agent)
        return agent

    def stop(self) -> None:
        """As a kill would: without the last heartbeat, which says that the host is stopping and lets its orders go elsewhere."""
        while self.agents:
            self.agents.pop().stop(0.0)
            self.site.conductor.report_state(CONTEXT, "h1", AGENT_BINARY, 1)

    def rewrite(self, change: Callable[[Instance], Instance]) -> None:
        """What a restored database does: rows say something else, without an event and whatever the guards say."""

        def written(row: Instance) -> Outcome:
            return Change(row=msgspec.structs.replace(change(row), version=row.version + 1))

        self.site.database.write(instances.transition_rows, UUIDS, written, 5.0)

    def rows(self) -> list[Instance]:
        return self.site.database.read(instances.read, UUIDS)

    def wait(self, state: State, host: str = "h1") -> None:
        assert wait_until(lambda: {(row.state, row.host) for row in self.rows()} == {(state, host)}, PATIENCE), self.rows()

    def asked_again(self, caplog: pytest.LogCaptureFixture) -> None:
        """The agent has heard of every guest that the record is another one, and has said so."""

        def complained(uuid: str) -> bool:
            return any(f"Instance {uuid} is " in message and "superconductor guest" in message for message in caplog.messages)

        assert wait_until(lambda: all(map(complained, UUIDS)), PATIENCE), caplog.messages
        audits = time.monotonic() + 1.0  # some more of them
        wait_until(lambda: time.monotonic() > audits, PATIENCE)

    def close(self) -> None:
        self.place.end(self.stop, self.conductor.stop, self.site.close, self.place.release)


machines = closing_fixture(Machines)


def test_an_agent_refuses_to_start_under_another_name(machines: Machines) -> None:
    machines.stop()
    machines.machine.host = "h1.example.org"
    with pytest.raises(errors.Misconfigured, match=r"3 guests .* host 'h1', and \[compute\] host is 'h1\.example\.org': set it to"):
        machines.start()
    assert machines.machine.destroyed == []
    machines.wait(State.ACTIVE, "h1")
    machines.machine.host = "h1"
    machines.start()
    machines.wait(State.ACTIVE)
    machines.site.database.write(instances.delete, UUIDS, 7.0)
    assert wait_until(lambda: machines.machine.running == {}, PATIENCE)
    machines.stop()
    machines.machine.host = "h1.example.org"
    machines.start()  # a host without guests may be renamed


def test_the_cell_keeps_guests_of_a_renamed_agent(machines: Machines, caplog: pytest.LogCaptureFixture) -> None:
    """As of an agent that does not compare names, or of guests that do not remember theirs."""
    machines.stop()
    machines.rewrite(lambda row: msgspec.structs.replace(row, builder="nameless"))
    for uuid, guest in list(machines.machine.running.items()):
        machines.machine.running[uuid] = msgspec.structs.replace(guest, builder="nameless")
    machines.machine.host = "h1.example.org"
    machines.start()
    machines.asked_again(caplog)
    assert machines.machine.destroyed == []
    machines.wait(State.ACTIVE, "h1")
    told = machines.site.database.read(unknown_guests.list_all)
    assert {(reported.host, reported.guest.reason) for reported in told} == {
        ("h1.example.org", "on record: active, attempt 1 on h1")
    }
    machines.stop()
    machines.machine.host = "h1"
    machines.start()
    machines.wait(State.ACTIVE)
    assert machines.machine.destroyed == []


@pytest.mark.parametrize("state", [State.STAGED, State.SCHEDULED, State.BUILDING])
@pytest.mark.parametrize("restarted", [True, False], ids=["agent-restarted", "agent-runs-on"])
def test_a_record_that_is_behind_becomes_active_again(machines: Machines, state: State, restarted: bool) -> None:
    if restarted:
        machines.stop()
    builders = {row.uuid: row.builder for row in machines.rows()}
    granted = state is State.BUILDING
    machines.rewrite(lambda row: row if granted else msgspec.structs.replace(row, builder=None, building_at=None))
    machines.rewrite(lambda row: msgspec.structs.replace(row, state=state, alternates=()))  # a stopping host's orders go elsewhere
    if restarted:
        machines.start()
    machines.site.conductor.resend_orders(UUIDS)  # the sweep's own order must do no harm
    machines.wait(State.ACTIVE)
    assert {row.uuid: row.builder for row in machines.rows()} == builders
    assert machines.machine.destroyed == []


@pytest.mark.parametrize(
    "change",
    [
        lambda row: msgspec.structs.replace(row, state=State.ERROR, builder=None),
        lambda row: msgspec.structs.replace(row, state=State.BUILDING, builder="h1:another"),
        lambda row: msgspec.structs.replace(row, state=State.SCHEDULED, builder=None, host="h2"),
        lambda row: msgspec.structs.replace(row, host="h9"),
    ],
    ids=["replaced-by-error", "other-builder", "scheduled-elsewhere", "active-elsewhere"],
)
def test_a_record_that_proves_nothing_leaves_the_guest(
    machines: Machines, caplog: pytest.LogCaptureFixture, change: Callable[[Instance], Instance]
) -> None:
    machines.stop()
    machines.rewrite(change)
    machines.start()
    machines.asked_again(caplog)
    assert machines.machine.destroyed == []
    assert len(machines.machine.running) == 3


def test_a_deadline_ends_no_guest_confirmed_by_cell(machines: Machines, caplog: pytest.LogCaptureFixture) -> None:
    """A restored row says BUILDING, its deadline is long past, and the cell's sweep comes before the agent's audit."""
    machines.rewrite(lambda row: msgspec.structs.replace(row, state=State.BUILDING))
    rows = {row.uuid: row for row in machines.rows()}
    machines.site.database.write(
        instances.transition_rows, rows, lambda row: lifecycle.end_overdue(row, rows[row.uuid].attempt, LATE), 6.0
    )
    orders = [DeleteOrder(instance_uuid=u, attempt=row.attempt, fence=row.fence, builds_only=True) for u, row in rows.items()]
    assert machines.site.sender.compute is not None
    machines.site.sender.compute.send_orders([HostOrders(CONTEXT, "h1", orders)])
    machines.asked_again(caplog)
    assert machines.machine.destroyed == []


def test_a_delete_still_ends_every_guest(machines: Machines) -> None:
    machines.site.database.write(instances.delete, UUIDS, 7.0)
    assert wait_until(lambda: sorted(machines.machine.destroyed) == list(UUIDS), PATIENCE)
    assert wait_until(lambda: {row.state for row in machines.rows()} == {State.DELETED}, PATIENCE)


def test_deleting_an_outdated_record_also_ends_its_guest(machines: Machines) -> None:
    """The restored row is of an earlier attempt than the guest: the order to end that one does not reach the guest."""
    machines.stop()
    for uuid, guest in list(machines.machine.running.items()):
        machines.machine.running[uuid] = msgspec.structs.replace(guest, attempt=4)
    machines.start()
    machines.site.database.write(instances.delete, UUIDS, 7.0)
    assert wait_until(lambda: sorted(machines.machine.destroyed) == list(UUIDS), PATIENCE)
    assert wait_until(lambda: {row.state for row in machines.rows()} == {State.DELETED}, PATIENCE)


def test_guests_whose_builds_went_elsewhere_are_still_destroyed(machines: Machines) -> None:
    """The host was called dead before the cell had heard of its guests, and returns."""
    machines.stop()
    machines.rewrite(lambda row: msgspec.structs.replace(row, state=State.BUILDING, building_at=1.0))
    dead = Failure(kind=FailureClass.HOST, error="HostDown", message="Host h1 stopped reporting", at=6.0)
    machines.site.database.write(instances.transition_rows, UUIDS, lambda row: lifecycle.host_dead(row, row.attempt, dead), 6.0)
    other = Hypervisor("h2")
    machines.start(other)
    machines.site.conductor.resend_orders(UUIDS)
    machines.wait(State.ACTIVE, "h2")
    machines.start()
    assert wait_until(lambda: sorted(machines.machine.destroyed) == list(UUIDS), PATIENCE)
    assert (other.destroyed, sorted(other.running)) == ([], list(UUIDS))


def test_a_build_whose_end_was_lost_is_rebuilt(machines: Machines) -> None:
    """The agent ended attempt 1, the database forgot, and its sweep sends the order again."""
    machines.site.database.write(instances.delete, ["g1"], 7.0)
    assert wait_until(lambda: machines.site.state("g1")[0] == State.DELETED, PATIENCE)
    machines.site.database.write(
        instances.transition_rows,
        ["g1"],
        lambda row: Change(row=msgspec.structs.replace(row, state=State.SCHEDULED, version=row.version + 1)),
        8.0,
    )
    machines.site.conductor.resend_orders(["g1"])
    assert wait_until(lambda: machines.site.state("g1") == (State.ACTIVE, "h1", 2), PATIENCE), machines.site.state("g1")
