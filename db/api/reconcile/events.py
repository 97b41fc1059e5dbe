"""Apply a cell's feed to the API database: summaries, claims, capacities and the feed's cursor in one transaction."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from db.api.claims import claims
from db.api.deployment import cell_mappings
from db.api.queue import respawn
from db.api.rows import epochs
from db.api.rows.epochs import Epoch
from db.api.rows.tables import feed_cursors, host_mappings, instance_mappings, inventories
from db.api.servers import addresses
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.dialect import UpdateMany
from db.sql.keyed import by_index
from objects import errors, stored
from objects.base import Object
from objects.compute_node import ComputeNode
from objects.feed import EventKind, InstanceEvent


class FeedPosition(Object, frozen=True, kw_only=True):
    """A page of one cell's feed: everything up to ``lock_cursor`` is applied, and applying the page moves the cursor to
    ``upto``.
    """

    cell_uuid: str
    cursor: int
    upto: int


def lock_cursor(tx: ApiTransaction, cell_uuid: str) -> int:
    """The cursor of this cell's feed, created with 0 if there is none.

    Raises Conflict for a cell that was removed, so that its feed is not applied from the beginning again.
    """
    sequence = tx.execute(sa.select(feed_cursors.c.sequence).where(feed_cursors.c.cell_uuid == cell_uuid)).scalar_one_or_none()
    if sequence is None:
        if not cell_mappings.lock_cell(tx, cell_uuid):
            raise errors.Conflict(f"cell {cell_uuid} was removed")
        dialect.insert_new(tx, feed_cursors, [{"cell_uuid": cell_uuid, "sequence": 0}])
    return sequence or 0


def read_cursor(tx: ApiTransaction, cell_uuid: str) -> int:
    """The cursor of this cell's feed, read only; 0 if there is none."""
    return tx.execute(sa.select(feed_cursors.c.sequence).where(feed_cursors.c.cell_uuid == cell_uuid)).scalar_one_or_none() or 0


BEYOND_ANY_EVENT = 2**62

_REBUILD = sa.update(feed_cursors).where(feed_cursors.c.cell_uuid == sa.bindparam("cell")).values(sequence=BEYOND_ANY_EVENT)


def rebuild_from_rows(tx: ApiTransaction, cell_uuid: str) -> None:
    """Make the reader of this feed rebuild from the rows: a cursor past the feed's end means that the database was restored."""
    epochs.bump_epoch(tx, Epoch.FEEDS)
    tx.execute(_REBUILD, {"cell": cell_uuid})


_ADVANCE = (
    sa.update(feed_cursors)
    .where(feed_cursors.c.cell_uuid == sa.bindparam("cell"), feed_cursors.c.sequence == sa.bindparam("read"))
    .values(sequence=sa.bindparam("upto"))
)
_SUMMARY = {
    "seen": "version",
    "state": "new_state",
    "host": "new_host",
    "node": "new_node",
    "availability_zone": "new_zone",
    "updated_at": "new_updated_at",
    "launched_at": "new_launched_at",
    "terminated_at": "new_terminated_at",
    "fault": "new_fault",
    "power": "new_power",
    "task_number": "new_task_number",
    "task_state": "new_task_state",
    "task_fault": "new_task_fault",
    "task_stored": "new_task_stored",
}
_APPLY = UpdateMany(
    sa.update(instance_mappings)
    .where(
        instance_mappings.c.instance_uuid == sa.bindparam("uuid"),
        instance_mappings.c.cell_uuid == sa.bindparam("cell"),
        instance_mappings.c.seen < sa.bindparam("version"),
    )
    .values({column: sa.bindparam(parameter) for column, parameter in _SUMMARY.items()}),
    instance_mappings,
    key=("instance_uuid", "uuid"),
    values=_SUMMARY,
    where="t.cell_uuid = w.cell AND t.seen < w.version",
)
_FRESH = by_index(
    sa.select(instance_mappings.c.instance_uuid, instance_mappings.c.seen)
    .where(
        instance_mappings.c.instance_uuid.in_(dialect.uuids_parameter()),
        instance_mappings.c.cell_uuid == sa.bindparam("cell"),
    )
    .order_by(instance_mappings.c.instance_uuid)
    .with_for_update(),
    instance_mappings,
)
_HOMES = sa.union_all(
    sa.select(host_mappings.c.host, host_mappings.c.cell_uuid).where(host_mappings.c.host.in_(dialect.uuids_parameter("hosts"))),
    sa.select(inventories.c.host, inventories.c.cell_uuid).where(inventories.c.host.in_(dialect.uuids_parameter("hosts"))),
)


class Applied(NamedTuple):
    """What was not applied: events that place an instance on another cell's host, and nodes named as another cell's node.

    ``foreign_nodes``: by host and node.
    """

    refused: list[InstanceEvent]
    foreign_nodes: set[tuple[str, str]]


