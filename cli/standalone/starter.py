"""A few usual sizes, so that something can be booted in a deployment that is new."""

from __future__ import annotations

import uuid

from db.api.projects import flavors
from db.sql.engine import ApiDatabase
from objects.flavor import Flavor

FLAVORS = (("m1.tiny", 1, 512, 1), ("m1.small", 1, 2048, 20), ("m1.medium", 2, 4096, 40))
"""Name, vCPUs, MiB, GiB."""
NETWORK, SUBNET = "private", "10.64.0.0/18"
"""Of simulated hosts: client libraries take a server without an address for a broken one."""


def add_flavors(api_database: ApiDatabase) -> None:
    """Those whose names are not there yet."""
    known = {flavor.name for flavor in api_database.read(flavors.list_all)}
    for name, vcpus, ram, disk in FLAVORS:
        if name not in known:
            starter = Flavor(flavor_id=str(uuid.uuid4()), name=name, vcpus=vcpus, memory_mb=ram, root_gb=disk)
            api_database.write(flavors.create, starter)
