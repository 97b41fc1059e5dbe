"""Services over HTTP: who is listed, and hosts that are enabled, disabled and called dead, as a fencing system does it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon.testing
import msgspec
import pytest
import sqlalchemy as sa

from db import processes
from db.api.deployment import aggregates, host_mappings
from db.api.operations import operations
from db.api.rows import tables
from db.cell import feed, services
from db.cell.services import Beat, SeenService
from objects.cell import HostMapping
from objects.feed import EventKind
from objects.operation import OperationKind
from objects.process import AGENT_BINARY, API_BINARY, CONDUCTOR_BINARY, SCHEDULER_BINARY, About, Process
from tests.support.api import CELL1_UUID, NEWEST, TENANT, Front, refusal
from tests.support.dead_hosts import WatchedHosts

OLDEST: dict[str, str] = {}
FORCING = {"OpenStack-API-Version": "compute 2.11"}
MEMBER = NEWEST | TENANT
KEYS = {"id", "binary", "host", "zone", "status", "state", "updated_at", "disabled_reason"}


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    front = Front(tmp_path)
    for host in ("h1", "h2"):
        front.heartbeat(host)
        front.database.write(host_mappings.add_mappings, [HostMapping(host=host, cell_uuid=CELL1_UUID)], 1.0)
    yield front
    front.close()


def listed(front: Front, headers: dict[str, str] = NEWEST, **params: str) -> list[dict[str, Any]]:
    answer = front.get("/v2.1/os-services", headers, **params)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json["services"]
    return found


def id_of(front: Front, host: str = "h1") -> str:
    [service] = listed(front, host=host, binary="nova-compute")
    return str(service["id"])


def put(front: Front, what: str, body: Any, headers: dict[str, str] = NEWEST) -> falcon.testing.Result:
    return front.client.simulate_put(f"/v2.1/os-services/{what}", headers=headers, json=body)


def told(answer: falcon.testing.Result) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    service: dict[str, Any] = answer.json["service"]
    return service


def agent(front: Front, host: str = "h1") -> SeenService:
    [seen] = front.cell.read(services.list_seen, AGENT_BINARY, host)
    return seen


def said(front: Front, host: str = "h1") -> tuple[bool, str | None, bool]:
    service = agent(front, host).service
    return service.disabled, service.disabled_reason, service.forced_down


def on_host(host: str, binary: str = "nova-compute", **fields: Any) -> dict[str, Any]:
    return {"host": host, "binary": binary} | fields


# -- who is listed ---------------------------------------------------------------------------------------------------------------


def test_services_of_all_levels_are_listed(front: Front) -> None:
    for binary in (SCHEDULER_BINARY, CONDUCTOR_BINARY, API_BINARY):
        process = Process(uuid=binary, binary=binary, host="c1", about=About(), started_at=0.0, last_seen=0.0, age=0.0)
        front.database.write(processes.record_process, "api", process)
    in_cell = Process(uuid="cell", binary=CONDUCTOR_BINARY, host="c2", about=About(), started_at=0.0, last_seen=0.0, age=0.0)
    front.cell.write(processes.record_process, "cell", in_cell)
    zone = front.database.write(aggregates.create, "north", {"availability_zone": "north"})
    front.database.write(aggregates.add_host, zone.id, "h1")

    found = {(service["binary"], service["host"]): service for service in listed(front)}
    assert {key: (service["zone"], service["state"]) for key, service in found.items()} == {
        ("nova-conductor", "c1"): ("internal", "up"),
        ("nova-scheduler", "c1"): ("internal", "up"),
        ("nova-conductor", "c2"): ("internal", "up"),
        ("nova-compute", "h1"): ("north", "up"),
        ("nova-compute", "h2"): ("nova", "up"),
    }
    assert [service["host"] for service in listed(front, host="c1", binary="nova-scheduler")] == ["c1"]
    assert listed(front, host="h3") == listed(front, binary="nova-cert") == []


def test_an_unknown_parameter_is_refused_since_2_75(front: Front) -> None:
    assert len(listed(front, {"OpenStack-API-Version": "compute 2.74"}, zone="x")) == 2
    assert front.get("/v2.1/os-services", NEWEST, zone="x").status_code == 400


def test_fields_by_version(front: Front) -> None:
    """Before 2.53 an ID is a number."""
    oldest, forcing, newest = (listed(front, headers, host="h1")[0] for headers in (OLDEST, FORCING, NEWEST))
    assert oldest.keys() == KEYS
    assert forcing.keys() == newest.keys() == KEYS | {"forced_down"}
    assert isinstance(oldest["id"], int)
    assert newest["id"] == agent(front).service.uuid
    assert newest["updated_at"][-7] == "."


def test_a_silent_host_is_down(front: Front) -> None:
    front.heartbeat("h1", at=1.0)
    assert [service["state"] for service in listed(front)] == ["down", "up"]


def test_a_silent_cell_is_omitted_and_named(front: Front, tmp_path: Path) -> None:
    service_id = id_of(front)
    front.cell.database.dispose_connections()
    (tmp_path / "cell1.db").rename(tmp_path / "away.db")
    answer = front.get("/v2.1/os-services", {"OpenStack-API-Version": "compute 2.68"})
    assert answer.json["services"] == []
    unknown = [{"binary": "nova-compute", "host": host, "status": "UNKNOWN"} for host in ("h1", "h2")]
    assert listed(front) == unknown
    assert listed(front, host="h2") == unknown[1:]
    assert listed(front, binary="nova-conductor") == []
    assert any("cell1" in value for value in answer.headers.values())
    assert put(front, service_id, {"forced_down": True}).status_code == 503
    assert put(front, "force-down", on_host("h1", forced_down=True), FORCING).status_code == 503


# -- what is said of hosts ---------------------------------------------------------------------------------------------------------


def test_hosts_are_disabled_and_declared_dead_by_id(front: Front) -> None:
    service_id = id_of(front)
    shown = told(put(front, service_id, {"status": "disabled", "disabled_reason": "fan", "forced_down": "true"}))
    assert shown == listed(front, host="h1")[0]
    assert (shown["status"], shown["disabled_reason"], shown["forced_down"], shown["state"]) == ("disabled", "fan", True, "down")
    assert said(front) == (True, "fan", True)
    events = front.cell.read(feed.read, 0, 100).events
    assert [event.kind for event in events if event.key == "h1"] == [EventKind.SERVICE] * 2

    assert told(put(front, service_id, {"forced_down": False}))["state"] == "up"
    assert said(front) == (True, "fan", False)
    assert told(put(front, service_id, {"status": "enabled"}))["disabled_reason"] is None
    assert said(front) == said(front, "h2") == (False, None, False)


def test_statements_about_a_host_are_shown_at_once(front: Front) -> None:
    front.boot()
    front.hand_over()
    front.follow_feed()
    for body, shown in (
        ({"status": "disabled"}, "MAINTENANCE"),
        ({"forced_down": True}, "DOWN"),
        ({"forced_down": False}, "MAINTENANCE"),
    ):
        told(put(front, id_of(front), body))
        [server] = front.get("/v2.1/servers/detail", NEWEST).json["servers"]
        assert server["host_status"] == shown


def test_by_host_before_2_53(front: Front) -> None:
    assert told(put(front, "disable", on_host("h1"), OLDEST)) == on_host("h1", status="disabled")
    assert said(front) == (True, None, False)
    shown = told(put(front, "disable-log-reason", on_host("h1", disabled_reason="fan"), OLDEST))
    assert shown == on_host("h1", status="disabled", disabled_reason="fan")
    assert told(put(front, "force-down", on_host("h1", forced_down=True), FORCING)) == on_host("h1", forced_down=True)
    assert said(front) == (True, "fan", True)
    assert told(put(front, "enable", on_host("h1"), OLDEST)) == on_host("h1", status="enabled")
    assert told(put(front, "force-down", on_host("h1", forced_down="off"), FORCING)) == on_host("h1", forced_down=False)
    assert said(front) == said(front, "h2") == (False, None, False)


@pytest.mark.parametrize(
    ("what", "body", "headers", "status", "reason"),
    [
        ("force-down", on_host("h1", forced_down=True), OLDEST, 404, "Unknown action"),
        ("reboot", on_host("h1"), FORCING, 404, "Unknown action"),
        ("enable", on_host("h9"), OLDEST, 404, "h9 could not be found"),
        ("enable", on_host("h1", "nova-scheduler"), OLDEST, 400, "Only nova-compute"),
        ("enable", {"binary": "nova-compute"}, OLDEST, 400, "host"),
        ("enable", on_host("h1", forced_down=True), OLDEST, 400, "forced_down"),
        ("disable-log-reason", on_host("h1"), OLDEST, 400, "Missing disabled reason"),
        ("disable-log-reason", on_host("h1", disabled_reason="a\nb\x1b"), OLDEST, 400, "disabled_reason"),
        ("force-down", on_host("h1"), FORCING, 400, "Missing forced_down"),
        ("force-down", on_host("h1", forced_down="dead"), FORCING, 400, "forced_down"),
        ("enable", on_host("h1"), NEWEST, 400, "Invalid uuid"),
        ("3d4f8c5e-0000-4000-8000-000000000000", {"forced_down": True}, NEWEST, 404, "could not be found"),
        ("ID", {}, NEWEST, 400, "No updates"),
        ("ID", {"disabled_reason": "fan"}, NEWEST, 400, "No updates"),
        ("ID", {"status": "enabled", "disabled_reason": "fan"}, NEWEST, 400, "is invalid"),
        ("ID", {"status": "down"}, NEWEST, 400, "status"),
        ("ID", {"forced_down": None}, NEWEST, 400, "forced_down"),
        ("ID", {"force_down": True}, NEWEST, 400, "force_down"),
        ("ID", [], NEWEST, 400, "object"),
        ("ID", {"forced_down": True}, MEMBER, 403, "os-services:update"),
        ("enable", on_host("h1"), TENANT, 403, "os-services:update"),
    ],
)
def test_refusals_change_nothing(front: Front, what: str, body: Any, headers: dict[str, str], status: int, reason: str) -> None:
    answer = put(front, id_of(front) if what == "ID" else what, body, headers)
    assert reason in refusal(answer, status)
    assert said(front) == (False, None, False)


def test_members_do_not_list_services(front: Front) -> None:
    assert "os-services:list" in refusal(front.get("/v2.1/os-services", MEMBER), 403)


def test_other_services_cannot_be_changed(front: Front) -> None:
    uuid = "11111111-2222-4333-8444-555555555555"
    process = Process(uuid=uuid, binary=CONDUCTOR_BINARY, host="c1", about=About(), started_at=0.0, last_seen=0.0, age=0.0)
    front.cell.write(processes.record_process, "cell", process)
    assert "Updating a nova-conductor service" in refusal(put(front, uuid, {"status": "disabled"}), 400)


def test_a_fencing_system_evacuates_a_dead_host(front: Front) -> None:
    """Masakari's order of requests. With [conductor] evacuate_dead_hosts the second is not needed."""
    first, second = front.boot("web-1", TENANT), front.boot("web-2", TENANT)
    front.hand_over("h1")
    for server in (first, second):
        front.activate(server)
    front.follow_feed()

    def evacuate(uuid: str) -> falcon.testing.Result:
        return front.client.simulate_post(f"/v2.1/servers/{uuid}/action", headers=NEWEST, json={"evacuate": {}})

    assert "still in use" in refusal(evacuate(first), 400)
    told(put(front, id_of(front), {"forced_down": True}))
    assert evacuate(first).status_code == 200
    WatchedHosts(front.ledger, front.registry).wait_for_silence()
    found = front.database.read(operations.open_for, [first, second])
    assert [found[uuid].kind for uuid in (first, second)] == [OperationKind.EVACUATE] * 2


