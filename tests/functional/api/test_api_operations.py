"""Operations over HTTP: what is accepted and refused, how a server is shown meanwhile, and how lists find it."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import falcon.testing
import msgspec
import pytest
import sqlalchemy as sa

from db.api.deployment import aggregates, host_mappings
from db.api.operations import operations, steps
from db.api.projects import flavors, quotas
from db.api.rows.tables import instance_mappings
from db.api.rows.tables import operations as table
from db.api.servers import mappings
from db.api.servers.listing import ServerQuery
from db.sql.engine import NestedWrite
from objects import phase
from objects.cell import HostMapping
from objects.destination import Destination
from objects.flavor import Flavor
from objects.instance import Server
from objects.operation import CALLED_FAILED, Operation, OperationArgs, OperationKind, OperationState, Outcome
from objects.phase import ServerPhase
from objects.quota import QuotaUsage
from objects.spec import RequestSpec
from objects.task import Power, TaskState
from service.periodic import wait_until
from tests.support.api import CELL1_UUID, IMAGE, NEWEST, OTHER_TENANT, TENANT, Front, refusal, with_status
from tests.support.fronts import front_fixture
from tests.support.ground import USUAL

NEW = TENANT | NEWEST
ADMIN = NEWEST | {"X-Project-Id": "operators", "X-Roles": "admin"}
READER = NEW | {"X-Roles": "reader"}
SHELVE_STATES = (OperationState.TASK, OperationState.SHELVED, OperationState.STARTING)
UNSHELVING = OperationKind.UNSHELVE, OperationState.BUILDING
LARGE = Flavor(flavor_id="9", name="large", vcpus=8, memory_mb=4096, root_gb=10)
LIVE = {"host": None, "block_migration": "auto"}


def at(version: str) -> dict[str, str]:
    return {"OpenStack-API-Version": f"compute {version}"}


front = front_fixture(grounds=USUAL, images=True)


@pytest.fixture
def server(front: Front) -> str:
    """A server that is ACTIVE on host h1."""
    return booted(front)


def booted(front: Front, **fields: Any) -> str:
    uuid = front.boot("web", TENANT, **fields)
    front.bring_up(uuid)
    return uuid


def act(front: Front, server: str, action: str, value: Any = None, headers: dict[str, str] | None = None) -> falcon.testing.Result:
    path = f"/v2.1/servers/{server}/action"
    return front.client.simulate_post(path, headers=headers or NEW, json={action: value})


def shown(front: Front, server: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    document: dict[str, Any] = front.get(f"/v2.1/servers/{server}", headers or NEW).json["server"]
    return document


def listed(front: Front, **params: str) -> list[str]:
    return [server["id"] for server in front.get("/v2.1/servers/detail", NEW, **params).json["servers"]]


def the_operation(front: Front, server: str) -> Operation:
    found = front.database.read(operations.open_for, [server])
    return found[server]


def write(front: Front, server: str, **values: Any) -> None:
    statement = sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == server).values(**values)
    front.database.write(lambda tx: tx.execute(statement))


# -- accepted ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "value", "kind", "task"),
    [
        ("os-stop", None, OperationKind.STOP, "powering-off"),
        ("pause", None, OperationKind.PAUSE, "pausing"),
        ("suspend", None, OperationKind.SUSPEND, "suspending"),
        ("reboot", {"type": "SOFT"}, OperationKind.REBOOT, "rebooting"),
        ("reboot", {"type": "HARD"}, OperationKind.REBOOT, "rebooting_hard"),
        ("resize", {"flavorRef": "9"}, OperationKind.RESIZE, "resize_prep"),
        ("rebuild", {"imageRef": IMAGE}, OperationKind.REBUILD, "rebuilding"),
    ],
)
def test_a_member_operates_its_servers(front: Front, server: str, action: str, value: Any, kind: OperationKind, task: str) -> None:
    front.database.write(flavors.create, LARGE)
    answer = with_status(act(front, server, action, value), 202)
    operation = the_operation(front, server)
    assert (operation.kind, operation.request_id) == (kind, answer.headers["x-openstack-request-id"])
    assert shown(front, server)["OS-EXT-STS:task_state"] == task
    action_list = front.get(f"/v2.1/servers/{server}/os-instance-actions", NEW).json["instanceActions"]
    assert [entry["action"] for entry in action_list] == [str(kind), "create"]
    assert listed(front, task_state=task) == [server]
    assert listed(front, task_state="unpausing") == []
    assert listed(front, vm_state="active", power_state="1") == [server]
    assert listed(front, vm_state="stopped") == []


@pytest.mark.parametrize(("power", "has_progress"), [("on", True), ("off", False), ("paused", False), ("suspended", False)])
def test_progress_is_of_some_statuses_only(front: Front, server: str, power: str, has_progress: bool) -> None:
    """As in the Compute API: clients fail at one of a stopped server."""
    write(front, server, last_number=4, power=power)
    [found] = front.get("/v2.1/servers/detail", NEW).json["servers"]
    assert ("progress" in found) is has_progress


def test_a_rebuild_changes_the_server_with_its_disk(front: Front, server: str) -> None:
    """Name, description and metadata; the key pair that it has may be named, since 2.54."""
    value = {"imageRef": IMAGE, "name": "other", "description": "new", "metadata": {"a": "b"}, "key_name": None}
    answer = with_status(act(front, server, "rebuild", value | {"trusted_image_certificates": None}), 202)
    rebuilt = answer.json["server"]
    assert (rebuilt["name"], rebuilt["description"], rebuilt["metadata"]) == ("other", "new", {"a": "b"})
    assert rebuilt["image"]["id"] == IMAGE
    assert (rebuilt["key_name"], rebuilt["user_data"], rebuilt["progress"]) == (None, None, 0)
    assert shown(front, server)["name"] == "other"


def test_a_rebuild_returns_all_fields_since_2_75(front: Front, server: str) -> None:
    for version, is_whole in (("2.74", False), ("2.75", True)):
        rebuilt = act(front, booted(front), "rebuild", {"imageRef": IMAGE}, ADMIN | at(version)).json["server"]
        assert {"OS-EXT-AZ:availability_zone", "OS-EXT-SRV-ATTR:host", "host_status"} <= rebuilt.keys() or not is_whole
        assert ("config_drive" in rebuilt) is is_whole
        assert {"server_groups", "key_name", "user_data", "locked_reason"} <= rebuilt.keys()
        assert "OS-EXT-SRV-ATTR:user_data" not in rebuilt


def test_a_refused_rebuild_changes_nothing(front: Front, server: str) -> None:
    value = {"imageRef": IMAGE, "name": "other"}
    assert "rebuild.key_name" in refusal(act(front, server, "rebuild", value | {"key_name": "k"}), 400)
    assert "only null" in refusal(act(front, server, "rebuild", value | {"trusted_image_certificates": ["c"]}), 400)
    many = {f"k{number}": "v" for number in range(129)}
    assert "metadata" in refusal(act(front, server, "rebuild", value | {"metadata": many}), 403)
    act(front, server, "os-stop", None)
    assert act(front, server, "rebuild", value).status_code == 409
    assert shown(front, server)["name"] == "web"


def test_migrations_and_evacuations_are_for_administrators(front: Front, server: str) -> None:
    for action, value in (("migrate", None), ("os-migrateLive", LIVE), ("evacuate", {}), ("os-resetState", {"state": "active"})):
        assert act(front, server, action, value).status_code == 403
    assert act(front, server, "migrate", {"superconductor:cross_cell": True}, ADMIN).status_code == 202
    operation = the_operation(front, server)
    assert (operation.kind, operation.args.cross_cell, operation.source_host) == (OperationKind.MIGRATE, True, "h1")
    assert shown(front, server)["status"] == "RESIZE"
    assert len(listed(front)) == 1, "the twin is hidden"


def test_a_paused_server_is_shown_paused_while_migrating(front: Front, server: str) -> None:
    write(front, server, power=Power.PAUSED)
    assert act(front, server, "os-migrateLive", LIVE, ADMIN).status_code == 202
    write(front, server, power=Power.HELD)  # while the guest goes over
    found = shown(front, server, ADMIN)
    assert [found[f"OS-EXT-STS:{name}"] for name in ("vm_state", "task_state", "power_state")] == ["paused", "migrating", 3]
    for name, value in (("vm_state", "paused"), ("power_state", "3")):
        assert listed(front, **{name: value}) == [server], name


def test_network_information_is_injected_by_changing_nothing(front: Front) -> None:
    uuid = front.boot("web", TENANT)
    assert "vm_state building" in refusal(act(front, uuid, "injectNetworkInfo", headers=ADMIN), 409)
    assert act(front, str(uuid4()), "injectNetworkInfo", headers=ADMIN).status_code == 404
    server = booted(front)
    before = shown(front, server, ADMIN)
    assert act(front, server, "injectNetworkInfo", headers=ADMIN).status_code == 202
    assert act(front, server, "injectNetworkInfo", headers=NEW | {"X-Roles": "member"}).status_code == 403
    assert shown(front, server, ADMIN) == before


def test_a_live_migrating_server_is_shown_as_running(front: Front, server: str) -> None:
    assert act(front, server, "os-migrateLive", LIVE, ADMIN).status_code == 202
    assert the_operation(front, server).kind is OperationKind.LIVE_MIGRATE
    write(front, server, power=Power.HELD)  # while the guest goes over
    found = shown(front, server, ADMIN)
    assert (found["status"], found["OS-EXT-STS:task_state"], found["OS-EXT-STS:power_state"]) == ("MIGRATING", "migrating", 1)
    assert found["OS-EXT-STS:vm_state"] == "active"
    for name, value in (("status", "MIGRATING"), ("task_state", "migrating"), ("power_state", "1"), ("vm_state", "active")):
        assert listed(front, **{name: value}) == [server], name
    actions = front.get(f"/v2.1/servers/{server}/os-instance-actions", NEW).json["instanceActions"]
    assert [entry["action"] for entry in actions] == ["live-migration", "create"]


# -- refused -----------------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("action", "value", "headers", "status", "words"),
    [
        ("os-start", None, NEW, 409, "Cannot 'start' instance"),
        ("unpause", None, NEW, 409, "vm_state active"),
        ("reboot", {"type": "GENTLY"}, NEW, 400, "reboot"),
        ("reboot", None, NEW, 400, "reboot"),
        ("resize", {"flavorRef": "unknown"}, NEW, 400, "could not be found"),
        ("resize", {"flavorRef": "1"}, NEW, 400, "has this flavor already"),
        ("resize", {"flavorRef": "1", "superconductor:cross_cell": True}, NEW, 403, "cross_cell"),
        ("rebuild", {"imageRef": "no uuid"}, NEW, 400, "imageRef"),
        ("rebuild", {"imageRef": "11111111-1111-4111-8111-111111111111", "adminPass": "x"}, NEW, 400, "[secrets] keys"),
        ("rebuild", {"imageRef": IMAGE, "user_data": "eA=="}, NEW, 400, "[secrets] keys"),
        ("confirmResize", None, NEW, 409, "not waiting for a resize"),
        ("revertResize", None, NEW, 409, "not waiting for a resize"),
        ("migrate", {"host": "h1"}, ADMIN, 400, "host"),
        ("migrate", {"host": "nowhere"}, ADMIN, 400, "Compute host nowhere could not be found"),
        ("migrate", {"host": "no such name"}, ADMIN, 400, "host"),
        ("evacuate", {"force": True, "host": "h2"}, ADMIN | at("2.67"), 400, "only false"),
        ("evacuate", {"force": False}, ADMIN | at("2.68"), 400, "evacuate.force: is not a field"),
        ("os-migrateLive", {"host": "h1", "block_migration": "auto"}, ADMIN, 400, "host"),
        ("os-migrateLive", {"host": None, "block_migration": False}, ADMIN, 400, "only true and auto"),
        ("os-migrateLive", {"host": None, "block_migration": "auto", "force": True}, ADMIN | at("2.67"), 400, "only false"),
        ("os-migrateLive", LIVE | {"force": False}, ADMIN | at("2.68"), 400, "os-migrateLive.force: is not a field"),
        ("os-migrateLive", {"host": None, "block_migration": "auto", "disk_over_commit": False}, ADMIN, 400, "disk_over_commit"),
        ("os-migrateLive", None, ADMIN, 400, "os-migrateLive"),
        ("os-resetState", {"state": "error"}, TENANT | NEWEST, 403, "reset_state"),
        ("os-resetState", {"state": "active"}, ADMIN, 409, "Cannot 'reset'"),
        ("os-stop", None, READER, 403, ""),
        ("os-stop", None, OTHER_TENANT | NEWEST, 404, "could not be found"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(
    front: Front, server: str, action: str, value: Any, headers: dict[str, str], status: int, words: str
) -> None:
    before = front.database.read(mappings.get, server)
    assert words in refusal(act(front, server, action, value, headers), status)
    assert front.database.read(mappings.get, server) == before
    assert front.database.read(operations.of_server, server) == []


def test_a_second_operation_waits_for_the_first(front: Front, server: str) -> None:
    assert act(front, server, "os-stop").status_code == 202
    assert the_operation(front, server).uuid in refusal(act(front, server, "reboot", {"type": "HARD"}), 409)


def test_the_state_is_judged_before_unserved_fields(front: Front, server: str) -> None:
    """As Nova does: clients take 409 as a reason to try again later, and 400 as their own mistake."""
    assert act(front, server, "suspend").status_code == 202
    assert "Cannot" in refusal(act(front, server, "os-migrateLive", {"host": None, "block_migration": False}, ADMIN), 409)


def test_a_locked_server_is_operated_by_administrators_only(front: Front, server: str) -> None:
    assert act(front, server, "lock").status_code == 202
    assert "locked" in refusal(act(front, server, "os-stop"), 409)
    assert act(front, server, "os-stop", None, ADMIN).status_code == 202


def test_a_server_active_in_its_cell_accepts_operations(front: Front) -> None:
    """Before its feed was read, which then changes nothing."""
    uuid = front.boot("web", TENANT)
    front.hand_over()
    front.accept(uuid)
    assert "vm_state building" in refusal(act(front, uuid, "os-stop"), 409)
    front.activate_accepted(uuid)
    assert shown(front, uuid)["status"] == "ACTIVE"
    assert act(front, uuid, "os-stop").status_code == 202
    before = front.database.read(mappings.get, uuid)
    front.follow_feed()
    assert front.database.read(mappings.get, uuid) == before
    assert before is not None
    assert (before.state, before.host) == ("active", "h1")


def test_an_action_during_a_build_ignores_silent_cells(front: Front) -> None:
    uuid = front.boot("web", TENANT)
    front.hand_over()
    front.activate(uuid)
    front.cell.close()
    front.registry.close()
    assert act(front, uuid, "os-stop").status_code == 409


def test_a_server_that_is_not_built_is_refused(front: Front) -> None:
    queued = front.boot("queued", TENANT)
    assert "vm_state building" in refusal(act(front, queued, "os-stop"), 409)
    front.bury("No valid host was found.")
    assert "vm_state error" in refusal(act(front, queued, "os-start"), 409)


@pytest.mark.parametrize(("heard", "status"), [(True, 400), (False, 200)])
def test_only_servers_on_dead_hosts_are_evacuated(front: Front, server: str, heard: bool, status: int) -> None:
    front.heartbeat("h1", None if heard else 1.0)
    answer = act(front, server, "evacuate", {}, ADMIN)
    assert answer.status_code == status, answer.text
    if heard:
        assert "still in use" in refusal(answer, 400)
    else:
        assert shown(front, server)["status"] == "REBUILD"


@pytest.mark.parametrize(("value", "waits"), [(None, True), ({"superconductor:verify": "false"}, False)])
def test_a_migration_waits_for_its_user_by_default(front: Front, server: str, value: object, waits: bool) -> None:
    assert act(front, server, "migrate", value, ADMIN).status_code == 202
    assert the_operation(front, server).waits_for_user is waits


def test_a_forced_delete_takes_the_operation_along(front: Front, server: str) -> None:
    assert act(front, server, "migrate", None, ADMIN).status_code == 202
    assert act(front, server, "forceDelete").status_code == 202
    assert front.get(f"/v2.1/servers/{server}", NEW).status_code == 404
    assert front.database.read(operations.open_for, [server]) == {}


@contextmanager
def the_cell_answers(front: Front, server: str) -> Iterator[None]:
    """Meanwhile the conductor asks the cell to give the open task up, and reads that it has."""

    def conduct() -> None:
        operation = the_operation(front, server)
        if operation.kind is not OperationKind.FAIL:
            assert wait_until(lambda: the_operation(front, server).state is OperationState.STARTING, 90.0)
            write(front, server, task_number=operation.number + 3, task_state="done")
        else:
            write(front, server, task_number=operation.number, task_state="failed")
        front.database.write(steps.finish_tasks, [operation.uuid], 1.0)

    conductor = threading.Thread(target=conduct)
    conductor.start()
    yield
    conductor.join(60)


def test_a_reset_gives_up_the_open_task(front: Front, server: str) -> None:
    assert act(front, server, "os-stop").status_code == 202
    stop = the_operation(front, server)
    with the_cell_answers(front, server):
        assert act(front, server, "os-resetState", {"state": "error"}, ADMIN).status_code == 202
    assert the_operation(front, server).kind is OperationKind.FAIL
    [ended] = front.database.read(operations.get, [stop.uuid])
    assert ended.outcome is Outcome.GIVEN_UP
    assert shown(front, server)["status"] == "ERROR"

    with the_cell_answers(front, server):
        assert act(front, server, "os-resetState", {"state": "active"}, ADMIN).status_code == 202
    assert the_operation(front, server).kind is OperationKind.RESET


@contextmanager
def ended_when_refused(front: Front, server: str) -> Iterator[None]:
    """The open operation ends after the request was refused because of it, and before it is looked at."""
    operation = the_operation(front, server)
    was_in_write, is_over = False, False

    def end(connection: sa.Connection, cursor: Any, statement: str, *rest: Any) -> None:
        nonlocal was_in_write, is_over
        if is_over or "operations" not in statement:
            return
        try:
            front.database.write(lambda tx: None)
        except NestedWrite:
            was_in_write = True
            return
        if was_in_write:
            is_over = True
            write(front, server, task_number=operation.number, task_state="failed")
            front.database.write(steps.finish_tasks, [operation.uuid], 1.0)

    sa.event.listen(sa.Engine, "before_cursor_execute", end)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", end)
    assert is_over


def test_a_task_ending_meanwhile_does_not_refuse_resets(front: Front, server: str) -> None:
    assert act(front, server, "os-resetState", {"state": "error"}, ADMIN).status_code == 202
    with ended_when_refused(front, server):
        assert act(front, server, "os-resetState", {"state": "active"}, ADMIN).status_code == 202
    assert the_operation(front, server).kind is OperationKind.RESET


def test_what_follows_a_reset_waits_for_its_end(front: Front, server: str) -> None:
    """Nova resets the state before it answers, so clients go on at once."""
    assert act(front, server, "os-resetState", {"state": "error"}, ADMIN).status_code == 202
    fail = the_operation(front, server)

    def conduct() -> None:
        time.sleep(0.3)  # the rebuild waits meanwhile
        write(front, server, task_number=fail.number, task_state="failed")
        front.database.write(steps.finish_tasks, [fail.uuid], 1.0)

    conductor = threading.Thread(target=conduct)
    conductor.start()
    answer = act(front, server, "rebuild", {"imageRef": IMAGE})
    conductor.join(60)
    assert answer.status_code == 202, answer.text
    assert the_operation(front, server).kind is OperationKind.REBUILD


def test_a_healthy_servers_reset_ends_its_task(front: Front, server: str) -> None:
    assert act(front, server, "reboot", {"type": "HARD"}).status_code == 202
    with the_cell_answers(front, server):
        assert act(front, server, "os-resetState", {"state": "active"}, ADMIN).status_code == 202
    assert front.database.read(operations.open_for, [server]) == {}
    assert shown(front, server)["status"] == "ACTIVE"


def test_a_reset_during_moves_or_silence_is_refused(front: Front, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.servers.operate.END_WAIT_S", 0.1)
    assert act(front, server, "os-stop").status_code == 202
    assert "while its stop is in state task" in refusal(act(front, server, "os-resetState", {"state": "error"}, ADMIN), 409)
    other = booted(front)
    assert act(front, other, "migrate", None, ADMIN).status_code == 202
    assert "while its migrate is in state placing" in refusal(act(front, other, "os-resetState", {"state": "error"}, ADMIN), 409)
    assert the_operation(front, other).state is OperationState.PLACING


# -- shelved -----------------------------------------------------------------------------------------------------------------


def saved(front: Front, server: str) -> None:
    """The cell has told that the snapshot is complete, and a sweep has read it."""
    operation = the_operation(front, server)
    write(front, server, power="held", task_number=operation.number, task_state="done")
    front.database.write(steps.finish_tasks, [operation.uuid], 1.0)


def test_without_an_image_store_nothing_is_shelved(tmp_path: Path) -> None:
    bare = Front(tmp_path)
    server = booted(bare)
    assert "no image store is configured: set [images] folder" in refusal(act(bare, server, "shelve"), 409)
    assert bare.database.read(operations.open_for, [server]) == {}
    assert act(bare, "11111111-1111-4111-8111-111111111111", "shelve").status_code == 404
    bare.close()


def test_a_server_is_shelved_and_unshelved(front: Front, server: str) -> None:
    project = shown(front, server)["tenant_id"]
    used = front.database.read(quotas.get, project).used
    assert act(front, server, "shelve").status_code == 202
    assert (shown(front, server)["status"], shown(front, server)["OS-EXT-STS:task_state"]) == ("ACTIVE", "shelving")
    saved(front, server)
    assert (shown(front, server)["status"], shown(front, server)["OS-EXT-STS:vm_state"]) == ("SHELVED", "shelved")
    assert listed(front, status="SHELVED") == listed(front, vm_state="shelved") == [server]
    for action, value in (("reboot", {"type": "HARD"}), ("shelve", None), ("resize", {"flavorRef": "1"})):
        assert "while its shelve is in state shelved" in refusal(act(front, server, action, value), 409)
    assert "while it is in vm_state shelved" in refusal(act(front, server, "os-start"), 409)
    assert act(front, server, "shelveOffload").status_code == 403
    assert act(front, server, "shelveOffload", None, ADMIN).status_code == 202

    found = shown(front, server, ADMIN)
    assert (found["status"], found["OS-EXT-STS:vm_state"], found["OS-EXT-STS:power_state"]) == (
        "SHELVED_OFFLOADED",
        "shelved_offloaded",
        4,
    )
    assert (found["OS-EXT-SRV-ATTR:host"], found["hostId"], found["OS-EXT-STS:task_state"]) == (None, "", None)
    assert listed(front, status="SHELVED_OFFLOADED") == listed(front, vm_state="shelved_offloaded", power_state="4") == [server]
    assert listed(front, status="SHELVED") == []
    assert front.database.read(quotas.get, project).used == used
    for action, value in (("os-start", None), ("reboot", {"type": "HARD"}), ("shelve", None), ("evacuate", {})):
        assert "while it is in vm_state shelved_offloaded" in refusal(act(front, server, action, value, ADMIN), 409)
    assert "it is not shelved on a host" in refusal(act(front, server, "shelveOffload", None, ADMIN), 409)
    assert act(front, server, "lock").status_code == 202
    assert act(front, server, "unshelve").status_code == 409
    assert act(front, server, "unlock").status_code == 202
    explained = front.get(f"/v2.1/servers/{server}/explanation", NEW).json["explanation"]
    assert explained["message"] == "The server is shelved: it is on no host."
    status = front.get("/v2.1/superconductor/status", ADMIN).json["status"]
    assert (status["shelved"], status["queue"]["servers"]) == (1, {})

    assert act(front, server, "unshelve").status_code == 202
    assert (shown(front, server)["status"], shown(front, server)["OS-EXT-STS:task_state"]) == ("SHELVED_OFFLOADED", "unshelving")
    actions = front.get(f"/v2.1/servers/{server}/os-instance-actions", NEW).json["instanceActions"]
    assert [entry["action"] for entry in actions] == ["unshelve", "shelve", "create"]
    assert front.client.simulate_delete(f"/v2.1/servers/{server}", headers=NEW).status_code == 204
    assert front.get(f"/v2.1/servers/{server}", NEW).status_code == 404
    assert front.database.read(quotas.get, project).used == QuotaUsage()


def test_an_offloaded_server_is_unshelved_to_a_zone(front: Front, server: str) -> None:
    """Since 2.77, and where that must exist."""
    front.database.write(aggregates.create, "north", {"availability_zone": "north"})
    north = {"availability_zone": "north"}
    assert act(front, server, "shelve").status_code == 202
    saved(front, server)
    assert "before it is SHELVED_OFFLOADED" in refusal(act(front, server, "unshelve", north), 409)
    assert act(front, server, "shelveOffload", None, ADMIN).status_code == 202
    assert "is required" in refusal(act(front, server, "unshelve", {}, NEW | at("2.77")), 400)
    assert "could not be found" in refusal(act(front, server, "unshelve", {"availability_zone": "south"}), 400)
    assert act(front, server, "unshelve", north).status_code == 202
    body, spec = twin_of(front, server)
    assert (body.availability_zone, spec.availability_zone) == ("north", "north")


def offloaded(front: Front, server: str) -> None:
    assert act(front, server, "shelve").status_code == 202
    saved(front, server)
    assert act(front, server, "shelveOffload", None, ADMIN).status_code == 202


def twin_of(front: Front, server: str) -> tuple[Server, RequestSpec]:
    """The body that its open operation makes, and the request for it."""
    twin = the_operation(front, server).twin_uuid
    assert twin is not None
    [body] = front.database.read(mappings.of_bodies, [twin])
    [spec] = front.database.read(mappings.specs_by_batch, [body.batch_id]).values()
    return body, spec


def test_an_offloaded_server_may_leave_its_zone(front: Front) -> None:
    """Since 2.91; the host is for administrators, and pins nothing."""
    front.database.write(host_mappings.add_mappings, [HostMapping(host="h1", cell_uuid=CELL1_UUID)], 1.0)
    front.database.write(aggregates.create, "north", {"availability_zone": "north"})
    server = front.boot("web", TENANT, availability_zone="north")
    front.hand_over(zone="north")
    front.activate(server)
    front.follow_feed()
    assert shown(front, server)["pinned_availability_zone"] == "north"
    offloaded(front, server)
    assert shown(front, server)["pinned_availability_zone"] == "north"
    host: dict[str, Any] = {"host": "h1"}
    assert act(front, server, "unshelve", host).status_code == 403
    assert act(front, server, "unshelve", host, ADMIN | at("2.90")).status_code == 400
    assert "could not be found" in refusal(act(front, server, "unshelve", {"host": "h9"}, ADMIN), 400)
    assert act(front, server, "unshelve", host | {"availability_zone": None}, ADMIN).status_code == 202
    _, spec = twin_of(front, server)
    assert spec.availability_zone is None
    assert spec.requested_destination == Destination(host="h1", allow_cross_cell_move=True)


@pytest.mark.parametrize("value", [None, {}, "", "now", 1, True, ["a"], {"a": "b"}])
@pytest.mark.parametrize("action", ["os-stop", "pause", "suspend", "shelve", "lock", "unlock", "forceDelete"])
def test_actions_without_a_value_take_any(front: Front, server: str, action: str, value: Any) -> None:
    """As the Compute API does; gophercloud sends an empty text."""
    assert act(front, server, action, value, ADMIN | at("2.1")).status_code == 202


def test_unshelve_before_2_77_reads_no_value(front: Front, server: str) -> None:
    assert act(front, server, "shelve").status_code == 202
    saved(front, server)
    assert act(front, server, "unshelve", {"availability_zone": "none"}, ADMIN | at("2.76")).status_code == 202


def test_an_evacuated_server_is_off_since_2_95(front: Front) -> None:
    front.heartbeat("h1", 1.0)
    for version, power in (("2.94", Power.ON), ("2.95", Power.OFF)):
        server = booted(front)
        assert act(front, server, "evacuate", {}, ADMIN | at(version)).status_code == 200
        assert twin_of(front, server)[0].power is power


def test_a_move_takes_the_hostname_along(front: Front, server: str) -> None:
    """The new host makes a new config drive."""
    front.client.simulate_put(f"/v2.1/servers/{server}", headers=NEW, json={"server": {"hostname": "db.example"}})
    assert act(front, server, "migrate", None, ADMIN).status_code == 202
    body, spec = twin_of(front, server)
    assert (body.hostname, spec.properties.hostname) == ("db.example", "db.example")


def test_a_server_shelved_on_its_host_starts_there(front: Front, server: str) -> None:
    assert "while it is in vm_state active" in refusal(act(front, server, "unshelve"), 409)
    assert act(front, server, "shelve").status_code == 202
    assert act(front, server, "unshelve").status_code == 409
    saved(front, server)
    assert act(front, server, "unshelve").status_code == 202
    assert (the_operation(front, server).state, the_operation(front, server).power_before) == (OperationState.STARTING, Power.ON)
    assert shown(front, server)["OS-EXT-STS:task_state"] == "unshelving"
    assert listed(front, task_state="unshelving") == [server]


# -- shown -------------------------------------------------------------------------------------------------------------------


def test_a_failed_task_is_shown_with_its_reason(front: Front, server: str) -> None:
    write(front, server, last_number=4, task_number=4, task_state="failed", task_fault="The disk is full.")
    found = front.get("/v2.1/servers/detail", NEW).json["servers"][0]
    assert (found["status"], found["fault"]["message"]) == ("ERROR", "The disk is full.")
    assert listed(front, status="ERROR") == [server]
    assert listed(front, status="ACTIVE") == []
    assert act(front, server, "os-resetState", {"state": "active"}, ADMIN).status_code == 202


def test_an_administrator_sets_a_server_to_error_immediately(front: Front, server: str) -> None:
    assert act(front, server, "os-resetState", {"state": "error"}, ADMIN).status_code == 202
    found = front.get("/v2.1/servers/detail", NEW).json["servers"][0]
    assert (found["status"], found["OS-EXT-STS:vm_state"], found["OS-EXT-STS:task_state"]) == ("ERROR", "error", None)
    assert found["fault"]["message"] == CALLED_FAILED
    assert listed(front, status="ERROR") == listed(front, vm_state="error") == [server]


def test_a_guest_stopped_by_itself_can_be_started(front: Front, server: str) -> None:
    write(front, server, power="off", task_fault="The guest crashed.")
    found = front.get("/v2.1/servers/detail", NEW).json["servers"][0]
    assert (found["status"], found["fault"]["message"]) == ("SHUTOFF", "The guest crashed.")
    assert act(front, server, "os-start").status_code == 202


def test_lists_and_records_agree_about_every_phase(front: Front, server: str) -> None:
    """Each combination of power, task and open operation, as one server after the other has it."""
    combinations = [
        (power, task, kind, state, hard)
        for power, task in itertools.product(Power, (TaskState.DONE, TaskState.FAILED))
        for kind, state, hard in [
            (None, None, False),
            (OperationKind.STOP, OperationState.TASK, False),
            (OperationKind.REBOOT, OperationState.TASK, True),
            (OperationKind.REBOOT, OperationState.TASK, False),
            (OperationKind.CHANGE_PASSWORD, OperationState.TASK, False),
            *((OperationKind.RESIZE, state, False) for state in OperationState if state is not OperationState.ENDED),
            *((OperationKind.EVACUATE, state, False) for state in (OperationState.BUILDING, OperationState.STARTING)),
            *((OperationKind.SHELVE, state, False) for state in SHELVE_STATES),
            *((OperationKind.SOFT_DELETE, state, False) for state in (OperationState.SOFT_DELETED, OperationState.STARTING)),
        ]
    ]
    shelved = [(Power.OFF, TaskState.DONE, kind, state, False) for kind, state in ((None, None), UNSHELVING)]
    for power, task, kind, state, hard in [*combinations, *shelved]:
        in_state = "shelved" if (power, task, kind, state, hard) in shelved else "active"
        write(front, server, last_number=4, power=power, task_state=task, state=in_state)
        front.database.write(lambda tx: tx.execute(sa.delete(table)))
        if kind is not None and state is not None:
            front.database.write(_insert, server, kind, state, hard)
        found = front.database.read(mappings.get, server)
        assert found is not None
        record = _with_operation(front, found)
        expected = phase.phase_of(record)
        case = (power, task, kind, state)
        for each in ServerPhase:
            is_listed = bool(front.database.read(mappings.list_, ServerQuery(phases=(each,))))
            assert is_listed == (each is expected), (case, each, expected)
        for name, value in (
            ("vm_states", phase.vm_state_of(record)),
            ("task_states", phase.task_of(record)),
            ("power_states", phase.POWER_STATES[record.power]),
        ):
            if value is not None:
                assert front.database.read(mappings.list_, ServerQuery(**{name: (value,)})), (case, name, value)  # type: ignore[arg-type]  # by name
            assert not front.database.read(
                mappings.list_, ServerQuery(**{name: ("other",)} if name != "power_states" else {name: (9,)})
            )


def _insert(tx: Any, server: str, kind: OperationKind, state: OperationState, hard: bool) -> None:
    row = {"uuid": server[::-1], "server_uuid": server, "open_for": server, "kind": kind, "state": state, "number": 4}
    row |= {
        "args": json.dumps({"hard": hard}, separators=(",", ":")),
        "power_before": Power.PAUSED,
        "project_id": "p",
        "user_id": "u",
    }
    tx.execute(sa.insert(table), row | {"request_id": "req-1", "created_at": 1.0, "updated_at": 1.0, "deadline": 9e9})


def _with_operation(front: Front, found: Server) -> Server:
    operation = front.database.read(operations.open_for, [found.uuid]).get(found.uuid)
    assert operation is None or operation.args in (OperationArgs(), OperationArgs(hard=True))
    return msgspec.structs.replace(found, operation=operation)
