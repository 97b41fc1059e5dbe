"""Host mappings in the API database: which cell each host belongs to."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from db.api.rows import epochs
from db.api.rows.epochs import Epoch
from db.api.rows.tables import host_mappings, inventories
from db.sql import by_name, dialect
from db.sql.connection import ApiTransaction
from db.sql.readable import complain_of_odd, sound_rows
from objects import errors
from objects.cell import HostMapping

_COLUMNS = (host_mappings.c.host, host_mappings.c.cell_uuid)


def add_mappings(tx: ApiTransaction, mappings: Sequence[HostMapping], now: float) -> list[HostMapping]:
    """Map hosts to cells. Return the existing mappings of hosts that belong to another cell; these are not changed.

    A host that is already mapped to the same cell is not a conflict. A host whose name the server considers equal to another's, as
    MariaDB did with trailing blanks before schema 0011, is returned with an empty cell.
    """
    cell_by_host = {mapping.host: mapping.cell_uuid for mapping in sorted(mappings, key=lambda m: m.host)}
    rows = [{"host": host, "cell_uuid": cell_uuid, "created_at": now} for host, cell_uuid in cell_by_host.items()]
    inserted = dialect.insert_new(tx, host_mappings, rows)
    if inserted:
        epochs.bump_epoch(tx, Epoch.HOSTS)
    if inserted == len(rows):
        return []
    there = {mapping.host: mapping.cell_uuid for mapping in _mappings_of(tx, list(cell_by_host))}
    mappings_of_hosts = [HostMapping(host=host, cell_uuid=there.get(host, "")) for host in cell_by_host]
    return [mapping for mapping in mappings_of_hosts if mapping.cell_uuid != cell_by_host[mapping.host]]


def list_all(tx: ApiTransaction) -> list[HostMapping]:
    """All mappings by host."""
    rows = tx.execute(sa.select(*_COLUMNS).order_by(host_mappings.c.host))
    return [HostMapping(host=row.host, cell_uuid=row.cell_uuid) for row in sound_rows(rows, host_mappings)]


_PAGE = (
    sa.select(*_COLUMNS, dialect.OddColumn(*_COLUMNS).label(dialect.ODD))
    .where(host_mappings.c.host > sa.bindparam("after"))
    .order_by(host_mappings.c.host)
    .limit(dialect.JSON_ARRAY_SIZE)
    .subquery("page")
)
_PAGE_COLUMNS = sa.select(
    dialect.JsonArray(_PAGE.c.host).label("hosts"),
    dialect.JsonArray(_PAGE.c.cell_uuid).label("cells"),
    sa.func.max(_PAGE.c.host).label("last"),
    dialect.OddRows(_PAGE.c.host, _PAGE.c.odd).label("odd"),
)


def cell_uuid_by_host(tx: ApiTransaction) -> dict[str, str]:
    """The cell's uuid of every host. Hosts of one cell share one string object, to save memory.

    It reads page by page. If a mapping changes meanwhile, so does the epoch, which callers read first.
    """
    cells: dict[str, str] = {}
    cell_by_host: dict[str, str] = {}
    last: str | None = ""
    while last is not None:
        hosts, uuids, last, odd = tx.execute(_PAGE_COLUMNS, {"after": last}).one()
        complain_of_odd(host_mappings, odd)
        theirs = (cells.setdefault(uuid, uuid) for uuid in dialect.json_array(uuids, str))
        cell_by_host.update(zip(dialect.json_array(hosts, str), theirs, strict=True))
    return cell_by_host


def is_known(tx: ApiTransaction, host: str | None, node: str | None) -> bool:
    """Whether the host is in a cell, and has the node; None: any."""
    if host is not None and tx.execute(_NAMED, {"host": host}).first() is None:
        return False
    if node is None:
        return True
    hosts = tx.execute(sa.select(inventories.c.host).where(inventories.c.node == node)).scalars()
    return any(host in (None, known_host) for known_host in hosts)


_NAMED = sa.select(host_mappings.c.host).where(host_mappings.c.host == sa.bindparam("host"))


def refuse_other_case(tx: ApiTransaction, host: str) -> None:
    """Raise NotFound if no host has this name, and one has a name that differs in case only: schedulers take both for one."""
    if tx.execute(_NAMED, {"host": host}).first() is not None:
        return
    every = tx.execute(sa.select(host_mappings.c.host)).scalars()
    if (meant := next((known_host for known_host in every if known_host.lower() == host.lower()), None)) is not None:
        raise errors.NotFound(f"Compute host {host} could not be found; there is {meant}.")


def delete(tx: ApiTransaction, host: str) -> None:
    """Delete the mapping of a host. Raises NotFound."""
    by_name.delete(tx, sa.delete(host_mappings).where(host_mappings.c.host == host), f"Host '{host}'")
    epochs.bump_epoch(tx, Epoch.HOSTS)


def move_host(tx: ApiTransaction, host: str, old: str, new: str) -> bool:
    """Map the host to the cell ``new`` if it is mapped to ``old``; return whether it was. The caller bumps the epoch."""
    statement = sa.update(host_mappings).where(host_mappings.c.host == host, host_mappings.c.cell_uuid == old)
    return tx.execute(statement, {"cell_uuid": new}).rowcount == 1


_TAKE_BACK = sa.delete(host_mappings).where(
    host_mappings.c.host.in_(dialect.uuids_parameter("hosts")),
    host_mappings.c.cell_uuid == sa.bindparam("cell"),
    host_mappings.c.created_at == sa.bindparam("made"),
    sa.not_(sa.exists().where(inventories.c.host == host_mappings.c.host)),
)


def take_back(tx: ApiTransaction, cell_uuid: str, hosts: Collection[str], created_at: float) -> int:
    """Delete the mappings to the cell that ``add_mappings`` created at ``created_at`` (its ``now``); return how many.

    Mappings changed since then stay, and so do those of hosts with an inventory, because these may have claims and instances.
    """
    ordered, forgotten = sorted(hosts), 0
    for page in dialect.split_pages(ordered):
        forgotten += tx.execute(_TAKE_BACK, {"hosts": page, "cell": cell_uuid, "made": created_at}).rowcount
    if forgotten:
        epochs.bump_epoch(tx, Epoch.HOSTS)
    return forgotten


def delete_of(tx: ApiTransaction, cell_uuid: str) -> int:
    """Delete the mappings of a cell's hosts; return how many there were."""
    forgotten = tx.execute(sa.delete(host_mappings).where(host_mappings.c.cell_uuid == cell_uuid)).rowcount
    if forgotten:
        epochs.bump_epoch(tx, Epoch.HOSTS)
    return forgotten


def _mappings_of(tx: ApiTransaction, hosts: Sequence[str]) -> list[HostMapping]:
    query = sa.select(*_COLUMNS).where(host_mappings.c.host.in_(dialect.uuids_parameter("hosts"))).order_by(host_mappings.c.host)
    mappings_read: list[HostMapping] = []
    for page in dialect.split_pages(hosts):
        rows = tx.execute(query, {"hosts": page})
        mappings_read += [HostMapping(host=host, cell_uuid=cell_uuid) for host, cell_uuid in rows]
    return mappings_read
