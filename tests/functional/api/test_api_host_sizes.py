"""Administrators let hosts count with the sizes that they report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import falcon.testing
import msgspec
import pytest

from db.api.deployment import host_mappings
from db.cell import compute_nodes
from objects.cell import HostMapping
from objects.compute_node import ComputeNode
from objects.host_limits import HostLimits
from tests.support.api import CELL1_UUID, TENANT, Front
from tests.support.databases import SERVERS
from tests.support.fronts import databases_of

HOSTS = "/v2.1/superconductor/hosts"
NODE = ComputeNode(host="h1", node="n1", vcpus=8, memory_mb=16384, disk_gb=100, resources={"CUSTOM_GPU": 1})


@pytest.fixture(params=SERVERS)
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Front]:
    with databases_of(request.param, tmp_path) as ground:
        made = Front(ground)
        made.database.write(
            host_mappings.add_mappings, [HostMapping(host=host, cell_uuid=CELL1_UUID) for host in ("h1", "new")], 0.0
        )
        for vcpus in (8, 4000):
            made.cell.write(compute_nodes.store_node, msgspec.structs.replace(NODE, vcpus=vcpus), 1.0, HostLimits())
        made.registry.refresh_cells()
        yield made
        made.close()


def accept(front: Front, host: str, headers: dict[str, str] | None = None) -> falcon.testing.Result:
    return front.client.simulate_post(f"{HOSTS}/{host}/accept", headers=headers)


def waiting(front: Front) -> list[str]:
    [cell] = front.get("/v2.1/superconductor/status").json["status"]["cells"]
    hosts: list[str] = cell["waiting_sizes"]
    return hosts


def test_the_reported_size_counts_from_then_on(front: Front) -> None:
    assert waiting(front) == ["h1"]
    [before] = front.cell.read(compute_nodes.list_all)
    answer = accept(front, "h1")
    assert (answer.status_code, before.vcpus) == (200, 8)
    sizes = {"node": "n1", "vcpus": 4000, "memory_mb": 16384, "disk_gb": 100, "resources": {"CUSTOM_GPU": 1}}
    assert answer.json == {"host": {"host": "h1", "nodes": [sizes]}}
    assert accept(front, "h1").json == answer.json
    assert waiting(front) == []
    [node] = front.cell.read(compute_nodes.list_all)
    assert node.vcpus == 4000


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("h9", "Compute host h9 could not be found."),
        ("new", "Host 'new' has reported no size that can be read: its agent does so when it runs"),
        ("x" * 300, f"Compute host {'x' * 80} could not be found."),
    ],
)
def test_a_host_without_sizes_is_not_found(front: Front, host: str, text: str) -> None:
    answer = accept(front, host)
    assert (answer.status_code, answer.json["itemNotFound"]["message"]) == (404, text)


def test_users_cannot(front: Front) -> None:
    assert accept(front, "h1", TENANT).status_code == 403
    assert front.get(f"{HOSTS}/h1/accept").status_code == 405
    assert waiting(front) == ["h1"]