# -- deleted -----------------------------------------------------------------------------------------------------------------


def delete(front: Front, service: str, headers: dict[str, str] = NEWEST) -> int:
    return front.client.simulate_delete(f"/v2.1/os-services/{service}", headers=headers).status_code


def stop(front: Front, host: str) -> None:
    """The host's agent tells that it ends."""
    front.cell.write(services.record_heartbeats, [Beat(host=host, binary=AGENT_BINARY, version=1, stopping=True)])


def test_an_ended_host_is_deleted_with_its_memberships(front: Front) -> None:
    service = id_of(front)
    front.database.write(aggregates.add_host, front.database.write(aggregates.create, "fast", {}).id, "h1")
    assert delete(front, service) == 409, "it runs"
    stop(front, "h1")
    assert delete(front, service, MEMBER) == 403
    assert delete(front, service) == 204
    assert [each["host"] for each in listed(front, binary="nova-compute")] == ["h2"]
    assert [mapping.host for mapping in front.database.read(host_mappings.list_all)] == ["h2"]
    assert [found.hosts for found in front.database.read(aggregates.list_all)] == [()]
    assert delete(front, service) == 404
    [old] = [each for each in listed(front, OLDEST) if each["host"] == "h2"]
    stop(front, "h2")
    assert delete(front, "x", OLDEST) == delete(front, "x") == 400
    assert delete(front, str(old["id"]), OLDEST) == 204


