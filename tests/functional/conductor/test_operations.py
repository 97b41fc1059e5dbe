"""Operations on servers with every role running: power, migration, resize and evacuation, within a cell and from cell to cell."""

from __future__ import annotations

import pytest

from compute.disks import Disk, read_disk, write_to_disk
from db.api.operations import steps
from db.api.servers import mappings
from db.cell import services
from objects.flavor import Flavor
from objects.instance import Server, State
from objects.operation import CALLED_FAILED, Operation, OperationArgs, OperationKind, OperationState, Outcome
from objects.phase import vm_state_of
from objects.process import AGENT_BINARY
from objects.task import Power, TaskState
from service.periodic import wait_until
from tests.support import fleet
from tests.support.cell_conductor import PATIENCE
from tests.support.ground import GROUNDS
from tests.support.world import World, world_fixture

SMALL = fleet.flavor(vcpus=1, memory_mb=512, root_gb=1)
LARGE = Flavor(flavor_id="large", name="large", vcpus=4, memory_mb=2048, root_gb=2)


cloud = world_fixture(grounds=GROUNDS, prepare=World.start)


def boot(cloud: World, host: str = "a1") -> str:
    spec = cloud.accept(force_hosts=(host,), size=SMALL)
    assert wait_until(lambda: [each.state for each in servers(cloud, spec.batch_id)] == ["active"], PATIENCE)
    return servers(cloud, spec.batch_id)[0].uuid


def servers(cloud: World, batch_id: str) -> list[Server]:
    return cloud.api.read(mappings.of_batch, batch_id)


def server(cloud: World, uuid: str) -> Server:
    found = cloud.api.read(mappings.get, uuid)
    assert found is not None
    return found


def disk(cloud: World, uuid: str) -> Disk | None:
    found = server(cloud, uuid)
    return read_disk(str(cloud.folder.path / "hosts"), found.host or "", found.body_uuid)


def writes(cloud: World, uuid: str, count: int) -> None:
    """The guest writes to its disk."""
    found = server(cloud, uuid)
    for _ in range(count):
        write_to_disk(str(cloud.folder.path / "hosts"), found.host or "", found.body_uuid)


def power(cloud: World, uuid: str) -> Power:
    """The power of its guest, as its hypervisor has it."""
    found = server(cloud, uuid)
    [guest] = [
        guest for guest in cloud.agents[cloud.homes[found.host or ""]].guests(found.host or "") if guest.uuid == found.body_uuid
    ]
    return guest.power


def done(cloud: World, uuid: str, kind: OperationKind, **args: bool | str) -> Operation:
    """Do this, and wait for its end."""
    found = cloud.ended(cloud.operate(uuid, kind, args=OperationArgs(**args)))  # type: ignore[arg-type]  # of either kind
    assert found.outcome is Outcome.DONE, found
    return found


def test_a_server_is_stopped_started_paused_and_rebooted(cloud: World) -> None:
    uuid = boot(cloud)
    before = disk(cloud, uuid)
    for kind, wanted in (
        (OperationKind.STOP, Power.OFF),
        (OperationKind.START, Power.ON),
        (OperationKind.PAUSE, Power.PAUSED),
        (OperationKind.UNPAUSE, Power.ON),
        (OperationKind.SUSPEND, Power.SUSPENDED),
        (OperationKind.RESUME, Power.ON),
        (OperationKind.REBOOT, Power.ON),
    ):
        done(cloud, uuid, kind)
        assert (server(cloud, uuid).power, power(cloud, uuid)) == (wanted, wanted)
    after = disk(cloud, uuid)
    assert before is not None
    assert after is not None
    assert after.writes > before.writes
    cloud.settle()


def test_a_server_marked_failed_runs_on_and_returns(cloud: World) -> None:
    uuid = boot(cloud)
    for kind, wanted in ((OperationKind.RESET, Power.ON), (OperationKind.STOP, Power.OFF)):
        before = disk(cloud, uuid)
        done(cloud, uuid, OperationKind.FAIL)
        found = server(cloud, uuid)
        assert (found.task_state, found.task_fault) == (TaskState.FAILED, CALLED_FAILED)
        assert (vm_state_of(found), power(cloud, uuid), disk(cloud, uuid)) == ("error", Power.ON, before)
        done(cloud, uuid, kind)
        assert (server(cloud, uuid).task_fault, power(cloud, uuid)) == (None, wanted)
    cloud.settle()