def apply_page(
    tx: ApiTransaction,
    stamp: claims.Stamp,
    position: FeedPosition,
    events: Sequence[InstanceEvent],
    nodes: Sequence[ComputeNode] = (),
    own_hosts: Collection[str] = (),
    now: float | None = None,
    other_cell_timeout: float = 0.0,
) -> Applied:
    """Apply the instance events of one page, take over the capacities of ``nodes``, and advance the cursor by compare-and-set.

    An event is applied only if the mapping names the feed's cell and the event is newer than the last one applied. MOVED and ACTIVE
    events that name a host of another cell are ignored and returned. ENDED events are applied whatever host they name.

    ``own_hosts``: hosts known to be the cell's; the others are looked up.
    ``now``: the time for summaries, by this database's clock; None: the time from the cell. ``other_cell_timeout``: seconds that
    builds which no host of the cell could take get in another one; 0: they stay in ERROR.
    Raises ``errors.Conflict`` if another reader moved the cursor: nothing is written, and the page must be read again.
    """
    moved_cursor = tx.execute(_ADVANCE, {"cell": position.cell_uuid, "read": position.cursor, "upto": position.upto}).rowcount
    if not moved_cursor:
        raise errors.Conflict(f"the feed of cell {position.cell_uuid} is read by another applier")
    refused = _on_foreign_hosts(tx, position.cell_uuid, events, own_hosts)
    by_uuid: dict[str, list[InstanceEvent]] = {}
    for event in events:
        if event not in refused:
            by_uuid.setdefault(event.key, []).append(event)
    if by_uuid:
        _apply_claims(tx, stamp, position.cell_uuid, by_uuid, [node.host for node in nodes])
        _APPLY(tx, [_summary_parameters(position.cell_uuid, by_uuid[uuid][-1], now) for uuid in sorted(by_uuid)])
        if ended := [uuid for uuid, server_events in by_uuid.items() if any(e.kind is EventKind.ENDED for e in server_events)]:
            addresses.free_addresses(tx, ended, time.time() if now is None else now)  # after the states are written
        if other_cell_timeout and now is not None:
            exhausted = [uuid for uuid, server_events in by_uuid.items() if server_events[-1].summary.exhausted]
            respawn.queue_respawns(tx, exhausted, now, other_cell_timeout)
    return Applied(refused, claims.set_inventory(tx, stamp, nodes, position.cell_uuid) if nodes else set())


_PLACING = (EventKind.MOVED, EventKind.ACTIVE, EventKind.TASK)
"""Events that say on which host an instance is."""


def _on_foreign_hosts(
    tx: ApiTransaction, cell_uuid: str, events: Sequence[InstanceEvent], own_hosts: Collection[str]
) -> list[InstanceEvent]:
    """The events that place an instance on a host that a host mapping or an inventory assigns to another cell."""
    placed = [event for event in events if event.kind in _PLACING]
    hosts = sorted({event.summary.host for event in placed if event.summary.host} - {*own_hosts})
    if not hosts:
        return []
    foreign: set[str] = set()
    for page in dialect.split_pages(hosts):
        homes = tx.execute(_HOMES, {"hosts": page})
        foreign.update(host for host, home in homes if home not in (cell_uuid, ""))
    return [event for event in placed if event.summary.host in foreign]


def _apply_claims(
    tx: ApiTransaction, stamp: claims.Stamp, cell_uuid: str, by_uuid: Mapping[str, list[InstanceEvent]], reporting: Sequence[str]
) -> None:
    """Release and move claims as the events say. Most builds become ACTIVE on their claim's host and need no query here."""
    last = {uuid: events[-1].summary for uuid, events in by_uuid.items()}
    bearing = [
        uuid
        for uuid, events in by_uuid.items()
        if last[uuid].has_group or any(event.kind not in (EventKind.ACTIVE, EventKind.TASK) for event in events)
    ]
    if not bearing:
        return
    seen: dict[str, int] = {}
    every = sorted(by_uuid)  # all mappings: the caller writes them all, after the claims, which would break the lock order
    for page in dialect.split_pages(every):
        for row in tx.execute(_FRESH, {"uuids": page, "cell": cell_uuid}):
            seen[row.instance_uuid] = row.seen
    fresh = {uuid: [e for e in by_uuid[uuid] if e.version > seen[uuid]] for uuid in bearing if uuid in seen}
    ended = [uuid for uuid, events in fresh.items() if any(e.kind is EventKind.ENDED for e in events)]
    moves = [
        claims.ClaimMove(instance_uuid=uuid, host=last[uuid].host or "", node=last[uuid].node or "", cell_uuid=cell_uuid)
        for uuid, events in fresh.items()
        if uuid not in ended and any(e.kind is EventKind.MOVED for e in events)
    ]
    built = [
        uuid
        for uuid, events in fresh.items()
        if uuid not in ended and last[uuid].has_group and any(e.kind is EventKind.ACTIVE for e in events)
    ]
    if sum(map(bool, (ended, moves, reporting))) > 1:
        moving = [move.instance_uuid for move in moves]
        claims.lock_places(tx, [*ended, *moving], [*(move.host for move in moves), *reporting])
    if ended:
        claims.release_claims(tx, stamp, ended)
    if moves:
        claims.move_claims(tx, stamp, moves)
    if built:
        claims.free_slots(tx, built)


def _summary_parameters(cell_uuid: str, event: InstanceEvent, now: float | None) -> dict[str, object]:
    summary = event.summary
    return {
        "uuid": event.key,
        "cell": cell_uuid,
        "version": event.version,
        "new_state": summary.state,
        "new_host": summary.host,
        "new_node": summary.node,
        "new_zone": summary.availability_zone,
        "new_updated_at": summary.updated_at if now is None else now,
        "new_launched_at": summary.launched_at,
        "new_terminated_at": summary.terminated_at,
        "new_fault": summary.fault,
        "new_power": summary.power,
        "new_task_number": summary.task_number,
        "new_task_state": summary.task_state,
        "new_task_fault": summary.task_fault,
        "new_task_stored": stored.dump_value(summary.task_stored) if summary.task_stored is not None else None,
    }
