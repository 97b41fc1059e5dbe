"""Alembic runs this for every command on this history."""

from __future__ import annotations

from db.cell import tables
from db.sql.migrations.environment import run
from db.sql.sync import version_table

run(
    tables.metadata,
    version_table("cell"),
    {
        tables.feed_head: [{"id": 1, "sequence": 0, "trimmed": 0}],
        tables.cell_certification: [{"id": 1, "number": 0}],  # both kinds of databases have it, and may be one
    },
)
