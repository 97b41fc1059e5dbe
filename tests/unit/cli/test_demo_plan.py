"""The demo's plan fits whatever number of hosts it is made for, and hosts in its zones never fail."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cli.standalone.demo import plan
from cli.standalone.demo.boots import Expected
from cli.standalone.demo.site import HostPlan
from objects import errors


@pytest.mark.parametrize("per_cell", [plan.MIN_HOSTS_PER_CELL, 10, plan.HOSTS_PER_CELL, 25])
def test_zones_are_made_of_hosts_that_never_fail(per_cell: int) -> None:
    hosts = {host.name: host for host in plan.plan_hosts(per_cell)}
    confined = [name for members in plan.plan_zones(per_cell).values() for name in members]

    assert len(hosts) == per_cell * len(plan.CELLS)
    assert [hosts[name].failure_rate for name in confined] == [0.0] * 8
    assert len(set(confined)) == 8
    assert any(host.failure_rate for host in hosts.values())


@pytest.mark.parametrize("per_cell", [plan.MIN_HOSTS_PER_CELL, 10, plan.HOSTS_PER_CELL])
def test_all_active_servers_fit_outside_the_attic(per_cell: int) -> None:
    attic = plan.plan_zones(per_cell)["attic"]
    usual = [host for host in plan.plan_hosts(per_cell) if host.name not in attic]
    lasting = [item for item in plan.plan_items() if item.expected is Expected.ACTIVE and not item.deletes]
    wanted = [item.flavor for item in lasting for _ in range(item.count)]

    assert sum(flavor.ram for flavor in wanted) < sum(host.memory_mb for host in usual)
    assert sum(flavor.disk for flavor in wanted) < sum(host.disk_gb for host in usual)
    assert sum(flavor.vcpus for flavor in wanted) < 4 * sum(host.vcpus for host in usual), "the agents' allocation ratio"


def test_oversized_servers_fit_no_number_of_hosts() -> None:
    for per_cell in (plan.MIN_HOSTS_PER_CELL, 10, plan.HOSTS_PER_CELL):
        hosts, zones = {host.name: host for host in plan.plan_hosts(per_cell)}, plan.plan_zones(per_cell)

        assert all(plan.GIANT.ram > host.memory_mb for host in hosts.values())
        assert _room([hosts[name] for name in zones["attic"]], plan.LARGE.ram) < 6, "attic-crowd"
        assert len(zones["north"]) < 7, "too-far-apart"


def test_a_dozen_hosts_are_the_same_as_ever() -> None:
    flaky = [host.name for host in plan.plan_hosts() if host.failure_rate]

    assert flaky == [f"{cell}-host{number}" for cell in plan.CELLS for number in (4, 7, 10)]
    assert plan.plan_zones()["attic"] == ("cell1-host12", "cell2-host12")


def test_too_few_hosts_are_refused() -> None:
    with pytest.raises(errors.Invalid, match=f"needs {plan.MIN_HOSTS_PER_CELL} hosts"):
        plan.plan_hosts(plan.MIN_HOSTS_PER_CELL - 1)


def _room(hosts: Sequence[HostPlan], memory_mb: int) -> int:
    return sum(host.memory_mb // memory_mb for host in hosts)
