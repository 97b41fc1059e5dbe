"""Services over HTTP: who is listed, and hosts that are enabled, disabled and called dead, as a fencing system does it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon.testing
import pytest

from conductor.evacuate import DeadHostSweep
from db import processes
from db.api import aggregates, host_mappings, operations
from db.cell import feed, services
from db.cell.services import SeenService
from objects.cell import HostMapping
from objects.feed import EventKind
from objects.operation import OperationKind
from objects.process import AGENT_BINARY, API_BINARY, CONDUCTOR_BINARY, SCHEDULER_BINARY, About, Process
from tests.support.api import CELL1_UUID, NEWEST, TENANT, Front

OLDEST: dict[str, str] = {}
FORCING = {"OpenStack-API-Version": "compute 2.11"}
MEMBER = NEWEST | TENANT
KEYS = {"id", "binary", "host", "zone", "status", "state", "updated_at", "disabled_reason"}


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    front = Front(tmp_path)
    for host in ("h1", "h2"):
        front.heartbeat(host)
        front.database.write(host_mappings.add, [HostMapping(host=host, cell_uuid=CELL1_UUID)], 1.0)
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


def refusal(answer: falcon.testing.Result, status: int) -> str:
    assert answer.status_code == status, answer.text
    (fault,) = json.loads(answer.text).values()
    return str(fault["message"])


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
        front.database.write(processes.appear, "api", process)
    in_cell = Process(uuid="cell", binary=CONDUCTOR_BINARY, host="c2", about=About(), started_at=0.0, last_seen=0.0, age=0.0)
    front.cell.write(processes.appear, "cell", in_cell)
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


def test_a_parameter_that_nobody_knows_is_refused_since_2_75(front: Front) -> None:
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


def test_a_cell_that_does_not_answer_is_left_out_and_named(front: Front, tmp_path: Path) -> None:
    service_id = id_of(front)
    front.cell.database.dispose()
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


def test_by_id_a_host_is_disabled_and_called_dead_as_by_the_command(front: Front) -> None:
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
    front.cell.write(processes.appear, "cell", process)
    assert "Updating a nova-conductor service" in refusal(put(front, uuid, {"status": "disabled"}), 400)


def test_a_fencing_system_calls_a_host_dead_and_evacuates_it(front: Front) -> None:
    """Masakari's order of requests. With [conductor] evacuate_dead_hosts the second is not needed."""
    first, second = front.boot("web-1", TENANT), front.boot("web-2", TENANT)
    front.hand_over("h1")
    for uuid in (first, second):
        front.activate(uuid)
    front.follow_feed()

    def evacuate(uuid: str) -> falcon.testing.Result:
        return front.client.simulate_post(f"/v2.1/servers/{uuid}/action", headers=NEWEST, json={"evacuate": {}})

    assert "still in use" in refusal(evacuate(first), 400)
    told(put(front, id_of(front), {"forced_down": True}))
    assert evacuate(first).status_code == 200
    DeadHostSweep(front.ledger, front.registry).look()
    found = front.database.read(operations.open_for, [first, second])
    assert [found[uuid].kind for uuid in (first, second)] == [OperationKind.EVACUATE] * 2
