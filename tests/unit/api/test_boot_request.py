"""What the fields of a create mean."""

from __future__ import annotations

from typing import Any

import pytest

from api.http import schemas
from api.http.validation import Validator
from api.lookup.boot_request import BootRequest, parse
from objects import errors

IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
OTHER = "8a2f4b9e-5a0f-4a52-8f58-2c6dd2e3b8e1"
DEVICE = {"uuid": IMAGE, "source_type": "image", "destination_type": "local", "boot_index": 0, "delete_on_termination": True}


SERVER = {"name": "web", "flavorRef": "1", "imageRef": IMAGE}


def boot(**fields: Any) -> BootRequest:
    return parse({"server": SERVER | fields}, 10)


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({}, (1, 1)),
        ({"min_count": 3}, (3, 3)),
        ({"max_count": "4"}, (1, 4)),
        ({"min_count": 2, "max_count": 4}, (2, 4)),
    ],
)
def test_max_count_decides_how_many_are_requested(fields: dict[str, Any], counts: tuple[int, int]) -> None:
    """max_count falls back on min_count, and that on one."""
    found = boot(**fields)
    assert (found.min_count, found.count) == counts


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"min_count": 3, "max_count": 2}, "server.min_count: 3 is more than max_count, 2"),
        ({"max_count": 11}, "server.max_count: 11 is more than the maximum of one request, 10"),
        ({"min_count": "0"}, "server.min_count: "),
    ],
)
def test_counts_that_contradict_are_refused(fields: dict[str, Any], sentence: str) -> None:
    """By name."""
    with pytest.raises(errors.Invalid) as refused:
        boot(**fields)
    assert str(refused.value).startswith(sentence)


def test_several_servers_are_numbered_from_one() -> None:
    """One keeps its name; a name that leaves no room for the number is refused."""
    assert boot().server_names(1) == ["web"]
    assert boot(max_count=3).server_names(3) == ["web-1", "web-2", "web-3"]
    assert boot(name="x" * 255).server_names(1) == ["x" * 255]
    with pytest.raises(errors.Invalid, match=r"^server\.name: "):
        boot(name="x" * 254, max_count=2)


@pytest.mark.parametrize(
    "fields",
    [
        {"imageRef": IMAGE},
        {"imageRef": "", "block_device_mapping_v2": [DEVICE]},
        {"imageRef": IMAGE, "block_device_mapping_v2": [DEVICE | {"boot_index": "0"}]},
        {"block_device_mapping_v2": [DEVICE, {"source_type": "blank", "boot_index": -1, "volume_size": 5}]},
    ],
)
def test_the_image_comes_from_either_field(fields: dict[str, Any]) -> None:
    """Clients send imageRef, a block device, or both."""
    assert boot(**{"imageRef": ""} | fields).image_id == IMAGE


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "server.imageRef: is required"),
        ({"imageRef": ""}, "server.imageRef: is required"),
        ({"block_device_mapping_v2": [DEVICE | {"boot_index": 1}]}, "server.imageRef: is required"),
        ({"imageRef": OTHER, "block_device_mapping_v2": [DEVICE]}, "server.block_device_mapping_v2[0].uuid: is not the image"),
        ({"block_device_mapping_v2": [DEVICE, DEVICE]}, "server.block_device_mapping_v2: more than one"),
        ({"block_device_mapping_v2": [DEVICE | {"uuid": None}]}, "server.block_device_mapping_v2[0].uuid: "),
        ({"block_device_mapping_v2": [DEVICE | {"source_type": "blank"}]}, "server.block_device_mapping_v2[0].source_type: "),
    ],
)
def test_a_boot_without_an_image_creates_no_server(fields: dict[str, Any], sentence: str) -> None:
    """The message names the field to mend."""
    with pytest.raises(errors.Invalid) as refused:
        boot(**{"imageRef": ""} | fields)
    assert str(refused.value).startswith(sentence)


