"""An index of nodes by name: a node belongs to the host that reported it first.

Revision ID: 0018
"""

from __future__ import annotations

from db.sql.migrations.shorthand import create_index

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    create_index("compute_nodes", "node")
