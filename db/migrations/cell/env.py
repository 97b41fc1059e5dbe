"""Run by Alembic for every command on this history."""

from __future__ import annotations

from db.migrations.environment import run
from db.sync import version_table
from db.tables import cell

run(cell.metadata, version_table("cell"))
