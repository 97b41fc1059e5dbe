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
from db.api.operations.accepting import current_spec, insert_mappings, insert_specs, turn_of
from db.api.operations.operations import Body, OpenOperation
from db.api.operations.steps import Stepped
from db.api.projects import quotas
from db.api.servers import mappings
from db.sql.connection import ApiTransaction
from objects import errors
from objects.base import Object
from objects.move import Move, MoveKind
from objects.operation import Initiator, OperationState, Outcome
from objects.quota import QuotaUsage, sum_shares
from objects.spec import RequestSpec
from objects.task import Power


class ShelvedBody(Object, frozen=True, kw_only=True):
    """A body to be made, of an operation with its source."""

    opened: OpenOperation
    source: Body
    spec: RequestSpec
    uuid: str


def offload_servers(
    tx: ApiTransaction, stamp: claims.Stamp, uuids: Collection[str], now: float, *, has_left: bool = False
) -> Stepped:
    """These servers leave their hosts: each is a shelved body now, and its source is deleted.

    ``has_left``: their bodies have ended in their cells, and the image store has the snapshots. Raises errors.Conflict if a request
    spec cannot be read; the caller must then roll back.
    """
    locked = operations.lock_operations(tx, uuids, (OperationState.SHELVED,))
    ready = [
        (shelved, shelved.source)
        for shelved in locked.operations
        if shelved.source is not None and (has_left or _is_complete(shelved, shelved.source))
    ]
    specs = mappings.specs_by_batch(tx, {source.server.batch_id for _, source in ready})
    shelved_bodies = [
        ShelvedBody(
            opened=shelved,
            source=source,
            spec=_spec_of_shelved(shelved, source, specs.get(source.server.batch_id)),
            uuid=str(uuid.uuid4()),
        )
        for shelved, source in ready
    ]
    if not shelved_bodies:
        return steps.NOTHING
    insert_specs(tx, [shelved.spec for shelved in shelved_bodies], now)
    insert_mappings(tx, [(shelved.source, _mapping_of_shelved(shelved, now)) for shelved in shelved_bodies])
    bodies = operations.bodies_by_uuid(tx, [shelved.uuid for shelved in shelved_bodies])
    steps.point_servers(tx, [(shelved.opened, bodies[shelved.uuid], shelved.source) for shelved in shelved_bodies], now)
    initiators = {shelved.source.server.uuid: Initiator.of_operation(shelved.opened.operation) for shelved in shelved_bodies}
    deleted = steps.drop_bodies(tx, stamp, [shelved.source for shelved in shelved_bodies], initiators, now)
    sources = [shelved.source for shelved in shelved_bodies]
    charges = [(s.server.project_id, s.server.user_id, QuotaUsage(cores=s.charge[0], ram=s.charge[1])) for s in sources]
    for project, more in sum_shares(charges).items():
        quotas.add_usage(tx, project, more)
    operations.end_operations(tx, [shelved.opened.operation for shelved in shelved_bodies], Outcome.DONE, now)
    return Stepped(operations=tuple(shelved.opened for shelved in shelved_bodies), deleted=tuple(deleted))


def _is_complete(opened: OpenOperation, source: Body) -> bool:
    """Whether the cell has told that the snapshot is complete, and that the guest may not run any more."""
    return source.is_held(opened.operation.number) and not source.hidden


def _spec_of_shelved(opened: OpenOperation, source: Body, spec: RequestSpec | None) -> RequestSpec:
    """``spec``: that of the source's request."""
    if spec is None:
        raise errors.Conflict(f"Instance {source.server.uuid} cannot be offloaded: its request cannot be read")
    content = source.server.task_stored
    move = Move(
        kind=MoveKind.UNSHELVE,
        instance_uuid=source.uuid,
        source_host="",
        source_cell_uuid="",
        image_id=opened.operation.uuid,
        image_hash=content.hash_value if content is not None else "",
    )
    shelved = current_spec(spec, source.server).for_move(move, str(uuid.uuid4()))
    return msgspec.structs.replace(shelved, request_id=opened.operation.request_id, has_secrets=False)


def _mapping_of_shelved(shelved: ShelvedBody, now: float) -> dict[str, Any]:
    operation, (cores, ram) = shelved.opened.operation, shelved.source.charge
    return {
        "instance_uuid": shelved.uuid,
        "batch_id": shelved.spec.batch_id,
        "deleted": False,
        "fence": 0,
        "seen": 0,
        "state": "shelved",
        "availability_zone": shelved.spec.availability_zone,
        "updated_at": now,
        "launched_at": shelved.source.server.launched_at,
        "server_uuid": operation.server_uuid,
        "turn": turn_of(operation.number),
        "hidden": True,
        "power": Power.OFF,
        "vcpus": cores,
        "memory_mb": ram,
    }
