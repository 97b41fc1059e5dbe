"""Whole decisions against a scheduler in plain Python that looks at one host at a time: same hosts, same scores, same choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects.aggregate import Aggregate
from objects.compute_node import ComputeNode
from objects.flavor import Flavor
from objects.spec import RequestSpec
from scheduler.engine import engine
from scheduler.engine.surveying import survey
from scheduler.framework.settings import DEFAULT_FILTERS
from tests.support import fleet
from tests.support.examples import examples

FILTERS = (*DEFAULT_FILTERS, "IoOpsFilter", "NumInstancesFilter", "AggregateMultiTenancyIsolation", "JsonFilter", "SameHostFilter")
WEIGHERS = ("RAMWeigher", "CPUWeigher", "IoOpsWeigher", "NumInstancesWeigher", "BuildFailureWeigher", "BalanceWeigher")
SERVER = "00000000-0000-0000-0000-000000000001"
NAMES = tuple(f"h{n}" for n in range(7))

NODES: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(
        dict,
        vcpus=st.integers(1, 8),
        memory_mb=st.integers(1, 8).map(lambda gib: gib * 1024),
        cpu_allocation_ratio=st.sampled_from([1.0, 2.0]),
        running_vms=st.integers(0, 2),
        failed_builds=st.sampled_from([0.0, 0.0, 1.0]),
        attributes=st.sampled_from([{}, {"traits": ["SSD"], "cores": 4}, {"traits": ["SSD", "GPU"]}]),
    ),
    min_size=1,
    max_size=len(NAMES),
)
AGGREGATES = st.lists(
    st.tuples(
        st.sets(st.sampled_from(NAMES)),
        st.sampled_from([{"filter_tenant_id": "q"}, {"filter_tenant_id": "p,q"}, {"cpu_allocation_ratio": "1"}]),
        st.sampled_from([{}, {"ram_weight_multiplier": "-1"}, {"max_instances_per_host": "2"}]),
    ).map(lambda parts: (parts[0], parts[1] | parts[2])),
    max_size=2,
)
REQUESTS: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    vcpus=st.integers(1, 3),
    memory_mb=st.sampled_from([1024, 2048]),
    extra_specs=st.dictionaries(st.sampled_from(["trait:SSD", "trait:GPU"]), st.sampled_from(["required", "forbidden"])),
    cores=st.booleans(),
    ignore=st.lists(st.sampled_from(NAMES), max_size=2),
    query=st.booleans(),
    same_host=st.sampled_from([None, None, "h1"]),
)


class Host:
    """One host, with all that the reference wants to know of it."""

    def __init__(self, node: ComputeNode, claimed: int, aggregates: Sequence[Aggregate]) -> None:
        self.node, self.claimed = node, claimed
        self.metadata = [one.metadata for one in aggregates if node.host in one.hosts]

    def least(self, key: str, default: float) -> float:
        return min((float(each[key]) for each in self.metadata if key in each), default=default)

    def capacity(self) -> float:
        return self.node.vcpus * min(self.node.cpu_allocation_ratio, self.least("cpu_allocation_ratio", 99.0))

    def free_vcpus(self) -> float:
        return self.node.vcpus * self.node.cpu_allocation_ratio - self.claimed

    def free_mb(self) -> float:
        return self.node.memory_mb - self.claimed * 512

    def io_ops(self) -> int:
        return max(0, self.claimed - self.node.running_vms)

    def passes(self, asked: RequestSpec) -> bool:
        specs, traits = asked.flavor.extra_specs, self.node.attributes.get("traits", [])
        tenants = [each["filter_tenant_id"].split(",") for each in self.metadata if "filter_tenant_id" in each]
        return (
            self.node.host not in asked.ignore_hosts
            and self.capacity() - self.claimed >= asked.flavor.vcpus
            and self.free_mb() >= asked.flavor.memory_mb
            and all((key[6:] in traits) == (how == "required") for key, how in specs.items() if key.startswith("trait:"))
            and ("capabilities:cores" not in specs or self.node.attributes.get("cores", 0) >= 4)
            and self.io_ops() < 3
            and self.claimed < self.least("max_instances_per_host", 4)
            and (not tenants or any("p" in each for each in tenants))
            and ("query" not in asked.scheduler_hints or self.free_mb() >= 3072)
            and ("same_host" not in asked.scheduler_hints or self.node.host == "h1")
        )

    def unbalance(self, asked: RequestSpec) -> float:
        room = self.capacity() - self.claimed - asked.flavor.vcpus
        disk = (self.node.disk_gb - asked.flavor.disk_gb) / self.node.disk_gb
        shares = [room / self.capacity(), (self.free_mb() - asked.flavor.memory_mb) / self.node.memory_mb, disk]
        return max(shares) - min(shares)


def weighed(
    hosts: Sequence[Host], raw: Callable[[Host], float], multiplier: Callable[[Host], float], *, from_zero: bool
) -> list[float]:
    values = [max(raw(host), 0.0) if from_zero else raw(host) for host in hosts]
    low, high = 0.0 if from_zero else min(values), max(values)
    return [multiplier(host) * (value - low) / ((high - low) or 1.0) for host, value in zip(hosts, values, strict=True)]


def totals(hosts: Sequence[Host], asked: RequestSpec) -> list[float]:
    if not hosts:
        return []
    opinions = [
        weighed(hosts, Host.free_mb, lambda host: host.least("ram_weight_multiplier", 1.0), from_zero=True),
        weighed(hosts, Host.free_vcpus, lambda host: 1.0, from_zero=True),
        weighed(hosts, lambda host: float(host.io_ops()), lambda host: -1.0, from_zero=True),
        weighed(hosts, lambda host: float(host.claimed), lambda host: -0.5, from_zero=False),
        weighed(hosts, lambda host: host.node.failed_builds, lambda host: -1e6, from_zero=True),
        weighed(hosts, lambda host: -host.unbalance(asked), lambda host: 1.0, from_zero=False),
    ]
    return [sum(parts) for parts in zip(*opinions, strict=True)]


@given(NODES, st.lists(st.integers(0, 4), min_size=len(NAMES), max_size=len(NAMES)), AGGREGATES, REQUESTS)
@examples(250)
def test_same_hosts_same_scores_same_choice(
    nodes: list[dict[str, Any]], claimed: list[int], sets: list[tuple[set[str], dict[str, str]]], wanted: dict[str, Any]
) -> None:
    aggregates = [Aggregate(id=n, name=f"a{n}", hosts=tuple(sorted(hosts)), metadata=keys) for n, (hosts, keys) in enumerate(sets)]
    made = [fleet.node(name, **values) for name, values in zip(NAMES, nodes, strict=False)]
    table = fleet.table(made, aggregates=aggregates)
    for n, (node, used) in enumerate(zip(made, claimed, strict=False)):
        amounts = {"used_vcpus": used, "used_memory_mb": used * 512, "instances": used}
        table.set_inventory(fleet.inventory(n + 1, node, fleet.CELLS[n % 2], 2, **amounts), now=0.0)
    asked = request_of(wanted)
    places = {SERVER: "h1"} if "same_host" in asked.scheduler_hints else {}
    request = fleet.request(asked, table, places=places)
    driver = fleet.driver(
        enabled_filters=FILTERS,
        enabled_weighers=WEIGHERS,
        shuffle_best_same_weighed_hosts=False,
        num_instances_weight_multiplier=-0.5,
        max_io_ops_per_host=3,
        max_instances_per_host=4,
    )

    hosts = [Host(node, used, aggregates) for node, used in zip(made, claimed, strict=False)]
    left = [host for host in hosts if host.passes(asked)]
    found = survey(table, driver, request)
    assert [table.hosts[row] for row in found.passing_rows] == [host.node.host for host in left]
    scores = totals(left, asked)
    assert found.passing_scores.tolist() == pytest.approx(scores, rel=1e-9, abs=1e-6)
    with table.take_tentatively():
        chosen = engine.choose_rows(table, driver, request, found, 1)
    best = max(scores, default=0.0)
    assert bool(chosen) is bool(left)
    assert all(scores[found.passing_rows.tolist().index(row)] == pytest.approx(best, abs=1e-6) for row in chosen)


def request_of(wanted: dict[str, Any]) -> RequestSpec:
    specs = dict(wanted["extra_specs"]) | ({"capabilities:cores": ">= 4"} if wanted["cores"] else {})
    flavor = Flavor(flavor_id="f", name="f", vcpus=wanted["vcpus"], memory_mb=wanted["memory_mb"], root_gb=1, extra_specs=specs)
    hints = {"query": ('[">=", "$free_ram_mb", 3072]',)} if wanted["query"] else {}
    if wanted["same_host"]:
        hints["same_host"] = (SERVER,)
    return fleet.spec(flavor, ignore_hosts=tuple(wanted["ignore"]), scheduler_hints=hints)
