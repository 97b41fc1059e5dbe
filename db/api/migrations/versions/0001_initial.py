"""The first schema of the API database.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from db.sql.migrations.shorthand import BigId, Json, Name, Time, Uuid, column, create_index, create_table

revision = "0001"
down_revision = None


def upgrade() -> None:
    _operators()
    _queue()
    _mappings()
    _claims()
    _epochs()


def _operators() -> None:
    """What operators define, and the epochs by which processes notice a change of it."""
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
        key=("flavor_id",),
        unique=("name",),
    )
    create_table(
        "aggregates",
        column("id", BigId),
        column("name", Name),
        column("metadata", Json),
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
        key=("uuid",),
        unique=("project_id", "name"),
    )


def _queue() -> None:
    """The durable queue."""
    create_table(
        "request_specs",
        column("batch_id", Uuid),
        column("spec", Json),
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
        key=("instance_uuid",),
    )
    create_index("build_requests", "batch_id")
    create_index("build_requests", "lease_until", "priority", "created_at", name="queue")
    create_table(
        "client_tokens",
        column("project_id", Name),
        column("token", Name),
        column("batch_id", Uuid),
        column("created_at", Time),
        key=("project_id", "token"),
    )
    create_table(
        "feed_cursors",
        column("cell_uuid", Uuid),
        column("sequence", sa.BigInteger),
        key=("cell_uuid",),
    )


def _mappings() -> None:
    """What a request turns into."""
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
        column("state", sa.String(16)),
        column("host", Name, null=True),
        column("node", Name, null=True),
        column("availability_zone", Name, null=True),
        column("updated_at", Time),
        column("launched_at", Time, null=True),
        column("terminated_at", Time, null=True),
        column("fault", sa.Text, null=True),
        key=("instance_uuid",),
    )
    create_index("instance_mappings", "batch_id")
    create_index("instance_mappings", "deleted", "state", name="deleting")
    create_index("instance_mappings", "project_id", "deleted", "created_at", "instance_uuid", name="list")


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
        key=("instance_uuid",),
    )
    create_index("allocations", "inventory_id")
    create_table(
        "group_slots",
        column("group_uuid", Uuid),
        column("instance_uuid", Uuid),
        column("host", Name),
        column("held", sa.Boolean),
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


def _epochs() -> None:
    """One row per kind, so that a bump is one statement."""
    epochs = sa.table("epochs", sa.column("name", sa.String), sa.column("epoch", sa.BigInteger))
    known = set(op.get_bind().execute(sa.select(epochs.c.name)).scalars())
    missing = [name for name in ("aggregates", "cells", "flavors", "groups", "hosts") if name not in known]
    op.bulk_insert(epochs, [{"name": name, "epoch": 0} for name in missing])