def test_a_host_with_servers_is_kept(front: Front) -> None:
    server = front.boot("web", TENANT)
    front.hand_over()
    front.activate(server)
    stop(front, "h1")
    assert delete(front, id_of(front)) == 409
    assert {mapping.host for mapping in front.database.read(host_mappings.list_all)} == {"h1", "h2"}


def test_another_service_is_deleted_once_it_is_silent(front: Front) -> None:
    for host in ("alive", "dead"):
        about = Process(uuid=host, binary=SCHEDULER_BINARY, host=host, about=About(), started_at=0.0, last_seen=0.0, age=0.0)
        front.database.write(processes.record_process, "api", msgspec.structs.replace(about, uuid=str(uuid.uuid4())))
    table = tables.api_processes
    front.database.write(lambda tx: tx.execute(sa.update(table).where(table.c.host == "dead").values(last_seen=1.0)))
    ids = {each["host"]: str(each["id"]) for each in listed(front, binary="nova-scheduler")}
    assert (delete(front, ids["alive"]), delete(front, ids["dead"])) == (409, 204)
    assert [each["host"] for each in listed(front, binary="nova-scheduler")] == ["alive"]


# -- hosts, up to 2.42 -------------------------------------------------------------------------------------------------------


def test_hosts_are_listed_shown_and_disabled(front: Front) -> None:
    hosts = front.get("/v2.1/os-hosts").json["hosts"]
    assert {"host_name": "h1", "service": "compute", "zone": "nova"} in hosts
    assert front.get("/v2.1/os-hosts", zone="").json["hosts"] == hosts
    assert front.get("/v2.1/os-hosts", zone="internal").json["hosts"] == [each for each in hosts if each["zone"] == "internal"]
    server = front.boot("web", TENANT)
    front.bring_up(server)
    shown = [each["resource"] for each in front.get("/v2.1/os-hosts/h1").json["host"]]
    assert [each["project"] for each in shown] == ["(total)", "(used_now)", "(used_max)", "p1"]
    assert shown[3] == shown[2] | {"project": "p1"} == {"host": "h1", "project": "p1", "cpu": 1, "memory_mb": 2048, "disk_gb": 20}
    changed = front.client.simulate_put("/v2.1/os-hosts/h1", json={"status": "Disable"})
    assert changed.json == {"host": "h1", "status": "disabled"}
    assert "h1" not in [each["host_name"] for each in front.get("/v2.1/os-hosts").json["hosts"]]
    for path, body, status in (
        ("nowhere", {"status": "enable"}, 404),
        ("h1", {"status": "on"}, 400),
        ("h1", {}, 400),
        ("h1", {"maintenance_mode": "enable"}, 501),
        ("nowhere", {"maintenance_mode": "enable"}, 404),
    ):
        assert front.client.simulate_put(f"/v2.1/os-hosts/{path}", json=body).status_code == status
    assert front.get("/v2.1/os-hosts/nowhere").status_code == 404
    for action in ("startup", "shutdown", "reboot"):  # who may not ask is told that first, and then what is not there
        asked = [
            front.get(f"/v2.1/os-hosts/{host}/{action}", headers) for host, headers in (("h1", TENANT), ("no", {}), ("h1", {}))
        ]
        assert [answer.status_code for answer in asked] == [403, 404, 501]
    assert front.get("/v2.1/os-hosts", {"OpenStack-API-Version": "compute 2.43"}).status_code == 404


