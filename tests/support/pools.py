"""Networks with pools of addresses, for tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from db.api.rows import tables
from db.api.rows.tables import addresses as rows
from db.api.servers import addresses, networks
from db.sql.engine import ApiDatabase, Database
from objects.flavor import Flavor
from objects.network import Network, PortRequest, Subnet
from objects.port import Port
from objects.spec import ServerProperties
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.conductor import FAR, NOW, servers


def make_network(database: Database | ApiDatabase, *cidrs: str, name: str = "", **asked: Any) -> Network:
    """A network with a subnet for each of these prefixes, as ``networks.find_network`` reads it. Its gateways are the first
    addresses.
    """
    made = Network(uuid=str(uuid.uuid4()), name=name or f"net-{uuid.uuid4()}", physical_network="physnet1", mtu=1450, **asked)
    database.write(networks.create, made)
    for cidr in cidrs:
        subnet = Subnet(uuid=str(uuid.uuid4()), network_id=made.uuid, cidr=cidr, gateway=first_of(cidr), dns=("9.9.9.9",))
        database.write(networks.add_subnet, subnet)
    return database.read(networks.find_network, made.uuid)


def empty_pools(database: Database) -> None:
    """Remove the networks that other tests have left, with their addresses."""
    database.write(lambda tx: [tx.execute(sa.delete(table)) for table in (rows, tables.ports, tables.subnets, tables.networks)])


def first_of(cidr: str) -> str:
    start = cidr.partition("/")[0]
    return f"{start}1" if ":" in start else f"{start.rpartition('.')[0]}.{int(start.rpartition('.')[2]) + 1}"


def accept_on(
    database: Database, network: Network, count: int = 1, *, fixed_ip: str | None = None, size: Flavor | None = None, **asked: Any
) -> list[str]:
    """A batch of servers with one interface each; their uuids."""
    ports = (PortRequest(network=network, fixed_ip=fixed_ip),)
    spec = fleet.spec(size, properties=ServerProperties(networks=network.uuid))
    return list(database.write(accept_batch, spec, servers(count), now=NOW, deadline=FAR, ports=ports, **asked).uuids)


def ports_of(database: Database | ApiDatabase, *uuids: str) -> dict[str, tuple[Port, ...]]:
    return database.read(addresses.ports_of, uuids)


def addresses_of(database: Database | ApiDatabase, uuids: Iterable[str]) -> list[str]:
    """All addresses of these servers, in the order of the servers."""
    found = database.read(addresses.ports_of, list(uuids))
    return [each.address for uuid in uuids for port in found.get(uuid, ()) for each in port.addresses]


def used(database: Database | ApiDatabase) -> int:
    """Addresses of all pools that servers and ports have."""
    query = sa.select(sa.func.count()).where(rows.c.free_since.is_(None))
    return int(database.read(lambda tx: tx.execute(query).scalar_one()))
