"""Whoever carries out an operation on a server dies after each step, wakes up too late, or is cut off; so do the server's hosts.

The table in ``docs/moves.md`` ("When something dies"), row by row. Each test ends with everything running until nothing is on its
way any more; then claims, guests and rows must agree, and the server has its disk, its power and one host.
"""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from compute.disks import Disk, read_disk, write_to_disk
from db.api.operations import operations, steps
from db.api.rows.tables import build_requests
from db.api.rows.tables import operations as table
from db.cell import services
from db.sql.connection import Connection
from images.store import FolderStore
from objects.flavor import Flavor
from objects.instance import State
from objects.lifecycle import INTERRUPTED
from objects.operation import Operation, OperationArgs, OperationKind, OperationState, Outcome
from objects.process import AGENT_BINARY
from objects.task import Power, TaskState
from service.periodic import wait_until
from tests.support.conductor_process import Conductor
from tests.support.ground import CHOSEN
from tests.support.move_drive import (
    SHELVE_STEPS,
    STEPS,
    UNSHELVE_STEPS,
    MoveDrive,
    ShelveDrive,
    boot,
    cross_cell,
    server,
)
from tests.support.world import PATIENCE, World, world_fixture

pytestmark = pytest.mark.one_in(3)

HOSTS = {"cell1": ["a1", "a2", "a3"], "cell2": ["b1"]}
WRITES = 7
"""What a server had written to its disk before it is operated on."""
LARGE = Flavor(flavor_id="large", name="large", vcpus=4, memory_mb=2048, root_gb=2)
HELD_OFF = STEPS[STEPS.index("told") :]
"""Steps after which the source is off."""
MOVED = ("switched", "deleted")


cloud = world_fixture(HOSTS, CHOSEN, prepare=World.start_cells_and_agents)


@pytest.fixture
def uuid(cloud: World) -> str:
    """A server on a1 that has written to its disk. Its cells and their hosts run, and of the API level only the scheduler."""
    made = boot(cloud)
    for _ in range(WRITES):
        write_to_disk(str(cloud.folder.path / "hosts"), "a1", made)
    return made


def kill_agent(cloud: World, host: str) -> None:
    """What it is at is never reported."""
    cloud.agents[cloud.homes[host]].services.pop(host).stop(0.0)


def call_dead(cloud: World, host: str, dead: bool = True) -> None:
    cloud.databases[cloud.homes[host]].write(services.set_forced_down, host, AGENT_BINARY, dead, cloud.api.current_time())


def disk(cloud: World, uuid: str) -> Disk:
    found = server(cloud, uuid)
    made = read_disk(str(cloud.folder.path / "hosts"), found.host or "", found.body_uuid)
    assert made is not None
    return made


def rests(cloud: World, uuid: str, hosts: set[str], power: Power = Power.ON, *, copied: bool = True) -> None:
    """The server is ACTIVE on one of these hosts with this power and its own disk, and nothing else is left of it."""
    evidence = cloud.settle()
    found = server(cloud, uuid)
    assert (found.state, found.power) == ("active", power)
    assert found.host in hosts
    [guest] = [guest for host, cell in cloud.homes.items() for guest in cloud.agents[cell].guests(host)]
    assert (guest.uuid, guest.power, guest.server_uuid or guest.uuid) == (found.body_uuid, power, uuid)
    assert evidence.guests[found.host or ""] == (found.body_uuid,)
    assert evidence.claims == {found.body_uuid: found.host}
    own = disk(cloud, uuid)
    assert (own.server_uuid, own.torn) == (uuid, False)
    assert own.writes > WRITES or not copied


def ended(cloud: World, operation: Operation) -> Operation:
    """The operation once it has ended."""
    assert wait_until(lambda: not cloud.evidence().operations, PATIENCE), cloud.evidence().operations
    return cloud.ended(operation)


def cut_off(cloud: World, cell: str) -> Conductor:
    """A conductor that has known the cell, and does not reach its database any more."""
    conductor = cloud.conductor("cut off")
    conductor.cell(cell)
    conductor.databases[cell].away = True
    return conductor


def finish_conducted(cloud: World, operation: Operation) -> Outcome | None:
    """A conductor is started, which carries it out to its end."""
    cloud.start_conductor()
    return ended(cloud, operation).outcome


def expire(tx: Connection, operation: str) -> None:
    """The operation's deadline passes, and that of its twin's request."""
    tx.execute(sa.update(table).where(table.c.uuid == operation).values(deadline=1.0))
    twins = sa.select(table.c.twin_uuid).where(table.c.uuid == operation)
    tx.execute(sa.update(build_requests).where(build_requests.c.instance_uuid.in_(twins)).values(deadline=1.0))


