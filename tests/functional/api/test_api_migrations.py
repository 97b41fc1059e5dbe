"""Moves of servers as the Compute API lists them, and the live migration of a server that is aborted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from api.opts import ApiSettings
from api.servers import migrations
from db.api.operations import operations
from db.api.projects import flavors
from db.api.rows.tables import operations as table
from objects.flavor import Flavor
from objects.operation import OperationKind, OperationState, Outcome
from tests.support.api import NEWEST, TENANT, Front, front_on
from tests.support.ground import USUAL

ADMIN = {"X-Project-Id": "operators", "X-User-Id": "ann", "X-Roles": "admin"}
LARGE = Flavor(flavor_id="9", name="large", vcpus=8, memory_mb=4096, root_gb=10)
UNKNOWN = "70a599e0-31e7-49b7-b260-868f441e8000"


def at(version: str) -> dict[str, str]:
    return ADMIN | {"OpenStack-API-Version": f"compute {version}"}


@pytest.fixture(params=USUAL)
def front(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Front]:
    with front_on(request.param, tmp_path, ApiSettings(max_limit=3)) as made:
        made.database.write(flavors.create, LARGE)
        yield made


def moved(front: Front, action: str, value: Any) -> tuple[str, str]:
    """A server that is ACTIVE, and the uuid of the operation of this action on it."""
    server = front.boot("web", TENANT)
    front.bring_up(server)
    answer = front.client.simulate_post(f"/v2.1/servers/{server}/action", headers=ADMIN | NEWEST, json={action: value})
    assert answer.status_code == 202, answer.text
    return server, front.database.read(operations.open_for, [server])[server].uuid


LIVE = ("os-migrateLive", {"host": None, "block_migration": "auto"})
RESIZE = ("resize", {"flavorRef": "9"})
STOP = ("os-stop", None)


def change(front: Front, operation: str, **values: Any) -> None:
    front.database.write(lambda tx: tx.execute(sa.update(table).where(table.c.uuid == operation).values(**values)))


def listed(front: Front, version: str = "2.80", **params: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = front.get("/v2.1/os-migrations", at(version), **params).json["migrations"]
    return found


def test_moves_are_listed_and_other_operations_are_not(front: Front) -> None:
    moved(front, *STOP)
    server, operation = moved(front, *RESIZE)
    [old] = listed(front, "2.1")
    assert (old["instance_uuid"], old["source_compute"], old["status"]) == (server, "h1", "preparing")
    assert (old["old_instance_type_id"], old["new_instance_type_id"]) == (None, None)
    assert not {"migration_type", "uuid", "user_id"} & set(old)
    assert listed(front, "2.23") == [old | {"migration_type": "resize"}]
    assert listed(front, "2.59") == [old | {"migration_type": "resize", "uuid": operation}]
    [newest] = listed(front)
    assert (newest["user_id"], newest["project_id"]) == ("ann", "p1"), "the project is the server's"
    assert old["id"] == migrations.migration_id(operation)
    assert 0 < old["id"] < 2**53


def test_a_status_is_one_of_the_compute_apis(front: Front) -> None:
    _, resize = moved(front, *RESIZE)
    _, live = moved(front, *LIVE)
    states = ((resize, OperationState.VERIFY, "finished"), (live, OperationState.SENDING, "running"))
    for operation, state, status in states:
        change(front, operation, state=state)
        assert [each["uuid"] for each in listed(front, status=status)] == [operation]
    ends = ((resize, Outcome.DONE, "confirmed"), (resize, Outcome.REVERTED, "reverted"), (live, Outcome.DONE, "completed"))
    for operation, outcome, status in (*ends, (live, Outcome.GIVEN_UP, "error")):
        change(front, operation, state=OperationState.ENDED, open_for=None, outcome=outcome)
        assert [each["uuid"] for each in listed(front, status=status)] == [operation], status


def test_lists_are_filtered_and_paged(front: Front) -> None:
    servers, found = zip(*(moved(front, *(LIVE if number % 2 else RESIZE)) for number in range(5)), strict=True)
    for number, operation in enumerate(found):
        change(front, operation, created_at=1000.0 + number, updated_at=2000.0 + number)
    newest_first = list(reversed(found))
    first = front.get("/v2.1/os-migrations", at("2.66"), limit="2").json
    assert [each["uuid"] for each in first["migrations"]] == newest_first[:2]
    [link] = first["migrations_links"]
    assert f"marker={newest_first[1]}" in link["href"]
    assert [each["uuid"] for each in listed(front, marker=newest_first[1], limit="2")] == newest_first[2:4]
    assert [each["uuid"] for each in listed(front, marker=newest_first[3])] == newest_first[4:]
    assert "migrations_links" not in front.get("/v2.1/os-migrations", at("2.59"), marker=newest_first[1]).json
    assert [each["uuid"] for each in listed(front, migration_type="live-migration")] == [found[3], found[1]]
    assert [each["uuid"] for each in listed(front, migration_type="live-migration", status="preparing", limit="1")] == [found[3]]
    assert [each["uuid"] for each in listed(front, instance_uuid=servers[2])] == [found[2]]
    assert len(listed(front, source_compute="h1", host="h1")) == 3
    assert listed(front, source_compute="h2") == listed(front, migration_type="no-such") == listed(front, hidden="true") == []
    assert listed(front, user_id="nobody") == []
    between = {"changes-since": "1970-01-01T00:33:21Z", "changes-before": "1970-01-01T00:33:22Z"}
    assert [each["uuid"] for each in listed(front, **between)] == [found[2], found[1]]


@pytest.mark.parametrize(
    ("version", "params", "status"),
    [
        ("2.1", {"colour": "red", "limit": "x"}, 200),
        ("2.59", {"colour": "red"}, 400),
        ("2.59", {"changes-before": "2020-01-01T00:00:00Z"}, 400),
        ("2.66", {"user_id": "u"}, 400),
        ("2.59", {"limit": "-1"}, 400),
        ("2.59", {"marker": UNKNOWN}, 400),
        ("2.59", {"changes-since": "yesterday"}, 400),
    ],
)
def test_a_query_is_checked(front: Front, version: str, params: dict[str, str], status: int) -> None:
    assert front.get("/v2.1/os-migrations", at(version), **params).status_code == status


def test_a_running_live_migration_is_shown_and_aborted(front: Front) -> None:
    server, operation = moved(front, *LIVE)
    path = f"/v2.1/servers/{server}/migrations"
    [shown] = front.get(path, at("2.80")).json["migrations"]
    assert (shown["uuid"], shown["server_uuid"], shown["memory_total_bytes"]) == (operation, server, None)
    assert front.get(f"{path}/{shown['id']}", at("2.80")).json == {"migration": shown}
    assert front.get(f"{path}/{operation}", at("2.80")).json == {"migration": shown}
    [entry] = listed(front, "2.23")
    assert entry["links"][0]["href"].endswith(f"{path}/{shown['id']}")
    assert front.get(path, TENANT | NEWEST).status_code == 403
    assert front.client.simulate_delete(f"{path}/17", headers=at("2.24")).status_code == 404
    assert front.client.simulate_delete(f"{path}/{shown['id']}", headers=at("2.23")).status_code == 404
    assert front.client.simulate_delete(f"{path}/{shown['id']}", headers=at("2.24")).status_code == 202
    [found] = front.database.read(operations.get, [operation])
    assert found.state is OperationState.UNDOING
    assert (found.fault or "").startswith("Given up by the user ann")
    assert front.get(path, at("2.80")).json == {"migrations": []}
    assert front.client.simulate_delete(f"{path}/{shown['id']}", headers=at("2.24")).status_code == 404
    assert listed(front)[0]["status"] == "cancelled"


def test_one_that_sends_is_recalled(front: Front) -> None:
    server, operation = moved(front, *LIVE)
    action = f"/v2.1/servers/{server}/migrations/{operation}/action"
    completing = [
        front.client.simulate_post(action.replace(*other), headers=at(version) | headers, json={"force_complete": value})
        for version, headers, value, other in (
            ("2.21", {}, None, ("", "")),
            ("2.22", TENANT | {"X-Roles": "member"}, None, ("", "")),
            ("2.22", {}, "now", ("", "")),
            ("2.22", {}, None, (operation, "17")),
            ("2.22", {}, None, ("", "")),
        )
    ]
    assert [answer.status_code for answer in completing] == [404, 403, 400, 404, 400]
    change(front, operation, state=OperationState.SENDING, deadline=4e9)
    assert front.client.simulate_post(action, headers=at("2.22"), json={"force_complete": None}).status_code == 501
    assert front.client.simulate_delete(f"/v2.1/servers/{server}/migrations/{operation}", headers=at("2.24")).status_code == 202
    assert front.database.read(operations.get, [operation])[0].deadline < 4e9


def test_only_live_migrations_can_be_aborted(front: Front) -> None:
    server, operation = moved(front, *RESIZE)
    path = f"/v2.1/servers/{server}/migrations"
    assert front.get(path, at("2.23")).json == {"migrations": []}
    assert front.client.simulate_delete(f"{path}/{migrations.migration_id(operation)}", headers=at("2.24")).status_code == 404
    assert OperationKind.RESIZE in migrations.TYPES
