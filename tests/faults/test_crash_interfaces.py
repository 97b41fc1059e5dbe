"""Whoever attaches or detaches an interface dies, is late or is cut off: guest, cell and pool agree at the end.

An address that is free may be given to another server, so it must never be free while the guest has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from conductor.audit import addresses
from objects.network import Network, PortRequest
from objects.operation import Operation, OperationArgs, OperationKind, Outcome
from objects.port import Port
from objects.task import Power, TaskState
from service.periodic import wait_until
from tests.faults.test_crash_operations import call_dead, cloud, ended, expire, finish_conducted, kill_agent, rests, uuid
from tests.support.auditing import Auditor
from tests.support.move_drive import server
from tests.support.pools import make_network, ports_of, used
from tests.support.world import PATIENCE, World

__all__ = ["cloud", "uuid"]  # fixtures

OF_ADDRESSES = (addresses.LACKING, addresses.UNCLAIMED, addresses.ORPHAN)
ATTACH, DETACH = OperationKind.ATTACH_INTERFACE, OperationKind.DETACH_INTERFACE


@pytest.fixture
def blue(cloud: World) -> Network:
    return make_network(cloud.api, "10.0.0.0/28")


def attach(cloud: World, uuid: str, network: Network, **asked: Any) -> Operation:
    return cloud.operate(uuid, ATTACH, port=PortRequest(network=network), **asked)


def detach(cloud: World, uuid: str) -> Operation:
    return cloud.operate(uuid, DETACH, args=OperationArgs(mac=own(cloud, uuid)[-1].mac))


def own(cloud: World, uuid: str) -> Sequence[Port]:
    """The interfaces of the server, as the pool has them."""
    return ports_of(cloud.api, uuid).get(uuid, ())


def macs(cloud: World, host: str) -> list[tuple[str, ...]]:
    """Of the guests of this host."""
    return [guest.macs for guest in cloud.agents[cloud.homes[host]].guests(host)]


def agree(cloud: World, uuid: str, count: int, hosts: set[str] | None = None, power: Power = Power.ON) -> None:
    """The guest has the interfaces that the server has, its cell's row too, and no other address of the pool is used."""
    rests(cloud, uuid, hosts or {"a1"}, power, copied=hosts is None)
    found, ports = server(cloud, uuid), own(cloud, uuid)
    assert len(ports) == used(cloud.api) == count
    assert macs(cloud, found.host or "") == [tuple(port.mac for port in ports)]
    assert cloud.row(found.body_uuid).ports == tuple(ports)


def at_work(cloud: World) -> None:
    """From now on the agent of a1 waits at its next task."""
    cloud.agents["cell1"].drivers["a1"].gate.clear()


def waits(cloud: World) -> None:
    driver = cloud.agents["cell1"].drivers["a1"]
    assert wait_until(lambda: driver.tasks[-1:] == [("interfaces", "soft")], PATIENCE)


def begun(cloud: World, uuid: str, blue: Network, kind: OperationKind) -> Operation:
    """A server with one interface, whose agent waits while it attaches another or detaches this one."""
    cloud.start_conductor()
    ended(cloud, attach(cloud, uuid, blue))
    at_work(cloud)
    operation = attach(cloud, uuid, blue) if kind is ATTACH else detach(cloud, uuid)
    waits(cloud)
    return operation


@pytest.mark.parametrize("power", [Power.ON, Power.OFF, Power.PAUSED])
def test_interfaces_come_and_go(cloud: World, uuid: str, blue: Network, power: Power) -> None:
    cloud.start_conductor()
    if power is not Power.ON:
        ended(cloud, cloud.operate(uuid, OperationKind.STOP if power is Power.OFF else OperationKind.PAUSE))
    for count in (1, 2):
        assert ended(cloud, attach(cloud, uuid, blue)).outcome is Outcome.DONE
        agree(cloud, uuid, count, power=power)
    assert ended(cloud, detach(cloud, uuid)).outcome is Outcome.DONE
    agree(cloud, uuid, 1, power=power)


@pytest.mark.parametrize("kind", [ATTACH, DETACH])
def test_a_killed_agent_repeats_the_change(cloud: World, uuid: str, blue: Network, kind: OperationKind) -> None:
    operation = begun(cloud, uuid, blue, kind)
    kill_agent(cloud, "a1")
    cloud.start_agent("a1")
    assert ended(cloud, operation).outcome is Outcome.DONE
    agree(cloud, uuid, 2 if kind is ATTACH else 0)


@pytest.mark.parametrize("step", ["accepted", "asked", "told"])
def test_another_conductor_goes_on(cloud: World, uuid: str, blue: Network, step: str) -> None:
    """The one before died when the operation was accepted, when the cell had the task, or when it had told of its end."""
    operation = attach(cloud, uuid, blue)
    if step != "accepted":
        cloud.conductor("dies").operator.run_round()
    if step == "told":
        assert wait_until(lambda: cloud.row(uuid).task_state is TaskState.DONE, PATIENCE)
        cloud.keeper.keep()
    assert finish_conducted(cloud, operation) is Outcome.DONE
    agree(cloud, uuid, 1)


@pytest.mark.parametrize("kind", [ATTACH, DETACH])
def test_a_failing_host_leaves_the_server_unchanged(cloud: World, uuid: str, blue: Network, kind: OperationKind) -> None:
    cloud.start_conductor()
    ended(cloud, attach(cloud, uuid, blue))
    cloud.agents["cell1"].drivers["a1"].task_errors = 1
    found = ended(cloud, attach(cloud, uuid, blue) if kind is ATTACH else detach(cloud, uuid))
    assert (found.outcome, found.fault) == (Outcome.GIVEN_UP, "the guest does not react")
    agree(cloud, uuid, 1)