def keep_going(cloud: World, operation: Operation) -> None:
    """A conductor carries it out to its end, and is gone then."""
    conductor = cloud.conductor("short-lived")

    def is_over() -> bool:
        conductor.operator.run_round()
        cloud.keeper.keep()
        return not cloud.evidence().operations

    assert wait_until(is_over, PATIENCE)
    assert cloud.ended(operation).outcome is Outcome.DONE


class TestConductorKilled:
    @pytest.mark.parametrize("step", STEPS)
    def test_after_each_step_others_finish(self, cloud: World, uuid: str, step: str) -> None:
        move = MoveDrive(cloud, uuid).upto(step)
        assert finish_conducted(cloud, move.operation) is Outcome.DONE
        rests(cloud, uuid, {"a2", "a3"})

    @pytest.mark.parametrize("step", ["staged", "told", "handed over", "active"])
    def test_on_the_way_to_another_cell(self, cloud: World, uuid: str, step: str) -> None:
        move = MoveDrive(cloud, uuid, args=cross_cell()).upto(step)
        assert finish_conducted(cloud, move.operation) is Outcome.DONE
        rests(cloud, uuid, {"b1"})

    @pytest.mark.parametrize("step", STEPS)
    def test_after_each_step_and_then_the_user_deletes(self, cloud: World, uuid: str, step: str) -> None:
        move = MoveDrive(cloud, uuid).upto(step)
        assert cloud.delete(uuid) is not None
        cloud.start_conductor()
        evidence = cloud.settle()
        assert move.state().outcome is (Outcome.DONE if step in MOVED else Outcome.DELETED)
        assert {row.instance.state for row in evidence.rows} == {State.DELETED}
        assert (evidence.claims, evidence.operations) == ({}, ())
        assert not any(evidence.guests.values())

    @pytest.mark.parametrize("step", STEPS[: STEPS.index("switched")])
    def test_after_each_step_and_then_the_deadline_passes(self, cloud: World, uuid: str, step: str) -> None:
        """The server goes on where it was; a twin that is ACTIVE by then is the server."""
        move = MoveDrive(cloud, uuid, timeout=30.0).upto(step)
        cloud.api.write(expire, move.operation.uuid)
        cloud.start_conductor()
        outcome = Outcome.DONE if step == "active" else Outcome.GIVEN_UP
        found = ended(cloud, move.operation)
        if step == "ordered" and found.outcome is Outcome.DONE:  # the twin was quicker than the sweep
            outcome = Outcome.DONE
        assert found.outcome is outcome
        rests(cloud, uuid, {"a1"} if outcome is Outcome.GIVEN_UP else {"a2", "a3"})

    @pytest.mark.parametrize("step", ["told", "handed over", "active", "switched"])
    def test_while_it_moves_a_server_that_is_off(self, cloud: World, uuid: str, step: str) -> None:
        stop = cloud.operate(uuid, OperationKind.STOP)
        keep_going(cloud, stop)
        move = MoveDrive(cloud, uuid).upto(step)
        assert finish_conducted(cloud, move.operation) is Outcome.DONE
        rests(cloud, uuid, {"a2", "a3"}, Power.OFF)


def test_a_sweep_does_not_take_a_driven_move(cloud: World, uuid: str) -> None:
    """Each sweep finds that the source is off; while a conductor drives the move, that is nothing to be done about."""
    move = MoveDrive(cloud, uuid).upto("leased again")
    move.drive.renew(until=cloud.api.current_time() + 60.0)
    move.stage_again()
    for _ in range(2):
        cloud.conductor("another").operator.run_round()
    assert move.hand_over() == [move.twin]
    move.order()
    assert finish_conducted(cloud, move.operation) is Outcome.DONE
    rests(cloud, uuid, {"a2", "a3"})


