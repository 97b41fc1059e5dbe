"""Whoever carries out a live migration dies after each step, wakes up too late, or is cut off; so do the hosts.

Each test ends with everything running until nothing is on its way any more; then claims, guests and rows must agree. The guest has
never stopped: a start writes to its disk once more.
"""

from __future__ import annotations

import pytest

from compute.disks import disks_path
from db.api.operations import steps
from objects import errors
from objects.instance import State
from objects.operation import OperationKind, OperationState, Outcome
from objects.task import Power, SendTarget, TaskState
from service.periodic import wait_until
from tests.faults.test_crash_operations import (
    HOSTS,
    call_dead,
    disk,
    ended,
    expire,
    finish_conducted,
    keep_going,
    kill_agent,
    rests,
)
from tests.support.ground import CHOSEN
from tests.support.move_drive import LIVE_STEPS, MoveDrive, boot, cross_cell
from tests.support.world import PATIENCE, World, world_fixture

pytestmark = pytest.mark.one_in(3)

LIVE = OperationKind.LIVE_MIGRATE
GONE_OVER = LIVE_STEPS[LIVE_STEPS.index("sent") :]
"""Steps after which the guest runs at the target."""


cloud = world_fixture(HOSTS, CHOSEN, prepare=World.start_cells_and_agents)


@pytest.fixture
def uuid(cloud: World) -> str:
    """A server that runs on a1. Its cells and their hosts run, and of the API level only the scheduler."""
    return boot(cloud)


def rests_unstopped(cloud: World, uuid: str, hosts: set[str]) -> None:
    rests(cloud, uuid, hosts, copied=False)
    assert disk(cloud, uuid).writes == 1, "the guest was started again"


@pytest.mark.parametrize("step", LIVE_STEPS)
def test_after_each_step_others_finish(cloud: World, uuid: str, step: str) -> None:
    move = MoveDrive(cloud, uuid, LIVE).upto(step)
    assert finish_conducted(cloud, move.operation) is Outcome.DONE
    rests_unstopped(cloud, uuid, {"a2", "a3"})


@pytest.mark.parametrize("step", ["active", "send asked", "sent", "received"])
def test_on_the_way_to_another_cell(cloud: World, uuid: str, step: str) -> None:
    move = MoveDrive(cloud, uuid, LIVE, args=cross_cell()).upto(step)
    assert finish_conducted(cloud, move.operation) is Outcome.DONE
    rests_unstopped(cloud, uuid, {"b1"})


@pytest.mark.parametrize("step", LIVE_STEPS)
def test_after_each_step_and_then_the_user_deletes(cloud: World, uuid: str, step: str) -> None:
    MoveDrive(cloud, uuid, LIVE).upto(step)
    assert cloud.delete(uuid) is not None
    cloud.start_conductor()
    evidence = cloud.settle()
    assert {row.instance.state for row in evidence.rows} == {State.DELETED}
    assert (evidence.claims, evidence.operations) == ({}, ())
    assert not any(evidence.guests.values())


@pytest.mark.parametrize("step", LIVE_STEPS[: LIVE_STEPS.index("switched")])
def test_after_each_step_and_then_the_deadline_passes(cloud: World, uuid: str, step: str) -> None:
    """Only the target knows whether the guest has gone over. If it has, it stays there."""
    move = MoveDrive(cloud, uuid, LIVE, timeout=30.0).upto(step)
    cloud.api.write(expire, move.operation.uuid)
    cloud.start_conductor()
    found = ended(cloud, move.operation)
    if step in GONE_OVER:
        assert found.outcome is Outcome.DONE
    rests_unstopped(cloud, uuid, {"a2", "a3"} if found.outcome is Outcome.DONE else {"a1"})


@pytest.mark.parametrize("step", LIVE_STEPS)
def test_a_conductor_that_wakes_late_changes_nothing(cloud: World, uuid: str, step: str) -> None:
    move = MoveDrive(cloud, uuid, LIVE, conductor=cloud.conductor("sleeper")).upto(step)
    late = move.opened()
    cloud.start_conductor()
    ended(cloud, move.operation)
    before = cloud.settle()
    assert move.late() == []
    move.conductor.operator._run(late)  # as it had read them
    assert cloud.settle() == before
    rests_unstopped(cloud, uuid, {"a2", "a3"})


