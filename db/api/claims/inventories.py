"""Inventories in the API database: the capacity of each ``(host, node)``, the usage by claims, and the log of changes.

Only the modules around ``claims.py`` write them. A transaction locks a row before it changes it, and several rows in the order of
their ids, so that transactions do not deadlock.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from db.api.claims import resources
from db.api.claims.resources import Pairs
from db.api.rows.ledger import Stamp
from db.api.rows.tables import inventories
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from db.sql.readable import complain_of_odd, sound_rows
from objects.compute_node import ComputeNode
from objects.inventory import Inventory, InventoryColumns
from service.rate_limited_log import RateLimitedLog

_COMPLAINTS = RateLimitedLog(logging.getLogger(__name__))

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
    inventories.c.cap_resources,
    inventories.c.used_resources,
    inventories.c.service_event,
)
_NAMES = tuple(column.name for column in _COLUMNS)
_ALL = sa.select(*_COLUMNS)
_BY_ID = by_index(_ALL.where(inventories.c.id.in_(dialect.uuids_parameter("ids"))).order_by(inventories.c.id), inventories)
_LOCK = _BY_ID.with_for_update()
_LOCK_FREE = _BY_ID.with_for_update(skip_locked=True)
_BY_HOST = _ALL.where(inventories.c.host.in_(dialect.uuids_parameter("ids")))
_IDS_OF_HOSTS = sa.select(inventories.c.id).where(inventories.c.host.in_(dialect.uuids_parameter("hosts")))


class UsageChange(NamedTuple):
    """A change of usage: vCPUs, MiB, GiB, instances and custom resource classes. Negative amounts release."""

    vcpus: int
    memory_mb: int
    disk_gb: int
    instances: int = 1
    resources: Pairs = ()

    def add_change(self, other: UsageChange) -> UsageChange:
        return UsageChange(
            self.vcpus + other.vcpus,
            self.memory_mb + other.memory_mb,
            self.disk_gb + other.disk_gb,
            self.instances + other.instances,
            resources.add_pairs(self.resources, other.resources) if other.resources else self.resources,
        )

    def negate_change(self) -> UsageChange:
        return UsageChange(-self.vcpus, -self.memory_mb, -self.disk_gb, -self.instances, resources.negate_pairs(self.resources))


def usage_of(vcpus: int, memory_mb: int, disk_gb: int, custom: str | None, instances: int = 1) -> UsageChange:
    """The usage in these column values. ``custom``: the JSON text of custom resource classes."""
    return UsageChange(vcpus, memory_mb, disk_gb, instances, resources.nonzero_pairs(resources.load_amounts(custom)))


def read_all(tx: ApiTransaction) -> list[Inventory]:
    """All inventories, read in one statement."""
    return [_inventory_from_row(row) for row in tx.execute(_ALL)]


def ids_by_node(tx: ApiTransaction) -> dict[tuple[str, str], int]:
    """The id of each row, by host and node."""
    rows = tx.execute(sa.select(inventories.c.host, inventories.c.node, inventories.c.id))
    return {(host, node): key for host, node, key in rows}


INSTANCES_LIMIT = 10**9
"""More than any host has, and fewer than 32 bits hold."""
READ_PAGE_SIZE = dialect.JSON_ARRAY_SIZE
_BEHIND = _ALL.where(inventories.c.id > sa.bindparam("after")).order_by(inventories.c.id)
_PAGE = _BEHIND.add_columns(dialect.OddColumn(*_COLUMNS).label(dialect.ODD)).limit(sa.bindparam("size")).subquery("page")
_PAGE_COLUMNS = sa.select(
    *(dialect.JsonArray(_PAGE.c[name]).label(name) for name in InventoryColumns._fields if name != "resources"),
    (sa.func.count(_PAGE.c.cap_resources) + sa.func.count(_PAGE.c.used_resources)).label("custom"),
    dialect.OddRows(_PAGE.c.id, _PAGE.c.odd).label("odd"),
)
_CUSTOM = sa.select(inventories.c.id, inventories.c.cap_resources, inventories.c.used_resources).where(
    inventories.c.id.between(sa.bindparam("first"), sa.bindparam("last")),
    sa.or_(inventories.c.cap_resources.is_not(None), inventories.c.used_resources.is_not(None)),
)
_POSITIONS = sa.select(inventories.c.writer, sa.func.max(inventories.c.wseq).label("last")).group_by(inventories.c.writer)


def read_after(tx: ApiTransaction, key: int) -> InventoryColumns:
    """A page of inventories in no order: those with the lowest IDs above ``key``; empty after the last one.

    A reader that goes on with ``changed_since`` reads ``last_positions`` before the first page: pages show different moments.
    """
    row = tx.execute(_PAGE_COLUMNS, {"after": key, "size": READ_PAGE_SIZE}).one()
    complain_of_odd(inventories, row.odd)
    page = InventoryColumns(
        id=dialect.json_array(row.id, int),
        host=dialect.json_array(row.host, str),
        node=dialect.json_array(row.node, str),
        generation=dialect.json_array(row.generation, int),
        cap_vcpus=dialect.json_array(row.cap_vcpus, float),
        cap_memory_mb=dialect.json_array(row.cap_memory_mb, float),
        cap_disk_gb=dialect.json_array(row.cap_disk_gb, float),
        used_vcpus=dialect.json_array(row.used_vcpus, int),
        used_memory_mb=dialect.json_array(row.used_memory_mb, int),
        used_disk_gb=dialect.json_array(row.used_disk_gb, int),
        instances=_bound_counts(dialect.json_array(row.instances, int)),
        service_event=dialect.json_array(row.service_event, int),
        resources={},
    )
    if row.custom:
        _add_resources(tx, page)
    return page


def _bound_counts(counts: list[int]) -> list[int]:
    """Numbers of instances as a host table has room for: a row may hold any."""
    if not counts or -INSTANCES_LIMIT < min(counts) <= max(counts) < INSTANCES_LIMIT:
        return counts
    return [min(max(count, -INSTANCES_LIMIT), INSTANCES_LIMIT) for count in counts]


def _add_resources(tx: ApiTransaction, page: InventoryColumns) -> None:
    """Read the custom amounts of a page. Unreadable ones: as ``_inventory_from_row`` does."""
    places = {key: place for place, key in enumerate(page.id)}
    for key, cap, used in tx.execute(_CUSTOM, {"first": min(places), "last": max(places)}):
        cap_amounts, used_amounts = resources.read_amounts(cap), resources.read_amounts(used)
        page.resources[key] = cap_amounts or resources.NONE, used_amounts or resources.NONE
        if key in places and (cap_amounts is None or used_amounts is None):
            for capacities in (page.cap_vcpus, page.cap_memory_mb, page.cap_disk_gb):
                capacities[places[key]] = 0.0


def last_positions(tx: ApiTransaction) -> dict[int, int]:
    """The last sequence number of each writer that has changed a row last."""
    return {row.writer: row.last for row in sound_rows(tx.execute(_POSITIONS), inventories, ("writer", "wseq"))}


class Log(NamedTuple):
    """Inventories that changed, the id of the newest writer, and every epoch (``db/api/rows/epochs.py``) by name."""

    rows: list[Inventory]
    newest: int
    epochs: dict[str, int]


def changed_since(tx: ApiTransaction, vector: Mapping[int, int], newest: int) -> Log:
    """Rows last changed by a writer in ``vector`` after the sequence number given there, or by a writer newer than ``newest``.

    One statement with one index lookup per writer. It reads the epochs too, so that the planner learns of operators' changes as of
    the same moment. A row that changed twice comes once, in its current state.
    """
    text = _log_statement(len(vector))
    values: dict[str, int] = {"newest": newest}
    for position, (writer, sequence) in enumerate(vector.items()):
        values[f"w{position}"] = writer
        values[f"s{position}"] = sequence
    rows: list[Inventory] = []
    numbers: dict[str, int] = {}
    changed_rows = tx.execute(text, values).all()
    for row in changed_rows if tx.dialect.name != "sqlite" else sound_rows(changed_rows, inventories, _NAMES):
        if row[0] == _NUMBER:
            numbers[row[1]] = row[4]
        else:
            rows.append(_inventory_from_row(row))
    return Log(rows, numbers.pop(_NEWEST), numbers)


_NUMBER = 0
"""The id in rows that are not inventories but named numbers: the newest writer and the epochs."""
_NEWEST = "newest writer"


@functools.cache
def _log_statement(writers: int) -> sa.TextClause:
    # One SELECT per writer, because PostgreSQL does not use the index for a join with the vector. For "writer > newest" PostgreSQL
    # scans the table. The constant condition before it avoids the scan if there is no such writer.
    columns = ", ".join(column.name for column in _COLUMNS)
    youngest = "(SELECT coalesce(max(id), 0) FROM writers)"
    number = f"SELECT {_NUMBER}, {{}}, '', '', {{}}, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0"
    select = f"SELECT {columns} FROM inventories WHERE"  # noqa: S608 - the names are the table's own
    parts = [number.format(f"'{_NEWEST}'", youngest), number.format("name", "epoch") + " FROM epochs"]
    parts += [f"{select} {youngest} > :newest AND writer > :newest"]
    parts += [f"{select} writer = :w{n} AND wseq > :s{n}" for n in range(writers)]
    return sa.text(" UNION ALL ".join(parts))


def read(tx: ApiTransaction, ids: Collection[int]) -> list[Inventory]:
    """These rows, without a lock."""
    return _execute_in_pages(tx, _BY_ID, ids)


def lock_rows(tx: ApiTransaction, ids: Collection[int], *, only_free: bool = False) -> list[Inventory]:
    """Lock these rows to the end of the transaction, in the order of their ids, and return them.

    ``only_free``: skip rows that another transaction has locked, so that this cannot deadlock with rows locked before. It has no
    effect on SQLite, where one transaction writes at a time.
    """
    return _execute_in_pages(tx, _LOCK_FREE if only_free else _LOCK, ids)


def _execute_in_pages(tx: ApiTransaction, statement: Any, ids: Collection[Any]) -> list[Inventory]:
    rows_read: list[Inventory] = []
    ordered = sorted(ids)
    for page in dialect.split_pages(ordered):
        rows = tx.execute(statement, {"ids": page})
        rows_read += map(_inventory_from_row, rows if tx.dialect.name != "sqlite" else sound_rows(rows, inventories))
    return rows_read


def touch_cell(tx: ApiTransaction, stamp: Stamp, cell_uuid: str) -> None:
    """Mark all rows of a cell as changed by this transaction, after it has locked them in the order of their ids."""
    of_cell = inventories.c.cell_uuid == cell_uuid
    tx.execute(sa.select(inventories.c.id).where(of_cell).order_by(inventories.c.id).with_for_update()).all()
    tx.execute(sa.update(inventories).where(of_cell).values(_changed_by(stamp)))


def touch_hosts(tx: ApiTransaction, stamp: Stamp, hosts: Iterable[str]) -> list[Inventory]:
    """The same with the rows of these hosts, which are returned as they were before."""
    rows = _of_hosts(tx, hosts)
    ids = [row.id for row in rows]
    for page in dialect.split_pages(ids):
        tx.execute(_TOUCH.values(_changed_by(stamp)), {"ids": page})
    return rows


def _changed_by(stamp: Stamp) -> dict[str, Any]:
    return {"writer": stamp.writer, "wseq": stamp.sequence, "generation": inventories.c.generation + 1}


_TOUCH = sa.update(inventories).where(inventories.c.id.in_(dialect.uuids_parameter("ids")))


_TELL_SERVICE = (
    sa.update(inventories)
    .where(inventories.c.id == sa.bindparam("key"), inventories.c.service_event < sa.bindparam("event"))
    .values(
        service_event=sa.bindparam("event"),
        writer=sa.bindparam("new_writer"),
        wseq=sa.bindparam("new_wseq"),
        generation=inventories.c.generation + 1,
    )
)


def tell_service(tx: ApiTransaction, stamp: Stamp, host: str, cell_uuid: str, event: int) -> None:
    """From now on a claim on this host needs a scheduler that has read the cell's feed up to ``event``.

    Claims lock the same rows: one that was planned earlier has committed, or finds its host's row changed.
    """
    values = {"event": event, "new_writer": stamp.writer, "new_wseq": stamp.sequence}
    rows = [{"key": row.id} | values for row in _of_hosts(tx, [host]) if row.cell_uuid == cell_uuid]
    if rows:
        tx.execute(_TELL_SERVICE, rows)


def forget_lost_events(tx: ApiTransaction, stamp: Stamp, cell_uuid: str, head: int) -> None:
    """Correct the rows of a cell whose feed ends at ``head``, because it was restored: no scheduler could read further events."""
    lost = sa.and_(inventories.c.cell_uuid == cell_uuid, inventories.c.service_event > head)
    ids = tx.execute(sa.select(inventories.c.id).where(lost).order_by(inventories.c.id).with_for_update()).scalars().all()
    if ids:
        values = {"writer": stamp.writer, "wseq": stamp.sequence, "generation": inventories.c.generation + 1}
        tx.execute(sa.update(inventories).where(lost).values(values | {"service_event": head}))


def add_usage(tx: ApiTransaction, stamp: Stamp, changes: Mapping[int, UsageChange]) -> None:
    """Change the usage of rows. Lock several rows before the call: one UPDATE locks them in no defined order."""
    ordered = sorted(changes.items())
    for page in dialect.split_pages(ordered):
        tx.exec_driver_sql(_addition_statement(tx.dialect.name, stamp, page))
    custom = {inventory_id: change.resources for inventory_id, change in changes.items() if change.resources}
    if custom:
        resources.add_usage(tx, custom)


_NUMBERS = ("used_vcpus", "used_memory_mb", "used_disk_gb", "instances")
_ADDED = ", ".join(["generation = {of}generation + 1", *(f"{name} = {{of}}{name} + more_{name}" for name in _NUMBERS)])


def _addition_statement(server: str, stamp: Stamp, changes: Sequence[tuple[int, UsageChange]]) -> str:
    """One UPDATE for changes of different amounts, such as those of several flavors in a group commit.

    Only numbers go into the text. For one change, on PostgreSQL and SQLite::

        UPDATE inventories AS i SET generation = i.generation + 1, used_vcpus = i.used_vcpus + more_used_vcpus, ...
        FROM (SELECT 7 AS key_id, 2 AS more_used_vcpus, ...) AS v WHERE i.id = v.key_id
    """
    names = ", ".join(["{} AS key_id", *(f"{{}} AS more_{name}" for name in _NUMBERS)])
    first, *others = (
        tuple(map(int, (key, change.vcpus, change.memory_mb, change.disk_gb, change.instances))) for key, change in changes
    )
    rows = " UNION ALL SELECT ".join([names.format(*first), *(", ".join(map(str, row)) for row in others)])
    values = _ADDED.format(of="i.") + f", writer = {int(stamp.writer)}, wseq = {int(stamp.sequence)}"
    if server in ("mysql", "mariadb"):
        table = f"(SELECT {rows}) AS v STRAIGHT_JOIN inventories AS i FORCE INDEX FOR JOIN (PRIMARY) ON i.id = v.key_id"
        return f"UPDATE {table} SET {values}"  # noqa: S608 - numbers only
    return f"UPDATE inventories AS i SET {values} FROM (SELECT {rows}) AS v WHERE i.id = v.key_id"  # noqa: S608 - numbers only


def row_after_change(row: Inventory, change: UsageChange, stamp: Stamp) -> Inventory:
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
        cap_resources=row.cap_resources,
        used_resources=resources.usage_after(row.used_resources, change.resources) if change.resources else row.used_resources,
        service_event=row.service_event,
    )


# -- capacities ----------------------------------------------------------------------------------------------------------------


def set_inventory(tx: ApiTransaction, stamp: Stamp, nodes: Sequence[ComputeNode], cell_uuid: str) -> set[tuple[str, str]]:
    """Set the capacities to those of ``nodes``, all of them of one cell. New nodes get rows; unchanged ones are not written.

    A new node with the name of another cell's node gets no row: the name belongs to the host that has it. Such nodes are logged and
    returned, by host and node. Usage is not changed: it follows from the claims.
    """
    node_by_name = {(node.host, node.node): node for node in nodes}
    hosts = {host for host, _ in node_by_name}
    read = {(row.host, row.node): row for row in _execute_in_pages(tx, _BY_HOST, hosts)}
    if all(key in read and not _is_different(read[key], node, cell_uuid) for key, node in node_by_name.items()):
        return set()  # usually: nothing has to be locked
    known = {(row.host, row.node): row for row in _of_hosts(tx, hosts)}
    changed = [
        {
            "key": known[key].id,
            "new_service_event": _known_event(known[key], cell_uuid),
            **_capacity_parameters(node, cell_uuid, stamp),
        }
        for key, node in node_by_name.items()
        if key in known and _is_different(known[key], node, cell_uuid)
    ]
    if changed:
        tx.execute(_SET, sorted(changed, key=lambda values: int(values["key"])))
    new = {key: node for key, node in node_by_name.items() if key not in known}
    foreign = owners_elsewhere(tx, new, cell_uuid)
    for (host, name), owner in foreign.items():
        text = "host %s reports node %s, which host %s of another cell reported first: nothing is placed on it; see 'verify'"
        _COMPLAINTS(f"{host} {name}", logging.WARNING, text, host, name, owner)
    rows = [(key, _capacity_parameters(node, cell_uuid, stamp)) for key, node in new.items() if key not in foreign]
    insert_rows(tx, [{"host": host, "node": name, **values} for (host, name), values in rows])
    return set(foreign)


_OWNERS_ELSEWHERE = sa.select(inventories.c.node, inventories.c.host).where(
    inventories.c.node.in_(dialect.uuids_parameter("names")),
    inventories.c.cell_uuid != sa.bindparam("cell"),
    inventories.c.cell_uuid != "",
)


def owners_elsewhere(tx: ApiTransaction, nodes: Iterable[tuple[str, str]], cell_uuid: str) -> dict[tuple[str, str], str]:
    """The hosts of other cells that have the names of these nodes of a cell, by host and node."""
    ordered_nodes, owners = sorted(nodes), dict[str, str]()
    names = sorted({name for _, name in ordered_nodes})
    for page in dialect.split_pages(names):
        values = {"names": page, "cell": cell_uuid}
        owners.update((row.node, row.host) for row in tx.execute(_OWNERS_ELSEWHERE, values))
    return {(host, name): owners[name] for host, name in ordered_nodes if owners.get(name, host) != host}


def insert_rows(tx: ApiTransaction, rows: list[dict[str, Any]]) -> None:
    """Insert rows without usage. A row that another transaction has just inserted stays as it is."""
    usage = dict.fromkeys(("used_vcpus", "used_memory_mb", "used_disk_gb", "instances", "generation"), 0)
    dialect.insert_new(tx, inventories, [usage | _column_values(row) for row in rows])


def _column_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("new_"): value for name, value in values.items()}


_CAPACITY = ("cell_uuid", "cap_vcpus", "cap_memory_mb", "cap_disk_gb", "cap_resources", "writer", "wseq")
_SET = (
    sa.update(inventories)
    .where(inventories.c.id == sa.bindparam("key"))
    .values(
        {name: sa.bindparam(f"new_{name}") for name in (*_CAPACITY, "service_event")} | {"generation": inventories.c.generation + 1}
    )
)


def _capacity_parameters(node: ComputeNode, cell_uuid: str, stamp: Stamp) -> dict[str, Any]:
    values = (cell_uuid, *_capacity_values(node), *stamp)
    return {f"new_{name}": value for name, value in zip(_CAPACITY, values, strict=True)}


def _known_event(known: Inventory, cell_uuid: str) -> int:
    """An event of another cell's feed says nothing."""
    return known.service_event if known.cell_uuid == cell_uuid else 0


