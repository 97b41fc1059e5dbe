"""``host evacuate``, ``host drain`` and ``cell drain --wait`` with every role running: what moves, and what is left and why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from db.api.operations import operations
from db.api.operations.operations import OperationQuery
from db.api.servers import edits, mappings
from db.api.servers.edits import Edit
from db.api.servers.mappings import ServerQuery
from db.cell import services
from objects.flavor import Flavor
from objects.instance import State
from objects.operation import Operation, OperationKind, OperationState, Outcome
from objects.process import AGENT_BINARY
from service.periodic import wait_until
from tests.support import fleet
from tests.support.cell_conductor import PATIENCE
from tests.support.commands import Outcome as Said
from tests.support.commands import Shell
from tests.support.world import World, world, world_fixture

SMALL = fleet.flavor(vcpus=1, memory_mb=512, root_gb=1)
LARGE = Flavor(flavor_id="large", name="large", vcpus=4, memory_mb=2048, root_gb=2)
HUGE = fleet.flavor(vcpus=1, memory_mb=60000, root_gb=1)
"""A host has room for one."""


cloud = world_fixture(prepare=World.start)


@pytest.fixture
def shell(cloud: World, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(cloud.folder.path, capsys)


def boot(cloud: World, host: str = "a1", count: int = 1, size: Flavor = SMALL) -> list[str]:
    spec = cloud.accept(count, force_hosts=(host,), size=size)
    assert wait_until(lambda: {each.state for each in cloud.api.read(mappings.of_batch, spec.batch_id)} == {"active"}, PATIENCE)
    return cloud.uuids(spec)


def hosts(cloud: World) -> dict[str, str | None]:
    """The host of each server."""
    return {each.uuid: each.host for each in cloud.api.read(mappings.list_, ServerQuery())}


def done(cloud: World, uuid: str, kind: OperationKind) -> None:
    assert cloud.ended(cloud.operate(uuid, kind)).outcome is Outcome.DONE


def left(said: Said) -> dict[str, str]:
    """The reason of each server that is left."""
    assert said.status == 1, said
    return {row["Server"]: row["Reason"] for row in json.loads(said.out)}


def kill(cloud: World, host: str, *, declared: bool = True) -> None:
    """The host's agent is no more."""
    cell = cloud.homes[host]
    cloud.agents[cell].services.pop(host).stop(0.0)
    if declared:
        cloud.databases[cell].write(services.set_forced_down, host, AGENT_BINARY, True, cloud.api.current_time())


def come_back(cloud: World, host: str) -> None:
    """The host's agent runs again, and destroys what runs elsewhere."""
    cell = cloud.homes[host]
    cloud.databases[cell].write(services.set_forced_down, host, AGENT_BINARY, False, cloud.api.current_time())
    cloud.start_agent(host)
    assert wait_until(lambda: cloud.agents[cell].guests(host) == [], PATIENCE)
    cloud.settle()


def history(cloud: World) -> list[Operation]:
    return cloud.api.read(operations.list_, OperationQuery(include_ended=True))


def summary(said: Said) -> str:
    """The last line on standard error. The roles that run in this process log there, too."""
    return said.err.splitlines()[-1].removeprefix("superconductor: ")


# -- evacuate ----------------------------------------------------------------------------------------------------------------------


def test_servers_of_a_dead_host_start_elsewhere(cloud: World, shell: Shell) -> None:
    uuids = boot(cloud, count=4)
    done(cloud, uuids[0], OperationKind.STOP)
    done(cloud, uuids[1], OperationKind.PAUSE)
    assert "Host 'a1' is up: make sure that its guests do not run any more, then give --dead" in shell.refused("host evacuate a1")
    kill(cloud, "a1", declared=False)
    said = shell("host evacuate a1 --dead --jobs 2")
    assert (said.status, said.out, summary(said)) == (0, "", "Host 'a1': 4 servers were moved, 0 are left")
    assert hosts(cloud) == dict.fromkeys(uuids, "a2")
    assert {(each.kind, each.forced) for each in history(cloud)} == {("stop", False), ("pause", False), ("evacuate", True)}
    assert shell("host evacuate a1").status == 0
    come_back(cloud, "a1")


