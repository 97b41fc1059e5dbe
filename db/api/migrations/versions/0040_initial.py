"""The first schema of the API database. It has the number of the last one of the development before 0.1.0.

Revision ID: 0040
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from db.sql.migrations.shorthand import BigId, Json, Name, Time, Uuid, column, create_index, create_table, insert_first_row

revision = "0040"
down_revision = None


def upgrade() -> None:
    _operators()
    _queue()
    _servers()
    _projects()
    _cells()
    _images()
    _claims()
    _deployment()
    _rows()


def _operators() -> None:
    """What operators and projects define, and the epochs that processes notice a change of it by."""
    create_table(
        "epochs",
        column("name", sa.String(32)),
        column("epoch", sa.BigInteger),
        key=("name",),
    )
    create_table(
        "cell_mappings",
        column("uuid", Uuid),
        column("name", Name),
        column("database_url", sa.Text),
        column("transport_url", sa.Text),
        column("state", sa.String(16)),
        column("epoch", sa.BigInteger),
        key=("uuid",),
        unique=("name",),
    )
    create_table(
        "host_mappings",
        column("host", Name),
        column("cell_uuid", Uuid),
        column("created_at", Time),
        key=("host",),
    )
    create_index("host_mappings", "cell_uuid")
    create_table(
        "flavors",
        column("flavor_id", Name),
        column("name", Name),
        column("vcpus", sa.Integer),
        column("memory_mb", sa.Integer),
        column("root_gb", sa.Integer),
        column("ephemeral_gb", sa.Integer),
        column("swap_mb", sa.Integer),
        column("is_public", sa.Boolean),
        column("disabled", sa.Boolean),
        column("description", sa.Text, null=True),
        column("extra_specs", Json),
        column("rxtx_factor", sa.Double, default=sa.text("1")),
        key=("flavor_id",),
        unique=("name",),
    )
    create_table(
        "flavor_access",
        column("flavor_id", Name),
        column("project_id", Name),
        key=("flavor_id", "project_id"),
    )
    create_table(
        "aggregates",
        column("id", BigId),
        column("name", Name),
        column("metadata", Json),
        column("uuid", Uuid, null=True),
        column("created_at", Time, default=sa.text("0")),
        column("updated_at", Time, null=True),
        key=("id",),
        unique=("name",),
    )
    create_table(
        "aggregate_hosts",
        column("aggregate_id", BigId),
        column("host", Name),
        key=("aggregate_id", "host"),
    )
    create_table(
        "server_groups",
        column("uuid", Uuid),
        column("name", Name),
        column("project_id", Name),
        column("user_id", Name),
        column("policy", sa.String(32)),
        column("max_server_per_host", sa.Integer),
        column("max_server_per_rack", sa.Integer, null=True),
        column("created_at", Time, default=sa.text("0")),
        key=("uuid",),
    )
    create_index("server_groups", "project_id")
    create_table(
        "keypairs",
        column("id", BigId),
        column("user_id", Name),
        column("name", Name),
        column("key_type", sa.String(16)),
        column("fingerprint", Name),
        column("public_key", sa.Text),
        column("created_at", Time),
        key=("id",),
        unique=("user_id", "name"),
    )
    create_table(
        "console_tokens",
        column("digest", sa.String(64)),
        column("server_uuid", Uuid),
        column("body_uuid", Uuid),
        column("console_type", sa.String(32)),
        column("host", Name),
        column("address", Name),
        column("port", sa.Integer),
        column("expires_at", Time),
        key=("digest",),
    )
    create_index("console_tokens", "expires_at")
    create_index("console_tokens", "server_uuid")
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
        column("port_uuid", Uuid, null=True),
        key=("mac",),
        unique=("subnet_uuid", "address"),
    )
    create_index("addresses", "subnet_uuid", "free_since", "mac", name="free")
    create_index("addresses", "port_uuid")
    create_index("addresses", "server_uuid")
    create_table(
        "ports",
        column("uuid", Uuid),
        column("project_id", Name),
        column("network_uuid", Uuid),
        column("name", Name),
        column("description", Name),
        column("tags", Json),
        column("created_at", Time),
        column("updated_at", Time),
        key=("uuid",),
    )
    create_index("ports", "project_id")


def _queue() -> None:
    """The durable queue of boots."""
    create_table(
        "request_specs",
        column("batch_id", Uuid),
        column("spec", Json),
        column("created_at", Time),
        column("flavor_id", Name, null=True),
        column("image_id", Name, null=True),
        column("key_name", Name, null=True),
        column("config_drive", sa.Boolean, null=True),
        column("description", Name, null=True),
        column("group_uuid", Name, null=True),
        key=("batch_id",),
    )
    create_index("request_specs", "group_uuid")
    create_table(
        "request_tags",
        column("batch_id", Uuid),
        column("tag", Name),
        key=("batch_id", "tag"),
    )
    create_table(
        "request_metadata",
        column("batch_id", Uuid),
        column("key", Name),
        column("value", Name),
        key=("batch_id", "key"),
    )
    create_table(
        "server_tags",
        column("instance_uuid", Uuid),
        column("tag", Name),
        key=("instance_uuid", "tag"),
    )
    create_table(
        "server_metadata",
        column("instance_uuid", Uuid),
        column("key", Name),
        column("value", Name),
        key=("instance_uuid", "key"),
    )
    create_table(
        "request_secrets",
        column("batch_id", Uuid),
        column("sealed", Json),
        column("created_at", Time),
        key=("batch_id",),
    )
    create_table(
        "build_requests",
        column("instance_uuid", Uuid),
        column("batch_id", Uuid),
        column("state", sa.String(16)),
        column("owner", Name, null=True),
        column("lease_until", Time),
        column("fence", sa.BigInteger),
        column("deadline", Time),
        column("priority", sa.Integer),
        column("created_at", Time),
        column("held_until", Time, null=True),
        key=("instance_uuid",),
    )
    create_index("build_requests", "batch_id")
    create_index("build_requests", "lease_until", "priority", "created_at", name="queue")
    create_table(
        "holds",
        column("batch_id", Uuid),
        column("project_id", Name),
        column("user_id", Name),
        column("created_at", Time),
        column("expires_at", Time),
        column("held_at", Time, null=True),
        key=("batch_id",),
    )
    create_index("holds", "expires_at")
    create_index("holds", "project_id")
    create_table(
        "all_or_nothing",
        column("batch_id", Uuid),
        column("fault", sa.Text, null=True),
        column("created_at", Time),
        column("failed_at", Time, null=True),
        key=("batch_id",),
    )


def _servers() -> None:
    """Servers at the API level, and the operations on them."""
    create_table(
        "instance_mappings",
        column("instance_uuid", Uuid),
        column("batch_id", Uuid),
        column("cell_uuid", Uuid, null=True),
        column("deleted", sa.Boolean),
        column("fence", sa.BigInteger),
        column("seen", sa.BigInteger),
        column("project_id", Name),
        column("user_id", Name),
        column("name", Name),
        column("launch_index", sa.Integer),
        column("created_at", Time),
        column("vcpus", sa.Integer, null=True),
        column("memory_mb", sa.Integer, null=True),
        column("mapped_at", Time, null=True),
        column("deleted_at", Time, null=True),
        column("deleted_by", Name, null=True),
        column("deleted_by_user", Name, null=True),
        column("state", sa.String(16)),
        column("host", Name, null=True),
        column("node", Name, null=True),
        column("availability_zone", Name, null=True),
        column("updated_at", Time),
        column("launched_at", Time, null=True),
        column("terminated_at", Time, null=True),
        column("fault", sa.Text, null=True),
        column("body_uuid", Uuid, null=True),
        column("server_uuid", Uuid, null=True),
        column("turn", sa.Integer, default=sa.text("0")),
        column("hidden", sa.Boolean, default=sa.false()),
        column("last_number", sa.BigInteger, default=sa.text("0")),
        column("power", sa.String(16), default=sa.text("'on'")),
        column("task_number", sa.BigInteger, default=sa.text("0")),
        column("task_state", sa.String(16), default=sa.text("'done'")),
        column("task_fault", sa.Text, null=True),
        column("task_stored", Json, null=True),
        column("image_id", Name, null=True),
        column("image_hash", sa.String(128), null=True),
        column("rebuilt_from", Json, null=True),
        column("locked_by", Name, null=True),
        column("locked_reason", Name, null=True),
        column("description", Name, null=True),
        column("metadata", Json, null=True),
        column("tags", Json, null=True),
        column("hostname", Name, null=True),
        column("access_ip_v4", Name, null=True),
        column("access_ip_v6", Name, null=True),
        column("auto_disk_config", sa.Boolean, null=True),
        column("key_name", Name, null=True),
        column("public_key", sa.Text, null=True),
        column("user_version", sa.BigInteger, default=sa.text("0")),
        column("name_key", sa.String(80), null=True),
        key=("instance_uuid",),
    )
    create_index("instance_mappings", "batch_id")
    create_index("instance_mappings", "deleted", "state", name="deleting")
    create_index("instance_mappings", "project_id", "deleted", "created_at", "instance_uuid", name="list")
    create_index("instance_mappings", "name_key", unique=True)
    create_table(
        "operations",
        column("uuid", Uuid),
        column("server_uuid", Uuid),
        column("open_for", Uuid, null=True),
        column("kind", sa.String(32)),
        column("args", Json),
        column("state", sa.String(16)),
        column("number", sa.BigInteger),
        column("power_before", sa.String(16)),
        column("held", sa.Boolean),
        column("forced", sa.Boolean),
        column("source_uuid", Uuid, null=True),
        column("twin_uuid", Uuid, null=True),
        column("project_id", Name),
        column("user_id", Name),
        column("request_id", Name),
        column("source_host", Name, null=True),
        column("target_host", Name, null=True),
        column("vcpus", sa.Integer, null=True),
        column("memory_mb", sa.Integer, null=True),
        column("created_at", Time),
        column("updated_at", Time),
        column("deadline", Time),
        column("ended_at", Time, null=True),
        column("outcome", sa.String(16), null=True),
        column("fault", sa.Text, null=True),
        column("sealed", Json, null=True),
        column("frozen", sa.Text, null=True),
        key=("uuid",),
        unique=("open_for",),
    )
    create_index("operations", "ended_at")
    create_index("operations", "server_uuid", "created_at", name="server")
    create_index("operations", "twin_uuid")


def _projects() -> None:
    """What projects and users may have, and the requests that a client may repeat."""
    create_table(
        "client_tokens",
        column("project_id", Name),
        column("token", Name),
        column("batch_id", Uuid),
        column("created_at", Time),
        column("digest", sa.String(80), null=True),
        key=("project_id", "token"),
    )
    create_table(
        "quotas",
        column("project_id", Name),
        column("max_instances", sa.BigInteger, null=True),
        column("max_cores", sa.BigInteger, null=True),
        column("max_ram", sa.BigInteger, null=True),
        column("used_instances", sa.BigInteger),
        column("used_cores", sa.BigInteger),
        column("used_ram", sa.BigInteger),
        column("limited_users", sa.BigInteger, default=sa.text("0")),
        key=("project_id",),
    )
    create_table(
        "user_quotas",
        column("project_id", Name),
        column("user_id", Name),
        column("max_instances", sa.BigInteger, null=True),
        column("max_cores", sa.BigInteger, null=True),
        column("max_ram", sa.BigInteger, null=True),
        column("used_instances", sa.BigInteger),
        column("used_cores", sa.BigInteger),
        column("used_ram", sa.BigInteger),
        key=("project_id", "user_id"),
    )
    create_table(
        "quota_limits",
        column("project_id", Name),
        column("name", sa.String(64)),
        column("value", sa.BigInteger),
        key=("project_id", "name"),
    )
    create_table(
        "user_quota_limits",
        column("project_id", Name),
        column("user_id", Name),
        column("name", sa.String(64)),
        column("value", sa.BigInteger),
        key=("project_id", "user_id", "name"),
    )


def _cells() -> None:
    """How far the API level has read each cell, and which database that was."""
    create_table(
        "feed_cursors",
        column("cell_uuid", Uuid),
        column("sequence", sa.BigInteger),
        key=("cell_uuid",),
    )
    create_table(
        "incarnation",
        column("id", sa.Integer),
        column("uuid", Uuid),
        column("mark", sa.BigInteger),
        column("server", sa.String(64)),
        column("state", sa.String(16)),
        column("reason", sa.Text),
        column("changed_at", Time),
        key=("id",),
    )
    create_table(
        "cell_marks",
        column("cell_uuid", Uuid),
        column("mark", sa.BigInteger),
        key=("cell_uuid",),
    )
    create_table(
        "cell_silences",
        column("cell_uuid", Uuid),
        column("since", Time),
        column("reason", sa.Text),
        key=("cell_uuid",),
    )


def _images() -> None:
    """The image store."""
    create_table(
        "image_removals",
        column("image_id", Uuid),
        column("written_by", Uuid, null=True),
        column("since", Time),
        key=("image_id",),
    )
    create_table(
        "images",
        column("image_id", Uuid),
        column("project_id", Name),
        column("name", Name),
        column("status", sa.String(16)),
        column("disk_format", sa.String(16)),
        column("size", sa.BigInteger),
        column("virtual_size", sa.BigInteger, null=True),
        column("hash_value", sa.String(128)),
        column("created_at", Time),
        column("updated_at", Time, null=True),
        column("details", Json, null=True),
        key=("image_id",),
    )
    create_index("images", "project_id", "created_at")
    create_table(
        "server_images",
        column("image_id", Uuid),
        column("project_id", Name),
        column("server_uuid", Uuid),
        column("complete", sa.Boolean),
        column("backup_type", Name),
        column("asked", Json),
        column("created_at", Time),
        key=("image_id",),
    )
    create_index("server_images", "project_id", "created_at")
    create_index("server_images", "server_uuid", "created_at")


def _claims() -> None:
    """Claims and the decisions behind them."""
    create_table(
        "writers",
        column("id", BigId),
        column("name", Name),
        column("started", Time),
        key=("id",),
    )
    create_table(
        "inventories",
        column("id", BigId),
        column("host", Name),
        column("node", Name),
        column("cell_uuid", Uuid),
        column("generation", sa.BigInteger),
        column("cap_vcpus", sa.Double),
        column("cap_memory_mb", sa.Double),
        column("cap_disk_gb", sa.Double),
        column("used_vcpus", sa.BigInteger),
        column("used_memory_mb", sa.BigInteger),
        column("used_disk_gb", sa.BigInteger),
        column("instances", sa.BigInteger),
        column("writer", sa.BigInteger),
        column("wseq", sa.BigInteger),
        column("cap_resources", Json, null=True),
        column("used_resources", Json, null=True),
        column("service_event", sa.BigInteger, default=sa.text("0")),
        key=("id",),
        unique=("host", "node"),
    )
    create_index("inventories", "writer", "wseq", name="log")
    create_table(
        "allocations",
        column("instance_uuid", Uuid),
        column("inventory_id", BigId),
        column("fence", sa.BigInteger),
        column("vcpus", sa.Integer),
        column("memory_mb", sa.Integer),
        column("disk_gb", sa.Integer),
        column("group_uuid", Uuid, null=True),
        column("selection", Json),
        column("writer", sa.BigInteger),
        column("wseq", sa.BigInteger),
        column("resources", Json, null=True),
        key=("instance_uuid",),
    )
    create_index("allocations", "inventory_id")
    create_table(
        "group_slots",
        column("group_uuid", Uuid),
        column("instance_uuid", Uuid),
        column("host", Name),
        column("held", sa.Boolean),
        column("fault_domain", Name, null=True),
        key=("group_uuid", "instance_uuid", "host"),
    )
    create_index("group_slots", "instance_uuid")
    create_table(
        "decisions",
        column("id", Uuid),
        column("batch_id", Uuid),
        column("at", Time),
        column("decision", Json),
        key=("id",),
    )
    create_index("decisions", "batch_id", "at")


def _deployment() -> None:
    """Notifications, processes, dead letters, and the upgrade."""
    create_table(
        "notifications",
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
        "finalized",
        column("id", sa.Integer),
        column("messages", sa.String(16)),
        column("release", sa.String(64)),
        column("at", Time),
        key=("id",),
    )
    create_table(
        "api_processes",
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
        "api_dead_letters",
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
        "certification",
        column("id", sa.Integer),
        column("number", sa.BigInteger),
        key=("id",),
    )


def _rows() -> None:
    """Rows that are changed and never inserted. An interrupted run on MariaDB may have left some."""
    epochs = sa.table("epochs", sa.column("name", sa.String), sa.column("epoch", sa.BigInteger))
    known = set(op.get_bind().execute(sa.select(epochs.c.name)).scalars())
    missing = [name for name in ("aggregates", "cells", "flavors", "groups", "hosts") if name not in known]
    op.bulk_insert(epochs, [{"name": name, "epoch": 0} for name in missing])
    insert_first_row("certification", "number")  # both kinds of databases have it, and may be one
