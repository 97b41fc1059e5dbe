"""The first schema of a cell database. It has the number of the last one of the development before 0.1.0.

Revision ID: 0019
"""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.migrations.shorthand import BigId, Json, Name, Time, Uuid, create_index, create_table, insert_first_row, make_column

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
        make_column("uuid", Uuid),
        make_column("state", sa.String(16)),
        make_column("fence", sa.BigInteger),
        make_column("attempt", sa.Integer),
        make_column("builder", Name, null=True),
        make_column("version", sa.BigInteger),
        make_column("host", Name, null=True),
        make_column("node", Name, null=True),
        make_column("availability_zone", Name, null=True),
        make_column("batch_id", Uuid, null=True),
        make_column("project_id", Name),
        make_column("user_id", Name),
        make_column("name", Name),
        make_column("flavor", Name),
        make_column("launch_index", sa.Integer),
        make_column("created_at", Time),
        make_column("updated_at", Time),
        make_column("building_at", Time, null=True),
        make_column("launched_at", Time, null=True),
        make_column("terminated_at", Time, null=True),
        make_column("rolled_back", sa.Text, null=True),
        make_column("server_uuid", Uuid, null=True),
        make_column("turn", sa.Integer, default=sa.text("0")),
        make_column("power", sa.String(16), default=sa.text("'on'")),
        make_column("task_number", sa.BigInteger, default=sa.text("0")),
        make_column("task_state", sa.String(16), default=sa.text("'done'")),
        make_column("task_fault", sa.Text, null=True),
        make_column("task_stored", Json, null=True),
        key=("uuid",),
    )
    create_index("instances", "batch_id")
    create_index("instances", "host", "state", name="host")
    create_index("instances", "state", "updated_at", name="state")
    create_table(
        "builds",
        make_column("instance_uuid", Uuid),
        make_column("spec", Json),
        make_column("limits", Json, null=True),
        make_column("alternates", Json),
        make_column("max_attempts", sa.Integer),
        make_column("history", Json),
        make_column("deadline", Time),
        make_column("has_group", sa.Boolean),
        make_column("sent_at", Time),
        make_column("ports", Json, null=True),
        key=("instance_uuid",),
    )
    create_table(
        "tasks",
        make_column("instance_uuid", Uuid),
        make_column("number", sa.BigInteger),
        make_column("kind", sa.String(32)),
        make_column("args", Json),
        make_column("builder", Name, null=True),
        make_column("request_id", Name),
        make_column("sent_at", Time),
        make_column("sealed", Json, null=True),
        key=("instance_uuid",),
    )
    create_index("tasks", "sent_at")
    create_table(
        "snapshots",
        make_column("instance_uuid", Uuid),
        make_column("number", sa.BigInteger),
        make_column("image_id", Uuid),
        key=("instance_uuid",),
    )
    create_table(
        "build_secrets",
        make_column("batch_id", Uuid),
        make_column("sealed", Json),
        make_column("created_at", Time),
        key=("batch_id",),
    )
    create_table(
        "tags",
        make_column("instance_uuid", Uuid),
        make_column("tag", sa.String(80)),
        key=("instance_uuid", "tag"),
    )
    create_table(
        "block_device_mappings",
        make_column("instance_uuid", Uuid),
        make_column("position", sa.Integer),
        make_column("mapping", Json),
        key=("instance_uuid", "position"),
    )


def _history() -> None:
    """What happened to them."""
    create_table(
        "instance_actions",
        make_column("id", BigId),
        make_column("instance_uuid", Uuid),
        make_column("action", sa.String(32)),
        make_column("request_id", Name, null=True),
        make_column("written_at", Time, null=True),
        make_column("started_at", Time),
        key=("id",),
    )
    create_index("instance_actions", "instance_uuid")
    create_table(
        "instance_faults",
        make_column("id", BigId),
        make_column("instance_uuid", Uuid),
        make_column("code", sa.Integer),
        make_column("message", sa.Text),
        make_column("details", Json, null=True),
        make_column("created_at", Time),
        key=("id",),
    )
    create_index("instance_faults", "instance_uuid")


