"""Adopt servers that a cell has rows of but whose hand-over the API database lost: write again everything that it lost.

This happens after the API database was restored from a backup. The cell's rows are the truth: a row past STAGED was handed over,
since no agent is granted a row before that. A row of a later body may move its server's pointer
(``db/api/reconcile/operation_repair.py``). A tombstone with a snapshot is adopted too: its server was shelved, and
``operation_repair.shelve_again`` makes that so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from db.api.claims import claim_repair, claims
from db.api.projects import quotas
from db.api.reconcile import operation_repair, repair
from db.api.rows.ledger import Stamp
from db.api.rows.tables import allocations, build_requests, instance_mappings
from db.api.servers import addresses
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from objects import stored
from objects.cell import CELL0_UUID
from objects.instance import State
from objects.instance_row import Stray
from objects.quota import QuotaUsage
from objects.selection import Selection
from objects.spec import RequestSpec
from objects.text import hostname_of

ROWS_PER_TRANSACTION = 100
"""Rows adopted in one transaction."""

RUNNING = frozenset({State.SCHEDULED, State.BUILDING, State.ACTIVE})
"""States of rows that need a claim."""


_M = instance_mappings.c
_REQUEST = sa.delete(build_requests).where(
    build_requests.c.instance_uuid == sa.bindparam("uuid"),
    sa.exists().where(_M.instance_uuid == build_requests.c.instance_uuid, _M.cell_uuid.is_(None), _M.deleted.is_(sa.false())),
)
_UNDECIDED = (_M.instance_uuid == sa.bindparam("uuid"), _M.cell_uuid.is_(None), _M.deleted.is_(sa.false()))
_LOCK = by_index(sa.select(_M.batch_id).where(*_UNDECIDED).with_for_update(), instance_mappings)
_DECIDE = (
    sa.update(instance_mappings)
    .where(*_UNDECIDED)
    .values(
        cell_uuid=sa.bindparam("to_cell"),
        fence=sa.bindparam("to_fence"),
        seen=sa.bindparam("to_seen"),
        state=sa.bindparam("to_state"),
        host=sa.bindparam("to_host"),
        node=sa.bindparam("to_node"),
        availability_zone=sa.bindparam("to_zone"),
        fault=sa.bindparam("to_fault"),
        power=sa.bindparam("to_power"),
        task_number=sa.bindparam("to_task_number"),
        task_state=sa.bindparam("to_task_state"),
        mapped_at=sa.bindparam("now"),
        updated_at=sa.bindparam("now"),
    )
)
_DECIDED = ("fence", "seen", "state", "host", "node", "fault", "power", "task_number", "task_state")
_CLAIM = sa.select(allocations.c.instance_uuid).where(allocations.c.instance_uuid == sa.bindparam("uuid"))


def adopt_strays(tx: ApiTransaction, stamp: Stamp, strays: Sequence[Stray], cell_uuid: str, now: float) -> list[str]:
    """Map these rows to their cell, with request spec, quota, claim and addresses; return the uuids adopted.

    Guard: there is no mapping, or it names no cell and is not deleted. A request that is still queued is removed first, so that the
    conductor that drives it loses at the hand-over. A server deleted in the cell is deleted here too. The cell is not changed.
    """
    specs = {stray.row.batch_id or stray.row.uuid: stray.spec for stray in strays if stray.spec is not None}
    repair.put_back_specs(tx, specs, now)
    ordered = sorted(strays, key=_uuid_of)
    for stray in ordered:  # requests before mappings: the order of every transaction that decides a boot
        tx.execute(_REQUEST, {"uuid": stray.row.uuid})
    adopted = [stray for stray in ordered if _map_stray(tx, stray, cell_uuid, now)]
    operation_repair.follow_rows(tx, adopted, now)
    running = [stray for stray in adopted if stray.row.state in RUNNING and stray.row.host]
    claims.lock_places(tx, [stray.row.uuid for stray in adopted], sorted({stray.row.host or "" for stray in running}))
    for stray in running:
        _claim_host(tx, stamp, stray, cell_uuid)
    claims.release_claims(tx, stamp, [stray.row.uuid for stray in adopted if stray.row.state is State.ERROR])
    addresses.take_back(tx, {stray.row.uuid_of_server: stray.ports for stray in adopted if stray.ports}, now)
    for stray in adopted:
        if stray.is_leaving:
            operation_repair.delete_ended(tx, stamp, stray.row.uuid, now)
    return [stray.row.uuid for stray in adopted]


def _uuid_of(stray: Stray) -> str:
    return stray.row.uuid


def _map_stray(tx: ApiTransaction, stray: Stray, cell_uuid: str, now: float) -> bool:
    row = stray.row
    shown = _mapping_columns(stray, cell_uuid)
    if tx.execute(_LOCK, {"uuid": row.uuid}).one_or_none() is not None:
        values = {f"to_{name}": shown[name] for name in _DECIDED}
        values |= {"uuid": row.uuid, "to_cell": cell_uuid, "to_zone": row.availability_zone, "now": now}
        return bool(tx.execute(_DECIDE, values).rowcount)
    if row.state is State.DELETED and stray.snapshot is None:
        return False  # a deleted server needs no mapping
    if row.server_uuid is not None and not operation_repair.give_home(tx, stray, now):
        return False
    size = _charged_size(stray)
    values = shown | {"instance_uuid": row.uuid, "cell_uuid": cell_uuid, "updated_at": now, "mapped_at": now}
    values |= {"server_uuid": row.server_uuid, "turn": row.turn, "hidden": row.server_uuid is not None}
    spec = _decode_spec(stray)
    hostname = spec.properties.hostname if spec is not None else None
    values["hostname"] = hostname or hostname_of(row.name, row.uuid_of_server)
    if size is not None:
        values |= {"vcpus": size.cores, "memory_mb": size.ram}
    if not dialect.insert_new(tx, instance_mappings, [values]):
        return False
    if size is not None:
        quotas.add_usage(tx, row.project_id, {row.user_id: size})
    return True


def _mapping_columns(stray: Stray, cell_uuid: str) -> dict[str, Any]:
    """The mapping's columns. ``seen`` is one below the row's version, so that the feed can update the rest; cell0 has no feed."""
    row = stray.row
    return {
        "batch_id": row.batch_id or row.uuid,
        "deleted": False,
        "fence": row.fence,
        "seen": row.version if cell_uuid == CELL0_UUID else max(0, row.version - 1),
        "project_id": row.project_id,
        "user_id": row.user_id,
        "name": row.name,
        "launch_index": row.launch_index,
        "created_at": row.created_at,
        "state": {State.ACTIVE: "active", State.ERROR: "error"}.get(row.state, "building"),
        "host": row.host,
        "node": row.node,
        "availability_zone": row.availability_zone,
        "fault": stray.fault,
        "power": row.power,
        "task_number": row.task_number,
        "task_state": row.task_state,
    }


def _decode_spec(stray: Stray) -> RequestSpec | None:
    if stray.spec is None:
        return None
    try:
        return stored.load_text(stray.spec, RequestSpec)
    except msgspec.ValidationError:  # the server is mapped anyway; the audit reports what is missing
        return None


def _charged_size(stray: Stray) -> QuotaUsage | None:
    spec = _decode_spec(stray)
    if spec is None:
        return None
    return msgspec.structs.replace(QuotaUsage.of_flavor(spec.flavor), instances=0 if stray.row.server_uuid else 1)


def _claim_host(tx: ApiTransaction, stamp: Stamp, stray: Stray, cell_uuid: str) -> None:
    """Claim on the row's host even if it is full, because the guest is there."""
    row, spec = stray.row, _decode_spec(stray)
    host, node = row.host or "", row.node or ""
    if tx.execute(_CLAIM, {"uuid": row.uuid}).one_or_none() is not None:
        claims.move_claims(tx, stamp, [claims.ClaimMove(instance_uuid=row.uuid, host=host, node=node)])
    elif spec is not None:
        lost = claim_repair.Unclaimed(
            instance_uuid=row.uuid,
            seen=max(0, row.version - 1),
            fence=row.fence,
            takes=spec.taken_amounts,
            selection=Selection(host=host, node=node, cell_uuid=cell_uuid, fence=row.fence),
            group=spec.group,
            fault_domain=spec.fault_domain,
        )
        claim_repair.restore_claim(tx, stamp, lost)
