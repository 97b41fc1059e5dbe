"""Repair servers whose bodies, pointers and operations do not agree, as after the API database was restored from a backup.

Every function locks what it decides about, in the order of ``db/api/operations/operations.py``, and looks again before it writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import sqlalchemy as sa

from db.api.operations import accepting, operations, shelving, steps, thaw
from db.api.operations.operations import Body
from db.api.projects import quotas
from db.api.queue import builds
from db.api.rows.ledger import Stamp
from db.api.rows.tables import instance_mappings
from db.api.rows.tables import operations as table
from db.api.servers import mappings
from db.audit import operations as audit_operations
from db.audit.operations import BodyRole
from db.sql import dialect
from db.sql.connection import ApiTransaction
from objects import stored
from objects.instance import State
from objects.instance_row import InstanceRow, Stray, TombstoneSnapshot
from objects.move import MoveKind
from objects.operation import Operation, OperationKind, OperationState
from objects.quota import QuotaUsage
from objects.task import Power
from objects.text import hostname_of

START_TIMEOUT_S = 3600.0
"""Seconds in which a cell should have the start of a server that was held."""

_M = instance_mappings.c
_STORED = sa.update(instance_mappings).where(_M.instance_uuid == sa.bindparam("uuid")).values(task_stored=sa.bindparam("content"))
_HIDE = sa.update(instance_mappings).where(_M.instance_uuid == sa.bindparam("uuid")).values(hidden=sa.bindparam("is_hidden"))


def follow_pointers(tx: ApiTransaction, uuids: Sequence[str]) -> int:
    """Show those of these bodies that their servers point to, and hide the others; return how many were changed."""
    wrong = [role for role in _lock_roles(tx, uuids) if role.shown is not None and role.body.hidden is role.is_shown]
    if wrong:
        tx.execute(_HIDE, [{"uuid": role.body.uuid, "is_hidden": not role.is_shown} for role in wrong])
    return len(wrong)


def delete_spare(tx: ApiTransaction, stamp: Stamp, uuids: Sequence[str], now: float) -> dict[str, str | None]:
    """Delete those of these bodies that nothing needs; return them with their cells.

    Nothing needs a body whose server is another one that is there, unless an open operation is about it.
    """
    spare = [role for role in _lock_roles(tx, uuids) if _is_spare(role)]
    steps.drop_bodies(tx, stamp, [role.body for role in spare], {}, now)
    return {role.body.uuid: role.body.server.cell_uuid for role in spare}


def _is_spare(role: BodyRole) -> bool:
    server = role.body.server
    if server.power is Power.INCOMING:  # its guest may have gone over to it
        return False
    return role.is_superseded and not server.deleted and not role.is_needed


_OTHERS = sa.select(_M.instance_uuid).where(
    sa.or_(_M.instance_uuid == sa.bindparam("server"), _M.server_uuid == sa.bindparam("server")),
    _M.instance_uuid != sa.bindparam("body"),
    sa.or_(_M.deleted == sa.false(), _M.state != "deleted"),
)
"""Other bodies of a server that have not ended. It reads the whole table, as no index is kept for this."""

UNHELD = "The server was held although no operation was open."


def start_held(tx: ApiTransaction, uuids: Sequence[str], now: float) -> list[str]:
    """Let the servers that are these bodies run again, once their other bodies have ended; return the servers.

    Each gets an operation in *starting*, which its sweep carries out.
    """
    started: list[Operation] = []
    for role in _lock_roles(tx, uuids):
        server, home = role.body.server, role.home
        if (
            home is None
            or not is_stuck(role)
            or tx.execute(_OTHERS, {"server": role.uuid_of_server, "body": role.body.uuid}).first()
        ):
            continue
        uuid = str(uuid4())
        operation = Operation(
            uuid=uuid,
            server_uuid=role.uuid_of_server,
            kind=OperationKind.START,
            state=OperationState.STARTING,
            number=accepting.last_number(home, role.body) + accepting.NUMBERS,
            power_before=Power.ON,
            project_id=server.project_id,
            user_id=server.user_id,
            request_id=f"req-{uuid}",
            created_at=now,
            updated_at=now,
            deadline=now + START_TIMEOUT_S,
            held=True,
            source_uuid=role.body.uuid,
            source_host=server.host,
            fault=UNHELD,
        )
        started.append(operation)
    accepting.store_operations(tx, started)
    return [operation.server_uuid for operation in started]


def is_stuck(role: BodyRole) -> bool:
    """Whether the body is its server and may not run, and nothing is going on that ends this."""
    server = role.body.server
    is_held = server.state == "active" and not server.deleted and server.power is Power.HELD
    return role.is_shown and role.operation is None and is_held


def shelve_again(tx: ApiTransaction, stamp: Stamp, uuid: str, snapshot: TombstoneSnapshot, now: float) -> bool:
    """The server that is this body was shelved, which a restored database has lost: it is on no host, and its snapshot is this.

    The caller has seen the body's tombstone, and the snapshot in the image store: a delete of the server would have removed it.
    False: the server is another body, was deleted, or has an open operation.
    """
    for role in _lock_roles(tx, [uuid]):
        server, image_id = role.body.server, snapshot.image_id
        if not role.is_shown or role.operation is not None or server.deleted:
            continue
        if snapshot.content is not None:  # the feed may not have told it yet
            tx.execute(_STORED, {"uuid": uuid, "content": stored.dump_value(snapshot.content)})
        operation = Operation(
            uuid=image_id,  # a snapshot has the UUID of its operation
            server_uuid=role.uuid_of_server,
            kind=OperationKind.SHELVE,
            state=OperationState.SHELVED,
            number=snapshot.number,
            power_before=Power.ON,
            project_id=server.project_id,
            user_id=server.user_id,
            request_id=f"req-{image_id}",
            created_at=now,
            updated_at=now,
            deadline=now,
            held=True,
            source_uuid=uuid,
            source_host=server.host,
        )
        accepting.store_operations(tx, [operation])
        shelving.offload_servers(tx, stamp, [image_id], now, has_left=True)
        return True
    return False


def _lock_roles(tx: ApiTransaction, uuids: Sequence[str]) -> list[BodyRole]:
    """How these bodies stand, with their requests, servers and these servers' other bodies locked."""
    before = audit_operations.list_roles(tx, uuids)
    steps.lock_requests(tx, [role.body.uuid for role in before])
    rows: dict[str, Body] = {}
    for role in before:
        rows |= {body.uuid: body for body in (role.body, role.home, role.shown) if body is not None}
    operations.lock_bodies(tx, rows)
    return audit_operations.list_roles(tx, uuids)