def test_a_rebuild_makes_a_disk_that_migrations_keep(cloud: World) -> None:
    uuid = boot(cloud)
    writes(cloud, uuid, 5)
    done(cloud, uuid, OperationKind.REBUILD, image_id="another")
    first = disk(cloud, uuid)
    assert first is not None
    assert (first.image_id, first.server_uuid, first.writes) == ("another", uuid, 1)
    assert (server(cloud, uuid).image_id, power(cloud, uuid)) == ("another", Power.ON)
    done(cloud, uuid, OperationKind.MIGRATE)
    second = disk(cloud, uuid)
    assert second is not None
    assert second.image_id == "another"
    assert server(cloud, uuid).image_id is None, "the second body has a request of its own"
    cloud.settle()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_migration_takes_the_disk_and_leaves_nothing(cloud: World, stopped: bool) -> None:
    uuid = boot(cloud)
    writes(cloud, uuid, 5)
    if stopped:
        done(cloud, uuid, OperationKind.STOP)
    before = disk(cloud, uuid)
    done(cloud, uuid, OperationKind.MIGRATE)
    assert server(cloud, uuid).host == "a2"
    assert power(cloud, uuid) is (Power.OFF if stopped else Power.ON)
    after = disk(cloud, uuid)
    assert before is not None
    assert after is not None
    assert (after.server_uuid, after.torn) == (uuid, False)
    assert after.writes >= before.writes
    cloud.settle()
    assert cloud.agents["cell1"].guests("a1") == []


def test_a_migration_to_another_cell_is_the_same(cloud: World) -> None:
    uuid = boot(cloud)
    writes(cloud, uuid, 3)
    done(cloud, uuid, OperationKind.MIGRATE, host="b1", cross_cell=True)
    found = server(cloud, uuid)
    assert found.host == "b1"
    cloud.settle()
    done(cloud, uuid, OperationKind.MIGRATE, host="a2", cross_cell=True)
    assert server(cloud, uuid).host == "a2"
    after = disk(cloud, uuid)
    assert after is not None
    assert after.writes >= 3
    cloud.settle()


@pytest.mark.parametrize("to", ["a2", "b1"])
def test_a_live_migration_takes_the_running_guest_along(cloud: World, to: str) -> None:
    uuid = boot(cloud)
    writes(cloud, uuid, 5)
    before = disk(cloud, uuid)
    found = done(cloud, uuid, OperationKind.LIVE_MIGRATE, host=to, cross_cell=True)
    assert (found.source_host, found.target_host) == ("a1", to)
    assert (server(cloud, uuid).host, server(cloud, uuid).power, power(cloud, uuid)) == (to, Power.ON, Power.ON)
    after = disk(cloud, uuid)
    assert before is not None
    assert after is not None
    assert (after.server_uuid, after.torn, after.received_from) == (uuid, False, uuid)
    assert after.writes == before.writes, "a start writes once more"
    cloud.settle()
    assert cloud.agents["cell1"].guests("a1") == []
    done(cloud, uuid, OperationKind.STOP)
    done(cloud, uuid, OperationKind.START)
    cloud.settle()


@pytest.mark.parametrize("to", ["a2", "b1"])
def test_a_paused_server_stays_paused_through_live_migration(cloud: World, to: str) -> None:
    uuid = boot(cloud)
    done(cloud, uuid, OperationKind.PAUSE)
    done(cloud, uuid, OperationKind.LIVE_MIGRATE, host=to, cross_cell=True)
    assert (server(cloud, uuid).host, server(cloud, uuid).power, power(cloud, uuid)) == (to, Power.PAUSED, Power.PAUSED)
    cloud.settle()
    done(cloud, uuid, OperationKind.UNPAUSE)
    assert power(cloud, uuid) is Power.ON
    cloud.settle()