def test_servers_without_a_host_stay_with_the_reason(cloud: World, shell: Shell) -> None:
    [stays] = boot(cloud, size=HUGE)
    boot(cloud, "a2", size=HUGE)
    kill(cloud, "a1")
    assert "No valid host" in left(shell("host evacuate a1 -f json"))[stays]
    assert hosts(cloud)[stays] == "a1"
    assert "Host 'b1' is in cell 'cell2', not in 'cell1': give --cross-cell" in shell.refused("host evacuate a1 --to b1")
    said = shell("host evacuate a1 --cross-cell --to b1")
    assert said.status == 0, said
    assert hosts(cloud)[stays] == "b1"
    come_back(cloud, "a1")


def test_a_migration_from_a_dead_host_ends_first(cloud: World, shell: Shell) -> None:
    [uuid] = boot(cloud)
    kill(cloud, "a1")
    migration = cloud.operate(uuid, OperationKind.MIGRATE, timeout=3600.0)
    assert wait_until(lambda: [each.state for each in history(cloud)] == [OperationState.HOLDING], PATIENCE)
    assert shell("host evacuate a1").status == 0
    assert cloud.ended(migration).fault == "The server's host was called dead."
    assert hosts(cloud) == {uuid: "a2"}
    come_back(cloud, "a1")


def test_servers_may_be_evacuated_without_waiting(cloud: World, shell: Shell) -> None:
    uuids = boot(cloud, count=3)
    kill(cloud, "a1")
    said = shell("host evacuate a1 --no-wait --jobs 1 -f json")
    assert (said.status, json.loads(said.out)) == (0, [])
    assert summary(said) == "Host 'a1': 3 moves are under way: see 'operation list', 0 were not accepted"
    assert {each.server_uuid for each in history(cloud)} == set(uuids)
    assert wait_until(lambda: hosts(cloud) == dict.fromkeys(uuids, "a2"), PATIENCE)
    come_back(cloud, "a1")


def test_a_host_is_declared_dead_and_evacuated_together(cloud: World, shell: Shell) -> None:
    uuids = boot(cloud, count=2)
    kill(cloud, "a1", declared=False)
    assert shell("host set a1 --down --evacuate").status == 0
    assert wait_until(lambda: hosts(cloud) == dict.fromkeys(uuids, "a2"), PATIENCE)
    come_back(cloud, "a1")
    assert "--evacuate needs --down" in shell.refused("host set a1 --up --evacuate")


# -- drain -------------------------------------------------------------------------------------------------------------------------


def test_a_drained_host_neither_has_nor_accepts_servers(cloud: World, shell: Shell) -> None:
    uuids = boot(cloud, count=5)
    done(cloud, uuids[0], OperationKind.STOP)
    cloud.api.write(
        edits.change_server, uuids[1], lambda *_: Edit(locked_by=edits.OWNER), project_id=None, now=cloud.api.current_time()
    )
    said = shell("host drain a1 --jobs 2")
    assert (said.status, summary(said)) == (0, "Host 'a1': 5 servers were moved, 0 are left")
    assert hosts(cloud) == dict.fromkeys(uuids, "a2")
    assert cloud.databases["cell1"].read(services.get, "a1", AGENT_BINARY).disabled_reason == "draining"
    assert len({each.request_id for each in history(cloud) if each.kind == "migrate"}) == 1
    cloud.settle()
    assert shell("host drain a2").status == 1, "a1 takes no servers"
    assert shell("host drain a2 --cross-cell").status == 0
    assert hosts(cloud) == dict.fromkeys(uuids, "b1")


def test_running_servers_migrate_live_on_request(cloud: World, shell: Shell) -> None:
    runs, stopped, paused = boot(cloud, count=3)
    done(cloud, stopped, OperationKind.STOP)
    done(cloud, paused, OperationKind.PAUSE)
    assert shell("host drain a1 --live").status == 0
    assert hosts(cloud) == {runs: "a2", stopped: "a2", paused: "a2"}
    kinds = {each.server_uuid: each.kind for each in history(cloud) if each.kind.is_move}
    assert kinds == {runs: OperationKind.LIVE_MIGRATE, stopped: OperationKind.MIGRATE, paused: OperationKind.LIVE_MIGRATE}
    cloud.settle()


def test_unmovable_servers_stay_with_the_reason(cloud: World, shell: Shell) -> None:
    paused, resized, plain = boot(cloud, count=3)
    done(cloud, paused, OperationKind.PAUSE)
    resize = cloud.operate(resized, OperationKind.RESIZE, flavor=LARGE)
    assert cloud.ended(resize).state is OperationState.VERIFY
    assert left(shell("host drain a1 -f json")) == {
        paused: "it is paused: a server is migrated while it is active or stopped, and with --live while it is paused",
        resized: f"its resize waits for its user: 'move confirm' or 'move revert' {resize.uuid}",
    }
    assert hosts(cloud) == {paused: "a1", resized: "a2", plain: "a2"}
    done(cloud, paused, OperationKind.UNPAUSE)
    assert shell("host drain a1 --confirm").status == 0
    assert set(hosts(cloud).values()) == {"a2"}
    cloud.settle()


