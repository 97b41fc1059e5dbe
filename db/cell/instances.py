"""Instance rows of a cell: transitions change them, sweeps read them.

``objects/lifecycle.py`` decides what may change. This module locks and writes the rows and appends to the feed, in one transaction.
``db/cell/instance_rows.py`` converts rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import sqlalchemy as sa

from db import outbox
from db.cell import actions, feed, instance_rows
from db.cell.instance_rows import LAST_FAULT, PROTOCOL
from db.cell.tables import builds, instances
from db.sql import dialect
from db.sql.clock import is_stale
from db.sql.connection import CellTransaction
from db.sql.keyed import by_index
from objects import lifecycle, notification, stored
from objects.action import ActionKind
from objects.base import Object
from objects.build import Holding
from objects.feed import InstanceSummary
from objects.instance import Instance, State
from objects.lifecycle import Change, Outcome, Refused
from objects.spec import RequestSpec

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Order(Object, frozen=True, kw_only=True):
    """Everything needed to send an instance's build order, or to send it again."""

    instance: Instance
    name: str
    spec: RequestSpec


class Orders(NamedTuple):
    """The orders that could be read, and the errors of the others by uuid."""

    orders: list[Order]
    unreadable: dict[str, Exception]


class DueRow(NamedTuple):
    """A row for a sweep, with columns that need no decoding, so that it can always be read."""

    uuid: str
    state: str
    host: str | None
    fence: int
    attempt: int
    batch_id: str | None
    rolled_back: bool


# -- transitions -------------------------------------------------------------------------------------------------------------


def transition_rows(
    tx: CellTransaction, uuids: Iterable[str], decide: Callable[[Instance], Outcome], now: float
) -> dict[str, Outcome]:
    """Lock the rows in uuid order, call ``decide`` for each, and write its changes and their feed events.

    The outcome of a uuid without a row is Refused.
    """
    outcomes = carry_out(tx, uuids, decide, now)
    append_changes(tx, outcomes.values(), now)
    return outcomes


def carry_out(tx: CellTransaction, uuids: Iterable[str], decide: Callable[[Instance], Outcome], now: float) -> dict[str, Outcome]:
    """``transition_rows`` without the feed events, which the caller tells last."""
    outcomes: dict[str, Outcome] = {}
    changes: list[tuple[Instance, Change]] = []
    ordered_uuids = sorted(set(uuids))
    for page in dialect.split_pages(ordered_uuids):
        for row in instance_rows.lock_rows(tx, page):
            outcomes[row.uuid] = outcome = decide(row)
            if isinstance(outcome, Change):
                changes.append((row, outcome))
    instance_rows.write(tx, changes, now)
    if outbox.is_kept(tx):
        outbox.put_notices(tx, "cell", notification.of_changes([(old, change.row) for old, change in changes], now))
    return {uuid: outcomes.get(uuid, Refused(reason="no such instance in this cell", known=False)) for uuid in ordered_uuids}


def delete(tx: CellTransaction, uuids: Iterable[str], now: float, request_id: str | None = None) -> dict[str, Instance]:
    """Carry decided deletes into the cell; return the rows as they are now. A missing row gets a tombstone.

    ``request_id``: the API request that asked for the delete, if known, for the instances' actions.
    """
    ordered_uuids = sorted(set(uuids))
    outcomes = carry_out(tx, ordered_uuids, lambda row: lifecycle.delete(row, now), now)
    changes = [outcome for outcome in outcomes.values() if isinstance(outcome, Change)]
    rows = {uuid: outcome.row for uuid, outcome in outcomes.items() if isinstance(outcome, Change)}
    refused = [uuid for uuid in ordered_uuids if uuid not in rows]
    present = {row.uuid: row for row in read(tx, refused)}
    absent = [lifecycle.make_tombstone(uuid, now) for uuid in refused if uuid not in present]
    for change in absent:
        values = {"uuid": change.row.uuid, "state": change.row.state, "fence": 0, "attempt": 0, "version": change.row.version}
        times = {"created_at": now, "updated_at": now, "terminated_at": now}
        texts = {"project_id": "", "user_id": "", "name": "", "flavor": "", "launch_index": 0}
        if dialect.insert_new(tx, instances, [values | times | texts]):
            changes.append(change)
            rows[change.row.uuid] = change.row
            if outbox.is_kept(tx):
                outbox.put_notices(tx, "cell", notification.of_change(None, change.row, now))
    actions.begin_actions(tx, ActionKind.DELETE, [change.row.uuid for change in changes], request_id, now)
    append_changes(tx, changes, now)
    return rows | present