def test_an_operator_aborts_before_the_guest_switches(cloud: World, uuid: str) -> None:
    cloud.agents["cell1"].drivers["a1"].gate.clear()
    move = MoveDrive(cloud, uuid, LIVE).upto("send asked")
    assert not move.give_up(), "only the twin can say whether the guest has gone over"
    assert cloud.api.write(steps.recall_migrations, [move.operation.uuid], cloud.api.current_time()).operations
    cloud.start_conductor()
    assert wait_until(lambda: move.state().state is not OperationState.SENDING, PATIENCE)
    cloud.agents["cell1"].drivers["a1"].gate.set()  # the source sends to nobody
    found = ended(cloud, move.operation)
    assert found.outcome is Outcome.GIVEN_UP
    rests_unstopped(cloud, uuid, {"a1"})


class TestPausedServer:
    """It is paused on the other host, or where it was, and no guest of it has run meanwhile."""

    @pytest.fixture
    def paused(self, cloud: World, uuid: str) -> str:
        keep_going(cloud, cloud.operate(uuid, OperationKind.PAUSE))
        return uuid

    def rests_paused(self, cloud: World, uuid: str, hosts: set[str]) -> None:
        rests(cloud, uuid, hosts, Power.PAUSED, copied=False)
        assert disk(cloud, uuid).writes == 1, "the guest was started again"
        for host in cloud.homes:
            powers = [entry.changed.power for entry in cloud.journal(host) if entry.changed is not None]
            since = powers[powers.index(Power.PAUSED) :] if Power.PAUSED in powers else powers
            assert Power.ON not in since, f"the guest ran on {host}"

    @pytest.mark.parametrize("step", LIVE_STEPS[LIVE_STEPS.index("active") :])
    def test_after_each_step_others_finish(self, cloud: World, paused: str, step: str) -> None:
        move = MoveDrive(cloud, paused, LIVE).upto(step)
        assert finish_conducted(cloud, move.operation) is Outcome.DONE
        self.rests_paused(cloud, paused, {"a2", "a3"})

    @pytest.mark.parametrize("step", ["active", "send asked", "sent", "twin asked", "received"])
    def test_after_some_steps_the_deadline_passes(self, cloud: World, paused: str, step: str) -> None:
        move = MoveDrive(cloud, paused, LIVE, timeout=30.0).upto(step)
        cloud.api.write(expire, move.operation.uuid)
        cloud.start_conductor()
        found = ended(cloud, move.operation)
        if step in GONE_OVER:
            assert found.outcome is Outcome.DONE
        self.rests_paused(cloud, paused, {"a2", "a3"} if found.outcome is Outcome.DONE else {"a1"})

    @pytest.mark.parametrize("host", ["source", "target"])
    def test_an_agent_is_killed_just_after_the_switch(self, cloud: World, paused: str, host: str) -> None:
        driver = cloud.agents["cell1"].block_driver("a1")
        move = MoveDrive(cloud, paused, LIVE).upto("send asked")
        assert wait_until(lambda: ("send", "soft") in driver.tasks, PATIENCE)
        target = SendTarget(instance_uuid=move.twin, host=move.row(move.twin).host or "")
        kill_agent(cloud, "a1")
        driver._disks.hand_over(paused, str(cloud.folder.path / "hosts"), target, Power.PAUSED)  # what its thread did last
        if host == "target":
            kill_agent(cloud, target.host)
            cloud.start_agent(target.host)
        cloud.start_agent("a1")
        assert finish_conducted(cloud, move.operation) is Outcome.DONE
        self.rests_paused(cloud, paused, {target.host})


