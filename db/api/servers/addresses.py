"""The addresses of servers: claimed by the transaction that accepts a server, freed by the one that sees its last body end.

An address that a port of a project has (``db/api/servers/ports.py``) goes back to the port instead. This is the one place that
binds addresses. With Neutron, ``claim_addresses`` would create its ports and ``free_addresses`` would delete them.
``docs/decisions/0033-addresses-planned-at-accept.md`` says why, and ``0063-ports-belong-to-their-projects.md`` of ports.
"""

from __future__ import annotations

import ipaddress
import logging
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import RetryRequest

from db.api.rows import incarnation
from db.api.rows.tables import addresses, build_requests, instance_mappings, networks, operations, subnets
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.dialect import UpdateMany
from db.sql.galera import compare_locks
from db.sql.keyed import by_index
from db.sql.readable import convert_readable
from db.sql.types import Time
from objects import errors, stored
from objects.base import Object
from objects.network import PortRequest
from objects.port import FixedAddress, Port
from objects.text import FAULT_SIZE, clean_text
from service.rate_limited_log import RateLimitedLog

_COMPLAINTS = RateLimitedLog(logging.getLogger(__name__))

_A, _M = addresses.c, instance_mappings.c

_KNOWN = incarnation.parameters_of(None)

MAC_PREFIX = "fa:16:3e"
"""Of every MAC: locally administered. The rest is the key of the row of the interface's first address."""


class Wanted(Object, frozen=True, kw_only=True):
    """The servers of one request, and the interfaces that each of them gets. ``position``: of the first of them."""

    servers: tuple[str, ...]
    ports: tuple[PortRequest, ...]
    position: int = 0


class _Taking(Object, frozen=True, kw_only=True):
    """What gets an address: an interface of a server, or a port that no server has."""

    server_uuid: str | None = None
    position: int | None = None
    tag: str | None = None
    port_uuid: str | None = None


def mac_of(number: int) -> str:
    """The MAC of the row with this key."""
    return ":".join([MAC_PREFIX, *(f"{number >> shift & 0xFF:02x}" for shift in (16, 8, 0))])


# -- claim -----------------------------------------------------------------------------------------------------------------------

_FREE = by_index(
    # least recently freed first. Rows that another transaction claims or frees are skipped, so nobody waits for a pool
    sa.select(_A.mac)
    .where(_A.subnet_uuid == sa.bindparam("subnet"), _A.free_since >= 0.0)
    .order_by(_A.free_since, _A.mac)
    .limit(sa.bindparam("most"))
    .with_for_update(skip_locked=True),
    addresses,
    "ix_addresses_free",
)
_FREE_IF_COMPARED = _FREE.where(~incarnation.CLOSED)
"""While a restored database is compared with its cells, nobody knows which addresses are free."""
_COUNT_FREE = sa.select(sa.func.count()).where(_A.subnet_uuid == sa.bindparam("subnet"), _A.free_since >= 0.0)
_SEEN = by_index(
    sa.select(_A.mac, _A.free_since, incarnation.CLOSED.label("closed")).where(
        _A.subnet_uuid == sa.bindparam("subnet"), _A.address == sa.bindparam("wanted")
    ),
    addresses,
    "uq_addresses_subnet_uuid_address",
)
_ONE = _SEEN.with_for_update()
_TAKEN = {"server_uuid": "server", "position": "at_position", "tag": "with_tag", "free_since": "freed", "port_uuid": "port"}
_TAKE = UpdateMany(
    sa.update(addresses)
    .where(_A.mac == sa.bindparam("number"), _A.free_since >= 0.0)
    .values({column: sa.bindparam(parameter) for column, parameter in _TAKEN.items()}),
    addresses,
    key=("mac", "number"),
    values=_TAKEN,
    where="t.free_since >= 0",
)
_BIND = by_index(
    sa.update(addresses)
    .where(_A.port_uuid == sa.bindparam("port"), _A.server_uuid.is_(None))
    .values(server_uuid=sa.bindparam("server"), position=sa.bindparam("at_position"), tag=sa.bindparam("with_tag")),
    addresses,
    "ix_addresses_port_uuid",
)
_HOLDER = by_index(
    sa.select(_A.server_uuid).where(_A.port_uuid == sa.bindparam("port")).limit(1), addresses, "ix_addresses_port_uuid"
)


