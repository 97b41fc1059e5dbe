"""What was asked of a server, and every attempt to do it."""

from __future__ import annotations

import time
from typing import Any

import pytest
import sqlalchemy as sa

from db.api.operations import operations
from db.api.rows import tables
from db.api.rows.tables import instance_mappings
from db.cell import instances
from objects import lifecycle
from objects.instance import FailureClass
from tests.support.api import TENANT, Front, with_status
from tests.support.fronts import front_fixture
from tests.support.ground import USUAL

BUILD = "compute__do_build_and_run_instance"
OLD, NEW = {"X-OpenStack-Nova-API-Version": "2.50"}, {"X-OpenStack-Nova-API-Version": "2.62"}


front = front_fixture(grounds=USUAL)


def at(version: str) -> dict[str, str]:
    return {"OpenStack-API-Version": f"compute {version}"}


def listed(front: Front, server: str, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    answer = with_status(front.get(f"/v2.1/servers/{server}/os-instance-actions", headers), 200)
    found: list[dict[str, Any]] = answer.json["instanceActions"]
    return found


def one(front: Front, server: str, headers: dict[str, str] | None = NEW, action: str = "create") -> dict[str, Any]:
    [request_id] = [each["request_id"] for each in listed(front, server, headers) if each["action"] == action]
    answer = with_status(front.get(f"/v2.1/servers/{server}/os-instance-actions/{request_id}", headers), 200)
    found: dict[str, Any] = answer.json["instanceAction"]
    return found


def stages(action: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The events of this name, the oldest first."""
    return [event for event in reversed(action["events"]) if event["event"] == name]


def results(action: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(event["host"], event["result"]) for event in stages(action, BUILD)]


def test_a_creation_from_its_request_to_its_guest(front: Front) -> None:
    server = front.boot()
    [queued] = listed(front, server)
    assert (queued["action"], queued["message"], queued["instance_uuid"]) == ("create", None, server)
    assert queued["request_id"].startswith("req-")
    newest, oldest = one(front, server)["events"]
    assert (oldest["event"], oldest["result"]) == ("api_accept_build_request", "Success")
    assert (newest["event"], newest["result"]) == ("conductor_schedule_and_build_instances", None)
    front.hand_over("h1", alternates=("h2",))
    assert one(front, server)["request_id"] == queued["request_id"], "the same before and after it has a cell"
    front.accept(server)
    assert results(one(front, server)) == [("h1", None)]
    front.fail(server, "disk broke")
    front.activate(server)
    created = one(front, server)
    assert results(created) == [("h1", "Error"), ("h2", "Success")]
    first, second = stages(created, BUILD)
    assert first["traceback"] == "BuildFailed: disk broke"
    assert created["start_time"] <= first["start_time"] <= first["finish_time"] <= second["start_time"] <= second["finish_time"]
    assert [event["event"] for event in reversed(created["events"])] == [
        "api_accept_build_request",
        "conductor_stage_instance",
        "conductor_schedule_and_build_instances",
        *["conductor_build_instances", BUILD],
        *["conductor_build_instances", BUILD],
    ]
    assert {event["result"] for event in created["events"]} == {"Success", "Error"}, "nothing is under way any more"
    [staged] = stages(created, "conductor_stage_instance")
    [handed_over] = stages(created, "conductor_schedule_and_build_instances")
    order, again = stages(created, "conductor_build_instances")
    assert staged["finish_time"] <= handed_over["finish_time"] == order["start_time"]
    assert again["start_time"] == first["finish_time"]


def test_a_failed_creation_shows_tenants_no_host(front: Front) -> None:
    server = front.boot(headers=TENANT)
    front.hand_over("secret-host")
    front.accept(server)
    front.fail(server, "no such image", FailureClass.REQUEST)
    full = one(front, server)
    assert results(full) == [("secret-host", "Error")]
    assert "no such image" in full["message"]
    assert "events" not in one(front, server, TENANT | OLD)
    shown = one(front, server, TENANT | NEW)
    assert [event["result"] for event in stages(shown, BUILD)] == ["Error"]
    assert "secret-host" not in str(shown)
    assert "traceback" not in str(shown)
    assert shown["message"].startswith("Build of instance")


def test_what_never_had_a_host(front: Front) -> None:
    server = front.boot()
    front.bury("No valid host was found.")
    action = one(front, server)
    assert action["message"] == "No valid host was found."
    assert results(action) == []
    [over] = stages(action, "conductor_schedule_and_build_instances")
    assert (over["result"], over["traceback"]) == ("Error", "BuildFailed: No valid host was found.")


def test_a_delete_is_listed_with_its_request(front: Front) -> None:
    server = front.boot()
    front.hand_over("h1")
    front.activate(server)
    asked = with_status(front.delete(server), 204)
    request_id = asked.headers["x-openstack-request-id"]
    front.cell.write(instances.delete, [server], time.time(), None)
    front.cell.write(instances.delete, [server], time.time(), "req-again")
    path = f"/v2.1/servers/{server}/os-instance-actions"
    assert front.get(path).status_code == 404, "of deleted servers since 2.21 only"
    assert [(each["action"], each["request_id"]) for each in listed(front, server, NEW)][:1] == [("delete", request_id)]
    assert [each["action"] for each in listed(front, server, NEW)] == ["delete", "create"]
    front.cell.write(
        instances.transition_rows, [server], lambda row: lifecycle.confirm_gone(row, "h1", 1, time.time()), time.time()
    )
    assert results(one(front, server, NEW)) == [("h1", "Success")]
    [over] = one(front, server, NEW, "delete")["events"]
    assert (over["event"], over["result"], over["host"]) == ("compute_terminate_instance", "Success", "h1")


def test_a_delete_of_what_was_queued_still(front: Front) -> None:
    server = front.boot()
    assert front.delete(server).status_code == 204
    assert [each["action"] for each in listed(front, server, NEW)] == ["delete", "create"]
    [over] = one(front, server, NEW, "delete")["events"]
    assert (over["result"], over["host"]) == ("Success", "")


@pytest.mark.parametrize("operated", [False, True])
def test_a_delete_names_the_user_who_requested_it(front: Front, operated: bool) -> None:
    server = front.boot("web", TENANT)
    if operated:
        front.hand_over("h1")
        front.activate(server)
        stop = front.client.simulate_post(f"/v2.1/servers/{server}/action", headers=TENANT, json={"os-stop": None})
        assert stop.status_code == 202
    administrator = NEW | {"X-Project-Id": "operators", "X-User-Id": "olga", "X-Roles": "admin"}
    assert front.delete(server, administrator).status_code == 204
    users = {each["action"]: each["user_id"] for each in listed(front, server, NEW)}
    assert users == {"create": TENANT["X-User-Id"], "delete": "olga"} | ({"stop": TENANT["X-User-Id"]} if operated else {})


def test_what_nobody_may_see_or_nobody_asked_for(front: Front) -> None:
    server = front.boot()
    path = f"/v2.1/servers/{server}/os-instance-actions"
    assert front.get(path, TENANT).status_code == 404
    assert front.get(f"{path}/req-unknown").status_code == 404
    assert front.get("/v2.1/servers/no-uuid/os-instance-actions").status_code == 404


def test_event_hosts_depend_on_role_and_version(front: Front) -> None:
    """A digest for everyone and the name for administrators since 2.62; events for everyone since 2.51."""
    server = front.boot(headers=TENANT)
    front.hand_over("h1")
    front.activate(server)
    shown = front.get(f"/v2.1/servers/{server}").json["server"]
    for headers, fields in (
        (at("2.61"), {"traceback"}),
        (at("2.62"), {"traceback", "host", "hostId"}),
        (at("2.84"), {"traceback", "host", "hostId", "details"}),
        (TENANT | at("2.84"), {"hostId"}),
        (TENANT | at("2.51"), set()),
        (TENANT | at("2.62"), {"hostId"}),
    ):
        [build] = stages(one(front, server, headers), BUILD)
        assert set(build) == {"event", "start_time", "finish_time", "result"} | fields
        assert build.get("hostId", shown["hostId"]) == shown["hostId"]
    [first] = stages(one(front, server), "api_accept_build_request")
    assert (first["host"], first["hostId"]) == ("", "")


def test_actions_are_paged_and_filtered_by_change_time(front: Front) -> None:
    """Since 2.58; before, parameters are ignored."""
    server = front.boot()
    front.hand_over("h1")
    front.activate(server)
    front.delete(server)
    path = f"/v2.1/servers/{server}/os-instance-actions"
    both = listed(front, server, at("2.57"))
    assert "updated_at" not in both[0]
    assert front.get(path, at("2.57"), limit="1").json["instanceActions"] == both
    page = front.get(path, at("2.58"), limit="1").json
    assert [each["action"] for each in page["instanceActions"]] == ["delete"]
    [link] = page["links"]
    assert link["rel"] == "next"
    rest = front.get(path, at("2.58"), limit="1", marker=page["instanceActions"][0]["request_id"]).json
    assert f"marker={page['instanceActions'][0]['request_id']}" in link["href"]
    assert [each["action"] for each in rest["instanceActions"]] == ["create"]
    assert "links" not in rest
    newest = page["instanceActions"][0]["updated_at"]
    assert newest >= rest["instanceActions"][0]["updated_at"] >= rest["instanceActions"][0]["start_time"]
    assert front.get(path, at("2.58"), **{"changes-since": "2100-01-01T00:00:00Z"}).json == {"instanceActions": []}
    assert len(front.get(path, at("2.58"), **{"changes-since": "2000-01-01T00:00:00Z"}).json["instanceActions"]) == 2

    assert front.get(path, at("2.66"), **{"changes-before": "2000-01-01T00:00:00Z"}).json == {"instanceActions": []}
    assert len(front.get(path, at("2.66"), **{"changes-before": "2100-01-01T00:00:00Z"}).json["instanceActions"]) == 2
    assert front.get(path, at("2.65"), **{"changes-before": "2100-01-01T00:00:00Z"}).status_code == 400
    turned = {"changes-since": "2100-01-01T00:00:00Z", "changes-before": "2000-01-01T00:00:00Z"}
    for address in (path, "/v2.1/os-migrations"):
        assert front.get(address, at("2.66"), **turned).status_code == 400


@pytest.mark.parametrize("query", [{"marker": "req-none"}, {"limit": "-1"}, {"changes-since": "now"}, {"name": "x"}])
def test_a_list_of_actions_refuses_unknown_parameters(front: Front, query: dict[str, str]) -> None:
    server = front.boot()
    assert front.get(f"/v2.1/servers/{server}/os-instance-actions", at("2.58"), **query).status_code == 400


def test_a_moved_server_still_shows_its_build(front: Front) -> None:
    """Its first body stays in its cell, deleted, until the archive takes it. That delete is no delete of the server."""
    server = front.boot()
    front.hand_over("h1", alternates=("h2",))
    front.accept(server)
    front.fail(server, "disk broke")
    front.activate(server)
    front.follow_feed()
    action = f"/v2.1/servers/{server}/action"
    assert front.client.simulate_post(action, headers=NEW, json={"migrate": None}).status_code == 202
    twin = front.database.read(operations.open_for, [server])[server].twin_uuid
    home = instance_mappings.c.instance_uuid == server
    front.database.write(lambda tx: tx.execute(sa.update(instance_mappings).where(home).values(body_uuid=twin)))
    front.database.write(lambda tx: tx.execute(sa.delete(tables.operations)))
    front.cell.write(instances.delete, [server], time.time(), "req-gone")
    front.destroyed(server)
    assert [each["action"] for each in listed(front, server)] == ["create"]
    assert results(one(front, server)) == [("h1", "Error"), ("h2", "Success")]