class TestWakesTooLate:
    """A conductor sleeps after a step, another one does the work, and then it goes on as if nothing had happened."""

    @pytest.mark.parametrize("step", STEPS)
    def test_when_the_move_is_done(self, cloud: World, uuid: str, step: str) -> None:
        move = MoveDrive(cloud, uuid, conductor=cloud.conductor("sleeper")).upto(step)
        late = move.opened()
        cloud.start_conductor()
        ended(cloud, move.operation)
        before = cloud.settle()
        assert move.late() == []
        move.conductor.operator._run(late)  # as it had read them
        assert cloud.settle() == before
        rests(cloud, uuid, {"a2", "a3"})

    @pytest.mark.parametrize("step", ["leased", "staged", "told", "handed over"])
    def test_when_the_move_was_given_up(self, cloud: World, uuid: str, step: str) -> None:
        move = MoveDrive(cloud, uuid, conductor=cloud.conductor("sleeper")).upto(step)
        late = move.opened()
        cloud.api.write(expire, move.operation.uuid)
        assert finish_conducted(cloud, move.operation) is Outcome.GIVEN_UP
        before = cloud.settle()
        assert move.late() == []
        move.conductor.operator._run(late)  # as it had read them
        assert cloud.settle() == before
        rests(cloud, uuid, {"a1"})

    def test_a_late_stop_does_not_undo_a_start(self, cloud: World, uuid: str) -> None:
        sleeper = cloud.conductor("sleeper")
        stop = cloud.operate(uuid, OperationKind.STOP)
        late = cloud.api.read(operations.with_bodies, [stop.uuid])
        assert finish_conducted(cloud, stop) is Outcome.DONE
        assert ended(cloud, cloud.operate(uuid, OperationKind.START)).outcome is Outcome.DONE
        sleeper.operator._run(late)
        rests(cloud, uuid, {"a1"})


class TestSourceHost:
    def test_its_agent_is_killed_while_it_holds(self, cloud: World, uuid: str) -> None:
        """The next start asks again, and is granted the hold."""
        driver = cloud.agents["cell1"].block_driver("a1")
        move = MoveDrive(cloud, uuid).upto("asked")
        assert wait_until(lambda: driver.tasks == [("held", "soft")], PATIENCE)
        kill_agent(cloud, "a1")
        assert move.row(uuid).task_state is TaskState.RUNNING
        cloud.start_conductor()
        cloud.start_agent("a1")
        assert ended(cloud, move.operation).outcome is Outcome.DONE
        rests(cloud, uuid, {"a2", "a3"})

    def test_a_host_dead_before_the_hold_is_evacuated(self, cloud: World, uuid: str) -> None:
        kill_agent(cloud, "a1")
        move = MoveDrive(cloud, uuid).upto("asked")
        cloud.start_conductor()
        cloud.api.write(expire, move.operation.uuid)
        assert ended(cloud, move.operation).outcome is Outcome.GIVEN_UP
        found = server(cloud, uuid)
        assert (found.state, found.host, found.power) == ("active", "a1", Power.ON)
        call_dead(cloud, "a1")
        assert ended(cloud, cloud.operate(uuid, OperationKind.EVACUATE)).outcome is Outcome.DONE
        assert server(cloud, uuid).host in {"a2", "a3"}
        call_dead(cloud, "a1", False)
        cloud.start_agent("a1")
        assert wait_until(lambda: cloud.agents["cell1"].guests("a1") == [], PATIENCE)
        rests(cloud, uuid, {"a2", "a3"}, copied=False)

    def test_has_lost_the_disk_while_the_twin_copies(self, cloud: World, uuid: str) -> None:
        """No host can copy it: the server stays where it is, off as its user wants it, until its disk is back."""
        keep_going(cloud, cloud.operate(uuid, OperationKind.STOP))
        move = MoveDrive(cloud, uuid).upto("staged again")
        path = cloud.folder.path / "hosts" / "a1.disks" / uuid
        lost = path.read_bytes()
        path.unlink()
        assert move.hand_over() == [move.twin]
        move.order()
        cloud.start_conductor()
        found = ended(cloud, move.operation)
        assert found.outcome is Outcome.GIVEN_UP
        assert "cannot be copied" in (found.fault or "")
        path.write_bytes(lost)
        rests(cloud, uuid, {"a1"}, Power.OFF)

    def test_loses_power_while_it_is_held(self, cloud: World, uuid: str) -> None:
        """Its start brings back no guest that may not run."""
        move = MoveDrive(cloud, uuid).upto("told")
        kill_agent(cloud, "a1")
        cloud.agents["cell1"].cut_power("a1")
        cloud.start_agent("a1")
        driver = cloud.agents["cell1"].drivers["a1"]
        assert finish_conducted(cloud, move.operation) is Outcome.DONE
        assert driver.tasks == []
        rests(cloud, uuid, {"a2", "a3"})