def claim_addresses(tx: ApiTransaction, requests: Sequence[Wanted]) -> None:
    """Give each interface one address of each pool of its network: two statements per pool, however many servers there are.

    An interface of a port gets those of the port: one statement. Raises errors.Conflict if a pool has too few addresses or a server
    has the port, and errors.Invalid for a fixed address that is taken or in no pool, or a port that is gone. Raises
    errors.NotCompared while a restored database is compared with its cells. The caller must then roll back.
    """
    pools: dict[str, list[_Taking]] = defaultdict(list)
    names: dict[str, str] = {}
    taken: list[dict[str, Any]] = []
    for request in requests:
        for position, port in enumerate(request.ports, request.position):
            if port.port_uuid is not None:
                incarnation.refuse_unless_compared(tx)
                [server] = request.servers  # a port is asked for by a single server
                _bind_port(tx, port.port_uuid, _Taking(server_uuid=server, position=position, tag=port.tag))
                continue
            for subnet in port.network.subnets:
                names[subnet.uuid] = port.network.name
                taking = [_Taking(server_uuid=uuid, position=position, tag=port.tag) for uuid in request.servers]
                if port.fixed_ip is not None and FixedAddress(address=port.fixed_ip, prefix=0).ip_version == subnet.ip_version:
                    number = _lock_fixed(tx, subnet.uuid, port.fixed_ip, port.network.name)
                    taken += [_taken_row(number, interface) for interface in taking]
                else:
                    pools[subnet.uuid] += taking
    if taken:
        _take_rows(tx, taken)
    for subnet_uuid, interfaces in sorted(pools.items()):
        _take_any(tx, subnet_uuid, names[subnet_uuid], interfaces)


def claim_for_port(tx: ApiTransaction, port_uuid: str, network: str, address_by_subnet: Mapping[str, str | None]) -> None:
    """Give a port one address of each of these subnets. ``address_by_subnet``: by subnet, which one; None: any. ``network``: its
    name.

    Raises what ``claim_addresses`` does.
    """
    port = _Taking(port_uuid=port_uuid)
    for subnet_uuid, address in sorted(address_by_subnet.items()):
        if address is None:
            _take_any(tx, subnet_uuid, network, [port])
        else:
            _take_rows(tx, [_taken_row(_lock_fixed(tx, subnet_uuid, address, network), port)])


def _bind_port(tx: ApiTransaction, port_uuid: str, by: _Taking) -> None:
    """One of several transactions gets the port: the others find that its addresses have a server."""
    row = {"port": port_uuid, "server": by.server_uuid, "at_position": by.position, "with_tag": by.tag}
    if tx.execute(_BIND, row).rowcount == 0:
        _refuse_bound(tx, port_uuid)
        raise errors.Invalid(f"Port {port_uuid} could not be found.")


def _refuse_bound(tx: ApiTransaction, port_uuid: str) -> None:
    holder = tx.execute(_HOLDER, {"port": port_uuid}).scalar_one_or_none()
    if holder is not None:
        raise errors.Conflict(f"Port {port_uuid} is still in use by server {holder}: detach it there first.")


_LAST = sa.select(sa.func.max(_A.position)).where(_A.server_uuid == sa.bindparam("server"))


def attach_interface(tx: ApiTransaction, server_uuid: str, port: PortRequest) -> str:
    """Give the server, whose home row is locked, one more interface behind the others; returns its MAC.

    Raises what ``claim_addresses`` does.
    """
    last = tx.execute(_LAST, {"server": server_uuid}).scalar_one()
    claim_addresses(tx, [Wanted(servers=(server_uuid,), ports=(port,), position=0 if last is None else last + 1)])
    return ports_of(tx, [server_uuid])[server_uuid][-1].mac