class TestSourceHost:
    def test_its_agent_is_killed_before_the_switch(self, cloud: World, uuid: str) -> None:
        driver = cloud.agents["cell1"].block_driver("a1")
        move = MoveDrive(cloud, uuid, LIVE).upto("send asked")
        assert wait_until(lambda: driver.tasks == [("send", "soft")], PATIENCE)
        kill_agent(cloud, "a1")
        assert move.row(uuid).task_state is TaskState.RUNNING
        cloud.start_conductor()
        cloud.start_agent("a1")
        assert ended(cloud, move.operation).outcome is Outcome.DONE
        rests_unstopped(cloud, uuid, {"a2", "a3"})

    @pytest.mark.parametrize("returns", [True, False])
    def test_its_agent_is_killed_just_after_the_switch(self, cloud: World, uuid: str, returns: bool) -> None:
        """Its books do not have it: the guest's file is at the target. Without its answer the deadline asks the target."""
        driver = cloud.agents["cell1"].block_driver("a1")
        move = MoveDrive(cloud, uuid, LIVE).upto("send asked")
        assert wait_until(lambda: driver.tasks == [("send", "soft")], PATIENCE)
        kill_agent(cloud, "a1")
        target = SendTarget(instance_uuid=move.twin, host=move.row(move.twin).host or "")
        driver._disks.hand_over(uuid, str(cloud.folder.path / "hosts"), target, Power.ON)  # what its thread did last
        if returns:
            cloud.start_agent("a1")
        else:
            cloud.api.write(expire, move.operation.uuid)
        assert finish_conducted(cloud, move.operation) is Outcome.DONE
        if not returns:
            cloud.start_agent("a1")
        assert wait_until(lambda: cloud.agents["cell1"].guests("a1") == [], PATIENCE)
        rests_unstopped(cloud, uuid, {target.host})

    def test_it_loses_power_while_it_sends(self, cloud: World, uuid: str) -> None:
        """Nothing has gone over: the server starts where it was."""
        driver = cloud.agents["cell1"].block_driver("a1")
        move = MoveDrive(cloud, uuid, LIVE).upto("send asked")
        assert wait_until(lambda: driver.tasks == [("send", "soft")], PATIENCE)
        kill_agent(cloud, "a1")
        cloud.agents["cell1"].cut_power("a1")
        cloud.start_agent("a1")
        assert finish_conducted(cloud, move.operation) is Outcome.GIVEN_UP
        rests(cloud, uuid, {"a1"}, copied=False)


class TestTargetHost:
    def test_its_agent_restarts_after_the_guest_arrived(self, cloud: World, uuid: str) -> None:
        """Its record says that the guest listens. It runs, and is left alone."""
        move = MoveDrive(cloud, uuid, LIVE).upto("sent")
        target = move.row(move.twin).host or ""
        assert move.row(move.twin).power is Power.INCOMING
        kill_agent(cloud, target)
        cloud.start_agent(target)
        assert finish_conducted(cloud, move.operation) is Outcome.DONE
        rests_unstopped(cloud, uuid, {target})

    def test_it_is_dead_before_the_guest_has_come(self, cloud: World, uuid: str) -> None:
        """The source cannot send, and the target cannot answer; its operator has said that nothing runs there."""
        move = MoveDrive(cloud, uuid, LIVE).upto("active")
        target = move.row(move.twin).host or ""
        kill_agent(cloud, target)
        cloud.agents["cell1"].drivers[target]._disks.close(move.twin)
        cloud.api.write(expire, move.operation.uuid)
        assert move.send()
        cloud.start_conductor()
        assert wait_until(lambda: move.row(move.twin).task_number == move.operation.number + 2, PATIENCE)
        assert move.state().state is OperationState.SENDING
        call_dead(cloud, target)
        assert ended(cloud, move.operation).outcome is Outcome.GIVEN_UP
        call_dead(cloud, target, False)
        cloud.start_agent(target)
        rests_unstopped(cloud, uuid, {"a1"})


def test_a_twin_that_has_closed_never_receives(cloud: World, uuid: str) -> None:
    move = MoveDrive(cloud, uuid, LIVE).upto("active")
    found = move.row(move.twin)
    driver = cloud.agents["cell1"].drivers[found.host or ""]
    with pytest.raises(errors.TaskFailed, match="listens no more"):
        driver.set_power(move.twin, Power.ON, hard=False)
    target = SendTarget(instance_uuid=move.twin, host=found.host or "")
    with pytest.raises(errors.TaskFailed, match="does not listen"):
        cloud.agents["cell1"].drivers["a1"]._disks.hand_over(uuid, str(cloud.folder.path / "hosts"), target, Power.ON)
    with pytest.raises(errors.TaskFailed, match="listens no more"):
        driver.set_power(move.twin, Power.ON, hard=False)
    assert not (disks_path(str(cloud.folder.path / "hosts"), found.host or "") / move.twin).exists()
    assert finish_conducted(cloud, move.operation) is Outcome.GIVEN_UP
    rests_unstopped(cloud, uuid, {"a1"})
