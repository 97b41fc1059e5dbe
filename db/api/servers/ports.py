"""Ports that projects make themselves: they have addresses from then on, and keep them while servers come and go.

The rows of ``addresses`` that name a port say which server has it. ``addresses.claim_addresses`` binds a port to a server, and the
end of the server's last body gives it back (``docs/decisions/0063-ports-belong-to-their-projects.md``).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from db.api.rows.tables import addresses as address_rows
from db.api.rows.tables import ports, subnets
from db.api.servers import addresses, mappings
from db.sql import by_name, dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from db.sql.readable import convert_readable, sound_rows
from db.sql.types import Time
from objects import errors, stored
from objects.base import Object
from objects.network import Network
from objects.port import ProjectPort
from objects.quota import UNLIMITED
from objects.text import FAULT_SIZE, clean_text
from service.rate_limited_log import RateLimitedLog

_COMPLAINTS = RateLimitedLog(logging.getLogger(__name__))

_P, _A = ports.c, address_rows.c


class NewPort(Object, frozen=True, kw_only=True):
    """``wanted``: its subnets, at least one, each with the address that it shall have there; None: any."""

    uuid: str
    project_id: str
    network: Network
    wanted: Mapping[str, str | None]
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()


_COUNT = sa.select(sa.func.count()).select_from(ports).where(_P.project_id == sa.bindparam("project"))


def count_ports(tx: ApiTransaction, project_id: str) -> int:
    """The ports that the project has made."""
    return tx.execute(_COUNT, {"project": project_id}).scalar_one()


def create(tx: ApiTransaction, new: NewPort, limit: int, now: float) -> None:
    """Make a port and claim its addresses. ``limit``: the most ports of its project; creates at the same moment may exceed it.

    Raises errors.Conflict at the limit, and what ``addresses.claim_for_port`` raises.
    """
    if limit != UNLIMITED and count_ports(tx, new.project_id) >= limit:
        raise errors.Conflict(f"Quota exceeded for resources: ['port']. The project has {limit} ports: delete one first.")
    values = {
        "uuid": new.uuid,
        "project_id": new.project_id,
        "network_uuid": new.network.uuid,
        "name": new.name,
        "description": new.description,
        "tags": _dump_tags(new.tags),
        "created_at": now,
        "updated_at": now,
    }
    by_name.insert_row(tx, ports, values, f"Port {new.uuid}")
    addresses.claim_for_port(tx, new.uuid, new.network.name, new.wanted)


def update_port(tx: ApiTransaction, uuid: str, changes: Mapping[str, str], now: float) -> None:
    """Set the name or the description. Raises errors.NotFound."""
    by_name.update_row(tx, sa.update(ports).where(_P.uuid == uuid), {**changes, "updated_at": now}, f"Port {uuid}")


def set_tags(tx: ApiTransaction, uuid: str, tags: Iterable[str], now: float) -> None:
    """Raises errors.NotFound."""
    values = {"tags": _dump_tags(tags), "updated_at": now}
    by_name.update_row(tx, sa.update(ports).where(_P.uuid == uuid), values, f"Port {uuid}")


def _dump_tags(tags: Iterable[str]) -> str:
    return stored.dump_value(tuple(sorted(set(tags))))


# The addresses go with the port. A server that is deleted, but may still have a guest, keeps them to its end as its own.
_FREE = by_index(
    sa.update(address_rows)
    .where(
        _A.port_uuid == sa.bindparam("port"),
        sa.or_(_A.server_uuid.is_(None), _A.server_uuid == sa.bindparam("gone")),
    )
    .values(
        free_since=sa.case((_A.server_uuid.is_(None), sa.bindparam("now", type_=Time)), else_=sa.null()),
        port_uuid=None,
    ),
    address_rows,
    "ix_addresses_port_uuid",
)


def delete(tx: ApiTransaction, uuid: str, now: float) -> None:
    """Delete a port that no server has. Raises errors.NotFound, and errors.Conflict while a server has it that is not deleted."""
    port = get(tx, uuid)
    holder = port.server_uuid
    if holder is not None and (server := mappings.get(tx, holder)) is not None and not server.deleted:
        raise _in_use(uuid, holder)
    if tx.execute(_FREE, {"port": uuid, "gone": holder, "now": now}).rowcount == 0:
        raise _in_use(uuid, get(tx, uuid).server_uuid)  # a server has just taken it
    by_name.delete(tx, sa.delete(ports).where(_P.uuid == uuid), f"Port {uuid}")


def _in_use(uuid: str, server: str | None) -> errors.Conflict:
    return errors.Conflict(f"Port {uuid} is in use by server {server}: detach it there, or delete the server.")


# -- read ------------------------------------------------------------------------------------------------------------------------

_ALL = (
    sa.select(ports, _A.mac, _A.address, _A.server_uuid)
    .join_from(ports, address_rows, _A.port_uuid == _P.uuid)
    .join(subnets, subnets.c.uuid == _A.subnet_uuid)
    .order_by(_P.uuid, subnets.c.version)
)
_OF_PROJECT = _ALL.where(_P.project_id == sa.bindparam("project"))
_BY_UUID = _ALL.where(_P.uuid.in_(dialect.uuids_parameter()))
_OF_SERVERS = by_index(_ALL.where(_A.server_uuid.in_(dialect.uuids_parameter())), address_rows, "ix_addresses_server_uuid")


def list_(tx: ApiTransaction, project_id: str | None) -> list[ProjectPort]:
    """The ports of a project; None: of all projects."""
    return _ports_from_rows(tx.execute(_ALL) if project_id is None else tx.execute(_OF_PROJECT, {"project": project_id}))


def get(tx: ApiTransaction, uuid: str) -> ProjectPort:
    """Raises errors.NotFound."""
    matching = by_uuid(tx, [uuid])
    if uuid not in matching:
        raise errors.NotFound(f"Port {uuid[:80]} could not be found.")
    return matching[uuid]


def by_uuid(tx: ApiTransaction, uuids: Collection[str]) -> dict[str, ProjectPort]:
    """Those of these ports that there are."""
    return {port.uuid: port for port in _ports_from_rows(tx.execute(_BY_UUID, {"uuids": sorted(uuids)}))}


def of_servers(tx: ApiTransaction, servers: Collection[str]) -> list[ProjectPort]:
    """The ports of projects that these servers have."""
    return _ports_from_rows(tx.execute(_OF_SERVERS, {"uuids": sorted(servers)}))


def _ports_from_rows(rows: Iterable[sa.Row[Any]]) -> list[ProjectPort]:
    rows_by_port: dict[str, list[sa.Row[Any]]] = {}
    for row in sound_rows(rows, ports):
        rows_by_port.setdefault(row.uuid, []).append(row)
    return convert_readable(rows_by_port.values(), _port_from_rows, lambda port_rows: f"Port {port_rows[0].uuid}")


def _port_from_rows(rows: list[sa.Row[Any]]) -> ProjectPort:
    first = rows[0]
    return ProjectPort(
        uuid=first.uuid,
        project_id=first.project_id,
        network_id=first.network_uuid,
        name=first.name,
        description=first.description,
        tags=_decode_tags(first),
        created_at=first.created_at,
        updated_at=first.updated_at,
        mac=addresses.mac_of(first.mac),
        addresses=tuple(row.address for row in rows),
        server_uuid=first.server_uuid,
    )


def _decode_tags(row: sa.Row[Any]) -> tuple[str, ...]:
    """Empty if they cannot be read: the port is there without them."""
    try:
        return stored.load_text(row.tags, tuple[str, ...])
    except stored.UNREADABLE as error:
        reason = clean_text(str(error), FAULT_SIZE)
        _COMPLAINTS(reason, logging.ERROR, "port %s: its tags cannot be read: %s", clean_text(row.uuid, 36), reason)
        return ()
