"""JsonFilter and TraitsFilter against a plain reference that looks at one host at a time."""

from __future__ import annotations

import json
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects import errors, query
from objects.compute_node import ComputeNode
from objects.flavor import Flavor
from objects.spec import Image
from scheduler.filters.json_query import _NUMBERS, JsonFilter
from scheduler.filters.traits import TraitsFilter
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SchedulerSettings
from tests.support import fleet
from tests.support.examples import examples

RELATIONS = {"=": operator.eq, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "in": operator.eq}
OPERANDS = st.sampled_from(
    ["$free_ram_mb", "$vcpus_total", "$hypervisor_type", "$attributes.rack", "$attributes.secret", 1, 2, 2.5, "kvm", "r1"]
)
COMPARISONS = st.tuples(st.sampled_from(sorted(RELATIONS)), OPERANDS, OPERANDS, st.lists(OPERANDS, max_size=1)).map(
    lambda parts: [*parts[:3], *parts[3]]
)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: ["and", *parts]),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: ["or", *parts]),
        inner.map(lambda part: ["not", part]),
    ),
    max_leaves=5,
)
NODES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["kvm", "xen", ""]),
        st.sampled_from([{}, {"rack": "r1"}, {"rack": 2}, {"secret": "r1"}, {"rack": True}]),
    ),
    min_size=1,
    max_size=5,
)


def value_of(given: Any, node: ComputeNode) -> Any:
    if not isinstance(given, str) or not given.startswith("$"):
        return given
    told = {"$free_ram_mb": node.memory_mb, "$vcpus_total": node.vcpus, "$hypervisor_type": node.hypervisor_type or None}
    found = told.get(given) if given in told else node.attributes.get("rack") if given == "$attributes.rack" else None
    return None if isinstance(found, bool) else found


def compares(relation: str, one: Any, other: Any) -> bool:
    if one is None or other is None or isinstance(one, str) is not isinstance(other, str):
        return False
    return bool(RELATIONS[relation](one, other))


def reference(condition: list[Any], node: ComputeNode) -> bool:
    sign, *parts = condition
    if sign == "not":
        return not reference(parts[0], node)
    if sign in ("and", "or"):
        return (all if sign == "and" else any)(reference(part, node) for part in parts)
    first, *others = (value_of(part, node) for part in parts)
    return (any if sign == "in" else all)(compares(sign, first, other) for other in others)


def both_reported(condition: list[Any]) -> bool:
    """Texts of two attributes are not compared: no host needs it."""
    sign, *parts = condition
    if sign in ("and", "or", "not"):
        return any(both_reported(part) for part in parts)
    first, *others = (isinstance(part, str) and part in ("$hypervisor_type", "$attributes.rack") for part in parts)
    return first and any(others)


@given(NODES, CONDITIONS)
@examples(300)
def test_the_hint_query(nodes: list[tuple[int, str, dict[str, Any]]], condition: list[Any]) -> None:
    if both_reported(condition):
        return
    made = [
        fleet.node(f"h{n}", vcpus=size, memory_mb=size, hypervisor_type=kind, attributes=told, cpu_allocation_ratio=3.0)
        for n, (size, kind, told) in enumerate(nodes)
    ]
    table = fleet.table(made)
    request = fleet.request(fleet.spec(scheduler_hints={"query": (json.dumps(condition),)}), table)
    mask = JsonFilter(SchedulerSettings(json_filter_attributes=("rack",))).passes(Hosts(table, request), request)
    assert mask is not None
    assert mask.tolist() == [reference(condition, node) for node in made]


