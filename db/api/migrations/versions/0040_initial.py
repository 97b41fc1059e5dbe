"""The first schema of the API database. It has the number of the last one of the development before 0.1.0.

Revision ID: 0040
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from db.sql.migrations.shorthand import BigId, Json, Name, Time, Uuid, create_index, create_table, insert_first_row, make_column

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
        make_column("name", sa.String(32)),
        make_column("epoch", sa.BigInteger),
        key=("name",),
    )
    create_table(
        "cell_mappings",
        make_column("uuid", Uuid),
        make_column("name", Name),
        make_column("database_url", sa.Text),
        make_column("transport_url", sa.Text),
        make_column("state", sa.String(16)),
        make_column("epoch", sa.BigInteger),
        key=("uuid",),
        unique=("name",),
    )
    create_table(
        "host_mappings",
        make_column("host", Name),
        make_column("cell_uuid", Uuid),
        make_column("created_at", Time),
        key=("host",),
    )
    create_index("host_mappings", "cell_uuid")
    create_table(
        "flavors",
        make_column("flavor_id", Name),
        make_column("name", Name),
        make_column("vcpus", sa.Integer),
        make_column("memory_mb", sa.Integer),
        make_column("root_gb", sa.Integer),
        make_column("ephemeral_gb", sa.Integer),
        make_column("swap_mb", sa.Integer),
        make_column("is_public", sa.Boolean),
        make_column("disabled", sa.Boolean),
        make_column("description", sa.Text, null=True),
        make_column("extra_specs", Json),
        make_column("rxtx_factor", sa.Double, default=sa.text("1")),
        key=("flavor_id",),
        unique=("name",),
    )
    create_table(
        "flavor_access",
        make_column("flavor_id", Name),
        make_column("project_id", Name),
        key=("flavor_id", "project_id"),
    )
    create_table(
        "aggregates",
        make_column("id", BigId),
        make_column("name", Name),
        make_column("metadata", Json),
        make_column("uuid", Uuid, null=True),
        make_column("created_at", Time, default=sa.text("0")),
        make_column("updated_at", Time, null=True),
        key=("id",),
        unique=("name",),
    )
    create_table(
        "aggregate_hosts",
        make_column("aggregate_id", BigId),
        make_column("host", Name),
        key=("aggregate_id", "host"),
    )
    create_table(
        "server_groups",
        make_column("uuid", Uuid),
        make_column("name", Name),
        make_column("project_id", Name),
        make_column("user_id", Name),
        make_column("policy", sa.String(32)),
        make_column("max_server_per_host", sa.Integer),
        make_column("max_server_per_rack", sa.Integer, null=True),
        make_column("created_at", Time, default=sa.text("0")),
        key=("uuid",),
    )
    create_index("server_groups", "project_id")
    create_table(
        "keypairs",
        make_column("id", BigId),
        make_column("user_id", Name),
        make_column("name", Name),
        make_column("key_type", sa.String(16)),
        make_column("fingerprint", Name),
        make_column("public_key", sa.Text),
        make_column("created_at", Time),
        key=("id",),
        unique=("user_id", "name"),
    )
    create_table(
        "console_tokens",
        make_column("digest", sa.String(64)),
        make_column("server_uuid", Uuid),
        make_column("body_uuid", Uuid),
        make_column("console_type", sa.String(32)),
        make_column("host", Name),
        make_column("address", Name),
        make_column("port", sa.Integer),
        make_column("expires_at", Time),
        key=("digest",),
    )
    create_index("console_tokens", "expires_at")
    create_index("console_tokens", "server_uuid")
    create_table(
        "networks",
        make_column("uuid", Uuid),
        make_column("name", Name),
        make_column("physical_network", Name),
        make_column("mtu", sa.Integer, null=True),
        make_column("project_ids", Json),
        key=("uuid",),
        unique=("name",),
    )
    create_table(
        "subnets",
        make_column("uuid", Uuid),
        make_column("network_uuid", Uuid),
        make_column("version", sa.Integer),
        make_column("cidr", sa.String(64)),
        make_column("ranges", Json),
        make_column("gateway", sa.String(64), null=True),
        make_column("dns", Json),
        key=("uuid",),
        unique=("network_uuid", "version"),
    )
    create_table(
        "addresses",
        make_column("mac", sa.BigInteger),
        make_column("subnet_uuid", Uuid),
        make_column("address", sa.String(64)),
        make_column("free_since", Time, null=True),
        make_column("server_uuid", Uuid, null=True),
        make_column("position", sa.Integer, null=True),
        make_column("tag", Name, null=True),
        make_column("port_uuid", Uuid, null=True),
        key=("mac",),
        unique=("subnet_uuid", "address"),
    )
    create_index("addresses", "subnet_uuid", "free_since", "mac", name="free")
    create_index("addresses", "port_uuid")
    create_index("addresses", "server_uuid")
    create_table(
        "ports",
        make_column("uuid", Uuid),
        make_column("project_id", Name),
        make_column("network_uuid", Uuid),
        make_column("name", Name),
        make_column("description", Name),
        make_column("tags", Json),
        make_column("created_at", Time),
        make_column("updated_at", Time),
        key=("uuid",),
    )
    create_index("ports", "project_id")


def _queue() -> None:
    """The durable queue of boots."""
    create_table(
        "request_specs",
        make_column("batch_id", Uuid),
        make_column("spec", Json),
        make_column("created_at", Time),
        make_column("flavor_id", Name, null=True),
        make_column("image_id", Name, null=True),
        make_column("key_name", Name, null=True),
        make_column("config_drive", sa.Boolean, null=True),
        make_column("description", Name, null=True),
        make_column("group_uuid", Name, null=True),
        key=("batch_id",),
    )
    create_index("request_specs", "group_uuid")
    create_table(
        "request_tags",
        make_column("batch_id", Uuid),
        make_column("tag", Name),
        key=("batch_id", "tag"),
    )
    create_table(
        "request_metadata",
        make_column("batch_id", Uuid),
        make_column("key", Name),
        make_column("value", Name),
        key=("batch_id", "key"),
    )
    create_table(
        "server_tags",
        make_column("instance_uuid", Uuid),
        make_column("tag", Name),
        key=("instance_uuid", "tag"),
    )
    create_table(
        "server_metadata",
        make_column("instance_uuid", Uuid),
        make_column("key", Name),
        make_column("value", Name),
        key=("instance_uuid", "key"),
    )
    create_table(
        "request_secrets",
        make_column("batch_id", Uuid),
        make_column("sealed", Json),
        make_column("created_at", Time),
        key=("batch_id",),
    )
    create_table(
        "build_requests",
        make_column("instance_uuid", Uuid),
        make_column("batch_id", Uuid),
        make_column("state", sa.String(16)),
        make_column("owner", Name, null=True),
        make_column("lease_until", Time),
        make_column("fence", sa.BigInteger),
        make_column("deadline", Time),
        make_column("priority", sa.Integer),
        make_column("created_at", Time),
        make_column("held_until", Time, null=True),
        key=("instance_uuid",),
    )
    create_index("build_requests", "batch_id")
    create_index("build_requests", "lease_until", "priority", "created_at", name="queue")
    create_table(
        "holds",
        make_column("batch_id", Uuid),
        make_column("project_id", Name),
        make_column("user_id", Name),
        make_column("created_at", Time),
        make_column("expires_at", Time),
        make_column("held_at", Time, null=True),
        key=("batch_id",),
    )
    create_index("holds", "expires_at")
    create_index("holds", "project_id")
    create_table(
        "all_or_nothing",
        make_column("batch_id", Uuid),
        make_column("fault", sa.Text, null=True),
        make_column("created_at", Time),
        make_column("failed_at", Time, null=True),
        key=("batch_id",),
    )


def _servers() -> None:
    """Servers at the API level, and the operations on them."""
    create_table(
        "instance_mappings",
        make_column("instance_uuid", Uuid),
        make_column("batch_id", Uuid),
        make_column("cell_uuid", Uuid, null=True),
        make_column("deleted", sa.Boolean),
        make_column("fence", sa.BigInteger),
        make_column("seen", sa.BigInteger),
        make_column("project_id", Name),
        make_column("user_id", Name),
        make_column("name", Name),
        make_column("launch_index", sa.Integer),
        make_column("created_at", Time),
        make_column("vcpus", sa.Integer, null=True),
        make_column("memory_mb", sa.Integer, null=True),
        make_column("mapped_at", Time, null=True),
        make_column("deleted_at", Time, null=True),
        make_column("deleted_by", Name, null=True),
        make_column("deleted_by_user", Name, null=True),
        make_column("state", sa.String(16)),
        make_column("host", Name, null=True),
        make_column("node", Name, null=True),
        make_column("availability_zone", Name, null=True),
        make_column("updated_at", Time),
        make_column("launched_at", Time, null=True),
        make_column("terminated_at", Time, null=True),
        make_column("fault", sa.Text, null=True),
        make_column("body_uuid", Uuid, null=True),
        make_column("server_uuid", Uuid, null=True),
        make_column("turn", sa.Integer, default=sa.text("0")),
        make_column("hidden", sa.Boolean, default=sa.false()),
        make_column("last_number", sa.BigInteger, default=sa.text("0")),
        make_column("power", sa.String(16), default=sa.text("'on'")),
        make_column("task_number", sa.BigInteger, default=sa.text("0")),
        make_column("task_state", sa.String(16), default=sa.text("'done'")),
        make_column("task_fault", sa.Text, null=True),
        make_column("task_stored", Json, null=True),
        make_column("image_id", Name, null=True),
        make_column("image_hash", sa.String(128), null=True),
        make_column("rebuilt_from", Json, null=True),
        make_column("locked_by", Name, null=True),
        make_column("locked_reason", Name, null=True),
        make_column("description", Name, null=True),
        make_column("metadata", Json, null=True),
        make_column("tags", Json, null=True),
        make_column("hostname", Name, null=True),
        make_column("access_ip_v4", Name, null=True),
        make_column("access_ip_v6", Name, null=True),
        make_column("auto_disk_config", sa.Boolean, null=True),
        make_column("key_name", Name, null=True),
        make_column("public_key", sa.Text, null=True),
        make_column("user_version", sa.BigInteger, default=sa.text("0")),
        make_column("name_key", sa.String(80), null=True),
        key=("instance_uuid",),
    )
    create_index("instance_mappings", "batch_id")
    create_index("instance_mappings", "deleted", "state", name="deleting")
    create_index("instance_mappings", "project_id", "deleted", "created_at", "instance_uuid", name="list")
    create_index("instance_mappings", "name_key", unique=True)
    create_table(
        "operations",
        make_column("uuid", Uuid),
        make_column("server_uuid", Uuid),
        make_column("open_for", Uuid, null=True),
        make_column("kind", sa.String(32)),
        make_column("args", Json),
        make_column("state", sa.String(16)),
        make_column("number", sa.BigInteger),
        make_column("power_before", sa.String(16)),
        make_column("held", sa.Boolean),
        make_column("forced", sa.Boolean),
        make_column("source_uuid", Uuid, null=True),
        make_column("twin_uuid", Uuid, null=True),
        make_column("project_id", Name),
        make_column("user_id", Name),
        make_column("request_id", Name),
        make_column("source_host", Name, null=True),
        make_column("target_host", Name, null=True),
        make_column("vcpus", sa.Integer, null=True),
        make_column("memory_mb", sa.Integer, null=True),
        make_column("created_at", Time),
        make_column("updated_at", Time),
        make_column("deadline", Time),
        make_column("ended_at", Time, null=True),
        make_column("outcome", sa.String(16), null=True),
        make_column("fault", sa.Text, null=True),
        make_column("sealed", Json, null=True),
        make_column("frozen", sa.Text, null=True),
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
        make_column("project_id", Name),
        make_column("token", Name),
        make_column("batch_id", Uuid),
        make_column("created_at", Time),
        make_column("digest", sa.String(80), null=True),
        key=("project_id", "token"),
    )
    create_table(
        "quotas",
        make_column("project_id", Name),
        make_column("max_instances", sa.BigInteger, null=True),
        make_column("max_cores", sa.BigInteger, null=True),
        make_column("max_ram", sa.BigInteger, null=True),
        make_column("used_instances", sa.BigInteger),
        make_column("used_cores", sa.BigInteger),
        make_column("used_ram", sa.BigInteger),
        make_column("limited_users", sa.BigInteger, default=sa.text("0")),
        key=("project_id",),
    )
    create_table(
        "user_quotas",
        make_column("project_id", Name),
        make_column("user_id", Name),
        make_column("max_instances", sa.BigInteger, null=True),
        make_column("max_cores", sa.BigInteger, null=True),
        make_column("max_ram", sa.BigInteger, null=True),
        make_column("used_instances", sa.BigInteger),
        make_column("used_cores", sa.BigInteger),
        make_column("used_ram", sa.BigInteger),
        key=("project_id", "user_id"),
    )
    create_table(
        "quota_limits",
        make_column("project_id", Name),
        make_column("name", sa.String(64)),
        make_column("value", sa.BigInteger),
        key=("project_id", "name"),
    )
    create_table(
        "user_quota_limits",
        make_column("project_id", Name),
        make_column("user_id", Name),
        make_column("name", sa.String(64)),
        make_column("value", sa.BigInteger),
        key=("project_id", "user_id", "name"),
    )


def _cells() -> None:
    """How far the API level has read each cell, and which database that was."""
    create_table(
        "feed_cursors",
        make_column("cell_uuid", Uuid),
        make_column("sequence", sa.BigInteger),
        key=("cell_uuid",),
    )
    create_table(
        "incarnation",
        make_column("id", sa.Integer),
        make_column("uuid", Uuid),
        make_column("mark", sa.BigInteger),
        make_column("server", sa.String(64)),
        make_column("state", sa.String(16)),
        make_column("reason", sa.Text),
        make_column("changed_at", Time),
        key=("id",),
    )
    create_table(
        "cell_marks",
        make_column("cell_uuid", Uuid),
        make_column("mark", sa.BigInteger),
        key=("cell_uuid",),
    )
    create_table(
        "cell_silences",
        make_column("cell_uuid", Uuid),
        make_column("since", Time),
        make_column("reason", sa.Text),
        key=("cell_uuid",),
    )


def _images() -> None:
    """The image store."""
    create_table(
        "image_removals",
        make_column("image_id", Uuid),
        make_column("written_by", Uuid, null=True),
        make_column("since", Time),
        key=("image_id",),
    )
    create_table(
        "images",
        make_column("image_id", Uuid),
        make_column("project_id", Name),
        make_column("name", Name),
        make_column("status", sa.String(16)),
        make_column("disk_format", sa.String(16)),
        make_column("size", sa.BigInteger),
        make_column("virtual_size", sa.BigInteger, null=True),
        make_column("hash_value", sa.String(128)),
        make_column("created_at", Time),
        make_column("updated_at", Time, null=True),
        make_column("details", Json, null=True),
        key=("image_id",),
    )
    create_index("images", "project_id", "created_at")
    create_table(
        "server_images",
        make_column("image_id", Uuid),
        make_column("project_id", Name),
        make_column("server_uuid", Uuid),
        make_column("complete", sa.Boolean),
        make_column("backup_type", Name),
        make_column("asked", Json),
        make_column("created_at", Time),
        key=("image_id",),
    )
    create_index("server_images", "project_id", "created_at")
    create_index("server_images", "server_uuid", "created_at")


def _claims() -> None:
    """Claims and the decisions behind them."""
    create_table(
        "writers",
        make_column("id", BigId),
        make_column("name", Name),
        make_column("started", Time),
        key=("id",),
    )
    create_table(
        "inventories",
        make_column("id", BigId),
        make_column("host", Name),
        make_column("node", Name),
        make_column("cell_uuid", Uuid),
        make_column("generation", sa.BigInteger),
        make_column("cap_vcpus", sa.Double),
        make_column("cap_memory_mb", sa.Double),
        make_column("cap_disk_gb", sa.Double),
        make_column("used_vcpus", sa.BigInteger),
        make_column("used_memory_mb", sa.BigInteger),
        make_column("used_disk_gb", sa.BigInteger),
        make_column("instances", sa.BigInteger),
        make_column("writer", sa.BigInteger),
        make_column("wseq", sa.BigInteger),
        make_column("cap_resources", Json, null=True),
        make_column("used_resources", Json, null=True),
        make_column("service_event", sa.BigInteger, default=sa.text("0")),
        key=("id",),
        unique=("host", "node"),
    )
    create_index("inventories", "writer", "wseq", name="log")
    create_table(
        "allocations",
        make_column("instance_uuid", Uuid),
        make_column("inventory_id", BigId),
        make_column("fence", sa.BigInteger),
        make_column("vcpus", sa.Integer),
        make_column("memory_mb", sa.Integer),
        make_column("disk_gb", sa.Integer),
        make_column("group_uuid", Uuid, null=True),
        make_column("selection", Json),
        make_column("writer", sa.BigInteger),
        make_column("wseq", sa.BigInteger),
        make_column("resources", Json, null=True),
        key=("instance_uuid",),
    )
    create_index("allocations", "inventory_id")
    create_table(
        "group_slots",
        make_column("group_uuid", Uuid),
        make_column("instance_uuid", Uuid),
        make_column("host", Name),
        make_column("held", sa.Boolean),
        make_column("fault_domain", Name, null=True),
        key=("group_uuid", "instance_uuid", "host"),
    )
    create_index("group_slots", "instance_uuid")
    create_table(
        "decisions",
        make_column("id", Uuid),
        make_column("batch_id", Uuid),
        make_column("at", Time),
        make_column("decision", Json),
        key=("id",),
    )
    create_index("decisions", "batch_id", "at")


def _deployment() -> None:
    """Notifications, processes, dead letters, and the upgrade."""
    create_table(
        "notifications",
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
        "finalized",
        make_column("id", sa.Integer),
        make_column("messages", sa.String(16)),
        make_column("release", sa.String(64)),
        make_column("at", Time),
        key=("id",),
    )
    create_table(
        "api_processes",
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
        "api_dead_letters",
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
        "certification",
        make_column("id", sa.Integer),
        make_column("number", sa.BigInteger),
        key=("id",),
    )


def _rows() -> None:
    """Rows that are changed and never inserted. An interrupted run on MariaDB may have left some."""
    epochs = sa.table("epochs", sa.column("name", sa.String), sa.column("epoch", sa.BigInteger))
    known = set(op.get_bind().execute(sa.select(epochs.c.name)).scalars())
    missing = [name for name in ("aggregates", "cells", "flavors", "groups", "hosts") if name not in known]
    op.bulk_insert(epochs, [{"name": name, "epoch": 0} for name in missing])
    insert_first_row("certification", "number")  # both kinds of databases have it, and may be one