@pytest.mark.parametrize("kind", [ATTACH, DETACH])
def test_a_late_host_must_undo_the_change(cloud: World, uuid: str, blue: Network, kind: OperationKind) -> None:
    """It does what it was first told after the deadline, and frees nothing before it has undone that."""
    operation = begun(cloud, uuid, blue, kind)
    cloud.api.write(expire, operation.uuid)
    number = operation.number + 3
    assert wait_until(lambda: cloud.row(uuid).task_number == number, PATIENCE)
    cloud.keeper.keep()
    assert used(cloud.api) == (2 if kind is ATTACH else 1)
    assert cloud.evidence().operations, "it waits for its host"
    cloud.agents["cell1"].drivers["a1"].gate.set()
    assert ended(cloud, operation).outcome is Outcome.GIVEN_UP
    agree(cloud, uuid, 1)


def test_an_interface_that_cannot_be_detached_stays(cloud: World, uuid: str, blue: Network) -> None:
    cloud.start_conductor()
    cloud.agents["cell1"].drivers["a1"].task_errors = 2
    assert ended(cloud, attach(cloud, uuid, blue)).outcome is Outcome.GIVEN_UP
    found = server(cloud, uuid)
    assert (found.task_state, used(cloud.api)) == (TaskState.FAILED, 1)
    assert (addresses.LACKING, uuid) in Auditor(cloud.conductor("auditor")).kinds()
    ended(cloud, cloud.operate(uuid, OperationKind.STOP))
    ended(cloud, cloud.operate(uuid, OperationKind.START))
    assert ended(cloud, detach(cloud, uuid)).outcome is Outcome.DONE
    agree(cloud, uuid, 0)


def test_a_server_deleted_meanwhile_frees_its_address(cloud: World, uuid: str, blue: Network) -> None:
    at_work(cloud)
    cloud.start_conductor()
    operation = attach(cloud, uuid, blue)
    waits(cloud)
    assert cloud.delete(uuid) is not None
    assert used(cloud.api) == 1
    cloud.agents["cell1"].drivers["a1"].gate.set()
    evidence = cloud.settle()
    assert (cloud.ended(operation).outcome, evidence.claims, used(cloud.api)) == (Outcome.DELETED, {}, 0)


@pytest.mark.parametrize("kind", [ATTACH, DETACH])
def test_verify_knows_a_change_that_is_under_way(cloud: World, uuid: str, blue: Network, kind: OperationKind) -> None:
    operation = begun(cloud, uuid, blue, kind)
    about = [(found, key) for found, key in Auditor(cloud.conductor("auditor")).kinds() if found in OF_ADDRESSES]
    assert about == []
    cloud.agents["cell1"].drivers["a1"].gate.set()
    assert ended(cloud, operation).outcome is Outcome.DONE
    agree(cloud, uuid, 2 if kind is ATTACH else 0)


def test_a_moved_server_keeps_what_was_attached(cloud: World, uuid: str, blue: Network) -> None:
    cloud.start_conductor()
    ended(cloud, attach(cloud, uuid, blue))
    assert ended(cloud, cloud.operate(uuid, OperationKind.MIGRATE)).outcome is Outcome.DONE
    agree(cloud, uuid, 1, {"a2", "a3"})


@pytest.mark.parametrize("late", [False, True], ids=["open", "undone"])
@pytest.mark.parametrize("kind", [ATTACH, DETACH])
def test_an_evacuation_brings_the_interfaces_of_the_server(
    cloud: World, uuid: str, blue: Network, kind: OperationKind, late: bool
) -> None:
    """Its host died while it should attach or detach one: nobody knows whether the guest there has it."""
    operation = begun(cloud, uuid, blue, kind)
    if late:
        cloud.api.write(expire, operation.uuid)
        assert wait_until(lambda: cloud.row(uuid).task_number == operation.number + 3, PATIENCE)
    kill_agent(cloud, "a1")
    call_dead(cloud, "a1")
    evacuation = cloud.operate(uuid, OperationKind.EVACUATE)
    assert evacuation.args.mends
    assert ended(cloud, evacuation).outcome is Outcome.DONE
    assert cloud.ended(operation).outcome is Outcome.GIVEN_UP
    call_dead(cloud, "a1", dead=False)
    cloud.start_agent("a1")
    agree(cloud, uuid, 2 if kind is ATTACH else 1, {"a2", "a3"})


@pytest.mark.parametrize("kind", [ATTACH, DETACH])
def test_an_abandoned_evacuation_mends_the_guest(cloud: World, uuid: str, blue: Network, kind: OperationKind) -> None:
    operation = begun(cloud, uuid, blue, kind)
    kill_agent(cloud, "a1")
    call_dead(cloud, "a1")
    evacuation = cloud.operate(uuid, OperationKind.EVACUATE, deadline=1.0)
    assert wait_until(lambda: cloud.row(uuid).task_number == evacuation.number + 3, PATIENCE)
    call_dead(cloud, "a1", dead=False)
    cloud.start_agent("a1")
    assert ended(cloud, evacuation).outcome is Outcome.GIVEN_UP
    assert cloud.ended(operation).outcome is Outcome.GIVEN_UP
    agree(cloud, uuid, 2 if kind is ATTACH else 1)