def _capacity_values(node: ComputeNode) -> tuple[float, float, float, str | None]:
    limits = node.total_capacity
    return limits.vcpus, limits.memory_mb, limits.disk_gb, resources.dump_amounts(limits.resources)


def _is_different(row: Inventory, node: ComputeNode, cell_uuid: str) -> bool:
    known = (row.cap_vcpus, row.cap_memory_mb, row.cap_disk_gb, resources.dump_amounts(row.cap_resources))
    return known != _capacity_values(node) or row.cell_uuid != cell_uuid


def _of_hosts(tx: ApiTransaction, hosts: Iterable[str]) -> list[Inventory]:
    """All rows of these hosts, locked by id. Locking by name would break the lock order: MariaDB locks rows as it finds them."""
    ids: list[int] = []
    ordered = sorted(hosts)
    for page in dialect.split_pages(ordered):
        ids += tx.execute(_IDS_OF_HOSTS, {"hosts": page}).scalars()
    return lock_rows(tx, ids)


def _inventory_from_row(row: Any) -> Inventory:
    """The record of a row. With unreadable custom amounts it has no capacity, so that it gets no claim and other hosts still do."""
    cap_resources, used_resources = resources.read_amounts(row[14]), resources.read_amounts(row[15])
    known = cap_resources is not None and used_resources is not None
    return Inventory(
        id=row[0],
        host=row[1],
        node=row[2],
        cell_uuid=row[3],
        generation=row[4],
        cap_vcpus=row[5] if known else 0.0,
        cap_memory_mb=row[6] if known else 0.0,
        cap_disk_gb=row[7] if known else 0.0,
        used_vcpus=row[8],
        used_memory_mb=row[9],
        used_disk_gb=row[10],
        instances=row[11] if -INSTANCES_LIMIT < row[11] < INSTANCES_LIMIT else _bound_counts([row[11]])[0],
        writer=row[12],
        sequence=row[13],
        cap_resources=cap_resources or resources.NONE,
        used_resources=used_resources or resources.NONE,
        service_event=row[16],
    )