# -- events of other services ------------------------------------------------------------------------------------------------


def test_each_external_event_is_answered_by_itself(front: Front) -> None:
    server, waiting = front.boot("web", TENANT), front.boot("later", TENANT)
    events = [
        {"name": "network-vif-plugged", "server_uuid": waiting, "tag": "t"},
        {"name": "network-changed", "server_uuid": str(uuid.uuid4())},
    ]
    told_of = tell(front, events, OLDEST)
    assert (told_of.status_code, [each["code"] for each in told_of.json["events"]]) == (207, [422, 404])
    front.bring_up(server)
    plugged = {"name": "network-vif-plugged", "server_uuid": server, "status": "completed"}
    done = tell(front, [plugged], OLDEST)
    assert (done.status_code, done.json) == (200, {"events": [plugged | {"code": 200}]})
    power = {"name": "power-update", "server_uuid": server}
    assert tell(front, [power], {"OpenStack-API-Version": "compute 2.75"}).status_code == 400
    answers = [tell(front, [power | tag], NEWEST).json["events"][0] for tag in ({}, {"tag": "POWER_OFF"})]
    assert [(each["status"], each["code"]) for each in answers] == [("failed", 400), ("failed", 422)]
    assert tell(front, [], NEWEST).status_code == tell(front, [plugged | {"status": "done"}], NEWEST).status_code == 400
    assert tell(front, [plugged], MEMBER).status_code == 403


def tell(front: Front, events: list[dict[str, Any]], headers: dict[str, str]) -> falcon.testing.Result:
    return front.client.simulate_post("/v2.1/os-server-external-events", headers=headers, json={"events": events})
