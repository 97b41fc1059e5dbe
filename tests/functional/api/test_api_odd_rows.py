"""Rows of every table with values that no code of ours writes: none costs an answer of the API, or a server beside it."""

from __future__ import annotations

import pytest

from tests.support.api import NEWEST, TENANT, Front
from tests.support.fronts import front_on_servers
from tests.support.odd_rows import TURNS, Names, odd, tables

pytestmark = pytest.mark.one_in(4)

ADMIN = {"X-Project-Id": "p9"}
OF_ANYBODY = (
    "/v2.1/flavors/detail",
    "/v2.1/limits",
    "/v2.1/os-quota-sets/p1/detail",
    "/v2.1/servers",
    "/v2.1/servers/detail",
)
OF_A_SERVER = ("", "/explanation", "/os-instance-actions")
OF_ADMINISTRATORS = (
    "/v2.1/superconductor/status",
    "/v2.1/os-migrations",
    "/v2.1/os-server-groups?all_projects=1",
    "/v2.1/os-keypairs",
    "/v2.1/os-services",
    "/v2.1/os-hypervisors/detail",
    "/v2.1/os-aggregates",
    "/network/v2.0/ports",
    "/network/v2.0/networks",
    *(
        f"/v2.1/servers/detail?all_tenants=1&{asked}"
        for asked in (
            "name=goo",
            "host=a1",
            "flavor=1",
            "tags=a,b",
            "status=ACTIVE",
            "deleted=True",
            "description=x",
            "sort_key=launched_at",
            "sort_key=host&sort_key=display_name",
            "changes-since=2020-01-01T00:00:00Z",
        )
    ),
)


front = front_on_servers(scope="module")


@pytest.mark.parametrize("name", tables())
def test_they_cost_no_answer_and_no_neighbour(front: Front, name: str) -> None:
    table = tables()[name]
    database = front.database if name.startswith("api-") else front.cell.database
    for turn in TURNS:
        bad = front.boot("bad", TENANT, metadata={"k": "v"})
        front.hand_over("a1")
        good = front.boot("good", TENANT)
        about = Names(bad, front.batch_of(bad), "odd", "a1")
        with odd(database, table, about, turn, front.database.dialect):
            more = front.boot("more", TENANT)
            servers = [f"/v2.1/servers/{server}{path}" for server in (good, bad) for path in OF_A_SERVER]
            for headers, paths in ((TENANT, [*OF_ANYBODY, *servers]), (ADMIN, [*OF_ANYBODY, *servers, *OF_ADMINISTRATORS])):
                for path in paths:
                    answer = front.client.simulate_get(path, headers=headers | NEWEST)
                    assert answer.status_code in ((200, 404) if bad in path else (200,)), (path, turn, answer.text)
            listed = {server["id"] for server in front.get("/v2.1/servers", TENANT).json["servers"]}
            assert {good, more} <= listed
            assert [front.delete(server, TENANT).status_code for server in (good, more)] == [204, 204]
        front.delete(bad, TENANT)
