"""A soft-deleted server while conductors and agents die: it stays off, it is restored with its disk, or nothing is left of it."""

from __future__ import annotations

import pytest

from compute.simulated import cut_power
from db.api.operations import steps
from objects.instance import State
from objects.operation import Operation, OperationKind, OperationState, Outcome
from objects.task import Power, TaskState
from service.periodic import wait_until
from tests.faults.test_crash_operations import (
    call_dead,
    cloud,
    ended,
    expire,
    finish_conducted,
    keep_going,
    kill_agent,
    rests,
    uuid,
)
from tests.support.world import PATIENCE, World

__all__ = ["cloud", "uuid"]  # fixtures

SOFT_DELETED = OperationState.SOFT_DELETED


def soft_delete(cloud: World, uuid: str) -> Operation:
    """It can be restored for longer than the test lasts."""
    return cloud.operate(uuid, OperationKind.SOFT_DELETE, timeout=1e6)


def is_off(cloud: World, uuid: str) -> None:
    """Its host keeps it, off, and its claim is there."""
    agents = cloud.agents["cell1"]
    assert wait_until(lambda: [guest.power for guest in agents.guests("a1")] == [Power.HELD], PATIENCE)
    assert wait_until(lambda: cloud.row(uuid).task_state is TaskState.DONE, PATIENCE)
    evidence = cloud.settle()
    assert evidence.claims == {uuid: "a1"}
    assert cloud.row(uuid).power is Power.HELD


def restore(cloud: World, operation: Operation) -> bool:
    found = cloud.api.write(steps.start_again, [operation.uuid], SOFT_DELETED, cloud.api.current_time())
    return bool(found.operations)


def reclaim(cloud: World, operation: Operation) -> bool:
    found = cloud.keeper.ledger.write(steps.reclaim_servers, [operation.uuid], cloud.api.current_time())
    return bool(found.operations)


def nothing_is_left(cloud: World) -> None:
    evidence = cloud.settle()
    assert {row.instance.state for row in evidence.rows} == {State.DELETED}
    assert (evidence.claims, evidence.operations) == ({}, ())
    assert not any(evidence.guests.values())


@pytest.mark.parametrize("before", [OperationKind.STOP, OperationKind.PAUSE, OperationKind.RESCUE])
def test_a_soft_deleted_server_is_off_until_restored(cloud: World, uuid: str, before: OperationKind) -> None:
    keep_going(cloud, cloud.operate(uuid, before))
    operation = soft_delete(cloud, uuid)
    cloud.start_conductor()
    is_off(cloud, uuid)
    assert restore(cloud, operation)
    assert not reclaim(cloud, operation)
    assert ended(cloud, operation).outcome is Outcome.REVERTED
    rests(cloud, uuid, {"a1"})
    assert not reclaim(cloud, operation)


def test_the_host_is_restarted_and_loses_power(cloud: World, uuid: str) -> None:
    operation = soft_delete(cloud, uuid)
    cloud.start_conductor()
    is_off(cloud, uuid)
    kill_agent(cloud, "a1")
    cut_power(str(cloud.folder.path / "hosts"), "a1")
    cloud.start_agent("a1")
    is_off(cloud, uuid)
    assert restore(cloud, operation)
    assert ended(cloud, operation).outcome is Outcome.REVERTED
    rests(cloud, uuid, {"a1"})


def test_a_restore_precedes_the_delete_on_the_host(cloud: World, uuid: str) -> None:
    kill_agent(cloud, "a1")
    operation = soft_delete(cloud, uuid)
    conductor = cloud.conductor("asks once")
    conductor.operator.advance_operations([operation.uuid])
    assert cloud.row(uuid).power is Power.HELD
    assert restore(cloud, operation)
    cloud.start_agent("a1")
    assert finish_conducted(cloud, operation) is Outcome.REVERTED
    rests(cloud, uuid, {"a1"})


@pytest.mark.parametrize("asked", [False, True])
def test_it_is_reclaimed_once_its_time_is_over(cloud: World, uuid: str, asked: bool) -> None:
    """Also if its host has not heard of the delete by then. Whoever comes too late restores nothing."""
    operation = soft_delete(cloud, uuid)
    if asked:
        cloud.start_conductor()
        is_off(cloud, uuid)
    cloud.api.write(expire, operation.uuid)
    if not asked:
        cloud.start_conductor()
    assert ended(cloud, operation).outcome is Outcome.DELETED
    assert not restore(cloud, operation)
    nothing_is_left(cloud)


def test_its_conductor_dies_after_it_has_reclaimed(cloud: World, uuid: str) -> None:
    operation = soft_delete(cloud, uuid)
    assert reclaim(cloud, operation)
    cloud.start_conductor()
    assert cloud.ended(operation).outcome is Outcome.DELETED
    nothing_is_left(cloud)


def test_a_server_of_a_dead_host_is_reclaimed(cloud: World, uuid: str) -> None:
    operation = soft_delete(cloud, uuid)
    cloud.start_conductor()
    is_off(cloud, uuid)
    kill_agent(cloud, "a1")
    call_dead(cloud, "a1")
    cloud.api.write(expire, operation.uuid)
    assert ended(cloud, operation).outcome is Outcome.DELETED
    call_dead(cloud, "a1", False)
    cloud.start_agent("a1")
    nothing_is_left(cloud)
