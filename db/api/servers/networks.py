"""Networks and subnets in the API database. The rows of a subnet's addresses are made with it."""

from __future__ import annotations

import ipaddress
import secrets
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from db.api.rows import epochs
from db.api.rows.epochs import Epoch
from db.api.rows.tables import addresses, networks, subnets
from db.sql import by_name
from db.sql.connection import ApiTransaction
from db.sql.engine import DuplicateEntry
from db.sql.readable import convert_readable
from objects import errors, network, stored
from objects.base import Object
from objects.network import Network, Subnet

MAC_COUNT = 2**24
"""MACs with the region's prefix: one for each address."""

INSERT_PAGE_SIZE = 1000


class PoolUsage(Object, frozen=True, kw_only=True):
    """Addresses of a subnet: all, and those that servers and ports have."""

    size: int
    used: int


def create(tx: ApiTransaction, new: Network) -> None:
    """Add a network without subnets. Raises Conflict if its name is taken."""
    values = {
        "uuid": new.uuid,
        "name": new.name,
        "physical_network": new.physical_network,
        "mtu": new.mtu,
        "project_ids": stored.dump_value(new.project_ids),
    }
    by_name.insert_row(tx, networks, values, f"Network '{new.name}'")
    epochs.bump_epoch(tx, Epoch.NETWORKS)


def list_all(tx: ApiTransaction) -> list[Network]:
    """All networks by name, with their subnets, IPv4 first. One that cannot be read is left out, with its subnets."""
    rows = tx.execute(sa.select(subnets).order_by(subnets.c.version)).all()
    read = {subnet.uuid: subnet for subnet in convert_readable(rows, _subnet_from_row, subnets)}
    damaged = {row.network_uuid for row in rows if row.uuid not in read}
    subnets_by_network: dict[str, list[Subnet]] = defaultdict(list)
    for subnet in read.values():
        subnets_by_network[subnet.network_id].append(subnet)
    network_rows = tx.execute(sa.select(networks).order_by(networks.c.name))
    networks_read = convert_readable(network_rows, lambda row: _network_from_row(row, subnets_by_network[row.uuid]), networks)
    return [network for network in networks_read if network.uuid not in damaged]


def _network_from_row(row: sa.Row[Any], own_subnets: Sequence[Subnet]) -> Network:
    return Network(
        uuid=row.uuid,
        name=row.name,
        physical_network=row.physical_network,
        mtu=row.mtu,
        project_ids=stored.load_text(row.project_ids, tuple[str, ...]),
        subnets=tuple(own_subnets),
    )


def find_network(tx: ApiTransaction, reference: str) -> Network:
    """The network with this name or uuid. Raises NotFound."""
    candidates = [candidate for candidate in list_all(tx) if reference in (candidate.name, candidate.uuid)]
    if not candidates:
        raise errors.NotFound(f"Network '{reference}' not found")
    return max(candidates, key=lambda candidate: candidate.uuid == reference)


def add_subnet(tx: ApiTransaction, new: Subnet) -> Subnet:
    """Give a network a pool. Raises Invalid, Conflict if it has one of this version, and Conflict if no MACs are left."""
    checked_subnet = network.checked_subnet(new)
    values = {
        "uuid": checked_subnet.uuid,
        "network_uuid": checked_subnet.network_id,
        "version": checked_subnet.ip_version,
        "cidr": checked_subnet.cidr,
        "ranges": stored.dump_value(checked_subnet.ranges),
        "gateway": checked_subnet.gateway,
        "dns": stored.dump_value(checked_subnet.dns),
    }
    # Locked until the commit: a concurrent command waits here, and then sees which MACs are used.
    epochs.bump_epoch(tx, Epoch.NETWORKS)
    try:
        tx.execute(sa.insert(subnets), values)
    except DuplicateEntry:
        raise errors.Conflict(
            f"The network has an IPv{checked_subnet.ip_version} subnet already; give that several ranges instead"
        ) from None
    pool = network.usable_addresses(checked_subnet)
    start = _mac_block(tx, len(pool))
    rows = [
        {"mac": start + number, "subnet_uuid": checked_subnet.uuid, "address": address, "free_since": 0.0}
        for number, address in enumerate(pool)
    ]
    for first in range(0, len(rows), INSERT_PAGE_SIZE):
        tx.execute(sa.insert(addresses), rows[first : first + INSERT_PAGE_SIZE])
    return checked_subnet


