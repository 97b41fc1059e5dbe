"""Whether a database can be worked on: it answers, and its schema is one that this version knows."""

from __future__ import annotations

import functools

import sqlalchemy as sa
from alembic.script import ScriptDirectory

from db.sql import sync
from db.sql.connection import Connection
from db.sql.engine import Database
from objects import errors


def check_answer(tx: Connection) -> None:
    """Whether the database answers at all."""
    tx.execute(sa.text("SELECT 1"))


def check_schema(database: Database, kind: sync.Kind) -> None:
    """Raise DatabaseUnavailable, saying what to do, unless the schema is the one of this version or of a newer one.

    A newer schema has been made by processes that were upgraded already: changes only add to it, so the older ones go on.
    """
    judge_schema(database, kind, database.read(sync.schema_version, kind))


def check_writable(database: Database, kind: sync.Kind) -> None:
    """``check_schema``, and raise ReadOnlyDatabase or StorageFull if the database takes no writes, as far as it can be told by
    reading.
    """
    version, refusal = database.read(_look_at_schema, kind)
    judge_schema(database, kind, version)
    database.check_writable(refusal)


def _look_at_schema(tx: Connection, kind: sync.Kind) -> tuple[str | None, str]:
    return sync.schema_version(tx, kind), why_read_only(tx)


_READ_ONLY = {
    "postgresql": ("SELECT pg_is_in_recovery()", "it is a standby that follows another server"),
    "mysql": ("SELECT @@global.read_only", "read_only is set"),
}


def why_read_only(tx: Connection) -> str:
    """Why the server of this connection takes no writes; empty if it takes them. SQLite is not asked."""
    question, reason = _READ_ONLY.get(tx.dialect.name, ("", ""))
    return reason if question and tx.execute(sa.text(question)).scalar() in (True, 1, "ON") else ""


def judge_schema(database: Database, kind: sync.Kind, version: str | None) -> None:
    """The same of a schema version that was read already."""
    known = _known_revisions(kind)
    if version is None:
        raise errors.DatabaseUnavailable(
            f"Database {database.url_masked} has no schema yet; apply it with 'superconductor db sync'"
        )
    sync.check_not_older(kind, version)
    if version in known[1:]:
        raise errors.DatabaseUnavailable(
            f"Database {database.url_masked} has schema {version}, and this version needs {known[0]}; run 'superconductor db sync'"
        )


@functools.cache
def _known_revisions(kind: sync.Kind) -> list[str]:
    """The newest first."""
    return [script.revision for script in ScriptDirectory.from_config(sync.script_config(kind)).walk_revisions()]