class TestTargetHost:
    def test_is_dead_while_it_builds(self, cloud: World, uuid: str) -> None:
        """The twin goes on to its alternate."""
        for host in ("a2", "a3"):
            cloud.agents["cell1"].drivers[host].gate.clear()
        move = MoveDrive(cloud, uuid).upto("ordered")
        first = move.row(move.twin).host or ""
        assert wait_until(lambda: cloud.agents["cell1"].drivers[first].spawning == [move.twin], PATIENCE)
        call_dead(cloud, first)
        [other] = {"a2", "a3"} - {first}
        cloud.agents["cell1"].drivers[other].gate.set()
        assert finish_conducted(cloud, move.operation) is Outcome.DONE
        cloud.agents["cell1"].drivers[first].gate.set()
        call_dead(cloud, first, False)
        rests(cloud, uuid, {other})

    def test_a_host_dies_building_and_has_no_alternative(self, cloud: World, uuid: str) -> None:
        driver = cloud.agents["cell2"].drivers["b1"]
        driver.gate.clear()
        move = MoveDrive(cloud, uuid, args=cross_cell()).upto("ordered")
        assert wait_until(lambda: driver.spawning == [move.twin], PATIENCE)
        kill_agent(cloud, "b1")
        call_dead(cloud, "b1")
        assert finish_conducted(cloud, move.operation) is Outcome.GIVEN_UP
        call_dead(cloud, "b1", False)
        cloud.start_agent("b1")
        rests(cloud, uuid, {"a1"})

    def test_is_dead_after_the_twin_is_active(self, cloud: World, uuid: str) -> None:
        """The server is pointed to it all the same, and is evacuated from there."""
        move = MoveDrive(cloud, uuid, args=cross_cell()).upto("active")
        kill_agent(cloud, "b1")
        call_dead(cloud, "b1")
        assert finish_conducted(cloud, move.operation) is Outcome.DONE
        assert (server(cloud, uuid).host, server(cloud, uuid).state) == ("b1", "active")
        evacuation = cloud.operate(uuid, OperationKind.EVACUATE, args=OperationArgs(cross_cell=True))
        assert ended(cloud, evacuation).outcome is Outcome.DONE
        call_dead(cloud, "b1", False)
        cloud.start_agent("b1")
        rests(cloud, uuid, {"a1", "a2", "a3"}, copied=False)

    def test_its_agent_is_killed_while_it_copies(self, cloud: World, uuid: str) -> None:
        """What it had begun is begun again; no torn copy is left."""
        driver = cloud.agents["cell2"].drivers["b1"]
        driver.gate.clear()
        move = MoveDrive(cloud, uuid, args=cross_cell()).upto("ordered")
        assert wait_until(lambda: driver.spawning == [move.twin], PATIENCE)
        kill_agent(cloud, "b1")
        cloud.start_conductor()
        cloud.start_agent("b1")
        assert ended(cloud, move.operation).outcome is Outcome.DONE
        rests(cloud, uuid, {"b1"})


class TestEvacuatedHostReturns:
    @pytest.mark.parametrize("step", ["staged", "held", "handed over", "active", "switched", "deleted"])
    def test_after_each_step(self, cloud: World, uuid: str, step: str) -> None:
        """Before the hold its guest runs and is permitted to; afterwards it is turned off, and destroyed at the end."""
        kill_agent(cloud, "a1")
        call_dead(cloud, "a1")
        evacuation = MoveDrive(cloud, uuid, OperationKind.EVACUATE)
        for each in STEPS[1 : STEPS.index(step) + 1]:
            if each == "told":  # nobody answers there: that its row says so is enough
                cloud.keeper.keep()
            else:
                evacuation._steps[each]()
        call_dead(cloud, "a1", False)
        cloud.start_agent("a1")
        assert finish_conducted(cloud, evacuation.operation) is Outcome.DONE
        rests(cloud, uuid, {"a2", "a3"}, copied=False)


