"""Unique server names: ``instance_mappings.name_key`` of a server's home row, which has a unique index.

A key is NULL if names need not be unique, if the server is deleted, and on rows of later bodies. The update that marks a server
deleted clears it, and a purge deletes it with its row, so no key outlives its server. Concurrent transactions that write one key
meet in the index: the second one is run again, and finds the key of the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import RetryRequest

from db.api.rows.tables import instance_mappings
from db.sql import dialect, retry
from db.sql.connection import ApiTransaction
from db.sql.engine import DuplicateEntry
from db.sql.galera import compare_locks
from db.sql.keyed import by_index
from objects import server_name
from objects.base import Object
from objects.server_name import NameScope

SERVERS_PER_TRANSACTION = 200
"""Maximum number of servers whose names one transaction records."""

_M = instance_mappings.c
_BODY = instance_mappings.alias("body")
_TAKEN = sa.select(_M.name_key, _M.instance_uuid).where(_M.name_key.in_(dialect.uuids_parameter("keys")))
_SET = sa.update(instance_mappings).where(_M.instance_uuid == sa.bindparam("uuid")).values(name_key=sa.bindparam("key"))
_CLEAR = (
    sa.update(instance_mappings)
    .where(_M.instance_uuid == sa.bindparam("uuid"), _M.name_key.is_not(None))
    .values(name_key=sa.null())
)


@contextmanager
def retry_on_conflict() -> Iterator[None]:
    """Around a statement that writes keys: run the transaction again if another one has just written one of them."""
    try:
        yield
    except DuplicateEntry as error:
        if _M.name_key.name in str(retry.cause_of(error)):  # every server names the index or its column
            raise RetryRequest(error) from error
        raise


def refuse_taken(tx: ApiTransaction, names: Mapping[str, str]) -> None:
    """Raises errors.Conflict if a server has one of these names. ``names``: by their keys."""
    if holders := _holders_by_key(tx, sorted(names)):
        raise server_name.name_conflict(min((names[key] for key in holders), key=lambda name: (len(name), name)))


def rename_server(tx: ApiTransaction, uuid: str, held: str | None, key: str | None, name: str) -> None:
    """Record the new name of a server, whose home row is locked. ``held``: its key before. Raises errors.Conflict."""
    if key == held:
        return
    if key is not None:
        refuse_taken(tx, {key: name})
    with retry_on_conflict():
        tx.execute(_SET, {"uuid": uuid, "key": key})


def free_name(tx: ApiTransaction, uuid: str) -> None:
    """Free the name of a server that is deleted and has had operations. Its home row is locked."""
    compare_locks(tx, "name", [uuid])  # without a key there is nothing to clear, and the mark is on another row
    tx.execute(_CLEAR, {"uuid": uuid})


def _holders_by_key(tx: ApiTransaction, keys: Sequence[str]) -> dict[str, str]:
    """The servers that hold some of these keys, by key."""
    holder_by_key: dict[str, str] = {}
    for page in dialect.split_pages(keys):
        for row in tx.execute(_TAKEN, {"keys": page}):
            holder_by_key[row.name_key] = row.instance_uuid
    return holder_by_key


# -- servers accepted before names had to be unique, or in another scope -----------------------------------------------------


class SharedName(Object, frozen=True, kw_only=True):
    """A server whose name is not recorded, because the server ``holder`` has it."""

    uuid: str
    project_id: str
    name: str
    holder: str


class Recorded(Object, frozen=True, kw_only=True):
    """One page of servers: how many keys were changed. ``last``: the last server of the page; None: there was none."""

    changed: int
    shared: tuple[SharedName, ...]
    last: str | None


_HOME = (_M.server_uuid.is_(None), sa.or_(_M.deleted == sa.false(), _M.body_uuid.is_not(None), _M.name_key.is_not(None)))
_PAGE = (
    sa.select(_M.instance_uuid)
    .where(_M.instance_uuid > sa.bindparam("after"), *_HOME)
    .order_by(_M.instance_uuid)
    .limit(SERVERS_PER_TRANSACTION)
)
_LOCK = by_index(
    sa.select(_M.instance_uuid).where(_M.instance_uuid.in_(dialect.uuids_parameter())).order_by(_M.instance_uuid).with_for_update(),
    instance_mappings,
)
_NAMES = (
    sa.select(
        _M.instance_uuid,
        _M.name_key,
        _M.project_id,
        sa.func.coalesce(_BODY.c.name, _M.name).label("name"),
        sa.func.coalesce(_BODY.c.deleted, _M.deleted).label("deleted"),
    )
    .select_from(instance_mappings.outerjoin(_BODY, _BODY.c.instance_uuid == _M.body_uuid))
    .where(_M.instance_uuid.in_(dialect.uuids_parameter()))
    .order_by(_M.created_at, _M.instance_uuid)
)


def record_page(tx: ApiTransaction, scope: NameScope, after: str) -> Recorded:
    """Make the keys of the servers on the page after ``after`` those of their names; harmless to repeat, and while work goes on.

    A name that another server holds is not recorded. With ``NameScope.OFF`` all keys are cleared.
    """
    uuids = list(tx.execute(_PAGE, {"after": after}).scalars())
    if not uuids:
        return Recorded(changed=0, shared=(), last=None)
    tx.execute(_LOCK, {"uuids": uuids}).all()
    compare_locks(tx, "name", uuids)
    # In its own statement after the locks were taken: edits and deletes that held them have committed by then.
    rows = tx.execute(_NAMES, {"uuids": uuids}).all()
    keys = {row.instance_uuid: None if row.deleted else server_name.name_key(scope, row.project_id, row.name) for row in rows}
    holders = _holders_by_key(tx, sorted({key for key in keys.values() if key is not None}))
    changes: list[dict[str, Any]] = []
    shared: list[SharedName] = []
    for row in rows:
        key = keys[row.instance_uuid]
        holder = row.instance_uuid if key is None else holders.setdefault(key, row.instance_uuid)
        if holder != row.instance_uuid:
            shared.append(SharedName(uuid=row.instance_uuid, project_id=row.project_id, name=row.name, holder=holder))
            key = None
        if row.name_key != key:
            changes.append({"uuid": row.instance_uuid, "key": key})
    if changes:
        with retry_on_conflict():
            tx.execute(_SET, changes)
    return Recorded(changed=len(changes), shared=tuple(shared), last=uuids[-1])


def count_unrecorded(tx: ApiTransaction, scope: NameScope) -> int:
    """How many servers have no key of this scope: ``record_page`` has not met them, or another server has their name."""
    query = (
        sa.select(sa.func.count())
        .select_from(instance_mappings.outerjoin(_BODY, _BODY.c.instance_uuid == _M.body_uuid))
        .where(
            _M.server_uuid.is_(None),
            sa.func.coalesce(_BODY.c.deleted, _M.deleted) == sa.false(),
            sa.or_(_M.name_key.is_(None), _M.name_key.not_like(f"{scope}.%")),
        )
    )
    return tx.execute(query).scalar_one()
