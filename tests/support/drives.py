"""A guest with everything that a config drive can hold."""

from __future__ import annotations

import base64
from typing import Any

from compute.driver import Guest, GuestSpec
from objects.flavor import Flavor
from objects.port import FixedAddress, Port
from objects.spec import BootSecrets

NASTY = "a\"b\\\n../../etc/passwd\t\u2028é\N{ROCKET}'; $(reboot)"
USER_DATA = b"#!/bin/sh\nprintf '\\0\\377'\n" + bytes(range(256))
SECRETS = BootSecrets(user_data=base64.b64encode(USER_DATA).decode(), admin_pass='p"\n\\')
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGFv me@here"

PORTS = (
    Port(
        network_id="6f0f7ea4-4f1b-4c2c-9b0c-000000000001",
        network=NASTY,
        mac="fa:16:3e:00:00:01",
        physical_network="flat",
        mtu=1450,
        tag=NASTY,
        addresses=(
            FixedAddress(address="192.0.2.5", prefix=24, gateway="192.0.2.1", dns=("192.0.2.2", "192.0.2.3")),
            FixedAddress(address="2001:db8::5", prefix=64, gateway="2001:db8::1", dns=("2001:db8::2", "192.0.2.2")),
        ),
    ),
    Port(
        network_id="6f0f7ea4-4f1b-4c2c-9b0c-000000000002",
        network="inner",
        mac="fa:16:3e:00:00:02",
        physical_network="flat",
        addresses=(FixedAddress(address="198.51.100.7", prefix=25),),
    ),
    Port(network_id="6f0f7ea4-4f1b-4c2c-9b0c-000000000003", network="dhcp", mac="fa:16:3e:00:00:03", physical_network="flat"),
)


def a_guest(**changes: Any) -> Guest:
    fields: dict[str, Any] = {
        "uuid": "0b7d8f6e-0000-4000-8000-000000000001",
        "name": NASTY,
        "node": "n",
        "fence": 1,
        "attempt": 1,
        "builder": "h:1",
        "vcpus": 1,
        "memory_mb": 512,
        "disk_gb": 1,
    }
    return Guest(**fields | changes)


def a_spec(**changes: Any) -> GuestSpec:
    fields: dict[str, Any] = {
        "project_id": "p",
        "user_id": "u",
        "flavor": Flavor(flavor_id="1", name="tiny", vcpus=1, memory_mb=512),
        "hostname": "a-b",
        "key_name": NASTY,
        "public_key": KEY,
        "ports": PORTS,
        "metadata": {NASTY: NASTY},
        "availability_zone": NASTY,
    }
    return GuestSpec(**fields | changes)
