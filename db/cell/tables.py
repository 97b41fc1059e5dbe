"""Tables of a cell database, and of cell0."""

from __future__ import annotations

import sqlalchemy as sa

from db.sql.types import (
    NAMING,
    BigId,
    Json,
    Name,
    Sealed,
    Time,
    Uuid,
    dead_letters,
    define_certification,
    define_processes,
    define_table,
    notifications_table,
)

metadata = sa.MetaData(naming_convention=NAMING)

instances = define_table(
    "instances",
    metadata,
    sa.Column("uuid", Uuid, primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False, default=1),
    sa.Column("builder", Name),
    sa.Column("version", sa.BigInteger, nullable=False, default=0),
    sa.Column("host", Name),
    sa.Column("node", Name),
    sa.Column("availability_zone", Name),
    sa.Column("batch_id", Uuid),
    sa.Column("project_id", Name, nullable=False, default=""),
    sa.Column("user_id", Name, nullable=False, default=""),
    sa.Column("name", Name, nullable=False, default=""),
    sa.Column("flavor", Name, nullable=False, default=""),
    sa.Column("launch_index", sa.Integer, nullable=False, default=0),
    sa.Column("created_at", Time, nullable=False),
    sa.Column("updated_at", Time, nullable=False),
    sa.Column("building_at", Time),  # when its host's agent was granted the attempt in force
    sa.Column("launched_at", Time),
    sa.Column("terminated_at", Time),
    sa.Column("rolled_back", sa.Text),  # why its all-or-nothing batch is rolled back: DELETING then ends as ERROR, with this fault
    sa.Column("server_uuid", Uuid),  # of a later body of a server: whose it is; NULL: the server has this uuid
    sa.Column("turn", sa.Integer, nullable=False, server_default=sa.text("0")),  # which body of its server this is
    sa.Column("power", sa.String(16), nullable=False, server_default=sa.text("'on'")),  # what its guest is to be
    sa.Column("task_number", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # of the latest task
    sa.Column("task_state", sa.String(16), nullable=False, server_default=sa.text("'done'")),
    sa.Column("task_fault", sa.Text),  # why the latest task failed
    sa.Column("task_stored", Json),  # StoredContent: what the latest task has written into the image store; NULL: nothing known
    sa.Index("ix_instances_state", "state", "updated_at"),
    sa.Index("ix_instances_host", "host", "state"),
    sa.Index("ix_instances_batch_id", "batch_id"),
)

builds = define_table(
    "builds",
    metadata,
    sa.Column("instance_uuid", Uuid, primary_key=True),
    sa.Column("spec", Json, nullable=False),  # RequestSpec
    sa.Column("limits", Json),  # HostCapacity: limits of the host in force
    sa.Column("alternates", Json, nullable=False),  # [Selection...] not tried yet, left to right
    sa.Column("max_attempts", sa.Integer, nullable=False),
    sa.Column("history", Json, nullable=False),  # [Attempt...]
    sa.Column("deadline", Time, nullable=False),
    sa.Column("has_group", sa.Boolean, nullable=False, default=False),  # its strict group may hold alternates for it
    sa.Column("sent_at", Time, nullable=False, default=0.0),  # when the order in force was last sent
    sa.Column("ports", Json),  # [Port...]; NULL: none
)

tasks = define_table(
    "tasks",
    metadata,
    # Tasks that are not over: what a running instance's host is to do to its guest
    sa.Column("instance_uuid", Uuid, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("args", Json, nullable=False),  # TaskArgs
    sa.Column("builder", Name),  # the start of the agent that was granted it; NULL: none yet
    sa.Column("request_id", Name, nullable=False),
    sa.Column("sent_at", Time, nullable=False, index=True),  # when its order was last sent
    sa.Column("sealed", Sealed),  # BootSecrets of a rebuild, for this cell's scope
)

snapshots = define_table(
    "snapshots",
    metadata,
    # The latest snapshot of each shelved body. It stays with the tombstone: a restored API database learns of it from here
    sa.Column("instance_uuid", Uuid, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),  # of the task
    sa.Column("image_id", Uuid, nullable=False),  # its name in the image store
)

build_secrets = define_table(
    "build_secrets",
    metadata,
    sa.Column("batch_id", Uuid, primary_key=True),
    sa.Column(
        "sealed", Sealed, nullable=False
    ),  # BootSecrets, for this cell's scope; erased once no build of the batch is unfinished
    sa.Column("created_at", Time, nullable=False),
)

tags = define_table(
    "tags",
    metadata,
    sa.Column("instance_uuid", Uuid, primary_key=True),
    sa.Column("tag", sa.String(80), primary_key=True),
)

block_device_mappings = define_table(
    "block_device_mappings",
    metadata,
    sa.Column("instance_uuid", Uuid, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("mapping", Json, nullable=False),
)

instance_actions = define_table(
    "instance_actions",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("instance_uuid", Uuid, nullable=False, index=True),
    sa.Column("action", sa.String(32), nullable=False),
    sa.Column("request_id", Name),
    sa.Column("written_at", Time),
    sa.Column("started_at", Time, nullable=False),  # the outcome is in the instance's row
)

instance_faults = define_table(
    "instance_faults",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("instance_uuid", Uuid, nullable=False, index=True),
    sa.Column("code", sa.Integer, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("details", Json),  # [Attempt...]
    sa.Column("created_at", Time, nullable=False),
)

services = define_table(
    "services",
    metadata,
    sa.Column("uuid", Uuid, primary_key=True),
    sa.Column("host", Name, nullable=False),
    sa.Column("binary", sa.String(64), nullable=False),
    sa.Column("report_count", sa.BigInteger, nullable=False, default=0),
    sa.Column("last_seen", Time, nullable=False),
    sa.Column("disabled", sa.Boolean, nullable=False, default=False),
    sa.Column("disabled_reason", sa.Text),
    sa.Column("forced_down", sa.Boolean, nullable=False, default=False),
    sa.Column("version", sa.Integer, nullable=False, default=1),
    sa.Column("stopping", sa.Boolean, nullable=False, default=False),  # its last heartbeat said that it takes no more orders
    sa.Column("release", sa.String(64)),  # reported at its start; NULL: not reported
    sa.Column("messages", sa.String(16)),
    sa.Column("pid", sa.Integer),
    sa.Column("started_at", Time),
    sa.Column("identified", sa.Boolean),  # whether the broker confirmed it as the host's; NULL: it never introduced itself
    sa.Column("machine", sa.String(64)),  # the machine that runs as the host; NULL: its agent is of an older release
    sa.Column("machine_name", Name),
    sa.Column("refused", Json),  # RefusedMachine: another machine with this name; NULL: none
    sa.UniqueConstraint("host", "binary"),
)

cell_processes = define_processes("cell_processes", metadata)

compute_nodes = define_table(
    "compute_nodes",
    metadata,
    sa.Column("host", Name, primary_key=True),
    sa.Column("node", Name, primary_key=True),
    sa.Column("stats", Json, nullable=False),  # ComputeNode
    sa.Column("updated_at", Time, nullable=False),
    sa.Index("ix_compute_nodes_node", "node"),
)

host_terms = define_table(
    "host_terms",
    metadata,
    # What a node counts with. A node without a row was on record before: its stats are its terms
    sa.Column("host", Name, primary_key=True),
    sa.Column("node", Name, primary_key=True),
    sa.Column("accepted", Json, nullable=False),  # Sizes
    sa.Column("waiting", Json),  # Sizes that were reported and wait for an operator; NULL: none
    sa.Column("ratios", Json, nullable=False),  # OwnRatios
)

incarnation_seen = define_table(
    "incarnation_seen",
    metadata,
    # One row, id 1: the API database that wrote here last, and its highest mark (db/api/rows/incarnation.py)
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("incarnation", Uuid, nullable=False),
    sa.Column("mark", sa.BigInteger, nullable=False),
)

feed_head = define_table(
    "feed_head",
    metadata,
    # One row, id 1. Its lock puts sequence numbers in commit order: it is taken last in a transaction and held to its end.
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("sequence", sa.BigInteger, nullable=False, default=0),
    sa.Column("trimmed", sa.BigInteger, nullable=False, default=0),  # highest sequence that was trimmed
)

feed = define_table(
    "feed",
    metadata,
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("key", Name, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False, default=0),
    sa.Column("payload", Json, nullable=False),
    sa.Column("created_at", Time, nullable=False),
)

cell_notifications = notifications_table("cell_notifications", metadata)

cell_dead_letters = dead_letters("cell_dead_letters", metadata)

unknown_guests = define_table(
    "unknown_guests",
    metadata,
    sa.Column("host", Name, primary_key=True),
    sa.Column("uuid", Uuid, primary_key=True),
    sa.Column("guest", Json, nullable=False),  # UnknownGuest, as the host's agent reported it last
    sa.Column("reported_at", Time, nullable=False),  # by the database's own clock
)

cell_certification = define_certification(metadata)
