"""An agent dies while it rescues a server, or interrupts one: the rescue is made again, the interruption is not."""

from __future__ import annotations

import pytest

from compute.simulated import cut_power
from objects.lifecycle import INTERRUPTED
from objects.operation import Operation, OperationKind, Outcome
from objects.task import Power
from service.periodic import wait_until
from tests.faults.test_crash_operations import cloud, ended, expire, kill_agent, rests, uuid
from tests.support.world import PATIENCE, World

__all__ = ["cloud", "uuid"]  # fixtures


def at_it(cloud: World, uuid: str, kind: OperationKind, task: str) -> Operation:
    """Its host is carrying it out, and a conductor runs."""
    driver = cloud.agents["cell1"].block_driver("a1")
    cloud.start_conductor()
    operation = cloud.operate(uuid, kind)
    assert wait_until(lambda: driver.tasks[-1:] == [(task, "soft")], PATIENCE)
    return operation


def test_a_rescue_is_made_again_and_ends(cloud: World, uuid: str) -> None:
    rescue = at_it(cloud, uuid, OperationKind.RESCUE, "rescue")
    kill_agent(cloud, "a1")
    cloud.start_agent("a1")
    assert ended(cloud, rescue).outcome is Outcome.DONE
    rests(cloud, uuid, {"a1"}, Power.RESCUED)
    assert ended(cloud, cloud.operate(uuid, OperationKind.UNRESCUE)).outcome is Outcome.DONE
    rests(cloud, uuid, {"a1"})


def test_a_power_cut_repeats_the_rescue(cloud: World, uuid: str) -> None:
    cloud.start_conductor()
    assert ended(cloud, cloud.operate(uuid, OperationKind.RESCUE)).outcome is Outcome.DONE
    kill_agent(cloud, "a1")
    cut_power(str(cloud.folder.path / "hosts"), "a1")
    cloud.start_agent("a1")
    agents = cloud.agents["cell1"]
    assert wait_until(lambda: [guest.power for guest in agents.guests("a1")] == [Power.RESCUED], PATIENCE)
    rests(cloud, uuid, {"a1"}, Power.RESCUED)


@pytest.mark.parametrize("before", [Power.ON, Power.OFF])
def test_a_failed_or_late_rescue_changes_nothing(cloud: World, uuid: str, before: Power) -> None:
    cloud.start_conductor()
    if before is Power.OFF:
        ended(cloud, cloud.operate(uuid, OperationKind.STOP))
    driver = cloud.agents["cell1"].drivers["a1"]
    driver.task_errors = 1
    found = ended(cloud, cloud.operate(uuid, OperationKind.RESCUE))
    assert (found.outcome, found.fault) == (Outcome.GIVEN_UP, "the guest does not react")
    rests(cloud, uuid, {"a1"}, before)
    driver.gate.clear()
    late = cloud.operate(uuid, OperationKind.RESCUE)
    assert wait_until(lambda: driver.tasks[-1:] == [("rescue", "soft")], PATIENCE)
    cloud.api.write(expire, late.uuid)
    assert ended(cloud, late).outcome is Outcome.GIVEN_UP
    driver.gate.set()
    rests(cloud, uuid, {"a1"}, before)


def test_the_server_is_deleted_while_it_is_rescued(cloud: World, uuid: str) -> None:
    rescue = at_it(cloud, uuid, OperationKind.RESCUE, "rescue")
    assert cloud.delete(uuid) is not None
    cloud.agents["cell1"].drivers["a1"].gate.set()
    evidence = cloud.settle()
    assert (cloud.ended(rescue).outcome, evidence.claims) == (Outcome.DELETED, {})
    assert not any(evidence.guests.values())


def test_an_interrupted_crash_dump_is_not_repeated(cloud: World, uuid: str) -> None:
    dump = at_it(cloud, uuid, OperationKind.CRASH_DUMP, "crash-dump")
    kill_agent(cloud, "a1")
    cloud.start_agent("a1")
    found = ended(cloud, dump)
    assert (found.outcome, found.fault) == (Outcome.GIVEN_UP, INTERRUPTED)
    rests(cloud, uuid, {"a1"})
    again = cloud.operate(uuid, OperationKind.CRASH_DUMP)
    assert ended(cloud, again).outcome is Outcome.DONE
    driver = cloud.agents["cell1"].drivers["a1"]
    assert [what for what, _ in driver.tasks].count("crash-dump") == 1, "by this start of the agent"
    assert b"NMI received" in driver.console_output(uuid, 1 << 16)
