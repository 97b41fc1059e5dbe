"""What the demo's verdict lets pass of attempts that failed, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from cli.standalone.demo.evidence import Evidence, InstanceState
from cli.standalone.demo.plan import SMALL, Item
from cli.standalone.demo.script import judge_script
from cli.standalone.demo.site import HostPlan
from objects.instance import Attempt, Failure, FailureClass, Instance, Server, State

NOW = 1000.0
HOSTS = [HostPlan(name=name, cell="cell1", vcpus=8, memory_mb=8192, disk_gb=100) for name in ("calm", "other")]
FLAKY = HostPlan(name="flaky", cell="cell1", vcpus=8, memory_mb=8192, disk_gb=100, failure_rate=1.0)


def attempt(number: int, host: str, kind: FailureClass) -> Attempt:
    return Attempt(number=number, host=host, node=host, failure=Failure(kind=kind, error="Why", message="so it was", at=NOW))


def ran(name: str, host: str, *history: Attempt) -> tuple[Server, InstanceState]:
    """A server that is ACTIVE on ``host`` after these."""
    common: dict[str, Any] = {"batch_id": "b", "project_id": "p", "user_id": "u", "created_at": NOW, "updated_at": NOW}
    instance = Instance(uuid=f"uuid-{name}", state=State.ACTIVE, fence=1, host=host, history=history, attempt=len(history) + 1)
    return Server(uuid=f"uuid-{name}", name=name, state="active", **common), InstanceState(cell="cell1", instance=instance)


def judged(*made: tuple[Server, InstanceState]) -> list[str]:
    placed = {row.instance.uuid: row.instance.host or "" for _, row in made}
    vcpus = {host: list(placed.values()).count(host) for host in placed.values()}
    evidence = Evidence(
        servers=tuple(server for server, _ in made),
        requests=0,
        claims=placed,
        charged=vcpus,
        claimed=vcpus,
        memory_used={},
        rows=tuple(row for _, row in made),
        guests={host: tuple(uuid for uuid, where in placed.items() if where == host) for host in placed.values()},
    )
    return judge_script(evidence, [Item(name=server.name, flavor=SMALL) for server, _ in made], [*HOSTS, FLAKY])


def test_a_host_set_to_fail_may_fail_builds() -> None:
    assert judged(ran("web", "calm", attempt(1, "flaky", FailureClass.HOST))) == []


def test_any_other_host_may_not() -> None:
    [fault] = judged(ran("web", "other", attempt(1, "calm", FailureClass.HOST)))
    assert "attempt 1 on calm failed unscripted: so it was" in fault


def test_an_unclaimed_alternate_may_be_full() -> None:
    tries = attempt(1, "flaky", FailureClass.HOST), attempt(2, "calm", FailureClass.NO_ROOM)
    assert judged(ran("web", "other", *tries)) == []


def test_a_claimed_host_may_be_full_after_retries() -> None:
    came = ran("web", "calm", attempt(1, "flaky", FailureClass.HOST))
    assert judged(came, ran("db", "other", attempt(1, "calm", FailureClass.NO_ROOM))) == []


@pytest.mark.parametrize("kind", [FailureClass.NO_ROOM, FailureClass.POLICY])
def test_a_claimed_host_may_not_refuse_without_retries(kind: FailureClass) -> None:
    [fault] = judged(ran("web", "calm"), ran("db", "other", attempt(1, "calm", kind)))
    assert "attempt 1 on calm failed unscripted" in fault