def _hosts() -> None:
    """Hosts and the services on them."""
    create_table(
        "services",
        make_column("uuid", Uuid),
        make_column("host", Name),
        make_column("binary", sa.String(64)),
        make_column("report_count", sa.BigInteger),
        make_column("last_seen", Time),
        make_column("disabled", sa.Boolean),
        make_column("disabled_reason", sa.Text, null=True),
        make_column("forced_down", sa.Boolean),
        make_column("version", sa.Integer),
        make_column("stopping", sa.Boolean),
        make_column("release", sa.String(64), null=True),
        make_column("messages", sa.String(16), null=True),
        make_column("pid", sa.Integer, null=True),
        make_column("started_at", Time, null=True),
        make_column("identified", sa.Boolean, null=True),
        key=("uuid",),
        unique=("host", "binary"),
    )
    create_table(
        "cell_processes",
        make_column("uuid", Uuid),
        make_column("binary", sa.String(64)),
        make_column("host", Name),
        make_column("pid", sa.Integer),
        make_column("release", sa.String(64)),
        make_column("messages", sa.String(16)),
        make_column("started_at", Time),
        make_column("last_seen", Time),
        key=("uuid",),
    )
    create_table(
        "compute_nodes",
        make_column("host", Name),
        make_column("node", Name),
        make_column("stats", Json),
        make_column("updated_at", Time),
        key=("host", "node"),
    )
    create_index("compute_nodes", "node")
    create_table(
        "host_terms",
        make_column("host", Name),
        make_column("node", Name),
        make_column("accepted", Json),
        make_column("waiting", Json, null=True),
        make_column("ratios", Json),
        key=("host", "node"),
    )


def _feed() -> None:
    """The change feed, and the API database that reads it."""
    create_table(
        "incarnation_seen",
        make_column("id", sa.Integer),
        make_column("incarnation", Uuid),
        make_column("mark", sa.BigInteger),
        key=("id",),
    )
    create_table(
        "feed_head",
        make_column("id", sa.Integer),
        make_column("sequence", sa.BigInteger),
        make_column("trimmed", sa.BigInteger),
        key=("id",),
    )
    create_table(
        "feed",
        make_column("sequence", sa.BigInteger),
        make_column("kind", sa.String(16)),
        make_column("key", Name),
        make_column("version", sa.BigInteger),
        make_column("payload", Json),
        make_column("created_at", Time),
        key=("sequence",),
    )


def _operation() -> None:
    """Notifications, dead letters, and guests that no record names."""
    create_table(
        "cell_notifications",
        make_column("id", BigId),
        make_column("message_id", Uuid),
        make_column("event_type", sa.String(64)),
        make_column("priority", sa.String(8)),
        make_column("subject", Name),
        make_column("facts", Json),
        make_column("at", Time),
        make_column("taken_until", Time),
        key=("id",),
    )
    create_table(
        "cell_dead_letters",
        make_column("step", sa.String(64)),
        make_column("key", Name),
        make_column("reason", sa.Text),
        make_column("tries", sa.Integer),
        make_column("first_at", Time),
        make_column("last_at", Time),
        make_column("due", Time),
        make_column("skipped", sa.Boolean),
        key=("step", "key"),
    )
    create_table(
        "unknown_guests",
        make_column("host", Name),
        make_column("uuid", Uuid),
        make_column("guest", Json),
        make_column("reported_at", Time),
        key=("host", "uuid"),
    )
    create_table(
        "certification",
        make_column("id", sa.Integer),
        make_column("number", sa.BigInteger),
        key=("id",),
    )


def _rows() -> None:
    """Rows that are changed and never inserted."""
    insert_first_row("feed_head", "sequence", "trimmed")
    insert_first_row("certification", "number")  # both kinds of databases have it, and may be one