def test_every_word_of_the_vocabulary_has_a_column() -> None:
    assert sorted(_NUMBERS) == sorted(query.NUMBERS)
    table = fleet.table([fleet.node("h", vcpus=4, cpu_allocation_ratio=2.0, memory_mb=1024, disk_gb=3, failed_builds=1.0)])
    request = fleet.request(fleet.spec(fleet.flavor(vcpus=3)), table)
    told = {name: float(column(Hosts(table, request, None, 1))[0]) for name, column in _NUMBERS.items()}
    assert told["vcpus_total"] == 4
    assert (told["free_vcpus"], told["vcpus_used"]) == (5, 3)
    assert (told["total_usable_ram_mb"], told["free_ram_mb"]) == (1024, 0)
    assert (told["total_usable_disk_gb"], told["free_disk_mb"]) == (3, (3 - 10) * 1024)
    assert (told["num_instances"], told["num_io_ops"], told["failed_builds"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "query: 'no json' is not JSON"),
        ('"text"', 'query: "text" is not a list that begins with an operator'),
        ('["like", "$free_ram_mb", 1]', "query: there is no operator 'like'; choose from ="),
        ('[">", "$host", 1]', "query: there is no '$host'; choose from $failed_builds"),
        ('[">", "$free_ram_mb"]', "query: '>' takes two operands or more"),
        ('[">", "$free_ram_mb", [1]]', "query: [1] is neither a number nor a text"),
        ('["not", ["=", 1, 1], ["=", 1, 1]]', "query: 'not' takes one condition"),
        (f'[">", "$free_ram_mb", 1{"0" * 400}]', "query: 1000"),
        ('["and"]', "query: 'and' takes conditions"),
        ('["not", ' * 11 + '["=", 1, 1]' + "]" * 11, "query: is nested more than 10 deep"),
        ("[" * 100_000, "query: '["),
    ],
)
def test_an_unreadable_condition_is_met_by_no_host(text: str, said: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        query.parse_query(text)
    assert str(refused.value).startswith(said)
    table = fleet.table([fleet.node("h")])
    request = fleet.request(fleet.spec(scheduler_hints={"query": (text,)}), table)
    assert JsonFilter(SchedulerSettings()).passes(Hosts(table, request), request).tolist() == [False]  # type: ignore[union-attr]  # a mask, as something is asked


HOW = st.sampled_from(["required", "forbidden", "preferred"])


def test_nesting_of_any_depth_is_refused_harmlessly() -> None:
    """What is read just so may still be too deep to be shown in the refusal."""
    for depth in range(900, 1050):
        with pytest.raises(errors.Invalid):
            query.parse_query('["=", 1, ' + '{"a":' * depth + "1" + "}" * depth + "]")


def test_an_attribute_beyond_float_range_is_no_number() -> None:
    table = fleet.table([fleet.node("h0", attributes={"rack": 10**400}), fleet.node("h1", attributes={"rack": 3})])
    request = fleet.request(fleet.spec(scheduler_hints={"query": ('[">", "$attributes.rack", 2]',)}), table)
    mask = JsonFilter(SchedulerSettings(json_filter_attributes=("rack",))).passes(Hosts(table, request), request)
    assert mask is not None
    assert mask.tolist() == [False, True]


def test_a_text_on_both_sides_is_two_conditions() -> None:
    """Also where the text is itself an operator."""
    table = fleet.table([fleet.node("h", hypervisor_type="=")])
    text = '["and", ["<", "$hypervisor_type", ">"], ["not", [">", "<", "$hypervisor_type"]]]'
    request = fleet.request(fleet.spec(scheduler_hints={"query": (text,)}), table)
    assert JsonFilter(SchedulerSettings()).passes(Hosts(table, request), request).tolist() == [True]  # type: ignore[union-attr]  # a mask, as something is asked


SPECS = st.dictionaries(st.sampled_from(["trait:SSD", "trait:GPU", "capabilities:SSD"]), HOW)


@given(st.lists(st.lists(st.sampled_from(["SSD", "GPU", "FAST"]), unique=True), min_size=1, max_size=5), SPECS, SPECS)
@examples(150)
def test_traits(have: list[list[str]], extra: dict[str, str], properties: dict[str, str]) -> None:
    def suits(traits: list[str]) -> bool:
        for key, how in [*extra.items(), *((k, v) for k, v in properties.items() if v == "required")]:
            scope, name = key.split(":")
            if scope == "trait" and how == "required" and name not in traits:
                return False
            if scope == "trait" and how == "forbidden" and name in traits:
                return False
        return True

    table = fleet.table([fleet.node(f"h{n}", attributes={"traits": traits} if traits else {}) for n, traits in enumerate(have)])
    flavor = Flavor(flavor_id="f", name="f", vcpus=1, memory_mb=1, extra_specs=extra)
    request = fleet.request(fleet.spec(flavor, image=Image(id="i", properties=properties)), table)
    mask = TraitsFilter(SchedulerSettings()).passes(Hosts(table, request), request)
    expected = [suits(traits) for traits in have]
    assert (all(expected) if mask is None else mask.tolist() == expected) is True


@pytest.mark.parametrize("kind", [JsonFilter, TraitsFilter])
def test_a_request_not_calling_for_it_is_skipped(kind: type[JsonFilter] | type[TraitsFilter]) -> None:
    table = fleet.table([fleet.node("h")])
    request = fleet.request(fleet.spec(), table)
    assert kind(SchedulerSettings()).passes(Hosts(table, request), request) is None
    assert kind.on_demand
