"""What happens in the cell whose feed a test applies, and what the API level makes of it."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import sqlalchemy as sa

from conductor.apply import Applier
from db.api.claims import claims
from db.cell import compute_nodes, instances
from db.cell.tables import feed as feed_table
from db.cell.tables import feed_head
from db.sql.connection import Connection
from objects import lifecycle
from objects.compute_node import ComputeNode
from objects.instance import Failure, FailureClass
from objects.inventory import Inventory
from tests.support import fleet
from tests.support.conductor_process import Conductor
from tests.support.world import World

CELL, OTHER = "cell1", "cell2"
SMALL = fleet.flavor(vcpus=0, memory_mb=1, root_gb=0)


def catch_up(applier: Applier) -> None:
    while applier.apply_page():
        pass


def ordered(cloud: World, conductor: Conductor, count: int, **asked: Any) -> list[str]:
    """Servers handed over to CELL."""
    away = (conductor.cell(OTHER).uuid,)
    driven = conductor.lease(cloud.accept(count, **asked).batch_id)
    driven.claim(excluded_cells=away)
    driven.stage()
    assert driven.hand_over() == driven.uuids
    return driven.uuids


def build(cloud: World, uuids: list[str], *, active: bool = True) -> None:
    """The cell says that their builds have begun, and ended well."""
    rows = {uuid: cloud.row(uuid) for uuid in uuids}
    write = cloud.databases[CELL].write

    def begin(row: Any) -> lifecycle.Outcome:
        return lifecycle.accept_order(row, row.host, row.fence, row.attempt, "agent")

    def end(row: Any) -> lifecycle.Outcome:
        return lifecycle.confirm_active(row, row.host, row.fence, row.attempt, "agent", 77.0)

    write(instances.transition_rows, rows, begin, 70.0)
    if active:
        write(instances.transition_rows, rows, end, 77.0)


def fail(cloud: World, uuid: str) -> None:
    failure = Failure(kind=FailureClass.HOST, error="BuildFailed", message="no disk", at=71.0)

    def decide(row: Any) -> lifecycle.Outcome:
        return lifecycle.fail_attempt(row, row.host, row.fence, row.attempt, "agent", failure)

    cloud.databases[CELL].write(instances.transition_rows, [uuid], decide, 71.0)


def late(cloud: World, uuid: str) -> None:
    """The cell ends its build, whose deadline has passed."""
    failure = Failure(kind=FailureClass.REQUEST, error="BuildTimedOut", message="too late", at=71.0)
    cloud.databases[CELL].write(
        instances.transition_rows, [uuid], lambda row: lifecycle.end_overdue(row, row.attempt, failure), 71.0
    )


def gone(cloud: World, uuid: str) -> None:
    """Its agent says that the deleted guest is gone."""
    cloud.databases[CELL].write(
        instances.transition_rows, [uuid], lambda row: lifecycle.confirm_gone(row, row.host or "", row.attempt, 80.0), 80.0
    )


def inventories(cloud: World) -> dict[str, Inventory]:
    return {row.host: row for row in cloud.api.read(claims.read_all)}


def node(host: str, **changes: Any) -> ComputeNode:
    base = ComputeNode(host=host, node=host, vcpus=16, memory_mb=65536, disk_gb=1000, hypervisor_type="simulated")
    return msgspec.structs.replace(base, **changes)


def tell(cloud: World, cell: str, *nodes: ComputeNode) -> None:
    """An agent of the cell says what its node offers."""
    for each in nodes:
        cloud.databases[cell].write(compute_nodes.store_node, each, time.time())


def states(cloud: World, uuids: list[str]) -> list[str]:
    summaries = {server.uuid: server.state for server in cloud.evidence().servers}
    return [summaries[uuid] for uuid in uuids]


def sound(cloud: World) -> bool:
    """Usage is the sum of claims on every host."""
    evidence = cloud.evidence()
    return all(used == evidence.claimed.get(host, 0) for host, used in evidence.charged.items())


def restart_feed(tx: Connection) -> None:
    """As in a cell restored to a time before its first event."""
    tx.execute(sa.delete(feed_table))
    tx.execute(sa.update(feed_head).values(sequence=0, trimmed=0))
