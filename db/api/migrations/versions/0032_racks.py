"""How many members of a server group a rack may have, and the fault domains of members.

Revision ID: 0032
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Name, add_column, column

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    add_column("server_groups", column("max_server_per_rack", sa.Integer, null=True))
    add_column("group_slots", column("fault_domain", Name, null=True))
