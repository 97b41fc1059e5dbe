"""Aggregates in the API database: named sets of hosts, with metadata."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from db.api.claims import claim_counts, inventories
from db.api.deployment import host_mappings
from db.api.rows import epochs, ledger
from db.api.rows.epochs import Epoch
from db.api.rows.tables import aggregate_hosts, aggregates
from db.sql import by_name
from db.sql.connection import ApiTransaction
from db.sql.readable import convert_readable, read_one, sound_rows
from objects import errors, stored, text
from objects.aggregate import RACK, ZONE, Aggregate

EXCLUSIVE = {ZONE: "zone", RACK: "rack"}
"""Metadata keys of which a host has one value at most."""
_NAMESPACE = uuid.UUID("5cf83f0c-8f0c-4d0e-9f3c-2f8f6a1f6f0b")
"""Makes the UUIDs of aggregates that have none."""


def create(tx: ApiTransaction, name: str, metadata: Mapping[str, str] | None = None) -> Aggregate:
    """Create an aggregate without hosts. Raises Conflict if its name is taken, and Invalid for an invalid zone name."""
    _check_zone(metadata or {})
    about = {"uuid": str(uuid.uuid4()), "created_at": time.time()}
    values = {"name": name, "metadata": stored.dump_value(dict(metadata or {}))} | about
    key = by_name.insert_row(tx, aggregates, values, f"Aggregate '{name}'").inserted_primary_key
    epochs.bump_epoch(tx, Epoch.AGGREGATES)
    return get(tx, key[0] if key else 0)


def get(tx: ApiTransaction, aggregate_id: int) -> Aggregate:
    """Return the aggregate with this id. Raises NotFound."""
    row = by_name.require_row(
        tx.execute(sa.select(aggregates).where(aggregates.c.id == aggregate_id)).first(), _describe_aggregate(aggregate_id)
    )
    return _read(tx, row)


def find_by_name(tx: ApiTransaction, name: str) -> Aggregate:
    """The aggregate of this name. Raises NotFound."""
    row = by_name.require_row(tx.execute(sa.select(aggregates).where(aggregates.c.name == name)).first(), _describe_aggregate(name))
    return _read(tx, row)


def list_all(tx: ApiTransaction) -> list[Aggregate]:
    """All aggregates by id, each with its hosts in order."""
    rows = tx.execute(sa.select(aggregates).order_by(aggregates.c.id)).all()
    hosts = _hosts_by_aggregate(tx)
    return convert_readable(rows, lambda row: _aggregate_from_row(row, hosts.get(row.id, ())), aggregates)


def rename_aggregate(tx: ApiTransaction, aggregate_id: int, name: str) -> None:
    """Rename it. Raises NotFound, and Conflict if the name is taken."""
    by_name.update_row(
        tx,
        sa.update(aggregates).where(aggregates.c.id == aggregate_id),
        {"name": name} | _updated_now(),
        _describe_aggregate(aggregate_id),
    )
    epochs.bump_epoch(tx, Epoch.AGGREGATES)


def set_metadata(tx: ApiTransaction, aggregate_id: int, changes: Mapping[str, str | None]) -> None:
    """Set these keys and remove those whose value is None.

    Raises NotFound, Invalid for an invalid zone name, and Conflict if a host would be in two zones or racks, or if a host with
    servers would be in another zone.
    """
    epochs.bump_epoch(tx, Epoch.AGGREGATES)  # first: until this commits, its lock keeps other changes of aggregates out
    before = get(tx, aggregate_id)
    merged = {**before.metadata, **changes}
    metadata = {key: value for key, value in merged.items() if value is not None}
    _check_zone({key: value for key, value in changes.items() if value is not None})
    news = {key: value for key, value in metadata.items() if before.metadata.get(key) != value}
    _refuse_second(tx, aggregate_id, before.hosts, news)
    _refuse_other_zone(tx, before, before.hosts, metadata.get(ZONE))
    statement = sa.update(aggregates).where(aggregates.c.id == aggregate_id)
    tx.execute(statement, {"metadata": stored.dump_value(metadata)} | _updated_now())


def add_host(tx: ApiTransaction, aggregate_id: int, host: str) -> None:
    """Add a host, which may not be mapped to a cell yet.

    Raises NotFound, also for a name that differs from a host's in case only. Raises Conflict if the host is in the aggregate
    already, would be in two zones or racks, or has servers and would be in another zone.
    """
    epochs.bump_epoch(tx, Epoch.AGGREGATES)  # first: until this commits, its lock keeps other changes of aggregates out
    aggregate = get(tx, aggregate_id)
    host_mappings.refuse_other_case(tx, host)
    if host in aggregate.hosts:
        raise errors.Conflict(f"Host '{host}' is in aggregate '{aggregate.name}' already")
    _refuse_second(tx, aggregate_id, (host,), aggregate.metadata)
    _refuse_other_zone(tx, msgspec.structs.replace(aggregate, metadata={}), (host,), aggregate.availability_zone)
    subject = f"Host '{host}' in aggregate '{aggregate.name}'"
    by_name.insert_row(tx, aggregate_hosts, {"aggregate_id": aggregate_id, "host": host}, subject)
    _touch_aggregate(tx, aggregate_id)


def remove_host(tx: ApiTransaction, aggregate_id: int, host: str) -> None:
    """Remove a host. Raises NotFound if there is no such aggregate, or the host is not in it.

    Raises Conflict if the host has servers and would be in another zone.
    """
    epochs.bump_epoch(tx, Epoch.AGGREGATES)  # first: until this commits, its lock keeps other changes of aggregates out
    aggregate = get(tx, aggregate_id)
    if host in aggregate.hosts:
        _refuse_other_zone(tx, aggregate, (host,), None)
    statement = sa.delete(aggregate_hosts).where(aggregate_hosts.c.aggregate_id == aggregate_id, aggregate_hosts.c.host == host)
    by_name.delete(tx, statement, f"Host '{host}' in aggregate '{aggregate.name}'")
    _touch_aggregate(tx, aggregate_id)


def delete(tx: ApiTransaction, aggregate_id: int) -> None:
    """Delete the aggregate. Raises NotFound, and Conflict while hosts are in it."""
    epochs.bump_epoch(tx, Epoch.AGGREGATES)  # first: until this commits, its lock keeps other changes of aggregates out
    aggregate = get(tx, aggregate_id)
    if aggregate.hosts:
        raise errors.Conflict(f"Aggregate '{aggregate.name}' still has {len(aggregate.hosts)} hosts")
    by_name.delete(tx, sa.delete(aggregates).where(aggregates.c.id == aggregate_id), _describe_aggregate(aggregate_id))


def _check_zone(metadata: Mapping[str, str]) -> None:
    if ZONE in metadata and not text.is_zone(metadata[ZONE]):
        shown = text.escape_controls(repr(metadata[ZONE])[:80])
        raise errors.Invalid(f"{ZONE} {shown}: a zone has 1 to 255 printable characters, no outer blanks and no ':'")


def _refuse_second(tx: ApiTransaction, aggregate_id: int, hosts: Collection[str], metadata: Mapping[str, str]) -> None:
    """Raise Conflict if a host would be in two zones or racks. It may be in several aggregates of the same one."""
    exclusive_metadata = {key: metadata[key] for key in EXCLUSIVE if key in metadata}
    if not exclusive_metadata:
        return
    for other in list_all(tx):
        twice = sorted(set(other.hosts) & set(hosts))
        for key, value in exclusive_metadata.items():
            if twice and other.id != aggregate_id and other.metadata.get(key, value) != value:
                raise errors.Conflict(
                    f"Host '{twice[0]}' is in {EXCLUSIVE[key]} '{other.metadata[key]}' already, through aggregate '{other.name}'"
                )


def _refuse_other_zone(tx: ApiTransaction, before: Aggregate, hosts: Collection[str], zone: str | None) -> None:
    """Raise Conflict if one of the hosts has servers, and is in another zone once the zone of this aggregate is ``zone``.

    Servers may be on their way: a host of which a build still has an alternate counts too. A claim that was planned on the zones
    as they were either commits before this transaction, which then finds it, or it finds its host's row changed, and is planned
    anew: see ``claiming.claim_hosts``.
    """
    if before.availability_zone == zone or not hosts:
        return
    others = [other for other in list_all(tx) if other.id != before.id and other.availability_zone is not None]
    leaving = sorted(set(hosts).difference(*(other.hosts for other in others)))  # another aggregate keeps a host in its zone
    if not leaving:
        return
    rows = inventories.touch_hosts(tx, ledger.stamp_once(tx, f"zone of aggregate {before.name}"), leaving)
    counted = claim_counts.on_inventories(tx, [row.id for row in rows])
    for row in rows:
        if count := counted.get(row.id):
            raise errors.Conflict(
                f"Host '{row.host}' has {count} servers, so it stays in {_describe_zone(before.availability_zone)}: move them "
                "away first"
            )
    for host in leaving:
        if count := claim_counts.builds_with_alternate(tx, host):
            raise errors.Conflict(
                f"Host '{host}' is an alternate of {count} builds: disable it, and try again when these builds have ended"
            )


def _describe_zone(zone: str | None) -> str:
    return "the default zone" if zone is None else f"zone '{zone}'"


def _hosts_by_aggregate(tx: ApiTransaction, aggregate_id: int | None = None) -> dict[int, list[str]]:
    query = sa.select(aggregate_hosts).order_by(aggregate_hosts.c.host)
    if aggregate_id is not None:
        query = query.where(aggregate_hosts.c.aggregate_id == aggregate_id)
    hosts: dict[int, list[str]] = defaultdict(list)
    for row in sound_rows(tx.execute(query), aggregate_hosts):
        hosts[row.aggregate_id].append(row.host)
    return hosts


def _read(tx: ApiTransaction, row: sa.Row[Any]) -> Aggregate:
    hosts = _hosts_by_aggregate(tx, row.id).get(row.id, ())
    return read_one(row, lambda aggregate_row: _aggregate_from_row(aggregate_row, hosts), aggregates)


def _aggregate_from_row(row: sa.Row[Any], hosts: list[str] | tuple[()]) -> Aggregate:
    metadata = stored.load_text(row._mapping["metadata"], dict[str, str])
    return Aggregate(
        id=row.id,
        name=row.name,
        uuid=row.uuid or str(uuid.uuid5(_NAMESPACE, str(row.id))),
        hosts=tuple(hosts),
        metadata=metadata,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _updated_now() -> dict[str, float]:
    return {"updated_at": time.time()}


def _touch_aggregate(tx: ApiTransaction, aggregate_id: int) -> None:
    tx.execute(sa.update(aggregates).where(aggregates.c.id == aggregate_id), _updated_now())


def _describe_aggregate(reference: int | str) -> str:
    return f"Aggregate '{reference}'"
