"""Alembic runs this for every command on this history."""

from __future__ import annotations

from db.api.rows import tables
from db.sql.migrations.environment import run
from db.sql.sync import version_table

run(tables.metadata, version_table("api"))