# -- bodies that the API database has lost ---------------------------------------------------------------------------------------

_HOLDING = [kind for kind in OperationKind if kind.holds_source]
_GOES_ON = (
    sa.update(table)
    .where(
        table.c.twin_uuid == sa.bindparam("twin"),
        table.c.open_for.is_not(None),
        table.c.state.in_((OperationState.PLACING, OperationState.HOLDING)),
    )
    .values(
        state=OperationState.BUILDING,
        held=sa.or_(table.c.held, table.c.kind.in_(_HOLDING)),
        target_host=sa.bindparam("host"),
        updated_at=sa.bindparam("now"),
    )
)
_POINT = (
    sa.update(instance_mappings)
    .where(_M.instance_uuid == sa.bindparam("home"))
    .values(body_uuid=sa.bindparam("body"), last_number=sa.bindparam("number"))
)


def give_home(tx: ApiTransaction, stray: Stray, now: float) -> bool:
    """Whether the server of this lost body has a home row. One that runs or was shelved gets one, if that is lost too.

    The first body of such a server has ended, since its row would permit it to run beside this one.
    """
    row = stray.row
    if operations.lock_bodies(tx, [row.uuid_of_server]):
        return True
    if not row.may_run and stray.snapshot is None:
        return False
    ended = {"deleted": True, "state": "deleted", "deleted_at": now, "terminated_at": now, "updated_at": now, "hidden": True}
    of_row = {name: getattr(row, name) for name in ("project_id", "user_id", "name", "launch_index", "created_at")}
    home = {"instance_uuid": row.uuid_of_server, "batch_id": row.uuid_of_server, "fence": 0, "seen": 0, "body_uuid": row.uuid}
    home["hostname"] = hostname_of(row.name, row.uuid_of_server)
    dialect.insert_new(tx, instance_mappings, [home | of_row | ended])
    return True


