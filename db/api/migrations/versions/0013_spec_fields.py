"""What lists look for in request specs, in columns and tables of its own.

Revision ID: 0013
"""

from __future__ import annotations

from typing import cast

import sqlalchemy as sa
from alembic import op

from db.api.rows import spec_fields
from db.sql.connection import ApiTransaction
from db.sql.migrations.shorthand import Name, Uuid, add_column, column, create_table

revision = "0013"
down_revision = "0012"

PAGE_SIZE = 500


def upgrade() -> None:
    for name in ("flavor_id", "image_id", "key_name", "description"):
        add_column("request_specs", column(name, Name, null=True))
    add_column("request_specs", column("config_drive", sa.Boolean, null=True))
    add_column(
        "request_specs", column("group_uuid", Name, null=True)
    )  # what fills the others writes it too; 0023 adds it elsewhere
    create_table("request_tags", column("batch_id", Uuid), column("tag", Name), key=("batch_id", "tag"))
    create_table("request_metadata", column("batch_id", Uuid), column("key", Name), column("value", Name), key=("batch_id", "key"))
    while spec_fields.fill(cast(ApiTransaction, op.get_bind()), PAGE_SIZE):
        pass
