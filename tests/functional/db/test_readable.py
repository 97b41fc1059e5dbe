"""A row that cannot be read is left out of its list: every column of every listed table, with values that SQLite takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from db.api import flavors, tables
from objects import errors
from objects.flavor import Flavor
from tests.support.api import NEWEST, TENANT, Front
from tests.support.ground import Ground

ADMIN = NEWEST | {"X-Project-Id": "operators", "X-Roles": "admin"}
VALUES = ("", "weird", "\x1b[31m", "{", "[]", "null", "[" * 3000, "-1", -1, 2**62, 1e300, 1.5, b"\xff\xfe")


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    place = Ground("lite", tmp_path)
    made = Front(place)
    yield made
    place.end(made.close, place.release)


def poison(front: Front, table: sa.Table, column: str, value: Any, where: sa.ColumnElement[bool]) -> bool:
    """Whether the column takes it."""
    raw = sa.literal(value, sa.String() if isinstance(value, str) else None)

    def write(tx: Any) -> None:
        tx.execute(sa.update(table).where(where).values({table.c[column]: raw}))

    try:
        front.database.write(write)
    except Exception:  # noqa: BLE001 - a constraint refuses it: then no row has it
        return False
    return True


@pytest.mark.parametrize("column", [column.name for column in tables.flavors.c if column.name != "flavor_id"])
def test_a_flavor_costs_itself_only(front: Front, column: str) -> None:
    good = Flavor(flavor_id="good", name="good", vcpus=1, memory_mb=1, root_gb=1)
    for number, value in enumerate(VALUES):
        bad = f"bad{number}"
        front.database.write(flavors.create, Flavor(flavor_id=bad, name=bad, vcpus=1, memory_mb=1, root_gb=1))
        poison(front, tables.flavors, column, value, tables.flavors.c.flavor_id == bad)
    front.database.write(flavors.create, good)
    assert good in front.database.read(flavors.list_all)
    for number in range(len(VALUES)):
        with contextlib.suppress(errors.NotFound):
            front.database.read(flavors.get, f"bad{number}")
    assert front.get("/v2.1/flavors/detail", TENANT | NEWEST).status_code == 200


@pytest.mark.parametrize("column", [column.name for column in tables.server_groups.c if column.name not in ("uuid", "project_id")])
def test_a_server_group_costs_itself_only(front: Front, column: str) -> None:
    def group(name: str) -> str:
        body = {"server_group": {"name": name, "policy": "affinity"}}
        made = front.client.simulate_post("/v2.1/os-server-groups", headers=TENANT | NEWEST, json=body)
        return str(made.json["server_group"]["id"])

    for number, value in enumerate(VALUES):
        bad = group(f"bad{number}")
        poison(front, tables.server_groups, column, value, tables.server_groups.c.uuid == bad)
    good = group("good")
    listed = front.get("/v2.1/os-server-groups", TENANT | NEWEST)
    assert listed.status_code == 200, listed.text
    assert good in [each["id"] for each in listed.json["server_groups"]]


@pytest.mark.parametrize(
    "column", [column.name for column in tables.operations.c if column.name not in ("open_for", "server_uuid")]
)
def test_an_operation_costs_itself_only(front: Front, column: str) -> None:
    def migrating() -> str:
        server = front.boot("web", TENANT)
        front.hand_over()
        front.activate(server)
        front.follow_feed()
        answer = front.client.simulate_post(f"/v2.1/servers/{server}/action", headers=ADMIN, json={"migrate": None})
        assert answer.status_code == 202, answer.text
        return server

    for value in VALUES[:3] + VALUES[8:]:
        bad = migrating()
        poison(front, tables.operations, column, value, tables.operations.c.server_uuid == bad)
    good = migrating()
    listed = front.get("/v2.1/os-migrations", ADMIN)
    assert listed.status_code == 200, listed.text
    assert good in [each["instance_uuid"] for each in listed.json["migrations"]]
