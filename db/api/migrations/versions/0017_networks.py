"""Networks, and the addresses that servers have.

Revision ID: 0017
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import Json, Name, Time, Uuid, column, create_index, create_table

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    create_table(
        "networks",
        column("uuid", Uuid),
        column("name", Name),
        column("physical_network", Name),
        column("mtu", sa.Integer, null=True),
        column("project_ids", Json),
        key=("uuid",),
        unique=("name",),
    )
    create_table(
        "subnets",
        column("uuid", Uuid),
        column("network_uuid", Uuid),
        column("version", sa.Integer),
        column("cidr", sa.String(64)),
        column("ranges", Json),
        column("gateway", sa.String(64), null=True),
        column("dns", Json),
        key=("uuid",),
        unique=("network_uuid", "version"),
    )
    create_table(
        "addresses",
        column("mac", sa.BigInteger),
        column("subnet_uuid", Uuid),
        column("address", sa.String(64)),
        column("free_since", Time, null=True),
        column("server_uuid", Uuid, null=True),
        column("position", sa.Integer, null=True),
        column("tag", Name, null=True),
        key=("mac",),
        unique=("subnet_uuid", "address"),
    )
    create_index("addresses", "subnet_uuid", "free_since", "mac", name="free")
    create_index("addresses", "server_uuid")