_BLOCKS = (
    sa.select(sa.func.min(addresses.c.mac).label("first"), sa.func.max(addresses.c.mac).label("last"))
    .group_by(addresses.c.subnet_uuid)
    .order_by(sa.func.min(addresses.c.mac))
)


def _mac_block(tx: ApiTransaction, size: int) -> int:
    """The first of ``size`` MACs in a row that no subnet has. The first subnet of a region begins at a random one."""
    blocks = [(row.first, row.last + 1) for row in tx.execute(_BLOCKS)]
    if not blocks:
        return secrets.randbelow(MAC_COUNT - size + 1)
    ends = [0, *(end for _, end in blocks)]
    begins = [*(begin for begin, _ in blocks), MAC_COUNT]
    gaps = [end for end, begin in zip(ends, begins, strict=True) if begin - end >= size]
    if not gaps:
        raise errors.Conflict(f"no {size} MAC addresses in a row are left: delete subnets, or give a smaller --range")
    return int(gaps[-1])  # behind the last subnet, as long as there is room


def delete_subnet(tx: ApiTransaction, uuid: str) -> None:
    """Delete a subnet with its addresses. Raises NotFound, and Conflict while servers or ports have some of them."""
    row = by_name.require_row(tx.execute(sa.select(subnets).where(subnets.c.uuid == uuid)).first(), f"Subnet '{uuid}'")
    _drop_pool(tx, [row.uuid], f"Subnet {row.cidr}")
    epochs.bump_epoch(tx, Epoch.NETWORKS)


def delete(tx: ApiTransaction, uuid: str) -> None:
    """Delete a network with its subnets. Raises NotFound, and Conflict while servers or ports have addresses of it."""
    row = by_name.require_row(tx.execute(sa.select(networks).where(networks.c.uuid == uuid)).first(), f"Network '{uuid}'")
    subnet_uuids = tx.execute(sa.select(subnets.c.uuid).where(subnets.c.network_uuid == uuid)).scalars().all()
    _drop_pool(tx, subnet_uuids, f"Network '{row.name}'")
    tx.execute(sa.delete(networks).where(networks.c.uuid == uuid))
    epochs.bump_epoch(tx, Epoch.NETWORKS)


def _drop_pool(tx: ApiTransaction, uuids: Sequence[str], pool: str) -> None:
    of_pool = addresses.c.subnet_uuid.in_(uuids)
    # The lock first, then the count: an address that is just being claimed is seen as used.
    tx.execute(sa.select(addresses.c.mac).where(of_pool).order_by(addresses.c.mac).with_for_update()).all()
    used = tx.execute(sa.select(sa.func.count()).where(of_pool, addresses.c.free_since.is_(None))).scalar_one()
    if used:
        raise errors.Conflict(f"{pool} is in use: servers and ports have {used} of its addresses; delete them first")
    tx.execute(sa.delete(addresses).where(of_pool))
    tx.execute(sa.delete(subnets).where(subnets.c.uuid.in_(uuids)))


def usage_by_subnet(tx: ApiTransaction) -> dict[str, PoolUsage]:
    """The addresses of each subnet, by its uuid."""
    used = sa.func.sum(sa.case((addresses.c.free_since.is_(None), 1), else_=0)).label("used")
    query = sa.select(addresses.c.subnet_uuid, sa.func.count().label("size"), used).group_by(addresses.c.subnet_uuid)
    return {row.subnet_uuid: PoolUsage(size=row.size, used=int(row.used)) for row in tx.execute(query)}


def _subnet_from_row(row: sa.Row[Any]) -> Subnet:
    """Raises ValueError for a prefix that is none."""
    ipaddress.ip_network(row.cidr)
    return Subnet(
        uuid=row.uuid,
        network_id=row.network_uuid,
        cidr=row.cidr,
        ranges=stored.load_text(row.ranges, tuple[tuple[str, str], ...]),
        gateway=row.gateway,
        dns=stored.load_text(row.dns, tuple[str, ...]),
    )
