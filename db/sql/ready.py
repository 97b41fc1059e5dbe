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


def judge(database: Database, kind: sync.Kind, found: str | None) -> None:
    """The same of a schema version that was read already."""
    known = _known(kind)
    if found is None:
        raise errors.DatabaseUnavailable(
            f"Database {database.url_masked} has no schema yet; apply it with 'superconductor db sync'"
        )
    if found in known[1:]:
        raise errors.DatabaseUnavailable(
            f"Database {database.url_masked} has schema {found}, and this version needs {known[0]}; run 'superconductor db sync'"
        )


@functools.cache
def _known(kind: sync.Kind) -> list[str]:
    """The newest first."""
    return [script.revision for script in ScriptDirectory.from_config(sync.script_config(kind)).walk_revisions()]
