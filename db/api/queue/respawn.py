"""Builds that no host of their cell could take: boot them again in another cell, once.

The first body stays in ERROR with the history of its attempts until the second one is ACTIVE. Meanwhile users see the server as
building. No guest is left of the first body, so nothing has to be held.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

import sqlalchemy as sa

from db.api.operations import operations
from db.api.operations.accepting import NUMBERS, Twin, insert_twins, store_operations
from db.api.operations.operations import Body
from db.api.rows import incarnation
from db.api.rows.tables import all_or_nothing
from db.api.servers import mappings
from db.sql import dialect
from db.sql.connection import ApiTransaction
from objects.context import request_of
from objects.operation import Operation, OperationKind, OperationState
from objects.task import Power

_WHOLE = sa.select(all_or_nothing.c.batch_id).where(all_or_nothing.c.batch_id.in_(dialect.uuids_parameter("batches")))


def queue_respawns(tx: ApiTransaction, bodies: Collection[str], now: float, timeout: float) -> list[str]:
    """Queue another body for each of these, whose summaries were just written in this transaction; returns the servers.

    Left out: deleted servers, those that had an operation before, members of an open all-or-nothing batch, and servers with user
    data or a password, because these were erased at the API level. While a restored database is compared with its cells, all are:
    they may have other bodies. ``timeout``: seconds until the operation is given up.
    """
    ended = [body for body in operations.lock_bodies(tx, bodies).values() if _is_first(body)]
    if not ended or incarnation.is_closed(tx):
        return []
    batches = {body.server.batch_id for body in ended}
    whole_batches = set(tx.execute(_WHOLE, {"batches": sorted(batches)}).scalars())
    specs = mappings.specs_by_batch(tx, batches - whole_batches)
    twins: list[Twin] = []
    for body in ended:
        spec = specs.get(body.server.batch_id)
        if spec is None or spec.has_secrets:
            continue
        server = body.server
        operation = Operation(
            uuid=str(uuid.uuid4()),
            server_uuid=server.uuid,
            kind=OperationKind.RESPAWN,
            state=OperationState.PLACING,
            number=NUMBERS,
            power_before=Power.ON,
            project_id=server.project_id,
            user_id=server.user_id,
            request_id=request_of(server.batch_id) or server.batch_id,
            created_at=now,
            updated_at=now,
            deadline=now + timeout,
            source_uuid=body.uuid,
            twin_uuid=str(uuid.uuid4()),
            source_host=server.host,
            vcpus=spec.flavor.vcpus,
            memory_mb=spec.flavor.memory_mb,
            fault=server.fault,
        )
        twins.append(Twin(operation=operation, spec=spec, source=body))
    insert_twins(tx, twins, now)
    store_operations(tx, [twin.operation for twin in twins])
    return [twin.operation.server_uuid for twin in twins]


def _is_first(body: Body) -> bool:
    server = body.server
    return server.own_uuid is None and not body.last_number and not server.deleted and server.state == "error"
