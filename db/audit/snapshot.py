"""Reads for whoever compares all that was written: claims with usage, rows with guests."""

from __future__ import annotations

import sqlalchemy as sa

from db.api.rows.tables import allocations, group_slots, instance_mappings, inventories
from db.api.servers.listing import server_of
from db.cell import instances
from db.cell.tables import instances as instance_rows
from db.sql.connection import ApiTransaction, CellTransaction
from objects.base import Object
from objects.instance import Instance, Server
from objects.inventory import Slot


class ClaimedHost(Object, frozen=True, kw_only=True):
    instance_uuid: str
    host: str
    vcpus: int


class NodeUsed(Object, frozen=True, kw_only=True):
    """What a node's inventory counts: instances, vCPUs and MiB."""

    host: str
    instances: int
    vcpus: int
    memory_mb: int


def list_claims(tx: ApiTransaction) -> list[ClaimedHost]:
    """Every claim with the host it is on."""
    query = sa.select(allocations.c.instance_uuid, allocations.c.vcpus, inventories.c.host).join(
        inventories, inventories.c.id == allocations.c.inventory_id
    )
    return [ClaimedHost(instance_uuid=row.instance_uuid, host=row.host, vcpus=row.vcpus) for row in tx.execute(query)]


def list_usage(tx: ApiTransaction) -> list[NodeUsed]:
    """Every inventory's own count."""
    query = sa.select(
        inventories.c.host,
        inventories.c.instances,
        inventories.c.used_vcpus.label("vcpus"),
        inventories.c.used_memory_mb.label("memory_mb"),
    )
    return [NodeUsed(**row) for row in tx.execute(query).mappings()]


def list_slots(tx: ApiTransaction) -> list[Slot]:
    """Every slot of a member of a server group."""
    return [Slot(**row) for row in tx.execute(sa.select(group_slots)).mappings()]


def list_rows(tx: CellTransaction) -> list[Instance]:
    """Every instance row of a cell, with its latest fault."""
    return instances.read(tx, tx.execute(sa.select(instance_rows.c.uuid)).scalars())


def list_hidden(tx: ApiTransaction) -> list[Server]:
    """Bodies of servers that lists do not show, deleted or not."""
    return [server_of(row) for row in tx.execute(sa.select(instance_mappings).where(instance_mappings.c.hidden == sa.true()))]
