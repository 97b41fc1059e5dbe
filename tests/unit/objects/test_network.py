"""Which addresses a subnet has, and which subnets are refused."""

from __future__ import annotations

from typing import Any

import pytest

from objects import errors
from objects.network import Subnet, checked_subnet, usable_addresses


def subnet(cidr: str, **changes: Any) -> Subnet:
    return Subnet(uuid="s", network_id="n", cidr=cidr, **changes)


def test_network_broadcast_and_gateway_are_never_given() -> None:
    assert usable_addresses(checked_subnet(subnet("10.0.0.0/29", gateway="10.0.0.6"))) == [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.3",
        "10.0.0.4",
        "10.0.0.5",
    ]
    assert usable_addresses(checked_subnet(subnet("10.0.0.0/29", ranges=(("10.0.0.0", "10.0.0.2"), ("10.0.0.7", "10.0.0.7"))))) == [
        "10.0.0.1",
        "10.0.0.2",
    ]
    assert usable_addresses(checked_subnet(subnet("fd00::/126"))) == ["fd00::1", "fd00::2", "fd00::3"]


def test_addresses_are_written_as_usual_and_in_order() -> None:
    made = checked_subnet(subnet("FD00:0::/64", ranges=(("fd00::20", "fd00::21"), ("fd00::0a", "fd00::b")), dns=("FD00::0053",)))
    assert (made.cidr, made.dns, made.ip_version, made.prefix_length) == ("fd00::/64", ("fd00::53",), 6, 64)
    assert usable_addresses(made) == ["fd00::a", "fd00::b", "fd00::20", "fd00::21"]


def test_a_pool_may_be_as_large_as_allowed() -> None:
    assert len(usable_addresses(checked_subnet(subnet("10.0.0.0/16")))) == 65_534


@pytest.mark.parametrize(
    ("cidr", "changes", "sentence"),
    [
        ("10.0.0.0", {}, "has no address for a server"),
        ("10.0.0.1/24", {}, "'10.0.0.1/24' is no prefix: 10.0.0.1/24 has host bits set"),
        ("ten", {}, "'ten' is no prefix"),
        ("10.0.0.0/31", {}, "has no address for a server"),
        ("10.0.0.0/30", {"gateway": "10.0.0.1", "ranges": (("10.0.0.0", "10.0.0.1"),)}, "has no address for a server"),
        ("10.0.0.0/15", {}, "10.0.0.0/15 has 131,072 addresses, a pool 65,536 at most: give --range START-END"),
        ("fd00::/64", {}, "give --range START-END"),
        ("10.0.0.0/24", {"gateway": "10.0.1.1"}, "--gateway: 10.0.1.1 is not in 10.0.0.0/24"),
        ("10.0.0.0/24", {"gateway": "fd00::1"}, "--gateway: fd00::1 is not in 10.0.0.0/24"),
        ("10.0.0.0/24", {"ranges": (("10.0.0.9", "10.0.1.1"),)}, "--range: 10.0.1.1 is not in 10.0.0.0/24"),
        ("10.0.0.0/24", {"ranges": (("10.0.0.9", "10.0.0.8"),)}, "--range: 10.0.0.9 comes after 10.0.0.8"),
        ("10.0.0.0/24", {"ranges": (("10.0.0.5", "10.0.0.9"), ("10.0.0.9", "10.0.0.9"))}, "two ranges overlap at 10.0.0.9"),
        ("10.0.0.0/24", {"ranges": (("x", "10.0.0.9"),)}, "--range: 'x' is no IP address"),
        ("10.0.0.0/24", {"dns": ("8.8.8",)}, "--dns: '8.8.8' is no IP address"),
    ],
)  # fmt: skip
def test_an_invalid_pool_is_refused_in_one_line(cidr: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        checked_subnet(subnet(cidr, **changes))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
