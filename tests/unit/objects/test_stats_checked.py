"""What a host may say of itself, and which of two reports on it is the newer one."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest

from objects import errors, stats
from objects.compute_node import ComputeNode
from tests.support import fleet

FIELDS = {"vcpus": 8, "memory_mb": 4096, "disk_gb": 100}
NODE = ComputeNode(host="h1", node="n1", vcpus=8, memory_mb=4096, disk_gb=100)


def test_stats_are_an_object_or_fields_by_name() -> None:
    assert stats.of_name("h1", NODE) == stats.of_name(("h1", "n1"), NODE) == stats.of_name(("h1", "n1"), FIELDS) == NODE
    assert stats.of_name("h1", FIELDS) == msgspec.structs.replace(NODE, node="h1"), "a host named alone is its own node"
    assert stats.of_name("h1", FIELDS | {"node": "h1", "host": "h1"}).node == "h1"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"vcpus": 8, "memory_mb": 4096}, "missing required field `disk_gb`"),
        (FIELDS | {"vcpus": "8"}, r"Expected `int`, got `str` - at `\$.vcpus`"),
        (FIELDS | {"vcpus": None}, r"at `\$.vcpus`"),
        (FIELDS | {"vcpus": 8.5}, r"at `\$.vcpus`"),
        (FIELDS | {"attributes": 7}, r"at `\$.attributes`"),
        (FIELDS | {"memory_mb": -1}, "memory_mb is -1: it must be a number from 0"),
        (FIELDS | {"memory_mb_used": -1}, "memory_mb_used is -1"),
        (FIELDS | {"disk_gb": 2**70}, "disk_gb is"),
        (FIELDS | {"hypervisor_version": 2**63}, "hypervisor_version is"),
        (FIELDS | {"cpu_allocation_ratio": math.nan}, "cpu_allocation_ratio is nan"),
        (FIELDS | {"ram_allocation_ratio": math.inf}, "ram_allocation_ratio is inf"),
        (FIELDS | {"failed_builds": -math.inf}, "failed_builds is -inf"),
        (FIELDS | {"reported_at": math.nan}, "reported_at is nan"),
        (FIELDS | {"running_vms": 2**31}, "running_vms is 2147483648: it must be a number from 0 to 2147483647"),
        (FIELDS | {"resources_used": {"GPU": 1}}, "resources_used: GPU: is not a custom resource class"),
        (FIELDS | {"host": "h2"}, "are those of h2, h1, not of h1"),
        (FIELDS | {"node": "n2"}, "are those of h1, n2, not of h1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.Invalid, match=words) as refused:
        stats.of_name("h1", given)
    assert "h1" in str(refused.value)


@pytest.mark.parametrize("name", ["", "x" * 256, "h1 ", " h1", "h\0", "h\n1", "\x1b]0;h", "höst", "h/1", "\udcff"])
def test_hosts_and_nodes_need_names_of_plain_characters(name: str) -> None:
    with pytest.raises(errors.Invalid, match=r"stats: host .*: a name has 1 to 255 letters"):
        stats.of_name(name, FIELDS)
    with pytest.raises(errors.Invalid, match=r"stats: node .*: a name has 1 to 255 letters"):
        stats.of_name(("h1", name), FIELDS)


@pytest.mark.parametrize("odd", ["\0", "\x1b[31m", "\udcff"])
def test_driver_texts_are_checked_and_can_be_cleaned(odd: str) -> None:
    for fields in ({"attributes": {odd: 1}}, {"attributes": {"a": [{"b": odd}]}}, {"hypervisor_type": odd}):
        with pytest.raises(errors.Invalid, match=r"stats of h1, h1: .* has control characters or surrogates"):
            stats.of_name("h1", FIELDS | fields)
        given = msgspec.structs.replace(NODE, **fields)
        stats.check_stats(stats.clean_stats(given))


def test_attributes_are_bounded_and_plain_data() -> None:
    with pytest.raises(errors.Invalid, match="attributes have more than"):
        stats.of_name("h1", FIELDS | {"attributes": {"a": "x" * 70_000}})
    stats.check_stats(stats.clean_stats(msgspec.structs.replace(NODE, attributes={"a": "x" * 70_000})))
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    for attributes in ({"a": {1}}, {"a": b"x"}, {"a": deep}, {"a": object()}):
        with pytest.raises(errors.Invalid, match="stats of h1, n1: attributes: "):
            stats.clean_stats(msgspec.structs.replace(NODE, attributes=attributes))
        with pytest.raises(errors.Invalid, match="stats of h1, n1: attributes: "):
            stats.check_stats(msgspec.structs.replace(NODE, attributes=attributes))


def test_attributes_are_the_drivers_own() -> None:
    assert stats.of_name("h1", FIELDS | {"attributes": {"temperature": -7, "traits": ["A"]}}).attributes["temperature"] == -7


@pytest.mark.parametrize(
    ("at", "known_at", "newer"),
    [
        (2.0, 1.0, True),
        (1.0, 1.0, True),
        (1.0, 2.0, False),
        (0.0, 2.0, True),
        (2.0, 0.0, True),
        (1.0, 1.0 + stats.MAX_REPORT_DELAY_S, True),
    ],
    ids=["later", "again", "earlier", "does not say", "did not say", "its clock was set back"],
)
def test_of_two_reports_the_newer_one_counts(at: float, known_at: float, newer: bool) -> None:
    assert stats.is_current(fleet.node("h", reported_at=at), fleet.node("h", reported_at=known_at)) is newer


def test_when_it_was_reported_is_no_difference() -> None:
    assert stats.is_unchanged(fleet.node("h", reported_at=2.0), fleet.node("h", reported_at=1.0))
    assert not stats.is_unchanged(fleet.node("h", reported_at=2.0, vcpus=1), fleet.node("h", reported_at=2.0))


def verdict(given: ComputeNode, *, decoded: bool) -> str:
    try:
        stats.check_stats(given, decoded=decoded)
    except errors.Invalid as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seed", range(300))
def test_decoded_json_gets_the_same_verdict(seed: int) -> None:
    chance = random.Random(seed)
    texts = ("", "a", 'b"', "\\", "ä", "\n", "\x7f", "\x00", "\x85", "\udcff", "x" * 40_000)

    def value(levels: int) -> Any:
        kind = chance.choice(("text", "number", "list", "dict")) if levels else "text"
        if kind == "list":
            return [value(levels - 1) for _ in range(chance.randrange(3))]
        if kind == "dict":
            return {chance.choice(texts): value(levels - 1) for _ in range(chance.randrange(3))}
        return chance.choice((1, 2.5, None, True)) if kind == "number" else chance.choice(texts[: chance.choice((3, len(texts)))])

    attributes: Any = value(3)
    for _ in range(chance.choice((0, 0, 13, 16, 17, 18))):
        attributes = chance.choice(([attributes], {"deep": attributes}))
    node = msgspec.structs.replace(NODE, attributes={"all": attributes}, hypervisor_type=chance.choice(texts))
    assert verdict(node, decoded=True) == verdict(node, decoded=False)
