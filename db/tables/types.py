"""Column types that mean the same on SQLite, MariaDB and PostgreSQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

Uuid = sa.String(36)
"""A uuid as text. Not CHAR: PostgreSQL pads it, so equal ids would compare unequal."""

Name = sa.String(255)

Time: sa.types.TypeEngine[float] = sa.Double()
"""Seconds since the epoch, UTC."""

Json = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
"""JSON text written and read by msgspec."""

Sealed = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
"""What ``service/vault.py`` makes of secrets."""

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""A 64-bit key; SQLite auto-increments only INTEGER."""

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def table(name: str, metadata: sa.MetaData, *items: sa.Column[Any] | sa.Index | sa.UniqueConstraint) -> sa.Table:
    """A table that compares text byte by byte on every server, and is transactional on MariaDB."""
    return sa.Table(name, metadata, *items, mysql_engine="InnoDB", mysql_charset="utf8mb4", mysql_collate="utf8mb4_bin")
