"""Filters over attributes, hints and counts against a plain reference that looks at one host at a time."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects import errors, hints
from objects.compute_node import ComputeNode
from objects.flavor import Flavor
from objects.spec import Image, RequestSpec
from scheduler.filters.affinity import DifferentHostFilter, SameHostFilter, SimpleCIDRAffinityFilter
from scheduler.filters.compute_capabilities import ComputeCapabilitiesFilter
from scheduler.filters.image_properties import ImagePropertiesFilter
from scheduler.filters.isolated_hosts import IsolatedHostsFilter
from scheduler.filters.load import IoOpsFilter, NumInstancesFilter
from scheduler.filters.operators import matches_spec
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from tests.support import fleet
from tests.support.examples import examples

IMAGES = ("image-1", "image-2")
SERVERS = tuple(f"00000000-0000-0000-0000-00000000000{n}" for n in range(4))
Test = Callable[[ComputeNode], bool]


def left(
    kind: type[Filter], table: HostTable, asked: RequestSpec, configured: SchedulerSettings | None = None, **changes: Any
) -> list[str]:
    """The hosts that pass, whichever way the filter is asked."""
    request = fleet.request(asked, table, **changes)
    mask = kind(configured or SchedulerSettings()).passes(Hosts(table, request), request)
    return [host for row, host in enumerate(table.hosts) if mask is None or mask[row]]


def counted(instances: int, guests: int) -> HostTable:
    node = fleet.node("h", running_vms=guests)
    table = fleet.table([node])
    table.set_inventory(fleet.inventory(1, node, fleet.CELLS[0], 2, instances=instances), now=0.0)
    return table


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 12), st.integers(0, 4))
@examples(60)
def test_builds_and_instances_count_with_the_batch(claimed: int, guests: int, most: int, more: int) -> None:
    table = counted(claimed, guests)
    request = fleet.request(fleet.spec(), table)
    limits = SchedulerSettings(max_io_ops_per_host=most, max_instances_per_host=most)
    hosts = Hosts(table, request, None, more)
    assert IoOpsFilter(limits).passes(hosts, request).tolist() == [max(0, claimed + more - guests) < most]
    assert NumInstancesFilter(limits).passes(hosts, request).tolist() == [claimed + more < most]


@given(
    st.lists(st.sampled_from(IMAGES), max_size=2),
    st.lists(st.sampled_from(["h0", "H1", "h2", "elsewhere"]), max_size=3),
    st.booleans(),
    st.sampled_from([*IMAGES, None]),
)
@examples(100)
def test_isolated_hosts(images: list[str], names: list[str], restrict: bool, image: str | None) -> None:
    def reference(host: str) -> bool:
        if not names:
            return True
        isolated, here = image in images, host.lower() in [name.lower() for name in names]
        return isolated == here if restrict else not isolated or here

    table = fleet.table([fleet.node(f"h{n}") for n in range(4)])
    configured = SchedulerSettings(
        isolated_images=tuple(images), isolated_hosts=tuple(names), restrict_isolated_hosts_to_isolated_images=restrict
    )
    asked = fleet.spec(image=None if image is None else Image(id=image))
    assert left(IsolatedHostsFilter, table, asked, configured) == [host for host in table.hosts if reference(host)]


@given(
    st.dictionaries(st.sampled_from(SERVERS), st.sampled_from(["h0", "h1", "H2"])),
    st.lists(st.sampled_from(SERVERS), max_size=3),
)
@examples(100)
def test_with_and_without_certain_servers(places: dict[str, str], named: list[str]) -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(4)])
    theirs = {places[uuid].lower() for uuid in named if uuid in places}
    same = fleet.spec(scheduler_hints={"same_host": tuple(named)} if named else {})
    other = fleet.spec(scheduler_hints={"different_host": tuple(uuid.upper() for uuid in named)} if named else {})
    assert left(SameHostFilter, table, same, places=places) == [h for h in table.hosts if not named or h in theirs]
    assert left(DifferentHostFilter, table, other, places=places) == [h for h in table.hosts if h not in theirs]


ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.0.200", "10.0.1.1", "10.1.0.1", "fd00::1", "fd00::2:1", "nonsense", None])


@given(
    st.lists(ADDRESSES, min_size=1, max_size=8),
    st.sampled_from(["10.0.0.7", "fd00::7"]),
    st.sampled_from([0, 8, 16, 24, 32]),
    st.booleans(),
)
@examples(150)
def test_near_an_address(addresses: list[str | None], near: str, prefix: int, given_prefix: bool) -> None:
    def reference(address: str | None) -> bool:
        if address in (None, "nonsense"):
            return False
        network = ipaddress.ip_network(f"{near}/{prefix if given_prefix else 24}", strict=False)
        return ipaddress.ip_address(str(address)) in network

    table = fleet.table([fleet.node(f"h{n}", attributes={"host_ip": a} if a else {}) for n, a in enumerate(addresses)])
    asked = {"build_near_host_ip": (near,)} | ({"cidr": (f"/{prefix}",)} if given_prefix else {})
    expected = [f"h{n}" for n, address in enumerate(addresses) if reference(address)]
    assert left(SimpleCIDRAffinityFilter, table, fleet.spec(scheduler_hints=asked)) == expected


@pytest.mark.parametrize(
    ("given_hints", "said"),
    [
        ({"build_near_host_ip": ("10.0.0",)}, "build_near_host_ip: '10.0.0' is not an IP address"),
        ({"build_near_host_ip": ("10.0.0.1",), "cidr": ("/33",)}, "cidr: '/33' is not a prefix of 10.0.0.1; give one like /24"),
        ({"cidr": ("/24", "/25")}, "cidr: can be given once only"),
        ({"same_host": ("web-1",)}, "same_host: 'web-1' is not the uuid of a server"),
        ({"different_host": (SERVERS[0], "x")}, "different_host: 'x' is not the uuid of a server"),
    ],
)
def test_hints_that_cannot_be_read_are_told_apart(given_hints: dict[str, tuple[str, ...]], said: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        hints.check_hints(given_hints)
    assert str(refused.value) == said
    if "build_near_host_ip" in given_hints:
        assert left(SimpleCIDRAffinityFilter, fleet.table([fleet.node("h")]), fleet.spec(scheduler_hints=given_hints)) == []


@pytest.mark.parametrize(
    ("have", "wanted", "expected"),
    [
        ("4", "= 3", True),  # at least
        ("2", "= 3", False),
        ("3.0", "== 3", True),
        ("3", "!= 3", False),
        ("4", ">= 3", True),
        ("4", "<= 3", False),
        ("four", ">= 3", False),
        ("4", ">=", False),
        ("x86", "s== x86", True),
        ("x86", "s!= x86", False),
        ("b", "s< c", True),
        ("c", "s<= c", True),
        ("b", "s> c", False),
        ("c", "s>= c", True),
        ("sse2 avx", "<in> avx", True),
        ("sse2 avx", "<in> avx5", False),
        ("sse2 avx", "<all-in> avx sse", True),
        ("sse2 avx", "<all-in> avx mmx", False),
        ("b", "<or> a <or> b", True),
        ("c", "<or> a <or> b", False),
        ("3", "< 4", False),  # no such operator: compared as a text
        ("< 4", "< 4", True),
        ("", "", True),
    ],
)
def test_operators_of_extra_specs(have: str, wanted: str, expected: bool) -> None:
    assert matches_spec(have, wanted) is expected


ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "cores": st.integers(1, 3),
        "cpu_info": st.sampled_from([{"arch": "x86"}, {"arch": "arm", "more": {"a": 1}}, '{"arch": "x86"}', "no json"]),
        "ssd": st.booleans(),
    },
)
SPECS = st.dictionaries(
    st.sampled_from(
        ["capabilities:cores", "cores", "nobody_has", "capabilities:cpu_info:arch", "capabilities:ssd", "hw:cores", "ssd"]
    ),
    st.sampled_from(["2", ">= 2", "s== x86", "<or> x86 <or> True", "True"]),
    max_size=3,
)


@given(st.lists(ATTRIBUTES, min_size=1, max_size=6), SPECS)
@examples(200)
def test_capabilities(attributes: list[dict[str, Any]], specs: dict[str, str]) -> None:
    def reference(told: dict[str, Any]) -> bool:
        for key, wanted in specs.items():
            scope, *path = key.split(":")
            if (path and scope != "capabilities") or (not path and scope not in told):
                continue
            value: Any = told
            for step in path or [scope]:
                if isinstance(value, str):
                    value = {"arch": "x86"} if value.startswith("{") else {}
                value = value.get(step)
                if value is None:
                    return False
            if not matches_spec(str(value), wanted):
                return False
        return True

    table = fleet.table([fleet.node(f"h{n}", attributes=told) for n, told in enumerate(attributes)])
    asked = fleet.spec(Flavor(flavor_id="f", name="f", vcpus=1, memory_mb=1, extra_specs=specs))
    assert left(ComputeCapabilitiesFilter, table, asked) == [f"h{n}" for n, told in enumerate(attributes) if reference(told)]


def test_hypervisor_and_version_count_as_capabilities_until_gone() -> None:
    table = fleet.table([fleet.node("h0", hypervisor_type="kvm", hypervisor_version=6001000), fleet.node("h1")])
    specs = {"capabilities:hypervisor_type": "kvm", "hypervisor_version": ">= 6000000"}
    asked = fleet.spec(Flavor(flavor_id="f", name="f", vcpus=1, memory_mb=1, extra_specs=specs))
    assert left(ComputeCapabilitiesFilter, table, asked) == ["h0"]
    fleet.tell_cells(table, [fleet.node("h0")], {"h0": fleet.CELLS[0]})
    assert left(ComputeCapabilitiesFilter, table, asked) == []


def test_an_overly_nested_attribute_fails_only_its_request() -> None:
    table = fleet.table(
        [fleet.node("h0", attributes={"cpu_info": "[" * 100_000}), fleet.node("h1", attributes={"cpu_info": {"a": 1}})]
    )
    asked = fleet.spec(Flavor(flavor_id="f", name="f", vcpus=1, memory_mb=1, extra_specs={"capabilities:cpu_info:a": "1"}))
    assert left(ComputeCapabilitiesFilter, table, asked) == ["h1"]


SUPPORTED = st.lists(
    st.tuples(
        st.sampled_from(["x86_64", "AMD64", "aarch64"]), st.sampled_from(["kvm", "xen"]), st.sampled_from(["hvm", "xen"])
    ).map(list),
    max_size=2,
)


@given(
    st.lists(SUPPORTED, min_size=1, max_size=5),
    st.fixed_dictionaries(
        {},
        optional={
            "hw_architecture": st.sampled_from(["x86_64", "aarch64"]),
            "img_hv_type": st.sampled_from(["kvm", "xen", "xapi"]),
            "hw_vm_mode": st.sampled_from(["hvm", "pv"]),
            "os_type": st.just("linux"),
        },
    ),
    st.sampled_from([None, "x86_64"]),
)
@examples(150)
def test_image_properties(supported: list[list[list[str]]], properties: dict[str, str], default: str | None) -> None:
    same = {"AMD64": "x86_64", "xapi": "xen", "pv": "xen"}
    wanted = [properties.get("hw_architecture") or default, properties.get("img_hv_type"), properties.get("hw_vm_mode")]

    def reference(entries: list[list[str]]) -> bool:
        runs = any(all(w is None or same.get(w, w) in [same.get(e, e) for e in entry] for w in wanted) for entry in entries)
        return runs or not any(wanted)

    table = fleet.table([fleet.node(f"h{n}", attributes={"supported_instances": e}) for n, e in enumerate(supported)])
    asked = fleet.spec(image=Image(id="i", properties=properties))
    configured = SchedulerSettings(image_properties_default_architecture=default)
    expected = [f"h{n}" for n, entries in enumerate(supported) if reference(entries)]
    assert left(ImagePropertiesFilter, table, asked, configured) == expected


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (">=6.0", ["new", "silent"]),
        (">=4.2,<6", ["old", "silent"]),
        ("==6.1", ["new", "silent"]),
        ("6.1", ["silent"]),
        (">=" + "9" * 5000, ["silent"]),
    ],
)
def test_the_version_of_the_hypervisor(conditions: str, expected: list[str]) -> None:
    runs = {"supported_instances": [["x86_64", "kvm", "hvm"]]}
    versions = {"old": 5001002, "new": 6001000, "silent": 0}
    table = fleet.table([fleet.node(name, attributes=runs, hypervisor_version=version) for name, version in versions.items()])
    properties = {"img_hv_type": "kvm", "img_hv_requested_version": conditions}
    assert left(ImagePropertiesFilter, table, fleet.spec(image=Image(id="i", properties=properties))) == expected


@pytest.mark.parametrize(
    "kind",
    [
        SameHostFilter,
        DifferentHostFilter,
        SimpleCIDRAffinityFilter,
        ComputeCapabilitiesFilter,
        ImagePropertiesFilter,
        IsolatedHostsFilter,
    ],
)
def test_a_filter_skips_requests_not_calling_for_it(kind: type[Filter]) -> None:
    table = fleet.table([fleet.node("h")])
    request = fleet.request(fleet.spec(), table)
    assert kind(SchedulerSettings()).passes(Hosts(table, request), request) is None
    assert kind.on_demand