def refuse_shortage(tx: ApiTransaction, ports: Sequence[PortRequest], count: int) -> None:
    """Raise what ``claim_addresses`` would for ``count`` servers with these interfaces. Claims and locks nothing."""
    needed: defaultdict[str, int] = defaultdict(int)
    names: dict[str, str] = {}
    for port in ports:
        if port.port_uuid is not None:
            _refuse_bound(tx, port.port_uuid)
            continue
        for subnet in port.network.subnets:
            names[subnet.uuid] = port.network.name
            if port.fixed_ip is not None and FixedAddress(address=port.fixed_ip, prefix=0).ip_version == subnet.ip_version:
                row = tx.execute(_SEEN, {"subnet": subnet.uuid, "wanted": port.fixed_ip, **_KNOWN}).one_or_none()
                _refuse_taken(row, port.fixed_ip, port.network.name)
            else:
                needed[subnet.uuid] += count
    for subnet_uuid, number in sorted(needed.items()):
        free = tx.execute(_COUNT_FREE, {"subnet": subnet_uuid}).scalar_one()
        if free < number:
            raise _shortage_error(names[subnet_uuid], free, number)


def _refuse_shortage(tx: ApiTransaction, subnet_uuid: str, network: str, needed: int) -> None:
    incarnation.refuse_unless_compared(tx)
    free = tx.execute(_COUNT_FREE, {"subnet": subnet_uuid}).scalar_one()
    if free >= needed:
        raise RetryRequest(LookupError(f"addresses of network {network} are being claimed or freed by other transactions"))
    raise _shortage_error(network, free, needed)


def _shortage_error(network: str, free: int, needed: int) -> errors.Conflict:
    return errors.Conflict(
        f"No more fixed IP addresses: network {network} has {free} free, and the request needs {needed}. "
        "Delete servers, or ask your operator for a larger pool."
    )


def _lock_fixed(tx: ApiTransaction, subnet_uuid: str, address: str, network: str) -> int:
    row = tx.execute(_ONE, {"subnet": subnet_uuid, "wanted": address, **_KNOWN}).one_or_none()
    return int(_refuse_taken(row, address, network).mac)


def _refuse_taken(row: sa.Row[Any] | None, address: str, network: str) -> sa.Row[Any]:
    if row is None:
        raise errors.Invalid(f"Fixed IP address {address} is not in the pool of network {network}.")
    if row.closed:
        raise incarnation.not_compared()
    if row.free_since is None:
        raise errors.AddressInUse(f"Fixed IP address {address} is already in use.")
    return row


def _take_any(tx: ApiTransaction, subnet_uuid: str, network: str, interfaces: Sequence[_Taking]) -> None:
    numbers = tx.execute(_FREE_IF_COMPARED, {"subnet": subnet_uuid, "most": len(interfaces), **_KNOWN}).scalars().all()
    if len(numbers) < len(interfaces):
        _refuse_shortage(tx, subnet_uuid, network, len(interfaces))
    _take_rows(tx, [_taken_row(number, interface) for number, interface in zip(numbers, interfaces, strict=True)])


def _taken_row(number: int, by: _Taking) -> dict[str, Any]:
    row = {"number": number, "server": by.server_uuid, "at_position": by.position, "with_tag": by.tag, "freed": None}
    return row | {"port": by.port_uuid}


def _take_rows(tx: ApiTransaction, rows: Sequence[Mapping[str, Any]]) -> None:
    if _TAKE(tx, rows) != len(rows):
        raise errors.Conflict("a fixed IP address was named twice, or lost under its lock")


# -- free ------------------------------------------------------------------------------------------------------------------------

_SERVERS = (
    sa.select(_A.server_uuid)
    .distinct()
    .join_from(instance_mappings, addresses, _A.server_uuid == sa.func.coalesce(_M.server_uuid, _M.instance_uuid))
    .where(_M.instance_uuid.in_(dialect.uuids_parameter()))
)
_OF_SERVERS = _A.server_uuid.in_(dialect.uuids_parameter())
# an address of a port stays with the port
_GIVEN_BACK: Mapping[Any, Any] = {
    _A.free_since: sa.case((_A.port_uuid.is_(None), sa.bindparam("now", type_=Time)), else_=sa.null()),
    _A.server_uuid: None,
    _A.position: None,
    _A.tag: None,
}
_LOCK = by_index(sa.select(_A.mac).where(_OF_SERVERS).order_by(_A.mac).with_for_update(), addresses, "ix_addresses_server_uuid")
_GIVE_BACK = by_index(
    sa.update(addresses).where(_OF_SERVERS).values(_GIVEN_BACK),
    addresses,
    "ix_addresses_server_uuid",
)
_BODY = instance_mappings.alias("body")
_NOT_ENDED = sa.not_(sa.and_(_BODY.c.deleted == sa.true(), _BODY.c.state == "deleted"))
# the bodies of a server: its home row, the one that this names, and those of its operations
_LIVING = sa.union(
    sa.select(_BODY.c.instance_uuid.label("server")).where(_BODY.c.instance_uuid.in_(dialect.uuids_parameter()), _NOT_ENDED),
    sa.select(_M.instance_uuid)
    .join_from(instance_mappings, _BODY, _BODY.c.instance_uuid == _M.body_uuid)
    .where(_M.instance_uuid.in_(dialect.uuids_parameter()), _NOT_ENDED),
    *(
        sa.select(operations.c.server_uuid)
        .join_from(operations, _BODY, _BODY.c.instance_uuid == column)
        .where(operations.c.server_uuid.in_(dialect.uuids_parameter()), _NOT_ENDED)
        for column in (operations.c.source_uuid, operations.c.twin_uuid)
    ),
)


