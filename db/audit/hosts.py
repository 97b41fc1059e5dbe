"""Hosts as the API database knows them, for an audit: their mappings, and what they offer."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from db.api.claims import resources
from db.api.rows.tables import host_mappings, inventories
from db.audit.pages import execute_in_pages, keys_of
from db.sql import dialect
from db.sql.connection import ApiTransaction
from objects.cell import HostMapping
from objects.inventory import Inventory

hosts_after = keys_of(host_mappings.c.host)

_HOSTS = sa.select(host_mappings.c.host, host_mappings.c.cell_uuid).where(host_mappings.c.host.in_(dialect.uuids_parameter()))
_OFFERED = sa.select(inventories).where(inventories.c.host.in_(dialect.uuids_parameter()))


def mappings_by_host(tx: ApiTransaction, names: Iterable[str]) -> dict[str, HostMapping]:
    return {row.host: HostMapping(host=row.host, cell_uuid=row.cell_uuid) for row in execute_in_pages(tx, _HOSTS, names)}


def offers_by_node(tx: ApiTransaction, names: Iterable[str]) -> dict[tuple[str, str], Inventory]:
    """The inventories of these hosts as far as they say what is offered, by (host, node)."""
    return {
        (row.host, row.node): Inventory(
            id=row.id,
            host=row.host,
            node=row.node,
            cell_uuid=row.cell_uuid,
            generation=row.generation,
            cap_vcpus=row.cap_vcpus,
            cap_memory_mb=row.cap_memory_mb,
            cap_disk_gb=row.cap_disk_gb,
            cap_resources=resources.load_amounts(row.cap_resources),
        )
        for row in execute_in_pages(tx, _OFFERED, names)
    }
