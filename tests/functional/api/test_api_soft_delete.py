"""Deletes that can be undone, over HTTP: who is soft-deleted, how such a server is shown and listed, restore and forced delete."""

from __future__ import annotations

import falcon.testing
import msgspec
import pytest

from api.main import build_app
from api.opts import ApiSettings
from db.api.operations import operations, steps
from db.api.projects import quotas
from db.api.queue import builds
from objects.operation import OperationKind, OperationState
from tests.functional.api.test_api_operations import ADMIN, NEW, READER, act, booted, listed, shown, the_operation, write
from tests.support.api import TENANT, Front, refusal
from tests.support.fronts import front_fixture
from tests.support.ground import USUAL

INTERVAL_S = 3600


front = front_fixture(ApiSettings(reclaim_instance_interval=INTERVAL_S), grounds=USUAL)


@pytest.fixture
def server(front: Front) -> str:
    """A server that is ACTIVE on host h1."""
    return booted(front)


def soft_deleted(front: Front, server: str) -> str:
    assert front.delete(server, NEW).status_code == 204
    return server


def states(front: Front, server: str) -> tuple[object, ...]:
    found = shown(front, server)
    return found["status"], *(found[f"OS-EXT-STS:{name}"] for name in ("vm_state", "task_state"))


def test_a_delete_leaves_the_server_to_be_restored(front: Front, server: str) -> None:
    project = shown(front, server)["tenant_id"]
    used = front.database.read(quotas.get, project).used
    soft_deleted(front, server)
    asked = the_operation(front, server)
    assert (asked.kind, asked.state) == (OperationKind.SOFT_DELETE, OperationState.SOFT_DELETED)
    assert asked.deadline - asked.created_at == INTERVAL_S
    assert states(front, server) == ("SOFT_DELETED", "soft-delete", None)
    assert front.database.read(quotas.get, project).used == used
    actions = front.get(f"/v2.1/servers/{server}/os-instance-actions", NEW).json["instanceActions"]
    assert [each["action"] for each in actions] == ["softDelete", "create"]

    assert act(front, server, "restore", None, READER).status_code == 403
    assert act(front, server, "restore").status_code == 202
    assert states(front, server) == ("SOFT_DELETED", "soft-delete", "restoring")
    write(front, server, power="on", task_number=asked.number + 3, task_state="done")
    front.database.write(steps.finish_tasks, [asked.uuid], 1.0)
    assert states(front, server) == ("ACTIVE", "active", None)
    assert "it is not soft-deleted" in refusal(act(front, server, "restore"), 409)


def test_lists_omit_soft_deleted_servers_unless_requested(front: Front, server: str) -> None:
    other = booted(front)
    soft_deleted(front, server)
    assert listed(front) == listed(front, power_state="1") == [other]
    assert listed(front, status="SOFT_DELETED") == listed(front, vm_state="soft-delete") == [server]
    assert set(listed(front, soft_deleted="true")) == {server, other}
    assert set(listed(front, **{"changes-since": "2020-01-01T00:00:00Z"})) == {server, other}


def test_a_second_delete_changes_nothing(front: Front, server: str) -> None:
    before = soft_deleted(front, server) and the_operation(front, server)
    soft_deleted(front, server)
    assert the_operation(front, server) == before
    kept = front.ledger.write(builds.delete, server, project_id=None, now=1.0, reclaims=False)
    assert (kept and kept.bodies, the_operation(front, server)) == ((), before)


def test_a_forced_delete_is_done_at_once(front: Front, server: str) -> None:
    other = booted(front)
    assert act(front, other, "forceDelete").status_code == 202
    soft_deleted(front, server)
    assert act(front, server, "forceDelete").status_code == 202
    for each in (server, other):
        assert front.get(f"/v2.1/servers/{each}", NEW).status_code == 404
    assert front.database.read(operations.open_for, [server, other]) == {}


def test_soft_deleted_servers_without_interval_are_deleted_normally(front: Front, server: str) -> None:
    """It was soft-deleted while the option was set."""
    soft_deleted(front, server)
    settings = msgspec.structs.replace(front.settings, reclaim_instance_interval=0)
    client = falcon.testing.TestClient(build_app(settings, front.registry, front.database, front.bus, None))
    assert client.simulate_delete(f"/v2.1/servers/{server}", headers=NEW).status_code == 204
    assert front.get(f"/v2.1/servers/{server}", NEW).status_code == 404


def test_a_server_nobody_could_restore_is_deleted_immediately(front: Front, server: str) -> None:
    """One that never ran, and one that an operation is at."""
    building = front.boot("new", TENANT)
    assert act(front, server, "os-stop").status_code == 202
    for each in (server, building):
        assert front.delete(each, NEW).status_code == 204
        assert front.get(f"/v2.1/servers/{each}", NEW).status_code == 404


def test_other_actions_are_refused_meanwhile(front: Front, server: str) -> None:
    soft_deleted(front, server)
    for action, value in (("reboot", {"type": "HARD"}), ("rescue", None), ("evacuate", {})):
        assert "while its soft-delete is in state soft-deleted" in refusal(act(front, server, action, value, ADMIN), 409)
    assert "while it is in vm_state soft-delete" in refusal(act(front, server, "os-start"), 409)


def test_owners_neither_delete_nor_restore_locked_servers(front: Front, server: str) -> None:
    other = soft_deleted(front, booted(front))
    for each in (server, other):
        assert act(front, each, "lock", None, ADMIN).status_code == 202
    assert "locked" in refusal(front.delete(server, NEW), 409)
    assert "locked" in refusal(act(front, other, "restore"), 409)
    assert act(front, other, "restore", None, ADMIN).status_code == 202