def append_changes(tx: CellTransaction, changes: Iterable[Outcome], now: float) -> None:
    """Append the feed events of these changes: the last thing of a transaction, because it locks the feed's head."""
    feed.append_events(
        tx,
        [
            feed.NewEvent(
                kind=change.event,
                key=change.row.uuid,
                version=change.row.version,
                payload=stored.dump_value(summary_of(change.row, now)),
            )
            for change in changes
            if isinstance(change, Change) and change.event is not None
        ],
        now,
    )


def summary_of(row: Instance, now: float) -> InstanceSummary:
    """The summary of a row that lists show without querying the cell."""
    shown = {State.ACTIVE: "active", State.ERROR: "error", State.DELETED: "deleted"}.get(row.state, "building")
    return InstanceSummary(
        state=shown,
        host=row.host,
        node=row.node,
        availability_zone=row.availability_zone,
        launched_at=row.launched_at,
        terminated_at=row.terminated_at,
        updated_at=now,
        fault=row.fault,
        attempt=row.attempt,
        has_group=row.has_group,
        batch_id=row.batch_id,
        power=row.power,
        task_number=row.task_number,
        task_state=row.task_state,
        task_fault=row.task_fault,
        task_stored=row.task_stored,
        server_uuid=row.server_uuid,
        exhausted=lifecycle.is_exhausted(row),
    )


# -- reading -----------------------------------------------------------------------------------------------------------------


_SHOW = PROTOCOL.add_columns(LAST_FAULT).where(instances.c.uuid == sa.bindparam("uuid"))


def read(tx: CellTransaction, uuids: Iterable[str]) -> list[Instance]:
    """The rows of these uuids with their latest faults, unlocked, in uuid order."""
    rows: list[Instance] = []
    for page in dialect.split_pages(sorted(set(uuids))):
        query = PROTOCOL.add_columns(LAST_FAULT).where(instances.c.uuid.in_(page)).order_by(instances.c.uuid)
        rows += [instance_rows.instance_from_row(row, row.fault) for row in tx.execute(query)]
    return rows


def get(tx: CellTransaction, uuid: str) -> Instance | None:
    """One row with its latest fault."""
    row = tx.execute(_SHOW, {"uuid": uuid}).one_or_none()
    return None if row is None else instance_rows.instance_from_row(row, row.fault)


_ORDER = PROTOCOL.add_columns(instances.c.name, builds.c.spec)


def list_unaccepted(tx: CellTransaction, before: float, limit: int) -> Orders:
    """At most ``limit`` SCHEDULED rows whose order was last sent before ``before``, the longest waiting first.

    The order of a row that the settler has just activated was never sent, so it is due at once.
    """
    query = (
        _ORDER.where(instances.c.state == State.SCHEDULED, is_stale(builds.c.sent_at, before))
        .order_by(builds.c.sent_at, instances.c.updated_at)
        .limit(limit)
    )
    return _read_orders(tx, query)


def orders_of(tx: CellTransaction, uuids: Iterable[str]) -> Orders:
    """The orders of these instances."""
    return _read_orders(tx, _ORDER.where(instances.c.uuid.in_(sorted(uuids))))


_SENT = by_index(
    sa.update(builds).where(builds.c.instance_uuid.in_(dialect.uuids_parameter())).values(sent_at=sa.bindparam("now")), builds
)


def record_sent(tx: CellTransaction, uuids: Iterable[str], now: float) -> None:
    """Record when orders were sent again, so that the sweep gives agents time to accept them."""
    tx.execute(_SENT, {"uuids": sorted(uuids), "now": now})


_I = instances.c
_FOUND = sa.select(
    *(_I[name] for name in ("uuid", "state", "host", "fence", "attempt", "batch_id")),
    _I.rolled_back.is_not(None).label("rolled_back"),
)


def find_row(tx: CellTransaction, uuid: str) -> DueRow | None:
    """The row of this uuid, or None."""
    return next(iter(_due_rows(tx, _FOUND.where(_I.uuid == uuid))), None)