def free_addresses(tx: ApiTransaction, bodies: Collection[str], now: float) -> int:
    """Free the addresses of the servers of these bodies, if they are deleted and the last of their bodies has ended.

    Call it in each transaction that sees a body end, after it has written that. Returns how many addresses it freed.
    """
    freed, ordered_bodies = 0, sorted(set(bodies))
    for page in dialect.split_pages(ordered_bodies):
        servers = tx.execute(_SERVERS, {"uuids": page}).scalars().all()
        freed += free_ended(tx, [str(uuid) for uuid in servers], now)
    return freed


def free_ended(tx: ApiTransaction, servers: Collection[str], now: float) -> int:
    """Free the addresses of those of these servers that are deleted or unknown, and have no body that has not ended."""
    if not servers:
        return 0
    # First the lock, then the look: of two transactions that each end one body of a server, the later one sees the other's end.
    tx.execute(_LOCK, {"uuids": sorted(servers)}).all()
    compare_locks(tx, "addresses", servers)  # who ends the first of the bodies frees nothing
    over = sorted(list_ended(tx, servers))
    return tx.execute(_GIVE_BACK, {"uuids": over, "now": now}).rowcount if over else 0


_POSITION = sa.select(_A.position).where(_A.server_uuid == sa.bindparam("server"), _A.mac == sa.bindparam("number"))
_DETACH = by_index(
    sa.update(addresses)
    .where(_A.server_uuid == sa.bindparam("server"), _A.position == sa.bindparam("at_position"))
    .values(_GIVEN_BACK),
    addresses,
    "ix_addresses_server_uuid",
)


def detach_interface(tx: ApiTransaction, server_uuid: str, mac: str, now: float) -> None:
    """Free the addresses of one interface of the server, whose guest does not have it. One that has gone already is no error."""
    number = int(mac.removeprefix(MAC_PREFIX).replace(":", ""), 16)
    position = tx.execute(_POSITION, {"server": server_uuid, "number": number}).scalar_one_or_none()
    if position is not None:
        tx.execute(_DETACH, {"server": server_uuid, "at_position": position, "now": now})


def give_back(tx: ApiTransaction, servers: Collection[str], now: float) -> None:
    """Free the addresses that this transaction claimed for servers that it does not accept after all."""
    ordered_servers = sorted(servers)
    for page in dialect.split_pages(ordered_servers):
        tx.execute(_GIVE_BACK, {"uuids": page, "now": now})


# -- repair ----------------------------------------------------------------------------------------------------------------------

_HOLDERS = sa.select(_A.server_uuid).distinct().where(_A.server_uuid > sa.bindparam("after")).order_by(_A.server_uuid)
_OWNER = (
    sa.select(_A.mac, _A.free_since, _A.server_uuid, _A.position, _A.tag, _A.subnet_uuid, _A.port_uuid)
    .join_from(subnets, addresses, _A.subnet_uuid == subnets.c.uuid)
    .where(subnets.c.network_uuid == sa.bindparam("network"), _A.address == sa.bindparam("wanted"))
)
_LOCK_ROW = sa.select(_A.mac).where(_A.mac == sa.bindparam("number")).with_for_update()
_QUEUED = sa.select(build_requests.c.instance_uuid).where(build_requests.c.instance_uuid == sa.bindparam("uuid"))
_MOVE = (
    sa.update(addresses)
    .where(_A.mac == sa.bindparam("number"))
    .values(server_uuid=sa.bindparam("server"), position=sa.bindparam("at_position"), tag=sa.bindparam("with_tag"))
)