def test_what_does_not_bear_on_placement_is_kept() -> None:
    """With booleans and numbers as such, and each tag once."""
    kept = boot(
        metadata={"a": "b"},
        tags=["x", "y", "x"],
        user_data="AAAA",
        config_drive="yes",
        key_name="key",
        description="d",
        block_device_mapping_v2=[DEVICE | {"boot_index": "0", "delete_on_termination": "false"}],
    ).properties
    assert kept.tags == ("x", "y")
    assert kept.config_drive is True
    assert kept.block_devices == (DEVICE | {"delete_on_termination": False},)
    assert (kept.metadata, kept.key_name, kept.description) == ({"a": "b"}, "key", "d")


def test_hints_are_lists_under_either_name() -> None:
    """The old name counts where the new one is missing; an empty hint is none."""
    old = parse({"server": SERVER, "OS-SCH-HNT:scheduler_hints": {"group": "g", "same_host": ["a", "b"]}}, 10)
    both = parse(
        {"server": SERVER, "os:scheduler_hints": {"group": "n", "x": []}, "OS-SCH-HNT:scheduler_hints": {"group": "o"}}, 10
    )
    assert old.hints == {"group": ("g",), "same_host": ("a", "b")}
    assert old.hints_field == "OS-SCH-HNT:scheduler_hints"
    assert both.hints == {"group": ("n",)}
    assert both.hints_field == "os:scheduler_hints"
    assert parse({"server": SERVER}, 10).hints == {}


def test_a_flavor_may_be_named_by_its_url() -> None:
    """Old clients send the link they read."""
    assert boot(flavorRef="http://api:8774/v2.1/flavors/m1.small").flavor == "m1.small"
    assert boot(flavorRef=42).flavor == "42"
    assert boot(flavorRef="a/b").flavor == "a/b"


def test_a_body_shows_no_secrets() -> None:
    """Its repr may end in a log."""
    assert "hunter2" not in repr(boot(user_data="hunter2", adminPass="hunter2", metadata={"password": "hunter2"}))


@pytest.mark.parametrize(
    ("hint", "kept"),
    [
        (7, ("7",)),
        (0, ("0",)),
        (1.5, ("1.5",)),
        (True, ("True",)),
        (False, ("False",)),
        ({"a": [1]}, ('{"a":[1]}',)),
        (["a", 2], ("a", "2")),
    ],
)
def test_a_hint_of_any_type_becomes_text(hint: object, kept: tuple[str, ...]) -> None:
    """Filters of a site may read it. Null and what is empty is none."""
    document = {"server": SERVER, "os:scheduler_hints": {"mine": hint, "none": None, "empty": {}}}
    Validator(schemas.create((2, 1))).check_body(document)
    assert parse(document, 10).hints == {"mine": kept}


@pytest.mark.parametrize("field", ["os:scheduler_hints", "OS-SCH-HNT:scheduler_hints"])
@pytest.mark.parametrize(
    ("hint", "whole"), [(True, True), ("true", True), ("1", True), (["yes"], True), ([True], True), (False, False), ("Off", False)]
)
def test_a_batch_is_all_or_nothing_on_request(field: str, hint: object, whole: bool) -> None:
    """And the scheduler is not told, which has no use for it."""
    document = {"server": SERVER, field: {"all_or_nothing": hint, "group": "g"}}
    Validator(schemas.create((2, 1))).check_body(document)
    parsed = parse(document, 10)
    assert parsed.all_or_nothing is whole
    assert parsed.hints == {"group": ("g",)}


def test_without_the_hint_it_does_not() -> None:
    assert not parse({"server": SERVER}, 10).all_or_nothing
    assert not parse({"server": SERVER, "os:scheduler_hints": {"group": "g"}}, 10).all_or_nothing


@pytest.mark.parametrize("hint", ["maybe", "", [], ["true", "true"], ["tRuE"]])
def test_what_is_no_boolean_is_refused(hint: object) -> None:
    document = {"server": SERVER, "os:scheduler_hints": {"all_or_nothing": hint}}
    Validator(schemas.create((2, 1))).check_body(document)
    with pytest.raises(errors.Invalid, match=r"^os:scheduler_hints\.all_or_nothing: .* is not a boolean; give true or false, once"):
        parse(document, 10)
