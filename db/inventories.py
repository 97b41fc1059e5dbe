"""Inventories in the API database: what each ``(host, node)`` offers, what is claimed of it, and the log of changes.

Only the modules around ``db/claims.py`` write them. Whoever changes a row holds its lock; several rows are locked in the order of
their ids, so that transactions wait for each other in one direction only.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from db import dialect
from db.ledger import Stamp
from db.tables.api import inventories
from objects.compute_node import ComputeNode
from objects.inventory import Inventory

_COLUMNS = (
    inventories.c.id,
    inventories.c.host,
    inventories.c.node,
    inventories.c.cell_uuid,
    inventories.c.generation,
    inventories.c.cap_vcpus,
    inventories.c.cap_memory_mb,
    inventories.c.cap_disk_gb,
    inventories.c.used_vcpus,
    inventories.c.used_memory_mb,
    inventories.c.used_disk_gb,
    inventories.c.instances,
    inventories.c.writer,
    inventories.c.wseq,
)
_ALL = sa.select(*_COLUMNS)
# MariaDB reads a small table from end to end if it may, and locks every row on its way.
_BY_ID = (
    _ALL.where(inventories.c.id.in_(dialect.uuids("ids")))
    .order_by(inventories.c.id)
    .with_hint(inventories, "FORCE INDEX (PRIMARY)", "mysql")
    .with_hint(inventories, "FORCE INDEX (PRIMARY)", "mariadb")
)
_LOCK = _BY_ID.with_for_update()
_LOCK_FREE = _BY_ID.with_for_update(skip_locked=True)
_LOCK_HOSTS = _ALL.where(inventories.c.host.in_(dialect.uuids("hosts"))).order_by(inventories.c.id).with_for_update()


class Usage(NamedTuple):
    """A change of what is claimed: vCPUs, MiB, GiB, instances; negative when it is given back."""

    vcpus: int
    memory_mb: int
    disk_gb: int
    instances: int = 1

    def plus(self, other: Usage) -> Usage:
        return Usage(*(mine + its for mine, its in zip(self, other, strict=True)))

    def negated(self) -> Usage:
        return Usage(*(-mine for mine in self))


def read_all(tx: Connection) -> list[Inventory]:
    """The whole ledger, as of one moment."""
    return [_inventory(row) for row in tx.execute(_ALL)]


def changed_since(tx: Connection, vector: Mapping[int, int], newest: int) -> list[Inventory]:
    """Rows last changed by one of the writers in ``vector`` after the number given there, or by a writer younger than ``newest``.

    One statement, one look into an index per writer. A row changed twice comes once, as it is now.
    """
    text = _log_statement(len(vector))
    values: dict[str, int] = {"newest": newest}
    for position, (writer, sequence) in enumerate(vector.items()):
        values[f"w{position}"] = writer
        values[f"s{position}"] = sequence
    return [_inventory(row) for row in tx.execute(text, values)]


@functools.cache
def _log_statement(writers: int) -> sa.TextClause:
    # Written out, because a join with the vector makes PostgreSQL leave the index aside.
    columns = ", ".join(column.name for column in _COLUMNS)
    select = f"SELECT {columns} FROM inventories WHERE"  # noqa: S608 - the names are the table's own
    parts = [f"{select} writer > :newest"]
    parts += [f"{select} writer = :w{n} AND wseq > :s{n}" for n in range(writers)]
    return sa.text(" UNION ALL ".join(parts))


def lock(tx: Connection, ids: Collection[int], *, only_free: bool = False) -> list[Inventory]:
    """These rows as they are, locked to the end of the transaction.

    ``only_free`` leaves out rows that another transaction has locked rather than wait for it, and may so be used with other rows
    locked already; it says nothing on SQLite, where a transaction that writes has the file to itself.
    """
    statement = _LOCK_FREE if only_free else _LOCK
    found: list[Inventory] = []
    ordered = sorted(ids)
    for start in range(0, len(ordered), dialect.IN_LIST):
        found += map(_inventory, tx.execute(statement, {"ids": ordered[start : start + dialect.IN_LIST]}))
    return found


def add_usage(tx: Connection, stamp: Stamp, changes: Mapping[int, Usage]) -> None:
    """Add to the usage of rows that are locked. Rows with equal changes share one statement: a batch of one flavor has few."""
    alike: defaultdict[Usage, list[int]] = defaultdict(list)
    for inventory_id, change in changes.items():
        alike[change].append(inventory_id)
    for change, ids in alike.items():
        ids.sort()
        for start in range(0, len(ids), dialect.IN_LIST):
            values = {"vcpus": change.vcpus, "memory_mb": change.memory_mb, "disk_gb": change.disk_gb, "count": change.instances}
            values |= {"by": stamp.writer, "number": stamp.sequence}
            tx.execute(_ADD, values | {"ids": ids[start : start + dialect.IN_LIST]})


_ADD = (
    sa.update(inventories)
    .where(inventories.c.id.in_(dialect.uuids("ids")))
    .values(
        generation=inventories.c.generation + 1,
        used_vcpus=inventories.c.used_vcpus + sa.bindparam("vcpus"),
        used_memory_mb=inventories.c.used_memory_mb + sa.bindparam("memory_mb"),
        used_disk_gb=inventories.c.used_disk_gb + sa.bindparam("disk_gb"),
        instances=inventories.c.instances + sa.bindparam("count"),
        writer=sa.bindparam("by"),
        wseq=sa.bindparam("number"),
    )
)


def after(row: Inventory, change: Usage, stamp: Stamp) -> Inventory:
    """The row as ``add_usage`` leaves it."""
    return Inventory(
        id=row.id,
        host=row.host,
        node=row.node,
        cell_uuid=row.cell_uuid,
        generation=row.generation + 1,
        cap_vcpus=row.cap_vcpus,
        cap_memory_mb=row.cap_memory_mb,
        cap_disk_gb=row.cap_disk_gb,
        used_vcpus=row.used_vcpus + change.vcpus,
        used_memory_mb=row.used_memory_mb + change.memory_mb,
        used_disk_gb=row.used_disk_gb + change.disk_gb,
        instances=row.instances + change.instances,
        writer=stamp.writer,
        sequence=stamp.sequence,
    )


# -- capacities ----------------------------------------------------------------------------------------------------------------


def set_inventory(tx: Connection, stamp: Stamp, nodes: Sequence[ComputeNode], cell_uuid: str) -> None:
    """Make the capacities those of ``nodes``, all of the cell given: new rows for new nodes, nothing for those that did not change.

    Usage is left alone: it is what the claims say.
    """
    wanted = {(node.host, node.node): node for node in nodes}
    known = {(row.host, row.node): row for row in _of_hosts(tx, {host for host, _ in wanted})}
    changed = [
        {"key": known[key].id, **_values(node, cell_uuid, stamp)}
        for key, node in wanted.items()
        if key in known and _differs(known[key], node, cell_uuid)
    ]
    if changed:
        tx.execute(_SET, sorted(changed, key=lambda values: int(values["key"])))
    new = [(key, node) for key, node in wanted.items() if key not in known]
    insert(tx, [{"host": host, "node": name, **_values(node, cell_uuid, stamp)} for (host, name), node in new])


def insert(tx: Connection, rows: list[dict[str, Any]]) -> None:
    """New rows without usage. One that another transaction has just made stays as that one made it."""
    usage = dict.fromkeys(("used_vcpus", "used_memory_mb", "used_disk_gb", "instances", "generation"), 0)
    dialect.insert_new(tx, inventories, [usage | _columns(row) for row in rows])


def _columns(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("new_"): value for name, value in values.items()}


_CAPACITY = ("cell_uuid", "cap_vcpus", "cap_memory_mb", "cap_disk_gb", "writer", "wseq")
_SET = (
    sa.update(inventories)
    .where(inventories.c.id == sa.bindparam("key"))
    .values({name: sa.bindparam(f"new_{name}") for name in _CAPACITY} | {"generation": inventories.c.generation + 1})
)


def _values(node: ComputeNode, cell_uuid: str, stamp: Stamp) -> dict[str, Any]:
    values = (cell_uuid, *_capacity(node), *stamp)
    return {f"new_{name}": value for name, value in zip(_CAPACITY, values, strict=True)}


def _capacity(node: ComputeNode) -> tuple[float, float, float]:
    limits = node.capacity
    return limits.vcpus, limits.memory_mb, limits.disk_gb


def _differs(row: Inventory, node: ComputeNode, cell_uuid: str) -> bool:
    return (row.cap_vcpus, row.cap_memory_mb, row.cap_disk_gb) != _capacity(node) or row.cell_uuid != cell_uuid


def _of_hosts(tx: Connection, hosts: Iterable[str]) -> list[Inventory]:
    """All rows of these hosts, locked."""
    found: list[Inventory] = []
    ordered = sorted(hosts)
    for start in range(0, len(ordered), dialect.IN_LIST):
        found += map(_inventory, tx.execute(_LOCK_HOSTS, {"hosts": ordered[start : start + dialect.IN_LIST]}))
    return found


def _inventory(row: Any) -> Inventory:
    return Inventory(
        id=row[0],
        host=row[1],
        node=row[2],
        cell_uuid=row[3],
        generation=row[4],
        cap_vcpus=row[5],
        cap_memory_mb=row[6],
        cap_disk_gb=row[7],
        used_vcpus=row[8],
        used_memory_mb=row[9],
        used_disk_gb=row[10],
        instances=row[11],
        writer=row[12],
        sequence=row[13],
    )
