"""Filters, ratios and multipliers of aggregates against a plain reference that looks at one host at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects.aggregate import Aggregate
from objects.flavor import Flavor
from objects.spec import Image, RequestSpec
from scheduler.engine import engine
from scheduler.engine.surveying import survey
from scheduler.filters.aggregates import (
    AggregateImagePropertiesIsolation,
    AggregateInstanceExtraSpecsFilter,
    AggregateMultiTenancyIsolation,
    AggregateTypeAffinityFilter,
    IsolateAggregates,
    RequireTenantAggregate,
)
from scheduler.filters.all_hosts import AllHostsFilter
from scheduler.filters.capacity import CoreFilter, DiskFilter, RamFilter
from scheduler.filters.load import IoOpsFilter, NumInstancesFilter
from scheduler.filters.operators import matches_spec
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from scheduler.weighers.capacity import RAMWeigher
from scheduler.weighers.load import BuildFailureWeigher
from tests.support import fleet
from tests.support.examples import examples

NAMES = tuple(f"h{n}" for n in range(5))
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "ssd": st.sampled_from(["true", "false", "true, maybe"]),
        "os_type": st.sampled_from(["linux", "linux,bsd"]),
        "site.os_type": st.sampled_from(["linux", "bsd"]),
        "filter_tenant_id": st.sampled_from(["p", "q", "q, p"]),
        "filter_tenant_id2": st.sampled_from(["p", "r"]),
        "trait:SSD": st.sampled_from(["required", "required", "preferred"]),
        "trait:GPU": st.just("required"),
        "instance_type": st.sampled_from(["small", "small, large", "large"]),
        "cpu_allocation_ratio": st.sampled_from(["1.0", "2", "16", "much"]),
        "ram_weight_multiplier": st.sampled_from(["-2", "3.5", "nonsense"]),
        "max_instances_per_host": st.sampled_from(["1", "3"]),
    },
)


@st.composite
def aggregates(draw: st.DrawFn) -> list[Aggregate]:
    sets = draw(st.lists(st.tuples(st.sets(st.sampled_from(NAMES)), METADATA), max_size=4))
    return [
        Aggregate(id=n, name=f"a{n}", hosts=tuple(sorted(hosts)), metadata=keys) for n, (hosts, keys) in enumerate(sets, start=1)
    ]


def texts(known: Sequence[Aggregate], host: str, key: str) -> list[str]:
    return [one.metadata[key] for one in known if host in one.hosts and key in one.metadata]


def words(known: Sequence[Aggregate], host: str, key: str) -> set[str]:
    return {word.strip() for text in texts(known, host, key) for word in text.split(",")}


def least(known: Sequence[Aggregate], host: str, key: str, default: float) -> float:
    numbers = [float(text) for text in texts(known, host, key) if text.replace(".", "").lstrip("-").isdigit()]
    return min(numbers, default=default)


def fleet_with(known: Sequence[Aggregate]) -> HostTable:
    return fleet.table([fleet.node(name, vcpus=4, cpu_allocation_ratio=4.0) for name in NAMES], aggregates=known)


def left(kind: type[Filter], table: HostTable, asked: RequestSpec, configured: SchedulerSettings | None = None) -> list[str]:
    request = fleet.request(asked, table)
    mask = kind(configured or SchedulerSettings()).passes(Hosts(table, request), request)
    return [host for row, host in enumerate(table.hosts) if mask is None or mask[row]]


def flavor(name: str = "small", **extra_specs: str) -> Flavor:
    return Flavor(flavor_id="f", name=name, vcpus=5, memory_mb=1024, extra_specs=extra_specs)


SPECS = st.dictionaries(
    st.sampled_from(["ssd", "aggregate_instance_extra_specs:ssd", "capabilities:ssd", "unheard_of"]),
    st.sampled_from(["true", "<or> true <or> maybe", "s!= true"]),
    max_size=2,
)


@given(aggregates(), SPECS)
@examples(150)
def test_extra_specs(known: list[Aggregate], specs: dict[str, str]) -> None:
    def reference(host: str) -> bool:
        for key, wanted in specs.items():
            scope, _, name = key.partition(":")
            if name and scope != "aggregate_instance_extra_specs":
                continue
            if not any(matches_spec(have, wanted) for have in words(known, host, name or scope)):
                return False
        return True

    found = left(AggregateInstanceExtraSpecsFilter, fleet_with(known), fleet.spec(flavor(**specs)))
    assert found == [host for host in NAMES if reference(host)]


@given(
    aggregates(), st.dictionaries(st.sampled_from(["os_type", "site.os_type", "ssd"]), st.sampled_from(["linux", "bsd", "true"]))
)
@examples(150)
def test_image_properties(known: list[Aggregate], properties: dict[str, str]) -> None:
    def reference(host: str, prefix: str) -> bool:
        bearing = {key: words(known, host, key) for key in properties if key.startswith(prefix)}
        return all(not have or properties[key] in have for key, have in bearing.items())

    asked, table = fleet.spec(image=Image(id="i", properties=properties)), fleet_with(known)
    assert left(AggregateImagePropertiesIsolation, table, asked) == [host for host in NAMES if reference(host, "")]
    configured = SchedulerSettings(aggregate_image_properties_isolation_namespace="site")
    found = left(AggregateImagePropertiesIsolation, table, asked, configured)
    assert found == [host for host in NAMES if reference(host, "site.")]


@given(aggregates(), st.sampled_from(["p", "q", "r", "s"]), st.sampled_from(["small", "large", "other"]))
@examples(150)
def test_projects_and_flavors(known: list[Aggregate], project: str, name: str) -> None:
    def admits(host: str) -> bool:
        listed = words(known, host, "filter_tenant_id") | words(known, host, "filter_tenant_id2")
        return not listed or project in listed

    def suits(host: str) -> bool:
        listed = words(known, host, "instance_type")
        return not listed or name in listed

    asked, table = fleet.spec(flavor(name), project_id=project), fleet_with(known)
    assert left(AggregateMultiTenancyIsolation, table, asked) == [host for host in NAMES if admits(host)]
    assert left(AggregateTypeAffinityFilter, table, asked) == [host for host in NAMES if suits(host)]


@given(aggregates(), st.sampled_from(["p", "q", "s"]), st.booleans())
@examples(150)
def test_projects_with_aggregates_of_their_own(known: list[Aggregate], project: str, required: bool) -> None:
    keys = ("filter_tenant_id", "filter_tenant_id2")

    def has(one: Aggregate) -> bool:
        return any(project in one.metadata.get(key, "").replace(" ", "").split(",") for key in keys)

    own = {host for one in known if has(one) for host in one.hosts}
    expected = own if any(has(one) for one in known) else set() if required else set(NAMES)
    asked, configured = fleet.spec(project_id=project), SchedulerSettings(aggregate_required_for_tenants=required)
    assert set(left(RequireTenantAggregate, fleet_with(known), asked, configured)) == expected


@given(
    aggregates(),
    st.dictionaries(st.sampled_from(["trait:SSD", "trait:GPU"]), st.sampled_from(["required", "forbidden"])),
    st.dictionaries(st.sampled_from(["trait:SSD", "trait:GPU"]), st.just("required")),
)
@examples(150)
def test_aggregates_for_what_requires_their_traits(
    known: list[Aggregate], extra_specs: dict[str, str], properties: dict[str, str]
) -> None:
    def admits(host: str) -> bool:
        wanted = {key for key in ("trait:SSD", "trait:GPU") if "required" in texts(known, host, key)}
        return wanted <= {key for key, how in (*extra_specs.items(), *properties.items()) if how == "required"}

    asked = fleet.spec(flavor(**extra_specs), image=Image(id="i", properties=properties))
    assert left(IsolateAggregates, fleet_with(known), asked) == [host for host in NAMES if admits(host)]


@given(aggregates(), st.integers(0, 3))
@examples(100)
def test_the_smallest_limit_and_ratio_of_aggregates_hold(known: list[Aggregate], more: int) -> None:
    table = fleet_with(known)
    asked = fleet.spec(flavor())
    request = fleet.request(asked, table)
    hosts = Hosts(table, request, None, more)
    ratios = [min(4.0, least(known, host, "cpu_allocation_ratio", 4.0)) for host in NAMES]
    assert hosts.capacity_of("vcpus").tolist() == [4 * ratio for ratio in ratios]
    assert CoreFilter(SchedulerSettings()).passes(hosts, request).tolist() == [4 * ratio >= 5 * (more + 1) for ratio in ratios]  # type: ignore[union-attr]  # it asks for vCPUs
    most = [least(known, host, "max_instances_per_host", 2) for host in NAMES]
    counted = NumInstancesFilter(SchedulerSettings(max_instances_per_host=2)).passes(hosts, request)
    assert counted.tolist() == [more < each for each in most]


@pytest.mark.parametrize(
    ("kind", "metadata", "expected"),
    [
        (RamFilter, {"ram_allocation_ratio": "0.5"}, ["h1"]),
        (DiskFilter, {"disk_allocation_ratio": "0.5"}, ["h1"]),
        (RamFilter, {"ram_allocation_ratio": "nan"}, ["h0", "h1"]),
        (IoOpsFilter, {"max_io_ops_per_host": "0"}, ["h1"]),
    ],
)
def test_the_other_limits(kind: type[Filter], metadata: dict[str, str], expected: list[str]) -> None:
    slow = Aggregate(id=1, name="slow", hosts=("h0",), metadata=metadata)
    table = fleet.table([fleet.node(name, memory_mb=1024, disk_gb=10) for name in NAMES[:2]], aggregates=[slow])
    assert left(kind, table, fleet.spec(fleet.flavor(1, 1024, 10))) == expected


@given(aggregates())
@examples(100)
def test_the_smallest_multiplier_weighs(known: list[Aggregate]) -> None:
    table = fleet_with(known)
    request = fleet.request(fleet.spec(), table)
    driver = fleet.driver(enabled_weighers=("RAMWeigher",), ram_weight_multiplier=1.5, shuffle_best_same_weighed_hosts=False)
    found = survey(table, driver, request)
    expected = [least(known, host, "ram_weight_multiplier", 1.5) for host in NAMES]
    assert found.passing_scores.tolist() == pytest.approx(expected)  # all are equally free, and the range begins at 0
    again = engine.score_rows(table, driver, request, found.parts, np.array([3, 1]))
    assert again.tolist() == pytest.approx([expected[3], expected[1]])


def test_aggregate_multipliers_enable_weighers_and_failures_stay_negative() -> None:
    one = Aggregate(id=1, name="a", hosts=("h0",), metadata={"ram_weight_multiplier": "2", "build_failure_weight_multiplier": "5"})
    table = fleet.table([fleet.node(name, failed_builds=1.0) for name in NAMES[:2]], aggregates=[one])
    request = fleet.request(fleet.spec(), table)
    hosts = Hosts(table, request)
    assert RAMWeigher(SchedulerSettings(ram_weight_multiplier=0.0)).host_multipliers(hosts).tolist() == [2.0, 0.0]  # type: ignore[union-attr]  # one for each host
    assert BuildFailureWeigher(SchedulerSettings()).host_multipliers(hosts).tolist() == [-5.0, -1000000.0]  # type: ignore[union-attr]  # the same
    driver = fleet.driver(enabled_weighers=("RAMWeigher",), ram_weight_multiplier=0.0, shuffle_best_same_weighed_hosts=False)
    assert survey(table, driver, request).passing_scores.tolist() == [2.0, 0.0]


@pytest.mark.parametrize("value", ["1e308", "inf", "two"])
def test_an_unusable_multiplier_is_no_number(value: str) -> None:
    one = Aggregate(id=1, name="a", hosts=("h0",), metadata={"ram_weight_multiplier": value, "cpu_weight_multiplier": value})
    table = fleet.table([fleet.node(name) for name in NAMES[:2]], aggregates=[one])
    driver = fleet.driver(enabled_weighers=("RAMWeigher", "CPUWeigher"), shuffle_best_same_weighed_hosts=False)
    assert survey(table, driver, fleet.request(fleet.spec(), table)).passing_scores.tolist() == [2.0, 2.0]


def test_an_image_property_without_a_value_is_none() -> None:
    one = Aggregate(id=1, name="a", hosts=("h0",), metadata={"os_type": "linux"})
    table = fleet.table([fleet.node("h0")], aggregates=[one])
    assert left(AggregateImagePropertiesIsolation, table, fleet.spec(image=Image(id="i", properties={"os_type": ""}))) == ["h0"]


def test_without_aggregates_nothing_is_looked_at() -> None:
    table = fleet_with([])
    asked = fleet.spec(flavor(), image=Image(id="i", properties={"os_type": "linux"}))
    request = fleet.request(asked, table)
    kinds = (
        AggregateInstanceExtraSpecsFilter,
        AggregateImagePropertiesIsolation,
        AggregateMultiTenancyIsolation,
        AggregateTypeAffinityFilter,
        RequireTenantAggregate,
        IsolateAggregates,
        AllHostsFilter,
    )
    for kind in kinds:
        assert kind(SchedulerSettings()).passes(Hosts(table, request), request) is None
        assert kind.on_demand


@pytest.mark.parametrize(("kept", "asked"), [("x86_64", "amd64"), ("amd64,arm64", "x86_64"), ("AARCH64", "arm64")])
def test_aliases_of_an_architecture_are_one(kept: str, asked: str) -> None:
    kinds = {"h0": kept, "h1": "ppc64le"}
    every = [
        Aggregate(id=n, name=host, hosts=(host,), metadata={"hw_architecture": kind})
        for n, (host, kind) in enumerate(kinds.items())
    ]
    table = fleet.table([fleet.node(host) for host in kinds], aggregates=every)
    for name in ("hw_architecture", "architecture"):
        image = Image(id="i", properties={name: asked})
        assert left(AggregateImagePropertiesIsolation, table, fleet.spec(image=image)) == ["h0"]


@pytest.mark.parametrize(("kept", "asked"), [("True", "true"), ("true, other", "TRUE"), ("False", "false")])
def test_booleans_of_images_ignore_case(kept: str, asked: str) -> None:
    aggregate = Aggregate(id=1, name="a", hosts=("h0",), metadata={"hw_qemu_guest_agent": kept})
    other = Aggregate(id=2, name="b", hosts=("h1",), metadata={"hw_qemu_guest_agent": "maybe"})
    table = fleet.table([fleet.node("h0"), fleet.node("h1")], aggregates=[aggregate, other])
    image = Image(id="i", properties={"hw_qemu_guest_agent": asked})
    assert left(AggregateImagePropertiesIsolation, table, fleet.spec(image=image)) == ["h0"]


def test_a_renamed_property_replaces_its_former_name() -> None:
    aggregate = Aggregate(id=1, name="a", hosts=("h0",), metadata={"hw_vm_mode": "hvm", "vm_mode": "xen"})
    table = fleet.table([fleet.node("h0")], aggregates=[aggregate])
    for properties, expected in (({"vm_mode": "hvm"}, ["h0"]), ({"vm_mode": "hvm", "hw_vm_mode": "xen"}, [])):
        assert left(AggregateImagePropertiesIsolation, table, fleet.spec(image=Image(id="i", properties=properties))) == expected
