"""API databases to claim on: on a server where one answers, with a fleet that is in use and requests that are leased."""

from __future__ import annotations

import random
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from db.api.claims.inventories import UsageChange, add_usage
from db.api.rows.ledger import Stamp
from db.api.rows.tables import allocations, build_requests, inventories
from db.sql.connection import ApiTransaction
from db.sql.engine import Database
from db.sql.sync import Kind
from objects.compute_node import ComputeNode
from objects.flavor import Flavor
from objects.inventory import Inventory
from objects.spec import RequestSpec
from tests.support import fleet
from tests.support.databases import SERVERS, scratch_url, synced

ROOM = {"vcpus": 32, "memory_mb": 131072, "disk_gb": 2000}
"""Of every host."""
FLAVORS = tuple(fleet.flavor(n, n * 2048, n * 20) for n in (1, 1, 2, 2, 4, 8))
"""Asked for by turns: small ones more often."""
FILL_PAGE_SIZE = 20_000
"""Hosts that one transaction fills."""
INSERT_PAGE_SIZE = 5000
"""Rows of one INSERT."""


@contextmanager
def database_on(server: str, kind: Kind = "api") -> Iterator[tuple[str, str]]:
    """The URL of a new database on ``server``, and on which it is: SQLite, where nothing of that name answers."""
    with tempfile.TemporaryDirectory(prefix="superconductor-bench-") as folder:
        url = f"sqlite:///{folder}/{kind}.db?synchronous=FULL"
        try:
            scratch = scratch_url(SERVERS[server]) if server != "sqlite" else None
            if scratch is not None:
                with scratch as url:
                    synced(url, kind).dispose_connections()
                    yield url, server
                return
        except pytest.skip.Exception as why:
            print(f"{why}: on SQLite instead")
        synced(url, kind).dispose_connections()
        yield url, "sqlite"


def build_nodes(count: int) -> list[ComputeNode]:
    return [fleet.node(f"host-{n:06}", **ROOM) for n in range(count)]


def open_database(url: str) -> Database:
    return Database(url, name="api", max_pool_size=12)


def fill_hosts(database: Database, share: float, seed: int = 7) -> int:
    """Put claims of mixed flavors on every host until ``share`` of all vCPUs is taken, more on some hosts than on others.

    Returns the number of claims. A transaction fills some hosts only: a million at once would exceed the time of a statement.
    """
    chance, claim_count, last = random.Random(seed), 0, 0
    while page := database.read(_hosts_after, last):
        claim_count += database.write(_fill_hosts, page, share, chance)
        last = page[-1][0]
    return claim_count


def _hosts_after(tx: ApiTransaction, last: int) -> list[tuple[int, int]]:
    """IDs of inventories and their vCPUs, in order."""
    query = sa.select(inventories.c.id, inventories.c.cap_vcpus).where(inventories.c.id > last).order_by(inventories.c.id)
    return [(row.id, row.cap_vcpus) for row in tx.execute(query.limit(FILL_PAGE_SIZE))]


def _fill_hosts(tx: ApiTransaction, hosts: Sequence[tuple[int, int]], share: float, chance: random.Random) -> int:
    rows: list[dict[str, Any]] = []
    usage: dict[int, UsageChange] = {}
    for inventory_id, vcpus in hosts:
        free_vcpus = round(vcpus * _draw_share(share, chance))
        taken: Counter[str] = Counter()
        while free_vcpus > 0:
            flavor = chance.choice([candidate for candidate in FLAVORS if candidate.vcpus <= free_vcpus])
            rows.append(_allocation_row(inventory_id, flavor, chance))
            free_vcpus -= flavor.vcpus
            taken.update(vcpus=flavor.vcpus, memory_mb=flavor.memory_mb, disk_gb=flavor.disk_gb, instances=1)
        usage[inventory_id] = UsageChange(taken["vcpus"], taken["memory_mb"], taken["disk_gb"], taken["instances"])
    for start in range(0, len(rows), INSERT_PAGE_SIZE):
        tx.execute(sa.insert(allocations), rows[start : start + INSERT_PAGE_SIZE])
    add_usage(tx, Stamp(0, 0), usage)
    return len(rows)


def _draw_share(mean: float, chance: random.Random) -> float:
    """How full one host is. In a fleet that is almost full four of five are full to the last vCPU: all room is on the others."""
    if mean < 0.9:
        spread = min(mean, 1.0 - mean)
        return mean + chance.uniform(-spread, spread)
    return 1.0 if chance.random() < 0.8 else 1.0 - chance.uniform(0.0, 10.0 * (1.0 - mean))


def _allocation_row(inventory_id: int, flavor: Flavor, chance: random.Random) -> dict[str, Any]:
    return {
        "instance_uuid": str(uuid.UUID(int=chance.getrandbits(128), version=4)),
        "inventory_id": inventory_id,
        "fence": 1,
        "vcpus": flavor.vcpus,
        "memory_mb": flavor.memory_mb,
        "disk_gb": flavor.disk_gb,
        "group_uuid": None,
        "selection": "[]",
        "writer": 0,
        "wseq": 0,
    }


def lease_requests(database: Database, count: int, flavors: Sequence[Flavor] = FLAVORS, size: int = 1) -> list[RequestSpec]:
    """``count`` requests of ``size`` servers each that are leased under fence 1, of the flavors by turns."""
    specs = [fleet.spec(flavors[n % len(flavors)], num_instances=size) for n in range(count)]
    now = time.time()
    rows: list[dict[str, Any]] = []
    leased: list[RequestSpec] = []
    for spec in specs:
        uuids = [str(uuid.uuid4()) for _ in range(size)]
        leased.append(msgspec.structs.replace(spec, fences=dict.fromkeys(uuids, 1)))
        common = {"batch_id": spec.batch_id, "state": "leased", "owner": "bench", "lease_until": now + 3600, "fence": 1}
        rows += [
            {"instance_uuid": instance_uuid, "deadline": now + 3600, "created_at": now, "priority": 0} | common
            for instance_uuid in uuids
        ]
    database.write(insert_rows, build_requests, rows)
    return leased


def insert_rows(tx: ApiTransaction, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    for start in range(0, len(rows), INSERT_PAGE_SIZE):
        tx.execute(sa.insert(table), rows[start : start + INSERT_PAGE_SIZE])


def group_sizes(database: Database) -> list[int]:
    """How many claims each transaction made, of those that still stand: transactions number what they write."""
    query = sa.select(sa.func.count()).where(allocations.c.writer > 0).group_by(allocations.c.writer, allocations.c.wseq)
    return sorted(database.read(lambda tx: [int(count) for count in tx.execute(query).scalars()]))


def free_share(rows: Sequence[Inventory]) -> float:
    """The share of all vCPUs that nothing has claimed."""
    return 1.0 - sum(row.used_vcpus for row in rows) / sum(row.cap_vcpus for row in rows)
