"""How long servers ran, over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import falcon.testing
import msgspec
import pytest
import sqlalchemy as sa

import api.projects.usage
from db.api.deployment import cell_mappings
from db.api.rows.tables import instance_mappings
from db.sql.connection import ApiTransaction
from objects import errors
from objects.cell import UNKNOWN_CELLS_HEADER
from tests.support.api import CELL1_UUID, OTHER_TENANT, TENANT, Front, with_status
from tests.support.fronts import front_fixture
from tests.support.ground import USUAL

USAGE = "/v2.1/os-simple-tenant-usage"
HOUR = 3600.0
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
DAY: dict[str, Any] = {"start": "2026-01-31T00:00:00", "end": "2026-02-01T00:00:00"}


front = front_fixture(grounds=USUAL)


def ran(front: Front, begin: float, end: float | None = None, headers: dict[str, str] | None = None, **fields: Any) -> str:
    """A server that was launched at this hour after noon, and deleted at the other one."""
    uuid = front.boot(headers=headers or TENANT, **fields)
    front.bring_up(uuid)
    times: dict[str, Any] = {"launched_at": NOON + begin * HOUR}
    if end is not None:
        assert front.delete(uuid).status_code == 204
        times |= {"deleted_at": NOON + end * HOUR}

    def write(tx: ApiTransaction) -> None:
        tx.execute(sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == uuid).values(times))

    front.database.write(write)
    return uuid


def ask(front: Front, path: str = "", version: str = "2.1", headers: dict[str, str] | None = None, **query: Any) -> Any:
    answer = with_status(get(front, path, version, headers, **query), 200)
    return answer.json


def get(
    front: Front, path: str = "", version: str = "2.1", headers: dict[str, str] | None = None, **query: Any
) -> falcon.testing.Result:
    return front.get(f"{USAGE}{path}", {"OpenStack-API-Version": f"compute {version}"} | (headers or {}), **query)


def test_a_project_is_told_what_its_servers_took(front: Front) -> None:
    """Within the period only, and until their delete."""
    gone = ran(front, -2, 1)
    left = ran(front, 10, name="left")
    ran(front, -100, -50)
    ran(front, 20, headers=OTHER_TENANT)
    front.boot(headers=TENANT)  # never launched
    found = ask(front, "/p1", headers=TENANT, **DAY)["tenant_usage"]
    assert (found["tenant_id"], found["start"]) == ("p1", "2026-01-31T00:00:00.000000")
    usages = {each["instance_id"]: each for each in found.pop("server_usages")}
    assert set(usages) == {gone, left}
    assert (
        usages[gone].items()
        >= {
            "flavor": "m1.small",
            "hours": 3.0,
            "started_at": "2026-01-31T10:00:00.000000",
            "ended_at": "2026-01-31T13:00:00.000000",
            "state": "terminated",
            "uptime": 3 * 3600,
            "vcpus": 1,
            "memory_mb": 2048,
            "local_gb": 20,
        }.items()
    )
    assert (usages[left]["name"], usages[left]["hours"], usages[left]["ended_at"]) == ("left", 2.0, None)
    assert usages[left]["state"] == "active"
    assert {name: found[name] for name in found if name.startswith("total")} == {
        "total_hours": 5.0,
        "total_vcpus_usage": 5.0,
        "total_memory_mb_usage": 5.0 * 2048,
        "total_local_gb_usage": 100.0,
    }


def test_projects_without_an_id_are_not_all_projects(front: Front) -> None:
    assert get(front, "/").status_code == 404


def test_an_administrator_is_told_of_all_projects(front: Front) -> None:
    ran(front, 0, 1)
    ran(front, 0, 2, OTHER_TENANT)
    found = ask(front, **DAY)["tenant_usages"]
    assert {each["tenant_id"]: each["total_hours"] for each in found} == {"p1": 1.0, "p2": 2.0}
    assert not any("server_usages" in each for each in found)
    detailed = ask(front, detailed="1", **DAY)["tenant_usages"]
    assert [len(each["server_usages"]) for each in detailed] == [1, 1]
    assert ask(front)["tenant_usages"] == [], "without times the period is this moment, and both are gone"
    assert get(front, headers=TENANT, **DAY).status_code == 403
    assert get(front, "/p2", headers=TENANT, **DAY).status_code == 403
    assert ask(front, "/p3", **DAY) == {"tenant_usage": {}}


def test_pages_follow_the_servers(front: Front) -> None:
    """From 2.40 on."""
    uuids = sorted(ran(front, 0, 1) for _ in range(3))
    assert len(ask(front, "/p1", "2.39", limit="1", **DAY)["tenant_usage"]["server_usages"]) == 3
    first = ask(front, "/p1", "2.40", limit="2", **DAY)
    assert [each["instance_id"] for each in first["tenant_usage"]["server_usages"]] == uuids[:2]
    (link,) = first["tenant_usage_links"]
    assert f"{USAGE}/p1?" in link["href"]
    assert f"marker={uuids[1]}" in link["href"]
    last = ask(front, "/p1", "2.40", limit="2", marker=uuids[1], **DAY)
    assert [each["instance_id"] for each in last["tenant_usage"]["server_usages"]] == uuids[2:]
    assert "tenant_usage_links" not in last
    every = ask(front, version="2.40", limit="1", detailed="1", **DAY)
    assert every["tenant_usages"][0]["total_hours"] == 1.0
    assert len(every["tenant_usages_links"]) == 1
    assert get(front, "/p1", "2.40", marker="nope", **DAY).status_code == 400
    assert get(front, "/p2", "2.40", marker=uuids[0], **DAY).status_code == 400


def test_too_many_servers_for_one_answer_are_refused(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than left out of the sums."""
    monkeypatch.setattr(api.projects.usage, "UNPAGED_LIMIT", 1)
    ran(front, 0, 1)
    assert get(front, **DAY).status_code == 200
    ran(front, 0, 1)
    assert get(front, **DAY).json["badRequest"]["message"].startswith("More than 1 servers ran in this time.")