def in_state(tx: CellTransaction, states: Sequence[State], before: float, limit: int, after: str = "") -> list[DueRow]:
    """At most ``limit`` rows in these states, last changed before ``before``, by uuid, after ``after``."""
    query = _FOUND.where(_I.state.in_(states), is_stale(_I.updated_at, before), _I.uuid > after).order_by(_I.uuid).limit(limit)
    return _due_rows(tx, query)


def on_hosts(tx: CellTransaction, hosts: Sequence[str], states: Sequence[State]) -> list[DueRow]:
    """Rows in these states on these hosts."""
    return _due_rows(tx, _FOUND.where(_I.host.in_(sorted(hosts)), _I.state.in_(states)))


def list_movable(tx: CellTransaction, hosts: Sequence[str]) -> list[DueRow]:
    """SCHEDULED builds on these hosts that have alternates."""
    query = _FOUND.join(builds, builds.c.instance_uuid == _I.uuid)
    return _due_rows(tx, query.where(_I.host.in_(sorted(hosts)), _I.state == State.SCHEDULED, builds.c.alternates != "[]"))


LATEST_TIME = 1e15
"""Seconds since the epoch. A deadline after it, or one that is not a number, is invalid and counts as passed."""

BUILDS = instances.outerjoin(builds, builds.c.instance_uuid == instances.c.uuid)
OVERDUE = sa.and_(
    instances.c.state.in_(sorted(lifecycle.LIVE)),
    instances.c.turn == 0,  # of later bodies the operation decides
    # A build without a record can never be ordered again, so it is overdue once it has not changed for a while.
    sa.case(
        (builds.c.instance_uuid.is_(None), is_stale(_I.updated_at, sa.bindparam("before", type_=sa.Double()))),
        else_=sa.not_(builds.c.deadline.between(sa.bindparam("now"), LATEST_TIME)),
    ),
)
"""SQL condition on BUILDS: a server's boot that is unfinished and past its deadline at ``now``.

Without a record of the build: unchanged since ``before``."""
_OVERDUE = _FOUND.select_from(BUILDS).where(OVERDUE, _I.uuid > sa.bindparam("after")).order_by(_I.uuid)


def list_overdue(tx: CellTransaction, now: float, before: float, limit: int, after: str = "") -> list[DueRow]:
    """At most ``limit`` unfinished builds past their deadline, by uuid, after ``after``. ``before``: see ``OVERDUE``."""
    return _due_rows(tx, _OVERDUE.limit(limit), {"now": now, "before": before, "after": after})


_HOLDINGS = sa.select(_I.uuid, _I.state, _I.fence, _I.attempt, _I.builder, _I.power, _I.task_number, _I.task_state).where(
    _I.host == sa.bindparam("host"), _I.state.in_([*lifecycle.LIVE, State.ACTIVE, State.DELETING])
)


def list_holdings(tx: CellTransaction, host: str) -> list[Holding]:
    """The instances that this cell's rows place on a host, finished or not, without ERROR and STAGED rows."""
    rows = tx.execute(_HOLDINGS, {"host": host})
    return [
        Holding(
            instance_uuid=r.uuid,
            state=r.state,
            fence=r.fence,
            attempt=r.attempt,
            builder=r.builder,
            power=r.power,
            task_number=r.task_number,
            task_state=r.task_state,
        )
        for r in rows
    ]


def _due_rows(tx: CellTransaction, query: sa.Select[Any], parameters: Mapping[str, Any] = NOTHING) -> list[DueRow]:
    return [DueRow(*row) for row in tx.execute(query, parameters)]


def _read_orders(tx: CellTransaction, query: sa.Select[Any]) -> Orders:
    readable, unreadable = list[Order](), dict[str, Exception]()
    for row in tx.execute(query):
        try:
            spec = stored.load_text(row.spec, RequestSpec)
            if not (isinstance(row.fence, int) and isinstance(row.attempt, int)):
                raise TypeError(f"fence {row.fence!r} or attempt {row.attempt!r} is no number")
        except instance_rows.UNREADABLE as error:
            unreadable[row.uuid] = error
        else:
            readable.append(Order(instance=instance_rows.instance_from_row(row), name=row.name, spec=spec))
    return Orders(readable, unreadable)
