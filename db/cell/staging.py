"""Rows written before hand_over: staged, settled away again, and inert in between.

Nobody in a cell acts on a STAGED row, and writing or removing one tells the feed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import sqlalchemy as sa

from db import secrets
from db.cell.tables import block_device_mappings, builds, instance_actions, instance_faults, instances, tags
from db.sql import dialect
from db.sql.clock import is_stale
from db.sql.connection import CellTransaction
from objects import stored
from objects.base import Object
from objects.instance import Instance, State
from objects.spec import RequestSpec
from objects.task import Power

# made once: finding a new statement among the compiled ones costs as much as running it
_BUILDS, _TAGS, _DEVICES, _FAULTS = (sa.insert(table) for table in (builds, tags, block_device_mappings, instance_faults))


class NewInstance(Object, frozen=True, kw_only=True):
    """An instance row to be staged: the protocol's view and what only the tenant cares about."""

    instance: Instance
    name: str
    launch_index: int
    created_at: float


class StagedPart(Object, frozen=True, kw_only=True):
    """Rows of one batch that are to be staged. ``sealed``: the batch's secrets, where it has some and a host is to have them."""

    spec: RequestSpec
    news: tuple[NewInstance, ...]
    sealed: str | None = None

    def __repr__(self) -> str:
        return f"Part({self.spec.batch_id}, {len(self.news)} instances)"


def stage_instances(
    tx: CellTransaction, spec: RequestSpec, news: Sequence[NewInstance], now: float, sealed: str | None = None
) -> list[str]:
    """Write STAGED rows; nobody in the cell acts on them. Returns the uuids that now stand as asked.

    Absent: inserted. STAGED under a lower fence: overwritten. STAGED under the same fence: was done before. Anything else is
    refused and left alone: the caller has lost that one. ``sealed``: the batch's secrets, where it has some and a host is to have
    them; they are written first (``db/secrets.py`` says why).
    """
    return stage_all(tx, [StagedPart(spec=spec, news=tuple(news), sealed=sealed)], now)


def stage_all(tx: CellTransaction, parts: Sequence[StagedPart], now: float) -> list[str]:
    """The same for several batches: in as many statements as for one, unless some of these rows were there before."""
    secrets.keep_builds(tx, {part.spec.batch_id: part.sealed for part in parts if part.sealed is not None}, now)
    rows = [_instance_row(part.spec, new, now) for part in parts for new in part.news]
    if any(new.instance.turn for part in parts for new in part.news):
        rows = [_FIRST_BODY | row for row in rows]  # one statement has the same columns for all
    inserted = dialect.insert_new(tx, instances, sorted(rows, key=itemgetter("uuid")))
    if inserted < len(rows):
        in_order = sorted(parts, key=attrgetter("spec.batch_id"))
        return [uuid for part in in_order for uuid in _restage_instances(tx, part.spec, part.news, now)]
    texts = {part.spec.batch_id: stored.dump_value(part.spec) for part in parts}
    tx.execute(_BUILDS, [_build_row(new.instance, texts[part.spec.batch_id]) for part in parts for new in part.news])
    _attach_details(tx, parts, now)
    return [str(row["uuid"]) for row in rows]


def _restage_instances(tx: CellTransaction, spec: RequestSpec, news: Sequence[NewInstance], now: float) -> list[str]:
    """The rare path: some uuid was there before. Which of the others were just inserted is told by their missing build."""
    text = stored.dump_value(spec)
    staged: list[str] = []
    by_uuid = {new.instance.uuid: new for new in news}
    query = (
        sa.select(instances.c.uuid, instances.c.state, instances.c.fence, builds.c.instance_uuid.label("build"))
        .select_from(instances.outerjoin(builds, builds.c.instance_uuid == instances.c.uuid))
        .where(instances.c.uuid.in_(sorted(by_uuid)))
        .order_by(instances.c.uuid)
        .with_for_update(of=instances)
    )
    for row in tx.execute(query).all():
        new = by_uuid[row.uuid]
        if row.state != State.STAGED or row.fence > new.instance.fence:
            continue
        staged.append(row.uuid)
        if row.build is None:
            tx.execute(_BUILDS, _build_row(new.instance, text))
            _attach_details(tx, [StagedPart(spec=spec, news=(new,))], now)
        elif row.fence < new.instance.fence:
            tx.execute(sa.update(instances).where(instances.c.uuid == row.uuid), _instance_row(spec, new, now) | {"uuid": row.uuid})
            tx.execute(sa.update(builds).where(builds.c.instance_uuid == row.uuid), _build_row(new.instance, text))
            tx.execute(sa.delete(instance_faults).where(instance_faults.c.instance_uuid == row.uuid))
            if new.instance.fault:
                tx.execute(_FAULTS, fault_row(new.instance, now))
    return [new.instance.uuid for new in news if new.instance.uuid in staged]


