"""Bring the schema of a database up to date, and say which version it has."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Literal

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from db.sql import url as urls
from db.sql.engine import Database
from objects import errors
from objects.messages_version import SPAN

Kind = Literal["api", "cell"]
"""The history of schema changes that a database follows. One database may follow both."""

_LOCK = "superconductor db sync"
_LOCK_TIMEOUT_S = 60
"""Seconds to wait for another process that is applying changes to the same database."""
_LOCK_NUMBER = 0x53435359
"""PostgreSQL names advisory locks by number. Nothing else in our databases uses one."""

_LAST_WITH_STEPS = "5e50adbe41db"
"""The last commit that has the revisions which each first one of now stands for."""


def sync_schema(url: str, kind: Kind) -> str:
    """Apply every schema change that is missing and return the version reached. Harmless to repeat, or to run twice at once.

    A new database is created from the tables as they are now, and counts as one with all changes.

    On SQLite and PostgreSQL all changes are one transaction: another process sees either none or all of them, and work goes on
    around it. MariaDB commits each change for itself, so changes there are written so that an interrupted run can be repeated.
    A missing SQLite file is made, and its folder. Raises DatabaseUnavailable, also for a schema that is older than the first
    revision, and Misconfigured where the URL cannot be right.
    """
    database = Database(urls.with_schema_timeout(url), create=True, certified=False)
    try:
        return database.write(_upgrade_schema, kind)
    finally:
        database.dispose_connections()


def is_missing(url: str) -> bool:
    """Whether the URL names a SQLite file that is not there."""
    file = urls.file_of(urls.parse_url(url))
    return file is not None and not Path(file).exists()


def current_version(url: str, kind: Kind) -> str | None:
    """The version the schema has, None where nothing was applied yet. Raises DatabaseUnavailable."""
    database = Database(url)
    try:
        return database.read(schema_version, kind)
    finally:
        database.dispose_connections()


def latest_version(kind: Kind) -> str:
    """The version that ``sync_schema`` reaches."""
    return str(ScriptDirectory.from_config(script_config(kind)).get_current_head())


@functools.cache
def first(kind: Kind) -> str:
    """The version that a new database starts with. It cannot be reached from an older one."""
    return str(ScriptDirectory.from_config(script_config(kind)).get_base())


def check_not_older(kind: Kind, found: str) -> None:
    """Raise DatabaseUnavailable, saying what to do, if this version of the schema is older than the first one."""
    if found < first(kind):
        raise errors.DatabaseUnavailable(
            f"The schema is {found}, of the development before 0.1.0: run 'superconductor db sync' of commit {_LAST_WITH_STEPS} "
            f"first, which brings it to {first(kind)}"
        )


def _upgrade_schema(tx: sa.Connection, kind: Kind) -> str:
    if tx.dialect.name == "mysql" and not getattr(tx.dialect, "is_mariadb", False):
        raise errors.Misconfigured("This server is MySQL, which is not supported: use MariaDB 10.6 or later, PostgreSQL or SQLite")
    _lock_schema(tx)
    try:
        found = schema_version(tx, kind)
        if found is not None:
            check_not_older(kind, found)
        config = script_config(kind)
        config.attributes.update(connection=tx, is_new=found is None)
        if found is None:
            command.stamp(config, "head")
            if kind == "api":
                _finalize_release(tx)
        else:
            command.upgrade(config, "head")
        return str(schema_version(tx, kind))
    finally:
        _unlock_schema(tx)


def _finalize_release(tx: sa.Connection) -> None:
    """A new deployment has nothing that could be rolled back (``db/api/rows/finalized.py``)."""
    row = {"id": 1, "messages": str(SPAN.newest), "release": "", "at": time.time()}
    tx.execute(sa.insert(sa.table("finalized", *map(sa.column, row))).values(row))


def schema_version(tx: sa.Connection, kind: Kind) -> str | None:
    """The version the schema has, None where nothing was applied yet."""
    return MigrationContext.configure(tx, opts={"version_table": version_table(kind)}).get_current_revision()


def version_table(kind: Kind) -> str:
    """Where the version is kept: one table per history, so that both fit into one database."""
    return f"schema_version_{kind}"


def script_config(kind: Kind) -> Config:
    """Where Alembic finds the changes of ``kind``."""
    config = Config()
    folder = Path(__file__).parent.parent / kind / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _lock_schema(tx: sa.Connection) -> None:
    """One process at a time. On SQLite the transaction itself is that lock; on PostgreSQL the lock ends with the transaction."""
    if tx.dialect.name == "postgresql":
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_NUMBER)))
    elif tx.dialect.name != "sqlite" and tx.execute(sa.select(sa.func.get_lock(_LOCK, _LOCK_TIMEOUT_S))).scalar() != 1:
        raise errors.DatabaseUnavailable(
            f"Another process has been applying schema changes for {_LOCK_TIMEOUT_S} s; try again later"
        )


def _unlock_schema(tx: sa.Connection) -> None:
    if tx.dialect.name not in ("sqlite", "postgresql"):
        tx.execute(sa.select(sa.func.release_lock(_LOCK)))