class TestCellSilent:
    def test_the_sources_cell_before_the_hold(self, cloud: World, uuid: str) -> None:
        """The move waits with its room, and goes on when the cell is back."""
        move = MoveDrive(cloud, uuid, args=cross_cell()).upto("held")
        conductor = cut_off(cloud, "cell1")
        for _ in range(3):
            conductor.operator.run_round()
        assert move.state().state is OperationState.HOLDING
        assert move.row(uuid).power is Power.ON
        conductor.databases["cell1"].away = False
        assert finish_conducted(cloud, move.operation) is Outcome.DONE
        rests(cloud, uuid, {"b1"})

    def test_the_source_cell_returns_after_the_deadline(self, cloud: World, uuid: str) -> None:
        move = MoveDrive(cloud, uuid, args=cross_cell()).upto("told")
        cloud.api.write(expire, move.operation.uuid)
        conductor = cut_off(cloud, "cell1")
        for _ in range(3):
            conductor.operator.run_round()
        assert move.state().state is OperationState.STARTING
        assert move.row(uuid).power is Power.HELD
        conductor.databases["cell1"].away = False
        assert finish_conducted(cloud, move.operation) is Outcome.GIVEN_UP
        rests(cloud, uuid, {"a1"})

    def test_the_twin_cell_is_silent_during_a_revert(self, cloud: World, uuid: str) -> None:
        """Whether the twin's host is called dead is not known then: the revert waits."""
        first, other = sorted([uuid, boot(cloud)])  # the sweep comes to the revert first
        args = OperationArgs(host="b1", cross_cell=True)
        move = MoveDrive(cloud, first, OperationKind.RESIZE, flavor=LARGE, args=args).upto("switched")
        kill_agent(cloud, "b1")
        cloud.api.write(steps.revert_moves, [move.operation.uuid], cloud.api.current_time())
        move.ask()
        cloud.keeper.keep()
        stop = cloud.operate(other, OperationKind.STOP)
        conductor = cut_off(cloud, "cell2")

        def is_off_after_a_sweep() -> bool:
            conductor.operator.run_round()
            return cloud.row(other).power is Power.OFF

        assert wait_until(is_off_after_a_sweep, PATIENCE)
        assert move.state().state is OperationState.REVERTING
        conductor.databases["cell2"].away = False
        cloud.start_agent("b1")
        assert finish_conducted(cloud, move.operation) is Outcome.REVERTED
        assert cloud.ended(stop).outcome is Outcome.DONE
        cloud.settle()


class TestResize:
    @pytest.mark.parametrize("confirmed", [True, False])
    @pytest.mark.parametrize("told", [True, False])
    def test_its_user_decides_and_the_conductor_dies(self, cloud: World, uuid: str, confirmed: bool, told: bool) -> None:
        """``told``: whether the next step reaches the cell before."""
        move = MoveDrive(cloud, uuid, OperationKind.RESIZE, flavor=LARGE).upto("switched")
        assert move.state().state is OperationState.VERIFY
        if confirmed:
            cloud.keeper.ledger.write(steps.confirm_moves, [move.operation.uuid], cloud.api.current_time())
        else:
            cloud.api.write(steps.revert_moves, [move.operation.uuid], cloud.api.current_time())
        if told:
            move.conductor.deleter.run_round()
            move.ask()
        assert finish_conducted(cloud, move.operation) is (Outcome.DONE if confirmed else Outcome.REVERTED)
        rests(cloud, uuid, {"a2", "a3"} if confirmed else {"a1"})
        assert sum(cloud.evidence().charged.values()) == (4 if confirmed else 1)

    def test_it_is_reverted_while_its_host_is_silent(self, cloud: World, uuid: str) -> None:
        """The source does not start before the twin is off."""
        move = MoveDrive(cloud, uuid, OperationKind.RESIZE, flavor=LARGE).upto("switched")
        target = server(cloud, uuid).host or ""
        kill_agent(cloud, target)
        cloud.api.write(steps.revert_moves, [move.operation.uuid], cloud.api.current_time())
        cloud.start_conductor()
        assert wait_until(lambda: move.row(move.twin).power is Power.HELD, PATIENCE)
        assert (move.state().state, move.row(uuid).power) == (OperationState.REVERTING, Power.HELD)
        cloud.start_agent(target)
        assert ended(cloud, move.operation).outcome is Outcome.REVERTED
        rests(cloud, uuid, {"a1"})

    def test_it_is_reverted_while_its_host_is_dead(self, cloud: World, uuid: str) -> None:
        """Its row says that it is off: nobody waits for an answer, and the host that returns has no guest."""
        move = MoveDrive(cloud, uuid, OperationKind.RESIZE, flavor=LARGE).upto("switched")
        target = server(cloud, uuid).host or ""
        kill_agent(cloud, target)
        call_dead(cloud, target)
        cloud.api.write(steps.revert_moves, [move.operation.uuid], cloud.api.current_time())
        assert finish_conducted(cloud, move.operation) is Outcome.REVERTED
        call_dead(cloud, target, False)
        cloud.start_agent(target)
        assert wait_until(lambda: cloud.agents["cell1"].guests(target) == [], PATIENCE)
        rests(cloud, uuid, {"a1"})

    def test_both_decide_at_once(self, cloud: World, uuid: str) -> None:
        move = MoveDrive(cloud, uuid, OperationKind.RESIZE, flavor=LARGE).upto("switched")
        uuids, now = [move.operation.uuid], cloud.api.current_time()
        assert cloud.api.write(steps.revert_moves, uuids, now).operations
        assert not cloud.keeper.ledger.write(steps.confirm_moves, uuids, now).operations
        assert not cloud.api.write(steps.revert_moves, uuids, now).operations
        assert finish_conducted(cloud, move.operation) is Outcome.REVERTED
        rests(cloud, uuid, {"a1"})


