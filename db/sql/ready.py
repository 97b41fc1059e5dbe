"""Whether a database can be worked on: it answers, and its schema is one that this version knows."""

from __future__ import annotations

import functools

import sqlalchemy as sa
from alembic.script import ScriptDirectory

from db.sql import sync
from db.sql.connection import Connection
from db.sql.engine import Database
from objects import errors


def answer(tx: Connection) -> None:
    """Whether the database answers at all."""
    tx.execute(sa.text("SELECT 1"))


def check(database: Database, kind: sync.Kind) -> None:
    """Raise DatabaseUnavailable, saying what to do, unless the schema is the one of this version or of a newer one.

    A newer schema has been made by processes that were upgraded already: changes only add to it, so the older ones go on.
    """
    judge(database, kind, database.read(sync.version, kind))


def check_writable(database: Database, kind: sync.Kind) -> None:
    """``check``, and raise ReadOnlyDatabase or StorageFull if the database takes no writes, as far as it can be told by reading."""
    found, refusal = database.read(_look, kind)
    judge(database, kind, found)
    database.check_writable(refusal)


def _look(tx: Connection, kind: sync.Kind) -> tuple[str | None, str]:
    return sync.version(tx, kind), why_read_only(tx)


_READ_ONLY = {
    "postgresql": ("SELECT pg_is_in_recovery()", "it is a standby that follows another server"),
    "mysql": ("SELECT @@global.read_only", "read_only is set"),
}


def why_read_only(tx: Connection) -> str:
    """Why the server of this connection takes no writes; empty if it takes them. SQLite is not asked."""
    question, reason = _READ_ONLY.get(tx.dialect.name, ("", ""))
    return reason if question and tx.execute(sa.text(question)).scalar() in (True, 1, "ON") else ""


def judge(database: Database, kind: sync.Kind, found: str | None) -> None:
    """The same of a schema version that was read already."""
    known = _known(kind)
    if found is None:
        raise errors.DatabaseUnavailable(
            f"Database {database.url_masked} has no schema yet; apply it with 'superconductor db sync'"
        )
    sync.check_not_older(kind, found)
    if found in known[1:]:
        raise errors.DatabaseUnavailable(
            f"Database {database.url_masked} has schema {found}, and this version needs {known[0]}; run 'superconductor db sync'"
        )


@functools.cache
def _known(kind: sync.Kind) -> list[str]:
    """The newest first."""
    return [script.revision for script in ScriptDirectory.from_config(sync.script_config(kind)).walk_revisions()]
