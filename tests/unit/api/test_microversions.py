"""Which version is meant by the headers that clients send."""

from __future__ import annotations

import falcon
import pytest

from api.http import schemas
from api.http.microversions import (
    DEVICE_TAGS,
    MAXIMUM,
    MINIMUM,
    NETWORK_TAGS,
    Microversion,
    Version,
    format_version,
    is_within,
    select_version,
)
from objects import errors


@pytest.mark.parametrize(
    ("header", "legacy", "version"),
    [
        (None, None, MINIMUM),
        ("", "", MINIMUM),
        ("compute 2.53", None, (2, 53)),
        ("compute 2.53", "2.1", (2, 53)),
        (None, "2.10", (2, 10)),
        ("identity 3.14, compute 2.19", None, (2, 19)),
        ("Compute 2.19", None, (2, 19)),
        ("compute latest", None, MAXIMUM),
        (None, "latest", MAXIMUM),
        ("volume 3.70", None, MINIMUM),
    ],
)
def test_the_headers_name_a_version(header: str | None, legacy: str | None, version: Version) -> None:
    """Either header, several services in one, nothing, latest."""
    assert select_version(header, legacy) == version


@pytest.mark.parametrize("wanted", ["2.9999", "2.0", "3.1", "1.1", "2.999999999"])
def test_an_unserved_version_is_refused_as_unserved(wanted: str) -> None:
    """Too old, too new."""
    with pytest.raises(falcon.HTTPNotAcceptable) as refusal:
        select_version(f"compute {wanted}", None)
    assert "2.1" in str(refusal.value.description)
    assert format_version(MAXIMUM) in str(refusal.value.description)


@pytest.mark.parametrize("wanted", ["2", "two", "2.1.1", "2.01", "v2.1", "2.-1", "2.٣", "2." + "9" * 400])
def test_what_is_no_version_is_refused_as_malformed(wanted: str) -> None:
    """Not of the form major.minor, in plain digits."""
    with pytest.raises(errors.Invalid) as refusal:
        select_version(f"compute {wanted}", None)
    assert len(str(refusal.value)) < 200


def test_a_feature_holds_from_its_version_on() -> None:
    """Some are ready for versions that are not served yet."""
    for feature in Microversion:
        major, minor = feature.value
        assert feature.value > MINIMUM
        assert feature.is_in((major, minor))
        assert not feature.is_in((major, minor - 1))


@pytest.mark.parametrize(("version", "devices", "networks"), [
    ((2, 31), False, False),
    ((2, 32), True, True),
    ((2, 33), False, True),
    ((2, 37), False, False),
    ((2, 42), True, True),
    ((2, 53), True, True),
])  # fmt: skip
def test_tags_of_devices_came_went_and_came(version: Version, devices: bool, networks: bool) -> None:
    """As the history of the Compute API has it."""
    assert is_within(DEVICE_TAGS, version) is devices
    assert is_within(NETWORK_TAGS, version) is networks


def test_a_create_body_changes_only_in_listed_versions() -> None:
    """One validator is kept per change, so a change that is not listed would be lost."""
    before = None
    for minor in range(MINIMUM[1], MAXIMUM[1] + 1):
        schema = schemas.create((2, minor))
        assert (schema != before) is ((2, minor) in schemas.CREATE_CHANGES)
        before = schema