def holders_after(tx: ApiTransaction, after: str, limit: int) -> list[str]:
    """Servers that have addresses, in order."""
    return list(tx.execute(_HOLDERS.limit(limit), {"after": after}).scalars())


def list_ended(tx: ApiTransaction, servers: Collection[str]) -> set[str]:
    """Those of these servers that are deleted or unknown, and have no body that has not ended; at most a page of them."""
    return set(servers) - set(tx.execute(_LIVING, {"uuids": sorted(servers)}).scalars())


def holders_of(tx: ApiTransaction, network_addresses: Iterable[tuple[str, str]]) -> list[str]:
    """The servers that have these addresses, each given with its network."""
    rows = (tx.execute(_OWNER, {"network": network, "wanted": address}).one_or_none() for network, address in network_addresses)
    return sorted({str(row.server_uuid) for row in rows if row is not None and row.server_uuid is not None})


class Contested(Object, frozen=True, kw_only=True):
    """An address that the guest of ``server`` has, and that this database gave to ``holder``."""

    server: str
    holder: str
    network_uuid: str
    address: str
    position: int
    tag: str | None


def take_back(tx: ApiTransaction, ports: Mapping[str, Sequence[Port]], now: float) -> list[Contested]:
    """Give these servers the addresses that their guests have, where a restored database has lost that.

    A port of a project that no server has is bound with its addresses. An address that was given to a server whose build has not
    begun is taken from it; that server gets another one. Otherwise an address of another server stays there; returns these.
    """
    known = ports_of(tx, ports)
    contested = []
    for server, server_ports in sorted(ports.items()):
        claimed = {(port.network_id, fixed.address) for port in known.get(server, ()) for fixed in port.addresses}
        positions = _positions_by_address(tx, server) if claimed else {}
        following = max(positions.values(), default=-1) + 1
        for port in server_ports:
            lost = [fixed.address for fixed in port.addresses if (port.network_id, fixed.address) not in claimed]
            if not lost:
                following += not claimed
                continue
            beside = [positions[port.network_id, fixed.address] for fixed in port.addresses if fixed.address not in lost]
            position = beside[0] if beside else following
            following += not beside
            for address in lost:
                taking = _Taking(server_uuid=server, position=position, tag=port.tag)
                holder = _take_one(tx, taking, port.network_id, address)
                if holder is not None:
                    at = Contested(
                        server=server, holder=holder, network_uuid=port.network_id, address=address, position=position, tag=port.tag
                    )
                    contested.append(at)
    return contested


def _positions_by_address(tx: ApiTransaction, server: str) -> dict[tuple[str, str], int]:
    return {(row.network_uuid, row.address): row.position or 0 for row in tx.execute(_PORTS, {"uuids": [server]})}


def _take_one(tx: ApiTransaction, by: _Taking, network_uuid: str, address: str) -> str | None:
    """The server that keeps the address; None: ``by`` has it now, or its pool is gone."""
    where = {"network": network_uuid, "wanted": address}
    owner = tx.execute(_OWNER, where).one_or_none()
    if owner is None:
        return None
    tx.execute(_LOCK_ROW, {"number": owner.mac}).all()
    row = tx.execute(_OWNER, where).one()
    if row.free_since is not None:
        _take_rows(tx, [_taken_row(row.mac, by)])
    elif row.server_uuid == by.server_uuid:
        return None
    elif row.port_uuid is not None and row.server_uuid is None:
        _bind_port(tx, row.port_uuid, by)
    elif row.port_uuid is None and tx.execute(_QUEUED, {"uuid": row.server_uuid}).one_or_none() is not None:
        other = tx.execute(_FREE, {"subnet": row.subnet_uuid, "most": 1}).scalar_one_or_none()
        if other is None:
            return str(row.server_uuid)
        _take_rows(tx, [_taken_row(other, _Taking(server_uuid=row.server_uuid, position=row.position, tag=row.tag))])
        _move_address(tx, row.mac, by)
    else:
        return str(row.server_uuid)
    return None


