"""Nodes of all cells over HTTP."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from db.api.claims import claims
from db.api.deployment import host_mappings
from db.cell import compute_nodes, services
from objects.cell import HostMapping
from objects.compute_node import ComputeNode
from objects.process import AGENT_BINARY
from tests.support.api import CELL1_UUID, NEWEST, TENANT, Front, refusal, with_status
from tests.support.databases import SERVERS
from tests.support.fronts import databases_of

PATH = "/v2.1/os-hypervisors"
OLD = TENANT | {"X-Roles": "admin"}
UUIDS = OLD | {"OpenStack-API-Version": "compute 2.53"}
PAGES = OLD | {"OpenStack-API-Version": "compute 2.33"}
NODE = ComputeNode(
    host="h1", node="h1-node", vcpus=8, memory_mb=16384, disk_gb=100, vcpus_used=3, memory_mb_used=1024, running_vms=2
)


@pytest.fixture(params=SERVERS)
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Front]:
    with databases_of(request.param, tmp_path) as ground:
        made = Front(ground)
        for node in (NODE, ComputeNode(host="h2", node="h2-node", vcpus=4, memory_mb=4096, disk_gb=50)):
            made.database.write(host_mappings.add_mappings, [HostMapping(host=node.host, cell_uuid=CELL1_UUID)], 0.0)
            made.cell.write(services.record_heartbeats, [services.Beat(host=node.host, binary=AGENT_BINARY)])
            made.cell.write(compute_nodes.store_node, node, 1.0)
            made.ledger.write(claims.set_inventory, [node], CELL1_UUID)
        made.cell.write(compute_nodes.store_node, ComputeNode(host="stray", node="stray", vcpus=4, memory_mb=4096, disk_gb=50), 1.0)
        made.registry.refresh_cells()
        yield made
        made.close()


def names(front: Front, path: str, headers: dict[str, str], **params: str) -> list[str]:
    answer = with_status(front.get(path, headers, **params), 200)
    return [each["hypervisor_hostname"] for each in answer.json["hypervisors"]]


def test_nodes_of_mapped_hosts_are_listed(front: Front) -> None:
    assert names(front, PATH, OLD) == ["h1-node", "h2-node"]
    one = front.get(f"{PATH}/detail", OLD).json["hypervisors"][0]
    assert (one["vcpus"], one["vcpus_used"], one["free_ram_mb"], one["local_gb"], one["running_vms"]) == (8, 3, 15360, 100, 2)
    assert (one["state"], one["status"], one["service"]["host"], one["cpu_info"]) == ("up", "enabled", "h1", "")
    assert isinstance(one["id"], int)
    assert front.get(f"{PATH}/{one['id']}", OLD).json["hypervisor"] == one
    sums = front.get(f"{PATH}/statistics", OLD).json["hypervisor_statistics"]
    assert (sums["count"], sums["vcpus"], sums["memory_mb_used"]) == (2, 12, 1024)


def test_newer_versions_use_uuids_and_hide_amounts(front: Front) -> None:
    one = front.get(f"{PATH}/detail", UUIDS).json["hypervisors"][0]
    assert len(one["id"]) == 36
    assert one["cpu_info"] == {}
    shown = front.get(f"{PATH}/{one['id']}", UUIDS)
    assert shown.json["hypervisor"] == one
    refusal(front.get(f"{PATH}/1", UUIDS), 404)
    assert names(front, PATH, UUIDS, hypervisor_hostname_pattern="H2") == ["h2-node"]
    refusal(front.get(PATH, UUIDS, hypervisor_hostname_pattern="other"), 404)
    refusal(front.get(PATH, UUIDS, hypervisor_hostname_pattern="h", limit="1"), 400)
    refusal(front.get(PATH, UUIDS, with_servers="perhaps"), 400)


def test_pages(front: Front) -> None:
    first = front.get(PATH, PAGES, limit="1").json
    assert [each["hypervisor_hostname"] for each in first["hypervisors"]] == ["h1-node"]
    assert f"marker={first['hypervisors'][0]['id']}" in first["hypervisors_links"][0]["href"]
    assert names(front, PATH, PAGES, marker=str(first["hypervisors"][0]["id"])) == ["h2-node"]
    refusal(front.get(PATH, PAGES, marker="999"), 400)
    refusal(front.get(PATH, PAGES, marker="x"), 400)


def test_servers_of_a_node(front: Front) -> None:
    assert "servers" not in front.get(f"{PATH}/h/servers", OLD).json["hypervisors"][0]
    server = front.boot()
    front.hand_over("h1")
    found = front.get(f"{PATH}/h/servers", OLD).json["hypervisors"]
    assert [[each["uuid"] for each in one.get("servers", [])] for one in found] == [[server], []]
    assert names(front, f"{PATH}/H1/search", OLD) == ["h1-node"]
    refusal(front.get(f"{PATH}/none/search", OLD), 404)


def test_a_disabled_host_and_members(front: Front) -> None:
    front.cell.write(services.set_disabled, "h1", AGENT_BINARY, True, "repair", 0.0)
    one = front.get(f"{PATH}/detail", UUIDS).json["hypervisors"][0]
    assert (one["status"], one["service"]["disabled_reason"]) == ("disabled", "repair")
    assert front.get(f"{PATH}/statistics", OLD).json["hypervisor_statistics"]["count"] == 1
    refusal(front.get(PATH, NEWEST | TENANT), 403)
    number = front.get(PATH, OLD).json["hypervisors"][0]["id"]
    refusal(front.get(f"{PATH}/{number}/uptime", OLD), 501)
    refusal(front.get(f"{PATH}/999999/uptime", OLD), 404)


def test_the_uptime_of_a_machine_that_is_up(front: Front) -> None:
    """The format of the command ``uptime``, as far as agents report what it says."""
    booted = time.time() - 93 * 86400 - 18 * 3600 - 25 * 60 - 3
    front.cell.write(compute_nodes.store_node, msgspec.structs.replace(NODE, booted_at=booted), 2.0)
    number = front.get(PATH, OLD).json["hypervisors"][0]["id"]
    assert re.fullmatch(r" \d\d:\d\d:\d\d up 93 days, 18:2[56]", uptime_of(front, number))
    assert front.get(f"{PATH}/detail", NEWEST).json["hypervisors"][0]["uptime"].endswith(uptime_of(front, number)[10:])
    front.cell.write(compute_nodes.store_node, msgspec.structs.replace(NODE, booted_at=time.time() - 125), 3.0)
    assert uptime_of(front, number).endswith(" up  0:02")

    front.cell.write(services.set_forced_down, "h1", AGENT_BINARY, True, 0.0)
    assert "unavailable" in refusal(front.get(f"{PATH}/{number}/uptime", OLD), 400)
    assert front.get(f"{PATH}/detail", NEWEST).json["hypervisors"][0]["uptime"] is None


def uptime_of(front: Front, number: int) -> str:
    return str(front.get(f"{PATH}/{number}/uptime", OLD).json["hypervisor"]["uptime"])
