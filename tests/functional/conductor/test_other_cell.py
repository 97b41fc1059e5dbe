"""Builds that no host of their cell could take, booted again in another cell."""

from __future__ import annotations

import msgspec
import pytest

from compute.simulated import METADATA_KEY
from db.api.operations import operations
from db.api.servers import mappings
from objects.instance import Server, State
from objects.operation import Outcome
from objects.phase import ServerPhase, phase_of
from objects.spec import RequestSpec, ServerProperties
from service.periodic import wait_until
from tests.support import fleet
from tests.support.cell_conductor import PATIENCE
from tests.support.ground import GROUNDS
from tests.support.world import World, world_fixture

SMALL = fleet.flavor(vcpus=1, memory_mb=512, root_gb=1)


cloud = world_fixture(grounds=GROUNDS)


def failing(cloud: World, *hosts: str, count: int = 1) -> RequestSpec:
    """Servers that these hosts fail to build."""
    script = ServerProperties(metadata={METADATA_KEY: f"fail:{','.join(hosts)}"})
    return cloud.accept(count, size=SMALL, properties=script)


def servers(cloud: World, spec: RequestSpec) -> list[Server]:
    """As users see them: one in ERROR without an operation is looked at twice, as its operation may just have ended."""
    for _ in range(2):
        found = cloud.api.read(mappings.list_, mappings.ServerQuery(limit=100))
        opened = cloud.api.read(operations.open_for, [server.uuid for server in found])
        if all(server.state != "error" or server.uuid in opened for server in found):
            break
    mine = [server for server in found if server.batch_id == spec.batch_id]
    return [msgspec.structs.replace(server, operation=opened.get(server.uuid)) for server in mine]


def start(cloud: World, timeout: float) -> None:
    """``timeout``: seconds that builds get in another cell."""
    cloud.start(msgspec.structs.replace(cloud.quick, other_cell_timeout=timeout))


def test_a_build_changes_cell_after_its_last_host(cloud: World) -> None:
    start(cloud, 30.0)
    spec = failing(cloud, "a1", "a2", count=3)
    seen: set[ServerPhase | None] = set()

    def built() -> bool:
        found = servers(cloud, spec)
        seen.update(map(phase_of, found))
        return {server.state for server in found} == {"active"} and not any(server.operation for server in found)

    assert wait_until(built, PATIENCE), servers(cloud, spec)
    assert {server.host for server in servers(cloud, spec)} == {"b1"}
    assert ServerPhase.ERROR not in seen, "users see it as building until another cell has failed, too"
    for server in servers(cloud, spec):
        if server.turn:
            [operation] = cloud.api.read(operations.of_server, server.uuid)
            assert operation.outcome is Outcome.DONE
            assert "Attempt 1 on a" in (operation.fault or ""), "the history of the first cell"
    cloud.settle()


def test_without_another_cell_it_ends_with_both_reasons(cloud: World) -> None:
    start(cloud, 30.0)
    spec = failing(cloud, "a1", "a2", "b1")
    assert wait_until(lambda: [(s.state, s.operation) for s in servers(cloud, spec)] == [("error", None)], PATIENCE)
    found = cloud.settle()
    [server] = servers(cloud, spec)
    fault = server.fault or ""
    assert "In another cell" in fault or "b1" in fault, fault
    assert found.claims == {}
    assert sum(row.instance.state is State.ERROR for row in found.rows) == 1
    if "In another cell" in fault:
        assert all(host in fault for host in ("a1", "a2", "b1"))


def test_it_is_off_unless_configured(cloud: World) -> None:
    start(cloud, 0.0)
    spec = failing(cloud, "a1", "a2", "b1")
    assert wait_until(lambda: [server.state for server in servers(cloud, spec)] == ["error"], PATIENCE)
    assert cloud.api.read(operations.of_server, servers(cloud, spec)[0].uuid) == []
    cloud.settle()


@pytest.mark.parametrize("moment", ["accepted", "active"])
def test_a_delete_takes_both_bodies(cloud: World, moment: str) -> None:
    start(cloud, 30.0)
    spec = failing(cloud, "a1", "a2")
    if moment == "active":
        assert wait_until(lambda: [s.state for s in servers(cloud, spec)] == ["active"], PATIENCE)
    else:
        assert wait_until(lambda: any(s.operation or s.state == "active" for s in servers(cloud, spec)), PATIENCE)
    assert cloud.delete(servers(cloud, spec)[0].uuid) is not None
    found = cloud.settle()
    assert found.claims == {}
    assert {row.instance.state for row in found.rows} <= {State.DELETED}
