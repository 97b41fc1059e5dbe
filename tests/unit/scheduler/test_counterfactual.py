"""What would have been enough for a refused batch: it is true, nothing smaller of the kind is, and the table is as before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects.cell import CellState
from objects.group import GroupPolicy
from objects.inventory import Slot
from objects.relaxation import Asked, Relaxation
from objects.spec import Image, RequestSpec
from scheduler.engine import engine
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.surveying import survey
from scheduler.explain.remedies import find_remedies
from scheduler.filters.adapter import Adapter
from scheduler.framework.batch_request import Request
from scheduler.framework.settings import DEFAULT_FILTERS, SchedulerSettings
from scheduler.table.host_table import HostTable
from tests.support import fleet
from tests.support.examples import examples

FILTERS = (*DEFAULT_FILTERS, "NumInstancesFilter", "SameHostFilter", "JsonFilter")
SIZES = {Asked.VCPUS: "vcpus", Asked.MEMORY: "memory_mb", Asked.DISK: "root_gb"}


def relaxations(
    table: HostTable, driver: SchedulerDriver, request: Request, wanted: int, least: int | None = None
) -> tuple[Relaxation, ...] | None:
    return find_remedies(table, driver, request, wanted, least).relaxations


def found(
    table: HostTable,
    asked: RequestSpec,
    wanted: int = 1,
    slots: list[Slot] | None = None,
    least: int | None = None,
    **changes: Any,
) -> list[Relaxation]:
    request = fleet.request(asked, table, slots or [])
    answer = relaxations(table, fleet.driver(enabled_filters=FILTERS, **changes), request, wanted, least)
    assert answer is not None
    return list(answer)


def told(*arguments: Any, **changes: Any) -> list[str]:
    return [relaxation.as_text for relaxation in found(*arguments, **changes)]


def full(table: HostTable, host: int, vcpus: int) -> None:
    """Others have so many vCPUs of the host of this number, and nothing else of it."""
    node = fleet.node(f"h{host}")
    table.set_inventory(fleet.inventory(host + 1, node, fleet.CELLS[host % 2], 9, used_vcpus=vcpus), now=0.0)


class TestWords:
    def test_a_size_shrinks_by_the_least_sufficient_amount(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=6), fleet.node("h1", vcpus=4, memory_mb=1000)])
        assert told(table, fleet.spec(fleet.flavor(vcpus=8))) == ["with a flavor of 2 vCPUs less"]
        assert told(table, fleet.spec(fleet.flavor(vcpus=7))) == ["with a flavor of 1 vCPU less"]
        assert told(table, fleet.spec(fleet.flavor(memory_mb=65537))) == ["with a flavor of 1 MiB less memory"]
        assert told(table, fleet.spec(fleet.flavor(root_gb=1001))) == ["with a flavor of 1 GiB less disk"]

    def test_the_smallest_change_comes_first(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=2), fleet.node("h1", memory_mb=1024)])
        assert told(table, fleet.spec(fleet.flavor(vcpus=8, memory_mb=2048))) == [
            "with a flavor of 1024 MiB less memory",
            "with a flavor of 6 vCPUs less",
        ]

    def test_a_one_host_group_needs_room_for_all(self) -> None:
        """Not the one that is best for its first member."""
        table = fleet.table([fleet.node("h0", vcpus=2, memory_mb=2**20), fleet.node("h1", vcpus=6)])
        asked = fleet.spec(fleet.flavor(vcpus=3), group=fleet.group(GroupPolicy.AFFINITY))
        assert "with a flavor of 1 vCPU less" in told(table, asked, 3)

    def test_several_things_at_once_are_no_single_change(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=2, memory_mb=1024)])
        assert told(table, fleet.spec(fleet.flavor(vcpus=8, memory_mb=2048))) == []
        assert told(table, fleet.spec(fleet.flavor(vcpus=1))) == [], "it fits as it is"

    def test_another_zone(self) -> None:
        named = {f"h{n}": f"z{n}" for n in range(3)}
        table = fleet.table([fleet.node(f"h{n}", vcpus=4 if n else 1) for n in range(3)], named)
        assert told(table, fleet.spec(fleet.flavor(vcpus=2), availability_zone="z0")) == [
            "with a flavor of 1 vCPU less",
            "in availability zone z1 or z2",
        ]
        assert told(table, fleet.spec(fleet.flavor(vcpus=4), availability_zone="z0"), 2)[-1] == "in several availability zones"

    def test_a_cell_that_is_closed_is_for_administrators(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=1), fleet.node("h1")], states=(CellState.ENABLED, CellState.DISABLED))
        *_, closed = found(table, fleet.spec(fleet.flavor(vcpus=4)))
        assert (closed.as_text, closed.is_for_tenants) == ("in cell cell2, closed to it", False)
        table = fleet.table([fleet.node("h0", vcpus=1), fleet.node("h1")])
        [smaller, failed] = found(table, fleet.spec(fleet.flavor(vcpus=4), excluded_cells=(fleet.CELLS[1],)))
        assert (smaller.less, failed.places) == (3, ("cell2",))

    def test_conditions(self) -> None:
        table = fleet.table([fleet.node("h0", attributes={"traits": ["SSD"]})])
        gpu = msgspec.structs.replace(fleet.flavor(), extra_specs={"trait:GPU": "required", "trait:SSD": "required"})
        assert told(table, fleet.spec(gpu)) == ["with a flavor without trait:GPU"]
        image = Image(id="i", properties={"hw_architecture": "ppc64", "os": "linux"})
        assert told(table, fleet.spec(image=image)) == ["with an image without hw_architecture"]
        assert told(table, fleet.spec(force_hosts=("h9",))) == ["without a forced host"]
        assert told(table, fleet.spec(ignore_hosts=("h0",))) == ["without ignored hosts"]
        hints = {"query": ('[">", "$free_vcpus", 99]',), "group": ("g",)}
        assert told(table, fleet.spec(scheduler_hints=hints)) == ["without the hint query"]

    def test_resource_classes_are_extra_specs(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=4, resources={"CUSTOM_GPU": 1})])
        assert told(table, fleet.spec(fleet.flavor_asking({"CUSTOM_GPU": 2}))) == ["with a flavor without resources:CUSTOM_GPU"]
        smaller, without = told(table, fleet.spec(fleet.flavor_asking({"VCPU": 6})))
        assert smaller == "with a flavor that asks for 2 less of resources:VCPU", "its size may be less than that"
        assert without == "with a flavor without resources:VCPU"

    def test_a_network_goes_as_a_whole(self) -> None:
        table = fleet.table([fleet.node("h0", attributes={"host_ip": "10.0.0.1"})])
        hints = {"build_near_host_ip": ("192.168.1.1",), "cidr": ("/24",)}
        asked = fleet.spec(scheduler_hints=hints)
        answer = relaxations(
            table, fleet.driver(enabled_filters=(*FILTERS, "SimpleCIDRAffinityFilter")), fleet.request(asked, table), 1
        )
        assert [one.as_text for one in answer or ()] == ["without the hint build_near_host_ip"]

    def test_a_group(self) -> None:
        table = fleet.table([fleet.node("h0"), fleet.node("h1")])
        apart = fleet.group(GroupPolicy.ANTI_AFFINITY)
        slots = [Slot(group_uuid=apart.uuid, instance_uuid=f"old{n}", host=f"h{n}") for n in range(2)]
        assert told(table, fleet.spec(group=apart), 1, slots) == ["without the anti-affinity policy of its server group"]
        assert told(table, fleet.spec(group=apart), 3) == [
            "with 1 server fewer",
            "without the anti-affinity policy of its server group",
        ]

    def test_of_a_batch_all_servers_count(self) -> None:
        """Who asks again as told is not refused for the next server of the same batch."""
        table = fleet.table([fleet.node("h0", vcpus=5), fleet.node("h1", vcpus=5)])
        [fewer, smaller] = found(table, fleet.spec(fleet.flavor(vcpus=4)), 4)
        assert (smaller.asked, smaller.less) == (Asked.VCPUS, 2)
        assert (fewer.asked, fewer.less) == (Asked.SERVERS, 2)

    def test_a_reducible_batch_shrinks_only_as_needed(self) -> None:
        named = {"h0": "z0", "h1": "z1", "h2": "z1"}
        table = fleet.table([fleet.node(f"h{n}", vcpus=4) for n in range(3)], named)
        asked = fleet.spec(fleet.flavor(vcpus=4), availability_zone="z0", group=fleet.group(GroupPolicy.ANTI_AFFINITY))
        assert told(table, asked, 9) == ["with 8 servers fewer"]
        assert told(table, asked, 9, least=2) == ["with 8 servers fewer", "in availability zone z1"]
        two = fleet.spec(fleet.flavor(vcpus=4), availability_zone="z0")
        assert told(table, two, 9, least=2) == ["with a flavor of 2 vCPUs less", "with 8 servers fewer", "in availability zone z1"]

    def test_other_limits_count_as_well(self) -> None:
        """Two instances are the most that a host may have: no vCPU less makes room for a third."""
        table = fleet.table([fleet.node("h0", vcpus=4)])
        assert told(table, fleet.spec(fleet.flavor(vcpus=2)), 3, max_instances_per_host=2) == ["with 1 server fewer"]


def test_nothing_remains_on_the_table_or_request() -> None:
    table = fleet.table([fleet.node(f"h{n}", vcpus=2) for n in range(4)])
    together = fleet.group(GroupPolicy.AFFINITY)
    request = fleet.request(fleet.spec(fleet.flavor(vcpus=2), group=together, ignore_hosts=("h0",)), table)
    before = table.free_vcpus.copy(), table.instances.copy(), request.members.counts_by_host(with_held=True), request.draws
    assert relaxations(table, fleet.driver(), request, 3)
    assert (table.free_vcpus == before[0]).all()
    assert (table.instances == before[1]).all()
    assert (request.members.counts_by_host(with_held=True), request.draws, request.in_cells) == (*before[2:], {})


class Fussy:
    """A filter of a site that has never seen a server without a group."""

    def host_passes(self, host: Any, spec: RequestSpec) -> bool:
        assert spec.group is not None
        return False


def test_a_failing_filter_costs_only_the_extra_answer(caplog: pytest.LogCaptureFixture) -> None:
    table = fleet.table([fleet.node("h0")])
    driver = fleet.driver()
    driver.filters = (*driver.filters, Adapter(SchedulerSettings(), "Fussy", Fussy()))
    request = fleet.request(fleet.spec(group=fleet.group(GroupPolicy.AFFINITY)), table)
    assert relaxations(table, driver, request, 1) is None
    assert "could not compute what would have been enough" in caplog.text


# -- whatever the fleet and the request -----------------------------------------------------------------------------------------

NODES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 6), st.integers(0, 6), st.integers(0, 2), st.booleans()), min_size=1, max_size=7
)
"""vCPUs, GiB of memory, GiB of disk, zone, and whether it has the trait."""
REQUESTS = st.fixed_dictionaries(
    {
        "vcpus": st.integers(1, 8),
        "memory": st.integers(1, 5),
        "disk": st.integers(0, 5),
        "zone": st.sampled_from([None, "z0", "z1"]),
        "trait": st.booleans(),
        "ignore": st.sampled_from([(), ("h0",), ("h0", "h1")]),
        "policy": st.sampled_from([None, None, GroupPolicy.ANTI_AFFINITY, GroupPolicy.AFFINITY]),
        "query": st.booleans(),
    }
)


def made(nodes: list[tuple[int, int, int, int, bool]]) -> HostTable:
    zones = {f"h{n}": f"z{zone}" for n, (*_, zone, _) in enumerate(nodes)}
    return fleet.table(
        [
            fleet.node(f"h{n}", vcpus=vcpus, memory_mb=gib * 1024, disk_gb=disk, attributes={"traits": ["SSD"] if has else []})
            for n, (vcpus, gib, disk, _, has) in enumerate(nodes)
        ],
        zones,
    )


def spec_of(wanted: dict[str, Any]) -> RequestSpec:
    flavor = msgspec.structs.replace(
        fleet.flavor(wanted["vcpus"], wanted["memory"] * 1024, wanted["disk"]),
        extra_specs={"trait:SSD": "required"} if wanted["trait"] else {},
    )
    return fleet.spec(
        flavor,
        availability_zone=wanted["zone"],
        ignore_hosts=wanted["ignore"],
        group=fleet.group(wanted["policy"]) if wanted["policy"] else None,
        scheduler_hints={"query": ('[">=", "$free_vcpus", 4]',)} if wanted["query"] else {},
    )


def placed(table: HostTable, driver: SchedulerDriver, request: Request, count: int) -> int:
    """How many of so many are placed: the plan itself."""
    with table.take_tentatively():
        found = survey(table, driver, request, count)
        return len(engine.choose_rows(table, driver, request, found, count))


def applied(spec: RequestSpec, relaxation: Relaxation, less: int, place: str | None = None) -> RequestSpec:
    """What a person would ask who was told this."""
    match relaxation.asked:
        case Asked.VCPUS | Asked.MEMORY | Asked.DISK:
            what = SIZES[relaxation.asked]
            flavor = msgspec.structs.replace(spec.flavor, **{what: getattr(spec.flavor, what) - less})
            return msgspec.structs.replace(spec, flavor=flavor)
        case Asked.ZONE:
            return msgspec.structs.replace(spec, availability_zone=place)
        case Asked.GROUP:
            return msgspec.structs.replace(spec, group=None)
        case Asked.IGNORED_HOSTS:
            return msgspec.structs.replace(spec, ignore_hosts=())
        case Asked.EXTRA_SPEC:
            return msgspec.structs.replace(spec, flavor=msgspec.structs.replace(spec.flavor, extra_specs={}))
        case Asked.HINT:
            return msgspec.structs.replace(spec, scheduler_hints={})
    return spec


@given(NODES, REQUESTS, st.integers(1, 5))
@examples(150)
def test_a_suggestion_is_sufficient_and_less_is_not(
    nodes: list[tuple[int, int, int, int, bool]], wanted: dict[str, Any], count: int
) -> None:
    table, driver, spec = made(nodes), fleet.driver(enabled_filters=FILTERS), spec_of(wanted)
    refused = placed(table, driver, fleet.request(spec, table), count) < count
    answer = relaxations(table, driver, fleet.request(spec, table), count) or ()
    if not refused:
        assert answer == ()
    assert [one.share for one in answer] == sorted(one.share for one in answer)
    for one in answer:
        if one.asked is Asked.SERVERS:
            asked = fleet.request(spec, table)
            assert placed(table, driver, asked, count - one.less) == count - one.less
            continue
        for place in one.places or (None,):
            asked = fleet.request(applied(spec, one, one.less, place), table)
            assert placed(table, driver, asked, count) == count, one
        if one.less:
            asked = fleet.request(applied(spec, one, one.less - 1), table)
            assert placed(table, driver, asked, count) < count, one


@given(NODES, REQUESTS)
@examples(150)
def test_no_change_that_is_enough_is_left_out(nodes: list[tuple[int, int, int, int, bool]], wanted: dict[str, Any]) -> None:
    """For a single server, every change of one thing tried by hand."""
    table, driver, spec = made(nodes), fleet.driver(enabled_filters=FILTERS), spec_of(wanted)
    if placed(table, driver, fleet.request(spec, table), 1):
        return
    answer = {one.asked for one in relaxations(table, driver, fleet.request(spec, table), 1) or ()}
    for asked in (*SIZES, Asked.ZONE, Asked.GROUP, Asked.IGNORED_HOSTS, Asked.EXTRA_SPEC, Asked.HINT):
        least = 0 if asked is Asked.DISK else 1
        most = getattr(spec.flavor, SIZES[asked]) - least if asked in SIZES else 1
        changed = applied(spec, Relaxation(asked=asked), max(most, 0))
        if changed != spec:
            assert (asked in answer) is bool(placed(table, driver, fleet.request(changed, table), 1)), asked
