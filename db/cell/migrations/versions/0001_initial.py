"""The first schema of a cell database.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from db.sql.migrations.shorthand import BigId, Json, Name, Time, Uuid, column, create_index, create_table

revision = "0001"
down_revision = None


def upgrade() -> None:
    _instances()
    _history()
    _hosts()
    _feed()


def _instances() -> None:
    """Instances and what hangs off them."""
    create_table(
        "instances",
        column("uuid", Uuid),
        column("state", sa.String(16)),
        column("fence", sa.BigInteger),
        column("attempt", sa.Integer),
        column("builder", Name, null=True),
        column("version", sa.BigInteger),
        column("host", Name, null=True),
        column("node", Name, null=True),
        column("availability_zone", Name, null=True),
        column("batch_id", Uuid, null=True),
        column("project_id", Name),
        column("user_id", Name),
        column("name", Name),
        column("flavor", Name),
        column("launch_index", sa.Integer),
        column("created_at", Time),
        column("updated_at", Time),
        column("launched_at", Time, null=True),
        column("terminated_at", Time, null=True),
        key=("uuid",),
    )
    create_index("instances", "host", "state", name="host")
    create_index("instances", "state", "updated_at", name="state")
    create_table(
        "builds",
        column("instance_uuid", Uuid),
        column("spec", Json),
        column("limits", Json, null=True),
        column("alternates", Json),
        column("max_attempts", sa.Integer),
        column("history", Json),
        column("deadline", Time),
        column("has_group", sa.Boolean),
        column("sent_at", Time),
        key=("instance_uuid",),
    )
    create_table(
        "tags",
        column("instance_uuid", Uuid),
        column("tag", sa.String(80)),
        key=("instance_uuid", "tag"),
    )
    create_table(
        "block_device_mappings",
        column("instance_uuid", Uuid),
        column("position", sa.Integer),
        column("mapping", Json),
        key=("instance_uuid", "position"),
    )


def _history() -> None:
    """What happened to them."""
    create_table(
        "instance_actions",
        column("id", BigId),
        column("instance_uuid", Uuid),
        column("action", sa.String(32)),
        column("request_id", Name, null=True),
        column("started_at", Time),
        column("finished_at", Time, null=True),
        column("message", sa.Text, null=True),
        key=("id",),
    )
    create_index("instance_actions", "instance_uuid")
    create_table(
        "instance_faults",
        column("id", BigId),
        column("instance_uuid", Uuid),
        column("code", sa.Integer),
        column("message", sa.Text),
        column("details", sa.Text, null=True),
        column("created_at", Time),
        key=("id",),
    )
    create_index("instance_faults", "instance_uuid")


def _hosts() -> None:
    """Hosts and the services on them."""
    create_table(
        "services",
        column("uuid", Uuid),
        column("host", Name),
        column("binary", sa.String(64)),
        column("report_count", sa.BigInteger),
        column("last_seen", Time),
        column("disabled", sa.Boolean),
        column("disabled_reason", sa.Text, null=True),
        column("forced_down", sa.Boolean),
        column("version", sa.Integer),
        key=("uuid",),
        unique=("host", "binary"),
    )
    create_table(
        "compute_nodes",
        column("host", Name),
        column("node", Name),
        column("stats", Json),
        column("updated_at", Time),
        key=("host", "node"),
    )


def _feed() -> None:
    """The change feed."""
    create_table(
        "feed_head",
        column("id", sa.Integer),
        column("sequence", sa.BigInteger),
        column("trimmed", sa.BigInteger),
        key=("id",),
    )
    create_table(
        "feed",
        column("sequence", sa.BigInteger),
        column("kind", sa.String(16)),
        column("key", Name),
        column("version", sa.BigInteger),
        column("payload", Json),
        column("created_at", Time),
        key=("sequence",),
    )
    head = sa.table("feed_head", *(sa.column(name, sa.BigInteger) for name in ("id", "sequence", "trimmed")))
    if op.get_bind().execute(sa.select(head.c.id)).first() is None:
        op.bulk_insert(head, [{"id": 1, "sequence": 0, "trimmed": 0}])
