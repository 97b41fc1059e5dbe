"""A cell's database that has lost its last commits, as after a restore or an asynchronous fail-over, under agents that run on.

The tables get back the contents of an earlier moment: guests are in every state then. Guests are counted outside, on the hosts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.adopt_guest import adopt_guest
from conductor.audit.places import Places
from db.cell import tables, unknown_guests
from db.sql.connection import Connection
from service.periodic import wait_until
from tests.support.auditing import Auditor
from tests.support.ground import GROUNDS, on
from tests.support.world import PATIENCE, World, world_fixture

HOSTS = ("a1", "a2", "a3")
Contents = Mapping[str, Sequence[dict[str, Any]]]


cloud = world_fixture({"cell1": HOSTS}, embedded=True)


def copy(tx: Connection) -> Contents:
    """Everything in the cell's database."""
    found = {}
    for table in tables.metadata.sorted_tables:
        if table.name != "alembic_version":
            found[table.name] = [dict(row) for row in tx.execute(sa.select(table)).mappings()]
    return found


def restore(tx: Connection, contents: Contents) -> None:
    """The same again, and nothing else."""
    for table in reversed(tables.metadata.sorted_tables):
        tx.execute(sa.delete(table))
    for table in tables.metadata.sorted_tables:
        if contents.get(table.name):
            tx.execute(sa.insert(table), list(contents[table.name]))


def guests(cloud: World) -> dict[str, list[str]]:
    """Hosts of each guest, by uuid."""
    found: dict[str, list[str]] = {}
    for host, uuids in cloud.evidence().guests.items():
        for uuid in uuids:
            found.setdefault(uuid, []).append(host)
    return found


def destroyed(cloud: World) -> set[str]:
    return {entry.destroyed for host in HOSTS for entry in cloud.journal(host) if entry.destroyed is not None}


def states(cloud: World) -> list[str]:
    return sorted(server.state for server in cloud.evidence().servers if not server.deleted)


def unknown(cloud: World) -> set[str]:
    return {reported.guest.uuid for reported in cloud.databases["cell1"].read(unknown_guests.list_all)}


def is_accounted(cloud: World, uuids: Sequence[str]) -> bool:
    """Whether each of these is ACTIVE, or its guest is listed for an operator to adopt."""
    listed = unknown(cloud)
    active = {row.instance.uuid for row in cloud.evidence().rows if row.cell == "cell1" and row.instance.state == "active"}
    return all(uuid in active or uuid in listed for uuid in uuids)


@on("cloud", *GROUNDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_guest_survives_a_restored_cell(cloud: World, seed: int) -> None:
    chance = random.Random(seed)
    cloud.start()
    early = cloud.uuids(cloud.accept(4))
    assert wait_until(lambda: states(cloud) == ["active"] * 4, PATIENCE)
    under_way = cloud.uuids(cloud.accept(8))
    reached = chance.randint(0, 8)
    assert wait_until(lambda: states(cloud).count("active") >= 4 + reached, PATIENCE)
    backup = cloud.databases["cell1"].read(copy)
    late = cloud.uuids(cloud.accept(4))
    every = [*early, *under_way, *late]
    assert wait_until(lambda: states(cloud) == ["active"] * len(every), PATIENCE), states(cloud)
    cloud.settle()
    before = guests(cloud)
    gone = destroyed(cloud)
    assert before.keys() == set(every)

    cloud.databases["cell1"].write(restore, backup)
    assert wait_until(lambda: is_accounted(cloud, every), 2 * PATIENCE), (states(cloud), unknown(cloud))
    assert guests(cloud) == before
    assert destroyed(cloud) == gone, "nothing was destroyed"
    assert set(late) <= unknown(cloud), "whose rows came after the backup"

    operator = cloud.conductor("operator")
    places = Places(operator.database, operator.ledger, operator.registry, overdue=180.0)
    places.begin_check()
    for uuid in sorted(unknown(cloud)):
        adopt_guest(places, uuid, None, None)
    auditor = Auditor(operator, overdue=3600.0, guests=True)
    auditor.repair()
    assert wait_until(lambda: states(cloud) == ["active"] * len(every), PATIENCE), states(cloud)
    assert wait_until(lambda: unknown(cloud) == set(), PATIENCE)
    assert guests(cloud) == before
    assert destroyed(cloud) == gone
    evidence = cloud.settle()
    assert {uuid: [host] for uuid, host in evidence.claims.items()} == before


@on("cloud", "lite")
def test_deletes_go_on_after_a_restore(cloud: World) -> None:
    """Servers that were deleted after the backup are ACTIVE on record again, without a guest: the audit carries the deletes."""
    cloud.start()
    uuids = cloud.uuids(cloud.accept(4))
    assert wait_until(lambda: states(cloud) == ["active"] * 4, PATIENCE)
    cloud.settle()
    backup = cloud.databases["cell1"].read(copy)
    for uuid in uuids[:2]:
        cloud.delete(uuid)
    assert wait_until(lambda: guests(cloud).keys() == set(uuids[2:]), PATIENCE)
    cloud.settle()
    cloud.databases["cell1"].write(restore, backup)
    for uuid in uuids[2:3]:
        cloud.delete(uuid)
    assert wait_until(lambda: guests(cloud).keys() == set(uuids[3:]), PATIENCE), "a delete after the restore ends its guest"
    assert is_accounted(cloud, uuids[3:])