def test_a_server_shelved_on_its_host_leaves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A drain does not wait until its time has come."""
    with world(tmp_path, {"cell1": ["a1", "a2"]}) as cloud:
        cloud.start(msgspec.structs.replace(cloud.quick, shelved_offload_time=-1.0))
        [server] = boot(cloud)
        shelve = cloud.operate(server, OperationKind.SHELVE)
        assert wait_until(lambda: cloud.api.read(operations.get, [shelve.uuid])[0].state is OperationState.SHELVED, PATIENCE)
        assert Shell(cloud.folder.path, capsys)("host drain a1 -f json").status == 0
        assert cloud.ended(shelve).outcome is Outcome.DONE
        found = cloud.api.read(mappings.get, server)
        assert found is not None
        assert found.state == "shelved"


def test_a_busy_server_is_waited_for(cloud: World, shell: Shell) -> None:
    [busy] = boot(cloud)
    stop = cloud.operate(busy, OperationKind.STOP)
    assert shell("host drain a1").status == 0
    assert cloud.ended(stop).outcome is Outcome.DONE
    assert hosts(cloud) == {busy: "a2"}
    cloud.settle()


def test_the_time_may_be_limited(cloud: World, shell: Shell) -> None:
    [busy] = boot(cloud)
    kill(cloud, "a1", declared=False)
    stop = cloud.operate(busy, OperationKind.STOP)
    assert left(shell("host drain a1 --timeout 1 -f json")) == {busy: f"its stop is in state task: operation {stop.uuid}"}


def test_a_dead_host_is_not_drained(cloud: World, shell: Shell) -> None:
    kill(cloud, "a1")
    assert "Host 'a1' is dead, and cannot send its servers: use 'host evacuate'" in shell.refused("host drain a1")
    assert not cloud.databases["cell1"].read(services.get, "a1", AGENT_BINARY).disabled


def test_a_killed_command_is_continued_by_the_next(cloud: World, shell: Shell) -> None:
    uuids = boot(cloud, count=6)
    words = [sys.executable, "-m", "cli", "--state", str(cloud.folder.path), "host", "drain", "a1", "--jobs", "1"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as command:
        assert wait_until(lambda: len(history(cloud)) >= 2, PATIENCE)
        command.kill()
    assert shell("host drain a1").status == 0
    assert hosts(cloud) == dict.fromkeys(uuids, "a2")
    assert sorted(each.server_uuid for each in history(cloud)) == sorted(uuids), "each was migrated once"
    cloud.settle()


# -- cells -------------------------------------------------------------------------------------------------------------------------


def test_a_drained_cell_is_empty(cloud: World, shell: Shell) -> None:
    """From a dead host and a live one. A server in ERROR can only be deleted."""
    live, dead = boot(cloud, count=3), boot(cloud, "a2", count=2)
    cloud.agents["cell1"].drivers["a2"].raises = OSError("the disk is broken")
    [failed] = cloud.uuids(cloud.accept(force_hosts=("a2",), size=SMALL))
    assert wait_until(lambda: [row.state for row in cloud.rows(failed).values()] == [State.ERROR], PATIENCE)
    kill(cloud, "a2", declared=False)
    shell("host set a2 --down")
    assert left(shell("cell drain cell1 --wait -f json")) == {failed: "it is in ERROR: it can only be deleted"}
    assert {uuid: hosts(cloud)[uuid] for uuid in (*live, *dead)} == dict.fromkeys((*live, *dead), "b1")
    cloud.delete(failed)
    said = shell("cell drain cell1 --wait")
    assert (said.status, summary(said)) == (0, "Cell 'cell1': 0 servers were moved, 0 are left")
    come_back(cloud, "a2")


def test_a_cell_without_destination_retains_its_servers(cloud: World, shell: Shell) -> None:
    uuids = boot(cloud, count=2)
    shell.done("cell disable cell2")
    reasons = left(shell("cell drain cell1 --wait -f json"))
    assert set(reasons) == set(uuids)
    assert all("No valid host" in reason for reason in reasons.values())
    assert hosts(cloud) == dict.fromkeys(uuids, "a1")
    cloud.settle()
