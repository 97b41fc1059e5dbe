"""Up to which messages version an operator has finalized the upgrade: what an older release cannot read waits for that."""

from __future__ import annotations

import sqlalchemy as sa

from db.api.rows.tables import finalized
from db.sql import clock, dialect
from db.sql.connection import Connection
from objects import errors
from objects.messages_version import V1_0, MessagesVersion, span_of

_ROW = 1
_READ = sa.select(finalized.c.messages)


def read(tx: Connection) -> MessagesVersion:
    """Deployments that never were finalized may be rolled back to the release before there was this."""
    text = tx.execute(_READ).scalar()
    return V1_0 if text is None else span_of(text).newest


def check(tx: Connection, subject: str, since: MessagesVersion) -> None:
    """Raise Conflict about ``subject`` while a release that may come back cannot read what ``since`` has brought."""
    if read(tx) < since:
        raise errors.Conflict(f"{subject}: the upgrade of this deployment is not finished ('superconductor upgrade finalize')")


def write(tx: Connection, version: MessagesVersion, release: str) -> None:
    """There is no way back from it."""
    values = {"messages": str(version), "release": release, "at": clock.read(tx)}
    dialect.insert_new(tx, finalized, [{"id": _ROW, **values}])
    tx.execute(sa.update(finalized).where(finalized.c.id == _ROW).values(values))
