"""The first schema of a cell database. It has the number of the last one of the development before 0.1.0.

Revision ID: 0019
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import BigId, Json, Name, Time, Uuid, column, create_index, create_table, insert_first_row

revision = "0019"
down_revision = None


def upgrade() -> None:
    _instances()
    _history()
    _hosts()
    _feed()
    _operation()
    _rows()


def _instances() -> None:
    """Instances, and what must be done to them."""
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
        column("building_at", Time, null=True),
        column("launched_at", Time, null=True),
        column("terminated_at", Time, null=True),
        column("rolled_back", sa.Text, null=True),
        column("server_uuid", Uuid, null=True),
        column("turn", sa.Integer, default=sa.text("0")),
        column("power", sa.String(16), default=sa.text("'on'")),
        column("task_number", sa.BigInteger, default=sa.text("0")),
        column("task_state", sa.String(16), default=sa.text("'done'")),
        column("task_fault", sa.Text, null=True),
        column("task_stored", Json, null=True),
        key=("uuid",),
    )
    create_index("instances", "batch_id")
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
        column("ports", Json, null=True),
        key=("instance_uuid",),
    )
    create_table(
        "tasks",
        column("instance_uuid", Uuid),
        column("number", sa.BigInteger),
        column("kind", sa.String(32)),
        column("args", Json),
        column("builder", Name, null=True),
        column("request_id", Name),
        column("sent_at", Time),
        column("sealed", Json, null=True),
        key=("instance_uuid",),
    )
    create_index("tasks", "sent_at")
    create_table(
        "snapshots",
        column("instance_uuid", Uuid),
        column("number", sa.BigInteger),
        column("image_id", Uuid),
        key=("instance_uuid",),
    )
    create_table(
        "build_secrets",
        column("batch_id", Uuid),
        column("sealed", Json),
        column("created_at", Time),
        key=("batch_id",),
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
        column("written_at", Time, null=True),
        column("started_at", Time),
        key=("id",),
    )
    create_index("instance_actions", "instance_uuid")
    create_table(
        "instance_faults",
        column("id", BigId),
        column("instance_uuid", Uuid),
        column("code", sa.Integer),
        column("message", sa.Text),
        column("details", Json, null=True),
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
        column("stopping", sa.Boolean),
        column("release", sa.String(64), null=True),
        column("messages", sa.String(16), null=True),
        column("pid", sa.Integer, null=True),
        column("started_at", Time, null=True),
        column("identified", sa.Boolean, null=True),
        key=("uuid",),
        unique=("host", "binary"),
    )
    create_table(
        "cell_processes",
        column("uuid", Uuid),
        column("binary", sa.String(64)),
        column("host", Name),
        column("pid", sa.Integer),
        column("release", sa.String(64)),
        column("messages", sa.String(16)),
        column("started_at", Time),
        column("last_seen", Time),
        key=("uuid",),
    )
    create_table(
        "compute_nodes",
        column("host", Name),
        column("node", Name),
        column("stats", Json),
        column("updated_at", Time),
        key=("host", "node"),
    )
    create_index("compute_nodes", "node")
    create_table(
        "host_terms",
        column("host", Name),
        column("node", Name),
        column("accepted", Json),
        column("waiting", Json, null=True),
        column("ratios", Json),
        key=("host", "node"),
    )


def _feed() -> None:
    """The change feed, and the API database that reads it."""
    create_table(
        "incarnation_seen",
        column("id", sa.Integer),
        column("incarnation", Uuid),
        column("mark", sa.BigInteger),
        key=("id",),
    )
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


def _operation() -> None:
    """Notifications, dead letters, and guests that no record names."""
    create_table(
        "cell_notifications",
        column("id", BigId),
        column("message_id", Uuid),
        column("event_type", sa.String(64)),
        column("priority", sa.String(8)),
        column("subject", Name),
        column("facts", Json),
        column("at", Time),
        column("taken_until", Time),
        key=("id",),
    )
    create_table(
        "cell_dead_letters",
        column("step", sa.String(64)),
        column("key", Name),
        column("reason", sa.Text),
        column("tries", sa.Integer),
        column("first_at", Time),
        column("last_at", Time),
        column("due", Time),
        column("skipped", sa.Boolean),
        key=("step", "key"),
    )
    create_table(
        "unknown_guests",
        column("host", Name),
        column("uuid", Uuid),
        column("guest", Json),
        column("reported_at", Time),
        key=("host", "uuid"),
    )
    create_table(
        "certification",
        column("id", sa.Integer),
        column("number", sa.BigInteger),
        key=("id",),
    )


def _rows() -> None:
    """Rows that are changed and never inserted."""
    insert_first_row("feed_head", "sequence", "trimmed")
    insert_first_row("certification", "number")  # both kinds of databases have it, and may be one
