"""Alembic runs this for every command on this history."""

from __future__ import annotations

from db.api.rows import tables
from db.sql.migrations.environment import run
from db.sql.sync import version_table

run(
    tables.metadata,
    version_table("api"),
    {
        tables.epochs: [{"name": name, "epoch": 0} for name in ("aggregates", "cells", "flavors", "groups", "hosts")],
        tables.api_certification: [{"id": 1, "number": 0}],  # both kinds of databases have it, and may be one
    },
)
