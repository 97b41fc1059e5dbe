"""Two changes together and another flavor, where no single change is enough: true, the smallest, and none is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects.cell import CellState
from objects.flavor import Flavor
from objects.group import GroupPolicy
from objects.inventory import Slot
from objects.move import Move, MoveKind
from objects.relaxation import Asked, Relaxation, RelaxationPair
from objects.spec import Image, RequestSpec
from scheduler.engine import engine
from scheduler.engine.job import Remedies
from scheduler.engine.surveying import survey
from scheduler.explain.largest_flavor import by_size
from scheduler.explain.remedies import find_remedies
from scheduler.filters.adapter import Adapter
from scheduler.framework.settings import DEFAULT_FILTERS, SchedulerSettings
from scheduler.table.host_table import HostTable
from tests.support import fleet
from tests.support.examples import examples

FILTERS = (*DEFAULT_FILTERS, "NumInstancesFilter", "JsonFilter", "SimpleCIDRAffinityFilter")
LEAST = {"vcpus": 1, "memory_mb": 1, "root_gb": 0}
OF_FLAVOR = {Asked.VCPUS: "vcpus", Asked.MEMORY: "memory_mb", Asked.DISK: "root_gb"}


def found(table: HostTable, asked: RequestSpec, wanted: int = 1, flavors: Sequence[Flavor] = (), **changes: Any) -> Remedies:
    slots: list[Slot] = changes.pop("slots", [])
    least: int | None = changes.pop("least", None)
    request = fleet.request(asked, table, slots)
    return find_remedies(
        table, fleet.driver(enabled_filters=FILTERS, **changes), request, wanted, least, sorted(flavors, key=by_size)
    )


def told(*arguments: Any, **changes: Any) -> list[str]:
    return [pair.as_text for pair in found(*arguments, **changes).pairs]


def of(vcpus: int = 1, memory_mb: int = 1024, root_gb: int = 10, **changes: Any) -> Flavor:
    return msgspec.structs.replace(fleet.flavor(vcpus, memory_mb, root_gb), **changes)


class TestPairs:
    def test_two_amounts_of_one_flavor(self) -> None:
        """The host is h1, because there the two give up least of the whole."""
        table = fleet.table([fleet.node("h0", vcpus=7, memory_mb=1024), fleet.node("h1", vcpus=6, memory_mb=1536)])
        asked = fleet.spec(of(8, 2048))
        assert told(table, asked) == ["with a flavor of 2 vCPUs less and 512 MiB less memory"]
        [pair] = found(table, asked).pairs
        assert pair.plain_words == "with a flavor of fewer vCPUs and less memory"
        assert pair.total_share == pytest.approx(0.5)

    def test_none_where_one_change_is_enough(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=6)])
        assert found(table, fleet.spec(of(8)), flavors=[of(2)])[1:] == ((), "")
        assert found(table, fleet.spec(of(4)), flavors=[of(2)]) == ((), (), ""), "it fits as it is"

    def test_none_where_three_are_needed(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=2, memory_mb=1024, disk_gb=10)])
        assert told(table, fleet.spec(of(8, 2048, 20))) == []

    def test_an_amount_and_a_condition(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=4), fleet.node("h1", vcpus=6)], {"h0": "z0", "h1": "z1"})
        asked = fleet.spec(of(8, extra_specs={"trait:SSD": "required"}))
        assert told(table, asked) == ["with a flavor of 2 vCPUs less and with a flavor without trait:SSD"]
        elsewhere = fleet.spec(of(8), availability_zone="z2")
        assert told(table, elsewhere) == ["with a flavor of 2 vCPUs less and in availability zone z1"]

    def test_two_conditions_that_one_filter_looks_at(self) -> None:
        table = fleet.table([fleet.node("h0")])
        asked = fleet.spec(of(extra_specs={"trait:GPU": "required", "trait:SSD": "required"}))
        assert told(table, asked) == ["with a flavor without trait:GPU and with a flavor without trait:SSD"]
        three = fleet.spec(of(extra_specs={f"trait:T{n}": "required" for n in range(3)}))
        assert told(table, three) == []

    def test_two_conditions_of_different_kinds(self) -> None:
        table = fleet.table([fleet.node("h0")])
        image = Image(id="i", properties={"trait:GPU": "required"})
        hints = {"query": ('[">", "$free_vcpus", 99]',)}
        assert told(table, fleet.spec(image=image, scheduler_hints=hints)) == [
            "without the hint query and with an image without trait:GPU"
        ]
        assert told(table, fleet.spec(ignore_hosts=("h0",), availability_zone="far")) == [
            "in availability zone nova and without ignored hosts"
        ]

    def test_a_forced_host_is_dropped_first(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=2), fleet.node("h1", vcpus=6)])
        assert told(table, fleet.spec(of(8), force_hosts=("h9",))) == ["with a flavor of 2 vCPUs less and without a forced host"]

    def test_a_closed_cell_is_for_administrators(self) -> None:
        """Tenants are told the smallest pair beside it."""
        states = (CellState.ENABLED, CellState.DISABLED)
        table = fleet.table([fleet.node("h0", vcpus=1, memory_mb=1024), fleet.node("h1", vcpus=7)], states=states)
        closed, ours = found(table, fleet.spec(of(8, 8192))).pairs
        assert closed.as_text == "with a flavor of 1 vCPU less and in cell cell2, closed to it"
        assert (closed.is_for_tenants, ours.is_for_tenants) == (False, True)
        assert ours.as_text == "with a flavor of 7 vCPUs less and 7168 MiB less memory"

    def test_tenants_see_a_pair_where_cells_would_do(self) -> None:
        table = fleet.table(
            [fleet.node("h0", vcpus=1, memory_mb=1024), fleet.node("h1")], states=(CellState.ENABLED, CellState.DISABLED)
        )
        relaxations, pairs, _ = found(table, fleet.spec(of(8, 8192)))
        assert [one.asked for one in relaxations or ()] == [Asked.CELL]
        assert [pair.as_text for pair in pairs] == ["with a flavor of 7 vCPUs less and 7168 MiB less memory"]

    def test_a_zone_and_a_cell_are_paired_consistently(self) -> None:
        zones = {f"h{n}": f"z{n % 3}" for n in range(6)}
        table = fleet.table(
            [fleet.node(f"h{n}", vcpus=8 if n in (3, 5) else 0) for n in range(6)],
            zones,
            states=(CellState.ENABLED, CellState.DISABLED),
        )
        [pair] = found(table, fleet.spec(of(8, 1, 0), availability_zone="z1")).pairs
        assert pair.as_text == "in availability zone z0 and in cell cell2, closed to it"

    def test_fewer_servers_and_a_condition(self) -> None:
        table = fleet.table([fleet.node("h0"), fleet.node("h1")])
        asked = fleet.spec(of(extra_specs={"trait:SSD": "required"}), group=fleet.group(GroupPolicy.ANTI_AFFINITY))
        assert told(table, asked, 3) == ["with 1 server fewer and with a flavor without trait:SSD"]

    def test_two_amounts_of_a_batch_pair_are_minimal(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=4, memory_mb=4096), fleet.node("h1", vcpus=4, memory_mb=4096)])
        [pair] = found(table, fleet.spec(of(8, 8192)), 2).pairs
        assert (pair.first.less, pair.second.less) == (4, 4096)


class TestFlavors:
    def test_the_largest_that_fits(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=4, memory_mb=4096), fleet.node("h1", vcpus=2, memory_mb=65536)])
        sizes = [of(2, 65536), of(4, 4096), of(2, 1024), of(8, 1024)]
        named = [msgspec.structs.replace(each, name=f"{each.vcpus}.{each.memory_mb}") for each in sizes]
        asked = fleet.spec(of(16, 131072))
        assert found(table, asked, flavors=named).largest_flavor == "4.4096"
        assert found(table, asked, 3, flavors=named).largest_flavor == "2.1024", "two on h0"
        assert found(table, asked, 4, flavors=named).largest_flavor == ""

    def test_extra_specs_and_names_are_conditions_too(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=4, resources={"CUSTOM_GPU": 1})])
        flavors = [
            of(4, name="a", extra_specs={"trait:SSD": "required"}),
            of(3, name="b", extra_specs={"resources:CUSTOM_GPU": "2"}),
            of(2, name="c", extra_specs={"resources:CUSTOM_GPU": "1"}),
            of(1, name="d"),
        ]
        asked = fleet.spec(of(16, 131072, extra_specs={"trait:GPU": "required"}))
        assert found(table, asked, flavors=flavors).largest_flavor == "c"

    def test_a_move_that_keeps_the_flavor_has_none(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=4)])
        for kind, name in ((MoveKind.RESIZE, "s"), (MoveKind.MIGRATE, "")):
            move = Move(kind=kind, instance_uuid="i", source_host="h9", source_cell_uuid=fleet.CELLS[0])
            asked = fleet.spec(of(16, 131072), move=move)
            assert found(table, asked, flavors=[of(2, name="s")]).largest_flavor == name

    def test_limits_per_host_hold_for_it(self) -> None:
        table = fleet.table([fleet.node("h0", vcpus=16)])
        asked = fleet.spec(of(32, 131072))
        assert found(table, asked, 3, [of(1, name="s")], max_instances_per_host=2).largest_flavor == ""
        assert found(table, asked, 2, [of(1, name="s")], max_instances_per_host=2).largest_flavor == "s"


def test_nothing_is_left_on_the_table() -> None:
    table = fleet.table([fleet.node(f"h{n}", vcpus=2) for n in range(4)])
    before = table.free_vcpus.copy(), table.instances.copy()
    asked = fleet.spec(of(4, 2**20), group=fleet.group(GroupPolicy.ANTI_AFFINITY))
    assert found(table, asked, 3, [of(1)]).pairs
    assert (table.free_vcpus == before[0]).all()
    assert (table.instances == before[1]).all()


class Only:
    """A filter of a site: it lets one host pass."""

    def host_passes(self, host: Any, spec: RequestSpec) -> bool:
        del spec
        return bool(host.host == "h0")


def test_filters_of_a_site_have_the_last_word() -> None:
    table = fleet.table([fleet.node("h0", vcpus=2, memory_mb=1024), fleet.node("h1", vcpus=7, memory_mb=2000)])
    driver = fleet.driver()
    driver.filters = (*driver.filters, Adapter(SchedulerSettings(), "Only", Only()))
    answer = find_remedies(
        table, driver, fleet.request(fleet.spec(of(8, 2048)), table), 1, None, [of(7, name="b"), of(2, name="s")]
    )
    assert [pair.as_text for pair in answer.pairs] == ["with a flavor of 6 vCPUs less and 1024 MiB less memory"]
    assert answer.largest_flavor == "s"


# -- whatever the fleet and the request -------------------------------------------------------------------------------------------

NODES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 3), st.integers(0, 2), st.booleans(), st.booleans()),
    min_size=1,
    max_size=6,
)
"""vCPUs, GiB of memory, GiB of disk, zone, and whether it has each of two traits."""
REQUESTS = st.fixed_dictionaries(
    {
        "vcpus": st.integers(1, 6),
        "memory": st.integers(1, 5),
        "disk": st.integers(0, 4),
        "zone": st.sampled_from([None, "z0", "z1", "z9"]),
        "traits": st.sampled_from([(), ("SSD",), ("GPU",), ("GPU", "SSD")]),
        "ignore": st.sampled_from([(), ("h0",), ("h0", "h1", "h2")]),
        "apart": st.booleans(),
        "query": st.booleans(),
        "forced": st.sampled_from([(), (), ("h0",), ("h9",)]),
    }
)


def made(nodes: list[Any]) -> HostTable:
    zones = {f"h{n}": f"z{zone}" for n, (_, _, _, zone, _, _) in enumerate(nodes)}
    return fleet.table(
        [
            fleet.node(
                f"h{n}",
                vcpus=vcpus,
                memory_mb=memory * 1024,
                disk_gb=disk,
                attributes={"traits": [name for name, has in (("SSD", ssd), ("GPU", gpu)) if has]},
            )
            for n, (vcpus, memory, disk, _, ssd, gpu) in enumerate(nodes)
        ],
        zones,
    )


def spec_of(asked: dict[str, Any]) -> RequestSpec:
    flavor = of(
        asked["vcpus"],
        asked["memory"] * 1024,
        asked["disk"],
        extra_specs={f"trait:{name}": "required" for name in asked["traits"]},
    )
    return fleet.spec(
        flavor,
        availability_zone=asked["zone"],
        ignore_hosts=asked["ignore"],
        force_hosts=asked["forced"],
        group=fleet.group(GroupPolicy.ANTI_AFFINITY) if asked["apart"] else None,
        scheduler_hints={"query": ('[">=", "$free_vcpus", 4]',)} if asked["query"] else {},
    )


def slots_of(spec: RequestSpec) -> list[Slot]:
    """Members of the group on two hosts."""
    group = spec.group
    return [Slot(group_uuid=group.uuid, instance_uuid=f"m{n}", host=f"h{n}") for n in range(2)] if group else []


def fits(table: HostTable, spec: RequestSpec, count: int) -> bool:
    """Whether the plan itself places so many."""
    driver, request = fleet.driver(enabled_filters=FILTERS), fleet.request(spec, table, slots_of(spec))
    with table.take_tentatively():
        found = survey(table, driver, request, count)
        return len(engine.choose_rows(table, driver, request, found, count)) == count


Step = tuple[float, RequestSpec]


def steps(spec: RequestSpec) -> Iterator[tuple[object, list[Step]]]:
    """By what they concern, the changes of the request with the shares that they give up."""
    flavor = spec.flavor
    for what, least in LEAST.items():
        amount, unit = getattr(flavor, what), 1024 if what == "memory_mb" else 1
        sizes = [size for size in range(0, amount, unit) if size >= least] + ([1] if what == "memory_mb" else [])
        yield (
            what,
            [
                ((amount - size) / amount, msgspec.structs.replace(spec, flavor=msgspec.structs.replace(flavor, **{what: size})))
                for size in sizes
            ],
        )
    if spec.availability_zone:
        yield "zone", [(1.0, msgspec.structs.replace(spec, availability_zone=None))]
    for name in flavor.extra_specs:
        rest = {key: value for key, value in flavor.extra_specs.items() if key != name}
        yield name, [(1.0, msgspec.structs.replace(spec, flavor=msgspec.structs.replace(flavor, extra_specs=rest)))]
    for what, nothing in (("ignore_hosts", ()), ("group", None), ("scheduler_hints", {}), ("force_hosts", ())):
        if getattr(spec, what):
            yield what, [(1.0, msgspec.structs.replace(spec, **{what: nothing}))]


def smallest_by_hand(table: HostTable, spec: RequestSpec) -> float | None:
    """The size of the smallest pair for one server: each pair of changes is tried."""
    best: float | None = None
    for (first, some), (second, _) in combinations(list(steps(spec)), 2):
        for share, changed in some:
            others = dict(steps(changed)).get(second, [])
            for more, both in others:
                if (best is None or share + more < best) and fits(table, both, 1):
                    best = share + more
        assert first != second
    return best


def applied(spec: RequestSpec, told: Relaxation, less: int | None = None) -> RequestSpec:
    """What a person would ask who was told this."""
    flavor = spec.flavor
    match told.asked:
        case Asked.VCPUS | Asked.MEMORY | Asked.DISK:
            what, amount = OF_FLAVOR[told.asked], told.less if less is None else less
            return msgspec.structs.replace(spec, flavor=msgspec.structs.replace(flavor, **{what: getattr(flavor, what) - amount}))
        case Asked.ZONE:
            return msgspec.structs.replace(spec, availability_zone=told.places[0] if told.places else None)
        case Asked.GROUP:
            return msgspec.structs.replace(spec, group=None)
        case Asked.IGNORED_HOSTS:
            return msgspec.structs.replace(spec, ignore_hosts=())
        case Asked.FORCED_HOST:
            return msgspec.structs.replace(spec, force_hosts=())
        case Asked.HINT:
            return msgspec.structs.replace(spec, scheduler_hints={})
        case Asked.EXTRA_SPEC:
            rest = {key: value for key, value in flavor.extra_specs.items() if key != told.name}
            return msgspec.structs.replace(spec, flavor=msgspec.structs.replace(flavor, extra_specs=rest))
    return spec


def both(spec: RequestSpec, pair: RelaxationPair) -> RequestSpec:
    return applied(applied(spec, pair.first), pair.second)


@given(NODES, REQUESTS)
@examples(300, least=30)
def test_the_pair_is_the_smallest_by_exhaustive_search(nodes: list[Any], asked: dict[str, Any]) -> None:
    table, spec = made(nodes), spec_of(asked)
    if fits(table, spec, 1):
        return
    relaxations, pairs, _ = found(table, spec, slots=slots_of(spec))
    if relaxations:
        assert pairs == ()
        return
    by_hand = smallest_by_hand(table, spec)
    assert (by_hand is not None) is bool(pairs), (by_hand, pairs)
    for pair in pairs:
        assert fits(table, both(spec, pair), 1)
        assert by_hand is not None
        assert pair.total_share == pytest.approx(by_hand)


@given(NODES, REQUESTS, st.integers(2, 4))
@examples(150, least=20)
def test_a_batch_pair_is_enough_with_minimal_amounts(nodes: list[Any], asked: dict[str, Any], count: int) -> None:
    table, spec = made(nodes), spec_of(asked)
    for pair in found(table, spec, count, slots=slots_of(spec)).pairs:
        fewer = pair.first.less if pair.first.asked is Asked.SERVERS else 0
        assert fits(table, both(spec, pair), count - fewer), pair
        if fewer:
            assert not fits(table, applied(spec, pair.second), count - fewer + 1), pair
        for one, other in ((pair.first, pair.second), (pair.second, pair.first)):
            if one.asked in OF_FLAVOR:
                assert not fits(table, applied(applied(spec, other), one, one.less - 1), count - fewer), pair


@given(NODES, REQUESTS, st.integers(1, 3), st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.booleans()), max_size=8))
@examples(150, least=20)
def test_the_flavor_is_the_first_the_plan_places(
    nodes: list[Any], asked: dict[str, Any], count: int, sizes: list[tuple[int, int, bool]]
) -> None:
    table, spec = made(nodes), spec_of(asked)
    flavors = [
        of(vcpus, gib * 1024, 1, name=f"f{n}", extra_specs={"trait:SSD": "required"} if ssd else {})
        for n, (vcpus, gib, ssd) in enumerate(sizes)
    ]
    relaxations, _, largest = found(table, spec, count, flavors, slots=slots_of(spec))
    if fits(table, spec, count) or relaxations:
        assert largest == ""
        return
    passing = [each.name for each in sorted(flavors, key=by_size) if fits(table, msgspec.structs.replace(spec, flavor=each), count)]
    assert largest == (passing[0] if passing else "")