class TestShelve:
    """The server comes back with its disk, and its snapshot is removed."""

    @pytest.mark.parametrize("step", SHELVE_STEPS)
    def test_after_each_step_others_finish(self, cloud: World, uuid: str, step: str) -> None:
        shelve = ShelveDrive(cloud, uuid).upto(step)
        assert finish_conducted(cloud, shelve.operation) is Outcome.DONE
        is_shelved(cloud, uuid)
        assert snapshots(cloud) == [shelve.operation.uuid]
        comes_back(cloud, uuid)

    @pytest.mark.parametrize("step", SHELVE_STEPS)
    def test_after_each_step_and_then_the_user_deletes(self, cloud: World, uuid: str, step: str) -> None:
        shelve = ShelveDrive(cloud, uuid).upto(step)
        assert cloud.delete(uuid) is not None
        cloud.start_conductor()
        evidence = cloud.settle()
        assert shelve.state().outcome is (Outcome.DONE if step in ("offloaded", "deleted") else Outcome.DELETED)
        assert (evidence.claims, evidence.operations) == ({}, ())
        assert not any(evidence.guests.values())
        no_snapshot_is_left(cloud)

    @pytest.mark.parametrize("step", ["accepted", "asked", "saved", "shelved"])
    def test_wakes_too_late_when_the_server_is_back(self, cloud: World, uuid: str, step: str) -> None:
        shelve = ShelveDrive(cloud, uuid).upto(step)
        late = cloud.api.read(operations.with_bodies, [shelve.operation.uuid])
        cloud.start_conductor()
        ended(cloud, shelve.operation)
        comes_back(cloud, uuid)
        before = cloud.settle()
        assert shelve.late() == []
        shelve.conductor.operator._run(late)  # as it had read them
        assert cloud.settle() == before

    @pytest.mark.parametrize("told", [True, False])
    def test_its_agent_is_killed_while_it_saves(self, cloud: World, uuid: str, told: bool) -> None:
        """The next start is granted the snapshot again, and makes it again as a whole. ``told``: the first was complete."""
        driver = cloud.agents["cell1"].block_driver("a1")
        shelve = ShelveDrive(cloud, uuid).upto("asked")
        assert wait_until(lambda: driver.tasks == [("held", "soft")], PATIENCE)
        kill_agent(cloud, "a1")
        if told:
            FolderStore(cloud.images).save_snapshot(shelve.operation.uuid, b"an earlier one")
        cloud.start_agent("a1")
        assert finish_conducted(cloud, shelve.operation) is Outcome.DONE
        comes_back(cloud, uuid)

    def test_a_failed_shelve_leaves_the_server_unchanged(self, cloud: World, uuid: str) -> None:
        cloud.agents["cell1"].drivers["a1"].task_errors = 1
        shelve = cloud.operate(uuid, OperationKind.SHELVE)
        cloud.start_conductor()
        found = ended(cloud, shelve)
        assert (found.outcome, found.fault) == (Outcome.GIVEN_UP, "the guest does not react")
        rests(cloud, uuid, {"a1"})
        no_snapshot_is_left(cloud)

    def test_a_shelve_is_carried_out_too_late(self, cloud: World, uuid: str) -> None:
        kill_agent(cloud, "a1")
        shelve = ShelveDrive(cloud, uuid).upto("asked")
        cloud.start_conductor()
        cloud.api.write(expire, shelve.operation.uuid)
        assert ended(cloud, shelve.operation).outcome is Outcome.GIVEN_UP
        cloud.start_agent("a1")
        rests(cloud, uuid, {"a1"}, copied=False)
        no_snapshot_is_left(cloud)

    def test_a_shelve_is_abandoned_during_the_snapshot(self, cloud: World, uuid: str) -> None:
        """The host starts the server when it is done with that, and only then is the snapshot removed."""
        driver = cloud.agents["cell1"].block_driver("a1")
        shelve = cloud.operate(uuid, OperationKind.SHELVE)
        cloud.start_conductor()
        assert wait_until(lambda: driver.tasks == [("held", "soft")], PATIENCE)
        cloud.api.write(expire, shelve.uuid)
        assert ended(cloud, shelve).outcome is Outcome.GIVEN_UP
        assert snapshots(cloud) == []
        driver.gate.set()
        assert wait_until(lambda: cloud.row(uuid).task_state is TaskState.DONE, PATIENCE)
        rests(cloud, uuid, {"a1"})
        no_snapshot_is_left(cloud)

    def test_its_host_is_called_dead_meanwhile(self, cloud: World, uuid: str) -> None:
        """An evacuation ends it, and the server is on elsewhere, as its user had it."""
        kill_agent(cloud, "a1")
        shelve = ShelveDrive(cloud, uuid).upto("asked")
        cloud.keeper.keep()
        call_dead(cloud, "a1")
        evacuation = cloud.operate(uuid, OperationKind.EVACUATE)
        assert finish_conducted(cloud, evacuation) is Outcome.DONE
        assert shelve.state().outcome is Outcome.GIVEN_UP
        call_dead(cloud, "a1", False)
        cloud.start_agent("a1")
        rests(cloud, uuid, {"a2", "a3"}, copied=False)
        no_snapshot_is_left(cloud)

    def test_is_unshelved_before_it_has_left_its_host(self, cloud: World, uuid: str) -> None:
        """Also a server that was off is on then. Whoever comes second to offload it finds that it is not shelved."""
        keep_going(cloud, cloud.operate(uuid, OperationKind.STOP))
        shelve = ShelveDrive(cloud, uuid).upto("shelved")
        assert shelve.start_again()
        assert not shelve.offload()
        assert finish_conducted(cloud, shelve.operation) is Outcome.REVERTED
        rests(cloud, uuid, {"a1"})
        no_snapshot_is_left(cloud)