def _instance_row(spec: RequestSpec, new: NewInstance, now: float) -> dict[str, Any]:
    row = new.instance
    later_body = {"server_uuid": row.server_uuid, "turn": row.turn, "power": row.power} if row.turn else {}
    return {
        "uuid": row.uuid,
        "state": row.state,
        "fence": row.fence,
        "attempt": row.attempt,
        "builder": None,
        "version": 0,
        "host": row.host,
        "node": row.node,
        "availability_zone": row.availability_zone,
        "batch_id": spec.batch_id,
        "project_id": spec.project_id,
        "user_id": spec.user_id,
        "name": new.name,
        "flavor": spec.flavor.name,
        "launch_index": new.launch_index,
        "created_at": new.created_at,
        "updated_at": now,
    } | later_body


_FIRST_BODY: dict[str, Any] = {"server_uuid": None, "turn": 0, "power": Power.ON}
"""What columns that only later bodies of a server have are by default."""


def _build_row(row: Instance, spec_text: str) -> dict[str, Any]:
    return {
        "instance_uuid": row.uuid,
        "spec": spec_text,
        "limits": stored.dump_value(row.limits),
        "alternates": stored.dump_value(row.alternates),
        "max_attempts": row.max_attempts,
        "history": stored.dump_value(row.history),
        "deadline": row.deadline,
        "has_group": row.has_group,
        "sent_at": 0.0,
        "ports": stored.dump_value(row.ports) if row.ports else None,
    }


def _attach_details(tx: CellTransaction, parts: Sequence[StagedPart], now: float) -> None:
    """What hangs off an instance from its first moment: tags, block devices, and in cell0 the fault."""
    words: list[dict[str, Any]] = []
    devices: list[dict[str, Any]] = []
    for part in parts:
        mappings = [(position, stored.dump_value(device)) for position, device in enumerate(part.spec.properties.block_devices)]
        for new in part.news:
            uuid = new.instance.uuid
            words += [{"instance_uuid": uuid, "tag": tag} for tag in part.spec.properties.tags]
            devices += [{"instance_uuid": uuid, "position": position, "mapping": text} for position, text in mappings]
    faults = [fault_row(new.instance, now) for part in parts for new in part.news if new.instance.fault]
    for statement, rows in ((_TAGS, words), (_DEVICES, devices), (_FAULTS, faults)):
        if rows:
            tx.execute(statement, rows)


def list_staged(tx: CellTransaction, before: float, limit: int, after: str = "") -> dict[str, int]:
    """Fences of rows that have been STAGED since before ``before``, by uuid from ``after`` on: the settler's work."""
    query = (
        sa.select(instances.c.uuid, instances.c.fence)
        .where(instances.c.state == State.STAGED, is_stale(instances.c.updated_at, before), instances.c.uuid > after)
        .order_by(instances.c.uuid)
        .limit(limit)
    )
    return {row.uuid: row.fence for row in tx.execute(query)}


def remove_staged(tx: CellTransaction, uuids: Iterable[str], below: Mapping[str, int] | None = None) -> None:
    """Remove rows that are STAGED and whose uuid was decided to be elsewhere, or nowhere. No feed event.

    ``below``: only if they are STAGED under a lower fence than this, by uuid.
    """
    for uuid in sorted(uuids):
        inert = [instances.c.uuid == uuid, instances.c.state == State.STAGED]
        if below is not None:
            inert.append(instances.c.fence < below[uuid])
        if tx.execute(sa.delete(instances).where(*inert)).rowcount:
            _remove_parts(tx, uuid)


def replace_lost(tx: CellTransaction, spec: RequestSpec, new: NewInstance, now: float) -> bool:
    """Write a row in the state given where a decided instance has none any more; False if there is one. No feed event."""
    if not dialect.insert_new(tx, instances, [_instance_row(spec, new, now)]):
        return False
    _remove_parts(tx, new.instance.uuid)  # of the lost row
    tx.execute(_BUILDS, _build_row(new.instance, stored.dump_value(spec)))
    _attach_details(tx, [StagedPart(spec=spec, news=(new,))], now)
    return True


def _remove_parts(tx: CellTransaction, uuid: str) -> None:
    for table in (builds, tags, block_device_mappings, instance_actions, instance_faults):
        tx.execute(sa.delete(table).where(table.c.instance_uuid == uuid))


def fault_row(row: Instance, now: float) -> dict[str, Any]:
    """A row of instance_faults: the sentence, and the attempts behind it as JSON."""
    return {
        "instance_uuid": row.uuid,
        "code": 500,
        "message": row.fault,
        "details": stored.dump_value(row.history),
        "created_at": now,
    }