@pytest.mark.parametrize("was", [Power.ON, Power.PAUSED])
def test_a_live_migration_its_driver_refuses_changes_nothing(cloud: World, was: Power) -> None:
    uuid = boot(cloud)
    if was is Power.PAUSED:
        done(cloud, uuid, OperationKind.PAUSE)
    before = disk(cloud, uuid)
    cloud.agents["cell1"].services["a1"].stop(0.0)
    cloud.agents["cell1"].services.pop("a1")
    cloud.start_agent("a1", simulated={"task_failure_rate": 1.0})
    found = cloud.ended(cloud.operate(uuid, OperationKind.LIVE_MIGRATE))
    assert found.outcome is Outcome.GIVEN_UP
    assert "did not go over" in (found.fault or "")
    assert "told to fail the tasks" in (found.fault or "")
    assert (server(cloud, uuid).host, server(cloud, uuid).state, power(cloud, uuid)) == ("a1", "active", was)
    assert disk(cloud, uuid) == before
    cloud.settle()


def test_a_hostless_migration_leaves_server_running_with_reason(cloud: World) -> None:
    uuid = boot(cloud, "b1")
    found = cloud.ended(cloud.operate(uuid, OperationKind.MIGRATE))
    assert found.outcome is Outcome.GIVEN_UP
    assert "No valid host" in (found.fault or "")
    assert (server(cloud, uuid).host, server(cloud, uuid).state, power(cloud, uuid)) == ("b1", "active", Power.ON)
    cloud.settle()


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_resize_waits_for_its_user(cloud: World, confirmed: bool) -> None:
    uuid = boot(cloud)
    operation = cloud.operate(uuid, OperationKind.RESIZE, flavor=LARGE)
    assert cloud.ended(operation).state is OperationState.VERIFY
    assert server(cloud, uuid).host == "a2"
    cloud.settle()
    if confirmed:
        cloud.keeper.ledger.write(steps.confirm_moves, [operation.uuid], cloud.api.current_time())
    else:
        cloud.api.write(steps.revert_moves, [operation.uuid], cloud.api.current_time())
    assert wait_until(lambda: not cloud.evidence().operations, PATIENCE)
    found = cloud.settle()
    assert server(cloud, uuid).host == ("a2" if confirmed else "a1")
    assert power(cloud, uuid) is Power.ON
    assert sum(found.charged.values()) == (4 if confirmed else 1)
    assert cloud.ended(operation).outcome is (Outcome.DONE if confirmed else Outcome.REVERTED)


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_migration_waits_for_its_user_if_requested(cloud: World, confirmed: bool) -> None:
    uuid = boot(cloud)
    operation = cloud.operate(uuid, OperationKind.MIGRATE, args=OperationArgs(verify=True))
    assert cloud.ended(operation).state is OperationState.VERIFY
    assert server(cloud, uuid).host == "a2"
    if confirmed:
        cloud.keeper.ledger.write(steps.confirm_moves, [operation.uuid], cloud.api.current_time())
    else:
        cloud.api.write(steps.revert_moves, [operation.uuid], cloud.api.current_time())
    assert wait_until(lambda: not cloud.evidence().operations, PATIENCE)
    found = cloud.settle()
    assert (server(cloud, uuid).host, power(cloud, uuid)) == ("a2" if confirmed else "a1", Power.ON)
    assert sum(found.charged.values()) == 1
    assert cloud.ended(operation).outcome is (Outcome.DONE if confirmed else Outcome.REVERTED)


def test_a_returning_dead_host_has_no_evacuated_servers(cloud: World) -> None:
    uuid = boot(cloud)
    cloud.agents["cell1"].services.pop("a1").stop(0.0)
    cloud.databases["cell1"].write(services.set_forced_down, "a1", AGENT_BINARY, True, cloud.api.current_time())
    done(cloud, uuid, OperationKind.EVACUATE)
    found = server(cloud, uuid)
    assert (found.host, found.state, power(cloud, uuid)) == ("a2", "active", Power.ON)
    cloud.databases["cell1"].write(services.set_forced_down, "a1", AGENT_BINARY, False, cloud.api.current_time())
    cloud.start_agent("a1")
    assert wait_until(lambda: cloud.agents["cell1"].guests("a1") == [], PATIENCE)
    cloud.settle()


def test_a_moved_server_is_deleted_as_a_whole(cloud: World) -> None:
    uuid = boot(cloud)
    operation = cloud.operate(uuid, OperationKind.RESIZE, flavor=LARGE)
    assert cloud.ended(operation).state is OperationState.VERIFY
    assert cloud.delete(uuid) is not None
    found = cloud.settle()
    assert {row.instance.state for row in found.rows} == {State.DELETED}
    assert found.claims == {}
