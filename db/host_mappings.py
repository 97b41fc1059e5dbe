"""Host mappings in the API database: which cell each host belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from db import dialect, epochs, named
from db.epochs import Epoch
from db.tables.api import host_mappings
from objects.cell import HostMapping


def add(tx: Connection, mappings: Sequence[HostMapping], now: float) -> list[HostMapping]:
    """Map hosts to cells. Return those that are mapped to another cell already, as they are: these stay what they were.

    A host that is mapped to the same cell is no conflict, and changes nothing.
    """
    wanted = {mapping.host: mapping for mapping in sorted(mappings, key=lambda m: m.host)}
    rows = [{"host": m.host, "cell_uuid": m.cell_uuid, "created_at": now} for m in wanted.values()]
    existing = _of(tx, list(wanted))
    dialect.insert_new(tx, host_mappings, [row for row in rows if row["host"] not in existing])
    there = _of(tx, list(wanted))
    if there.keys() != existing.keys():
        epochs.bump(tx, Epoch.HOSTS)
    return [there[m.host] for m in wanted.values() if m.host in there and there[m.host].cell_uuid != m.cell_uuid]


def get(tx: Connection, host: str) -> HostMapping:
    """Raises NotFound."""
    found = _of(tx, [host])
    named.found(None, f"Host '{host}'") if host not in found else None
    return found[host]


def list_all(tx: Connection) -> list[HostMapping]:
    """By host."""
    rows = tx.execute(sa.select(host_mappings.c.host, host_mappings.c.cell_uuid).order_by(host_mappings.c.host))
    return [HostMapping(host=host, cell_uuid=cell_uuid) for host, cell_uuid in rows]


def delete(tx: Connection, host: str) -> None:
    """Raises NotFound."""
    named.delete(tx, sa.delete(host_mappings).where(host_mappings.c.host == host), f"Host '{host}'")
    epochs.bump(tx, Epoch.HOSTS)
