"""Hostnames and access addresses of servers, as their tenants have changed them.

Revision ID: 0020
"""

from __future__ import annotations

from db.sql.migrations.shorthand import Name, add_column, column

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    for name in ("hostname", "access_ip_v4", "access_ip_v6"):
        add_column("instance_mappings", column(name, Name, null=True))