class TestUnshelve:
    @pytest.fixture
    def shelved(self, cloud: World, uuid: str) -> str:
        ShelveDrive(cloud, uuid).upto("deleted")
        assert wait_until(lambda: cloud.agents["cell1"].guests("a1") == [], PATIENCE)
        cloud.keeper.keep()
        return uuid

    @pytest.mark.parametrize("step", UNSHELVE_STEPS)
    def test_after_each_step_others_finish(self, cloud: World, shelved: str, step: str) -> None:
        move = unshelving(cloud, shelved, step)
        assert finish_conducted(cloud, move.operation) is Outcome.DONE
        rests(cloud, shelved, {"a1", "a2", "a3", "b1"})
        no_snapshot_is_left(cloud)

    @pytest.mark.parametrize("step", UNSHELVE_STEPS)
    def test_after_each_step_and_then_the_user_deletes(self, cloud: World, shelved: str, step: str) -> None:
        unshelving(cloud, shelved, step)
        assert cloud.delete(shelved) is not None
        cloud.start_conductor()
        evidence = cloud.settle()
        assert (evidence.claims, evidence.operations) == ({}, ())
        assert not any(evidence.guests.values())
        no_snapshot_is_left(cloud)

    @pytest.mark.parametrize("step", UNSHELVE_STEPS[:-2])
    def test_an_abandoned_unshelve_leaves_the_server_shelved(self, cloud: World, shelved: str, step: str) -> None:
        move = unshelving(cloud, shelved, step)
        if step == "ordered":
            assert move.give_up()
        cloud.api.write(expire, move.operation.uuid)
        assert finish_conducted(cloud, move.operation) is Outcome.GIVEN_UP
        is_shelved(cloud, shelved)
        comes_back(cloud, shelved)

    def test_without_its_snapshot_it_stays_shelved(self, cloud: World, shelved: str) -> None:
        [snapshot] = snapshots(cloud)
        kept = FolderStore(cloud.images).read(snapshot)
        FolderStore(cloud.images).remove_snapshot(snapshot)
        cloud.start_conductor()
        found = ended(cloud, cloud.operate(shelved, OperationKind.UNSHELVE))
        assert found.outcome is Outcome.GIVEN_UP
        assert f"Image {snapshot} is not in the image store" in (found.fault or "")
        FolderStore(cloud.images).save_snapshot(snapshot, kept)
        comes_back(cloud, shelved)

    def test_with_a_changed_snapshot_it_stays_shelved(self, cloud: World, shelved: str) -> None:
        """Another host has replaced it, by one that could be booted."""
        [snapshot] = snapshots(cloud)
        store = FolderStore(cloud.images)
        kept = store.read(snapshot)
        store.save_snapshot(snapshot, kept.replace(b'"writes":', b'"writes":7'))
        cloud.start_conductor()
        found = ended(cloud, cloud.operate(shelved, OperationKind.UNSHELVE))
        assert found.outcome is Outcome.GIVEN_UP
        assert f"Image {snapshot} was changed in the image store" in (found.fault or "")
        store.save_snapshot(snapshot, kept)
        comes_back(cloud, shelved)

    def test_what_is_written_between_is_kept(self, cloud: World, shelved: str) -> None:
        """Each snapshot is one of its own."""
        cloud.start_conductor()
        comes_back(cloud, shelved)
        before = disk(cloud, shelved).writes
        again = cloud.operate(shelved, OperationKind.SHELVE)
        assert ended(cloud, again).outcome is Outcome.DONE
        comes_back(cloud, shelved)
        assert disk(cloud, shelved).writes == before + 2  # once as it stops, and as it starts


