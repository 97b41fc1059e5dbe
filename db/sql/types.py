"""Column types that mean the same on SQLite, MariaDB and PostgreSQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

Uuid = sa.String(36)
"""A uuid as text. Not CHAR: PostgreSQL pads it, so equal ids would compare unequal."""

Name = sa.String(255)


class _TimeOrText(sa.types.TypeDecorator[float]):
    """SQLite keeps any text in any column: where that is no time, it is read as one that is long past."""

    impl = sa.Double
    cache_ok = True

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> float | None:
        return value if value is None or isinstance(value, (int, float)) else 0.0


Time: sa.types.TypeEngine[float] = sa.Double().with_variant(_TimeOrText(), "sqlite")
"""Seconds since the epoch, UTC."""

Json = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
"""JSON text written and read by msgspec."""

Sealed = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
"""Secrets encrypted by ``service/vault.py``."""

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""A 64-bit key; SQLite auto-increments only INTEGER."""

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def notifications_table(name: str, metadata: sa.MetaData) -> sa.Table:
    """Facts that are still to be told, each written in the transaction of what it tells. Empty where notifications are off."""
    return define_table(
        name,
        metadata,
        sa.Column("id", BigId, primary_key=True, autoincrement=True),
        sa.Column("message_id", Uuid, nullable=False),  # derived from the fact: the same if it is sent again
        sa.Column("event_type", sa.String(64), nullable=False),
        sa.Column("priority", sa.String(8), nullable=False),
        sa.Column("subject", Name, nullable=False),  # an instance, a batch or a host
        sa.Column("facts", Json, nullable=False),  # Facts
        sa.Column("at", Time, nullable=False),
        sa.Column("taken_until", Time, nullable=False, default=0.0),  # its sender has it until then
    )


def define_table(name: str, metadata: sa.MetaData, *items: sa.Column[Any] | sa.Index | sa.UniqueConstraint) -> sa.Table:
    """A table that compares text byte by byte on every server, trailing blanks included, and is transactional on MariaDB."""
    return sa.Table(name, metadata, *items, mysql_engine="InnoDB", mysql_charset="utf8mb4", mysql_collate="utf8mb4_nopad_bin")


def define_processes(name: str, metadata: sa.MetaData) -> sa.Table:
    """Processes that are no agents, one row for each start of one. Both levels have such a table; they may share a database."""
    return define_table(
        name,
        metadata,
        sa.Column("uuid", Uuid, primary_key=True),
        sa.Column("binary", sa.String(64), nullable=False),
        sa.Column("host", Name, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("release", sa.String(64), nullable=False),
        sa.Column("messages", sa.String(16), nullable=False),
        sa.Column("started_at", Time, nullable=False),  # all times by the database's own clock
        sa.Column("last_seen", Time, nullable=False),
    )


def dead_letters(name: str, metadata: sa.MetaData) -> sa.Table:
    """What one step could not process for a lasting reason, one row for each item. Both levels have such a table."""
    return define_table(
        name,
        metadata,
        sa.Column("step", sa.String(64), primary_key=True),
        sa.Column("key", Name, primary_key=True),  # the item of the step: the uuid of an instance or a batch, a host
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("first_at", Time, nullable=False),  # all times by the database's own clock
        sa.Column("last_at", Time, nullable=False),
        sa.Column("due", Time, nullable=False),  # when the step retries it
        sa.Column("skipped", sa.Boolean, nullable=False, default=False),  # an operator's decision: never retried
    )


def define_certification(metadata: sa.MetaData) -> sa.Table:
    """One row, id 1, which every transaction that writes on a Galera cluster changes last: see ``db/sql/galera.py``."""
    return define_table(
        "certification",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, nullable=False, default=0),
    )