def follow_rows(tx: ApiTransaction, strays: Sequence[Stray], now: float) -> None:
    """Let servers be the latest of these bodies that may run or were shelved, and their operations go on from what the cells show.

    The mappings of the bodies were just written. A lost move on its way is open again. Nothing is deleted: the bodies that a
    server was before are found by an audit.
    """
    for stray in sorted(strays, key=lambda candidate: candidate.row.turn):
        row = stray.row
        if row.server_uuid is None or tx.execute(_GOES_ON, {"twin": row.uuid, "host": row.host, "now": now}).rowcount:
            continue  # its sweep switches, once the body has told that it is ACTIVE
        if row.may_run or stray.snapshot is not None:
            if not (_is_resized(tx, row) and _reopen_operation(tx, row, now)):
                _point_server(tx, row, now)
        elif row.state in (State.SCHEDULED, State.BUILDING, State.ACTIVE):
            _reopen_operation(tx, row, now)


def _is_resized(tx: ApiTransaction, row: InstanceRow) -> bool:
    """Whether a resize has made this body: it may wait for its user, with the body that it was before."""
    batch_id = row.batch_id or row.uuid
    spec = mappings.specs_by_batch(tx, [batch_id]).get(batch_id)
    return spec is not None and spec.move is not None and spec.move.kind is MoveKind.RESIZE


def _reopen_operation(tx: ApiTransaction, row: InstanceRow, now: float) -> bool:
    """A move was under way to this body, or has ended with it: it goes on, once it was compared with the cells.

    False: its server is this body already, has an open operation, which is compared first, or ended before this body ran.
    """
    [role] = _lock_roles(tx, [row.uuid])
    if role.operation is not None or role.home is None or role.shown is None or role.is_shown:
        return False
    if row.may_run and role.shown.server.deleted:
        return False
    accepting.reopen(tx, role.shown, role.body, now, "the API database had lost it")
    return True


def _point_server(tx: ApiTransaction, row: InstanceRow, now: float) -> None:
    [role] = _lock_roles(tx, [row.uuid])
    shown, home = role.shown, role.home
    if home is None or (not role.is_shown and shown is not None and _is_staying(shown, row)):
        return
    if role.operation is not None and role.operation.frozen is not None:
        return  # once it was compared with the cells, it is known what the server is
    if role.operation is not None and accepting.turn_of(role.operation.number) < row.turn:
        thaw.freeze_operations(tx, [role.operation.uuid], f"its server has a later body, {row.uuid}", now)
        return
    if role.is_shown or shown is None or shown.server.deleted:
        quotas.add_usage(tx, row.project_id, {row.user_id: QuotaUsage(instances=1)})  # what it was before is not counted any more
    tx.execute(_POINT, {"home": home.uuid, "body": row.uuid, "number": accepting.last_number(home, role.body)})
    tx.execute(_HIDE, {"uuid": row.uuid, "is_hidden": False})
    if shown is not None and not role.is_shown:
        tx.execute(_HIDE, {"uuid": shown.uuid, "is_hidden": True})


def _is_staying(shown: Body, row: InstanceRow) -> bool:
    """Whether the server stays what it is, because that is later, and may run or was shelved too."""
    if not row.may_run:
        return shown.server.turn > row.turn
    may_run = not shown.server.deleted and shown.server.state == "active" and shown.server.power is not Power.HELD
    return may_run and shown.server.turn > row.turn


def delete_ended(tx: ApiTransaction, stamp: Stamp, uuid: str, now: float) -> None:
    """A body has ended in its cell: delete its server, or only the body, if the server is another one.

    A body that an open operation is about is left to that.
    """
    for role in _lock_roles(tx, [uuid]):
        operation = role.operation
        if operation is not None and (operation.frozen is not None or uuid in (operation.source_uuid, operation.twin_uuid)):
            continue
        if role.is_shown:
            builds.delete(tx, stamp, role.uuid_of_server, project_id=None, now=now)
        else:
            steps.drop_bodies(tx, stamp, [role.body], {}, now)