def unshelving(cloud: World, uuid: str, step: str) -> MoveDrive:
    return MoveDrive(cloud, uuid, OperationKind.UNSHELVE).take(UNSHELVE_STEPS[: UNSHELVE_STEPS.index(step) + 1])


def is_shelved(cloud: World, uuid: str) -> None:
    """No host has it, no quota is freed."""
    evidence = cloud.settle()
    found = server(cloud, uuid)
    assert (found.state, found.host, found.cell_uuid) == ("shelved", None, None)
    assert (evidence.claims, evidence.operations, any(evidence.guests.values())) == ({}, (), False)


def comes_back(cloud: World, uuid: str) -> None:
    """It is unshelved, and a conductor runs."""
    assert ended(cloud, cloud.operate(uuid, OperationKind.UNSHELVE)).outcome is Outcome.DONE
    rests(cloud, uuid, {"a1", "a2", "a3", "b1"})
    no_snapshot_is_left(cloud)


def snapshots(cloud: World) -> list[str]:
    return sorted(path.name for path in cloud.images.glob("*"))


def no_snapshot_is_left(cloud: World) -> None:
    FolderStore(cloud.images).save_snapshot("any", b"")  # so that there is a folder
    assert wait_until(lambda: snapshots(cloud) == ["any"], PATIENCE)


class TestTasks:
    def test_a_reboot_that_was_interrupted_is_not_repeated(self, cloud: World, uuid: str) -> None:
        driver = cloud.agents["cell1"].block_driver("a1")
        reboot = cloud.operate(uuid, OperationKind.REBOOT)
        cloud.start_conductor()
        assert wait_until(lambda: driver.tasks == [("reboot", "soft")], PATIENCE)
        kill_agent(cloud, "a1")
        cloud.start_agent("a1")
        found = ended(cloud, reboot)
        assert (found.outcome, found.fault) == (Outcome.FAILED, INTERRUPTED)
        assert cloud.agents["cell1"].drivers["a1"].tasks == []
        rests(cloud, uuid, {"a1"}, copied=False)

    def test_a_stop_unnoticed_by_its_host_times_out(self, cloud: World, uuid: str) -> None:
        kill_agent(cloud, "a1")
        stop = cloud.operate(uuid, OperationKind.STOP)
        cloud.start_conductor()
        assert wait_until(lambda: cloud.row(uuid).power is Power.OFF, PATIENCE)
        cloud.api.write(expire, stop.uuid)
        found = ended(cloud, stop)
        assert (found.outcome, found.fault) == (Outcome.GIVEN_UP, "The host did not carry it out in time.")
        cloud.start_agent("a1")
        rests(cloud, uuid, {"a1"}, copied=False)

    def test_an_evacuation_ends_a_dead_hosts_stop(self, cloud: World, uuid: str) -> None:
        kill_agent(cloud, "a1")
        stop = cloud.operate(uuid, OperationKind.STOP)
        cloud.start_conductor()
        assert wait_until(lambda: cloud.row(uuid).power is Power.OFF, PATIENCE)
        call_dead(cloud, "a1")
        evacuation = cloud.operate(uuid, OperationKind.EVACUATE)
        assert ended(cloud, evacuation).outcome is Outcome.DONE
        assert cloud.ended(stop).outcome is Outcome.GIVEN_UP
        power = server(cloud, uuid).power
        call_dead(cloud, "a1", False)
        cloud.start_agent("a1")
        rests(cloud, uuid, {"a2", "a3"}, power, copied=False)
