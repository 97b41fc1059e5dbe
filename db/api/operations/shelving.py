"""What becomes of a server whose snapshot is complete: it leaves its host.

A shelved server that has left its host is a body in no cell, without a build request: a mapping in state *shelved*, and a request
spec that names the snapshot. ``docs/moves.md`` has the guards.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any

import msgspec

from db.api.claims import claims
from db.api.operations import operations, steps
from db.api.operations.accepting import current, insert_mappings, insert_specs, turn_of
from db.api.operations.operations import Body, OpenOperation
from db.api.operations.steps import Stepped
from db.api.projects import quotas
from db.api.servers import mappings
from db.sql.connection import ApiTransaction
from objects import errors
from objects.base import Object
from objects.move import Move, MoveKind
from objects.operation import Initiator, OperationState, Outcome
from objects.quota import QuotaUsage, shares
from objects.spec import RequestSpec
from objects.task import Power


class ShelvedBody(Object, frozen=True, kw_only=True):
    """A body to be made, of an operation with its source."""

    opened: OpenOperation
    source: Body
    spec: RequestSpec
    uuid: str


def offload(tx: ApiTransaction, stamp: claims.Stamp, uuids: Collection[str], now: float, *, has_left: bool = False) -> Stepped:
    """These servers leave their hosts: each is a shelved body now, and its source is deleted.

    ``has_left``: their bodies have ended in their cells, and the image store has the snapshots. Raises errors.Conflict if a request
    spec cannot be read; the caller must then roll back.
    """
    locked = operations.lock(tx, uuids, (OperationState.SHELVED,))
    ready = [
        (each, each.source)
        for each in locked.operations
        if each.source is not None and (has_left or _is_complete(each, each.source))
    ]
    specs = mappings.specs(tx, {source.server.batch_id for _, source in ready})
    made = [
        ShelvedBody(opened=each, source=source, spec=_spec(each, source, specs.get(source.server.batch_id)), uuid=str(uuid.uuid4()))
        for each, source in ready
    ]
    if not made:
        return steps.NOTHING
    insert_specs(tx, [each.spec for each in made], now)
    insert_mappings(tx, [(each.source, _mapping(each, now)) for each in made])
    bodies = operations.bodies(tx, [each.uuid for each in made])
    steps.point(tx, [(each.opened, bodies[each.uuid], each.source) for each in made], now)
    initiators = {each.source.server.uuid: Initiator.of(each.opened.operation) for each in made}
    deleted = steps.drop(tx, stamp, [each.source for each in made], initiators, now)
    sources = [each.source for each in made]
    charges = [(s.server.project_id, s.server.user_id, QuotaUsage(cores=s.charge[0], ram=s.charge[1])) for s in sources]
    for project, more in shares(charges).items():
        quotas.add(tx, project, more)
    operations.end(tx, [each.opened.operation for each in made], Outcome.DONE, now)
    return Stepped(operations=tuple(each.opened for each in made), deleted=tuple(deleted))


def _is_complete(each: OpenOperation, source: Body) -> bool:
    """Whether the cell has told that the snapshot is complete, and that the guest may not run any more."""
    return source.is_held(each.operation.number) and not source.hidden


def _spec(each: OpenOperation, source: Body, spec: RequestSpec | None) -> RequestSpec:
    """``spec``: that of the source's request."""
    if spec is None:
        raise errors.Conflict(f"Instance {source.server.uuid} cannot be offloaded: its request cannot be read")
    told = source.server.task_stored
    move = Move(
        kind=MoveKind.UNSHELVE,
        instance_uuid=source.uuid,
        source_host="",
        source_cell_uuid="",
        image_id=each.operation.uuid,
        image_hash=told.hash_value if told is not None else "",
    )
    shelved = current(spec, source.server).moving(move, str(uuid.uuid4()))
    return msgspec.structs.replace(shelved, request_id=each.operation.request_id, has_secrets=False)


def _mapping(each: ShelvedBody, now: float) -> dict[str, Any]:
    operation, (cores, ram) = each.opened.operation, each.source.charge
    return {
        "instance_uuid": each.uuid,
        "batch_id": each.spec.batch_id,
        "deleted": False,
        "fence": 0,
        "seen": 0,
        "state": "shelved",
        "availability_zone": each.spec.availability_zone,
        "updated_at": now,
        "launched_at": each.source.server.launched_at,
        "server_uuid": operation.server_uuid,
        "turn": turn_of(operation.number),
        "hidden": True,
        "power": Power.OFF,
        "vcpus": cores,
        "memory_mb": ram,
    }
