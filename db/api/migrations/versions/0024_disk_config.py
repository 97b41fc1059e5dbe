"""How servers' disks are partitioned, as their tenants have changed it since the boot.

Revision ID: 0024
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import add_column, column

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    add_column("instance_mappings", column("auto_disk_config", sa.Boolean(), null=True))