def move_contested(tx: ApiTransaction, contested: Contested) -> bool:
    """Give the address to the server whose guest has it. The caller knows that the holder's guest does not. False: too late."""
    where = {"network": contested.network_uuid, "wanted": contested.address}
    owner = tx.execute(_OWNER, where).one_or_none()
    if owner is None:
        return False
    tx.execute(_LOCK_ROW, {"number": owner.mac}).all()
    row = tx.execute(_OWNER, where).one()
    if row.server_uuid != contested.holder:
        return False
    _move_address(tx, row.mac, _Taking(server_uuid=contested.server, position=contested.position, tag=contested.tag))
    return True


def _move_address(tx: ApiTransaction, number: int, to: _Taking) -> None:
    tx.execute(_MOVE, {"number": number, "server": to.server_uuid, "at_position": to.position, "with_tag": to.tag})


# -- read ------------------------------------------------------------------------------------------------------------------------

_PORTS = by_index(
    sa.select(
        _A.mac,
        _A.server_uuid,
        _A.position,
        _A.tag,
        _A.address,
        subnets.c.cidr,
        subnets.c.gateway,
        subnets.c.dns,
        subnets.c.uuid.label("subnet_uuid"),
        subnets.c.network_uuid,
        subnets.c.ranges,
        networks.c.name,
        networks.c.physical_network,
        networks.c.mtu,
    )
    .join_from(addresses, subnets, subnets.c.uuid == _A.subnet_uuid)
    .join(networks, networks.c.uuid == subnets.c.network_uuid)
    .where(_OF_SERVERS)
    .order_by(_A.server_uuid, _A.position, subnets.c.version),
    addresses,
    "ix_addresses_server_uuid",
)


def has_ports(networks: str) -> bool:
    """Whether servers whose spec says this of networks may have interfaces. Most have none, and cost no statement."""
    return networks not in ("", "none")


def ports_of(tx: ApiTransaction, servers: Iterable[str]) -> dict[str, tuple[Port, ...]]:
    """The interfaces of these servers, in order. A server that is missing in the answer has none."""
    rows: dict[tuple[str, int], list[sa.Row[Any]]] = defaultdict(list)
    ordered_servers = sorted(set(servers))
    for page in dialect.split_pages(ordered_servers):
        for row in tx.execute(_PORTS, {"uuids": page}):
            rows[row.server_uuid, row.position or 0].append(row)
    ports_by_server: dict[str, tuple[Port, ...]] = {}
    for (server, _), port_rows in sorted(rows.items(), key=_in_order):
        ports = convert_readable(
            [port_rows], _port_from_rows, lambda port_rows: f"An interface of server {port_rows[0].server_uuid}"
        )
        ports_by_server[server] = (*ports_by_server.get(server, ()), *ports)
    return ports_by_server


def _in_order(interface: tuple[tuple[str, int], object]) -> tuple[str, float]:
    """The interfaces of a server by position. SQLite may hold a text in its place: those are last."""
    server, position = interface[0]
    return server, position if isinstance(position, (int, float)) else math.inf


def _port_from_rows(rows: Sequence[sa.Row[Any]]) -> Port:
    first = rows[0]
    return Port(
        network_id=first.network_uuid,
        network=first.name,
        mac=mac_of(first.mac),
        physical_network=first.physical_network,
        addresses=tuple(address for row in rows if (address := _fixed_address(row)) is not None),
        mtu=first.mtu,
        tag=first.tag,
    )


def _fixed_address(row: sa.Row[Any]) -> FixedAddress | None:
    """None if the row cannot be read: then the interface is there without it."""
    try:
        prefix = ipaddress.ip_network(row.cidr).prefixlen
        dns = stored.load_text(row.dns, tuple[str, ...])
        return FixedAddress(address=str(ipaddress.ip_address(row.address)), prefix=prefix, gateway=row.gateway, dns=dns)
    except (*stored.UNREADABLE, ValueError) as error:
        reason = clean_text(f"{row.address} of subnet {row.subnet_uuid}: {error}", FAULT_SIZE)
        _COMPLAINTS(reason, logging.ERROR, "server %s: its address cannot be read: %s", clean_text(row.server_uuid, 36), reason)
        return None
