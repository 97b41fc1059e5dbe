"""``superconductor network`` and ``subnet``: what they make, show, and refuse."""

from __future__ import annotations

import pytest

from tests.support.commands import Shell, shell_fixture

shell = shell_fixture("-q db sync")


def test_a_network_from_creation_to_deletion(shell: Shell) -> None:
    created = shell.json("network create blue --physical-network physnet1 --mtu 1450 --project p1 --project p2")
    assert created == {
        "uuid": created["uuid"],
        "name": "blue",
        "physical_network": "physnet1",
        "mtu": 1450,
        "projects": "p1, p2",
        "subnets": "",
    }
    assert shell.json("network show blue") == shell.json(f"network show {created['uuid']}") == created
    added = shell.json("subnet add blue 10.0.0.0/24 --range 10.0.0.10-10.0.0.19 --gateway 10.0.0.1 --dns 10.0.0.2 --dns 10.0.0.3")
    assert added == {
        "uuid": added["uuid"],
        "network_id": created["uuid"],
        "cidr": "10.0.0.0/24",
        "ranges": "10.0.0.10-10.0.0.19",
        "gateway": "10.0.0.1",
        "dns": "10.0.0.2, 10.0.0.3",
    }
    shell.done("-q subnet add blue fd00::/120")
    assert shell.json("network show blue")["subnets"] == "10.0.0.0/24, fd00::/120"
    rows = shell.json("subnet list --network blue")
    assert [(row["Network"], row["CIDR"], row["Addresses"], row["Used"]) for row in rows] == [
        ("blue", "10.0.0.0/24", 10, 0),
        ("blue", "fd00::/120", 255, 0),
    ]
    assert shell.json("subnet list") == rows
    shell.done(f"subnet delete {added['uuid']}")
    assert [row["CIDR"] for row in shell.json("subnet list")] == ["fd00::/120"]
    shell.done("network delete blue")
    assert shell.json("network list") == shell.json("subnet list") == []


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("network create blue --physical-network x", "Network 'blue' already exists"),
        ("network show green", "Network 'green' not found"),
        ("network delete green", "Network 'green' not found"),
        ("subnet add green 10.0.0.0/24", "Network 'green' not found"),
        ("subnet add blue 10.0.0.0/33", "'10.0.0.0/33' is no prefix"),
        ("subnet add blue 10.0.0.0/8", "give --range START-END"),
        ("subnet add blue 10.0.0.0/24 --range 10.0.0.1", "is no range: give START-END"),
        ("subnet add blue 10.0.0.0/24 --range 10.0.0.9-10.0.2.1", "--range: 10.0.2.1 is not in 10.0.0.0/24"),
        ("subnet add blue 10.0.0.0/24 --gateway 10.1.0.1", "--gateway: 10.1.0.1 is not in 10.0.0.0/24"),
        ("subnet add blue 10.7.0.0/24", "has an IPv4 subnet already"),
        ("subnet delete x", "Subnet 'x' not found"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(shell: Shell, line: str, sentence: str) -> None:
    shell.done("-q network create blue --physical-network physnet1")
    if "already" in sentence:
        shell.done("-q subnet add blue 10.0.0.0/24")
    assert sentence in shell.refused(line)


def test_an_mtu_that_cannot_be_is_wrong_usage(shell: Shell) -> None:
    assert "--mtu" in shell.refused("network create blue --physical-network x --mtu 67", status=2)