@pytest.mark.parametrize(
    ("query", "version", "status"),
    [
        ({"start": "yesterday"}, "2.1", 400),
        ({"start": "2026-02-01T00:00:00", "end": "2026-01-01T00:00:00"}, "2.1", 400),
        ({"start": "2026-02-01T00:00:00", "end": "2026-02-01T00:00:00"}, "2.1", 400),
        ({"start": "9999-12-31T23:59:59"}, "2.1", 400),
        ({"start": "0001-01-01T00:00:00"}, "2.1", 200),
        ({"start": "2026-01-31 00:00:00.5"}, "2.1", 200),
        ({"detailed": "True"}, "2.1", 200),
        ({"detailed": "perhaps"}, "2.1", 400),
        ({"perhaps": "1"}, "2.74", 200),
        ({"perhaps": "1"}, "2.75", 400),
    ],
)
def test_the_period_is_checked(front: Front, query: dict[str, Any], version: str, status: int) -> None:
    assert get(front, version=version, **query).status_code == status


def test_a_cell_that_is_down_is_named(front: Front) -> None:
    """Its servers are told as they were last known."""
    ran(front, 0)
    mapping = front.registry.get(CELL1_UUID).current_mapping
    front.database.write(cell_mappings.update_mapping, msgspec.structs.replace(mapping, database_url="sqlite:////nowhere/cell1.db"))
    front.registry.refresh_cells()
    with pytest.raises(errors.CellUnavailable):
        front.cell.read(lambda tx: None)
    answer = get(front, "/p1", **DAY)
    assert answer.json["tenant_usage"]["total_hours"] == 12.0
    assert answer.headers[UNKNOWN_CELLS_HEADER].startswith("cell1;since=")
