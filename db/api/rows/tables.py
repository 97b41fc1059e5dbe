"""Tables of the API database."""

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

# -- defined by operators; a change bumps the row of its kind in `epochs` -------------------------------------------------

epochs = define_table(
    "epochs",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False, default=0),
)

cell_mappings = define_table(
    "cell_mappings",
    metadata,
    sa.Column("uuid", Uuid, primary_key=True),
    sa.Column("name", Name, nullable=False, unique=True),
    sa.Column("database_url", sa.Text, nullable=False),
    sa.Column("transport_url", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False, default=0),
)

host_mappings = define_table(
    "host_mappings",
    metadata,
    sa.Column("host", Name, primary_key=True),
    sa.Column("cell_uuid", Uuid, nullable=False, index=True),
    sa.Column("created_at", Time, nullable=False),
)

flavors = define_table(
    "flavors",
    metadata,
    sa.Column("flavor_id", Name, primary_key=True),
    sa.Column("name", Name, nullable=False, unique=True),
    sa.Column("vcpus", sa.Integer, nullable=False),
    sa.Column("memory_mb", sa.Integer, nullable=False),
    sa.Column("root_gb", sa.Integer, nullable=False, default=0),
    sa.Column("ephemeral_gb", sa.Integer, nullable=False, default=0),
    sa.Column("swap_mb", sa.Integer, nullable=False, default=0),
    sa.Column("is_public", sa.Boolean, nullable=False, default=True),
    sa.Column("disabled", sa.Boolean, nullable=False, default=False),
    sa.Column("description", sa.Text),
    sa.Column("extra_specs", Json, nullable=False),
    sa.Column("rxtx_factor", sa.Double, nullable=False, server_default=sa.text("1")),
)

flavor_access = define_table(
    "flavor_access",
    metadata,
    # Projects that may use a flavor that is not public
    sa.Column("flavor_id", Name, primary_key=True),
    sa.Column("project_id", Name, primary_key=True),
)

aggregates = define_table(
    "aggregates",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("name", Name, nullable=False, unique=True),
    sa.Column("metadata", Json, nullable=False),
    sa.Column("uuid", Uuid),  # of aggregates of earlier releases: none
    sa.Column("created_at", Time, nullable=False, server_default=sa.text("0")),
    sa.Column("updated_at", Time),
)

aggregate_hosts = define_table(
    "aggregate_hosts",
    metadata,
    sa.Column("aggregate_id", BigId, primary_key=True),
    sa.Column("host", Name, primary_key=True),
)

server_groups = define_table(
    "server_groups",
    metadata,
    sa.Column("uuid", Uuid, primary_key=True),
    sa.Column("name", Name, nullable=False),
    sa.Column("project_id", Name, nullable=False),
    sa.Column("user_id", Name, nullable=False, default=""),
    sa.Column("policy", sa.String(32), nullable=False),
    sa.Column("max_server_per_host", sa.Integer, nullable=False, default=1),
    sa.Column("max_server_per_rack", sa.Integer),  # NULL: racks do not matter
    sa.Column("created_at", Time, nullable=False, server_default=sa.text("0")),
    sa.Index("ix_server_groups_project_id", "project_id"),
)

keypairs = define_table(
    "keypairs",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("user_id", Name, nullable=False),
    sa.Column("name", Name, nullable=False),
    sa.Column("key_type", sa.String(16), nullable=False),  # ssh | x509
    sa.Column("fingerprint", Name, nullable=False),
    sa.Column("public_key", sa.Text, nullable=False),
    sa.Column("created_at", Time, nullable=False),
    sa.UniqueConstraint("user_id", "name"),
)

console_tokens = define_table(
    "console_tokens",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),  # of the token
    sa.Column("server_uuid", Uuid, nullable=False, index=True),
    sa.Column("body_uuid", Uuid, nullable=False),  # the token is good while the server has this body
    sa.Column("console_type", sa.String(32), nullable=False),
    sa.Column("host", Name, nullable=False),
    sa.Column("address", Name, nullable=False),  # of the host's agent, with its port
    sa.Column("port", sa.Integer, nullable=False),
    sa.Column("expires_at", Time, nullable=False, index=True),  # by the database's clock
)

networks = define_table(
    "networks",
    metadata,
    sa.Column("uuid", Uuid, primary_key=True),
    sa.Column("name", Name, nullable=False, unique=True),
    sa.Column("physical_network", Name, nullable=False),
    sa.Column("mtu", sa.Integer),
    sa.Column("project_ids", Json, nullable=False),  # [project...] that may use it; []: all
)

subnets = define_table(
    "subnets",
    metadata,
    sa.Column("uuid", Uuid, primary_key=True),
    sa.Column("network_uuid", Uuid, nullable=False),
    sa.Column("version", sa.Integer, nullable=False, default=4),  # 4 | 6
    sa.Column("cidr", sa.String(64), nullable=False),
    sa.Column("ranges", Json, nullable=False),  # [[first, last]...]; []: the whole prefix
    sa.Column("gateway", sa.String(64)),
    sa.Column("dns", Json, nullable=False),
    sa.UniqueConstraint("network_uuid", "version"),
)

addresses = define_table(
    "addresses",
    metadata,
    # One row for each address of each pool (db/api/servers/addresses.py)
    sa.Column("mac", sa.BigInteger, primary_key=True, autoincrement=False),  # its last 24 bits
    sa.Column("subnet_uuid", Uuid, nullable=False),
    sa.Column("address", sa.String(64), nullable=False),
    sa.Column("free_since", Time),  # 0: never used; NULL: a server or a port has it
    sa.Column("server_uuid", Uuid, index=True),
    sa.Column("position", sa.Integer),  # of the interface on its server, from 0
    sa.Column("tag", Name),
    sa.Column("port_uuid", Uuid, index=True),  # the project's port that has the address; a server has it besides, or none
    sa.UniqueConstraint("subnet_uuid", "address"),
    sa.Index("ix_addresses_free", "subnet_uuid", "free_since", "mac"),
)

ports = define_table(
    "ports",
    metadata,
    # One row for each port that a project made itself (db/api/servers/ports.py). Its addresses name it
    sa.Column("uuid", Uuid, primary_key=True),
    sa.Column("project_id", Name, nullable=False, index=True),
    sa.Column("network_uuid", Uuid, nullable=False),
    sa.Column("name", Name, nullable=False),
    sa.Column("description", Name, nullable=False),
    sa.Column("tags", Json, nullable=False),
    sa.Column("created_at", Time, nullable=False),
    sa.Column("updated_at", Time, nullable=False),
)

# -- the durable queue, and the servers that it becomes --------------------------------------------------------------------

request_specs = define_table(
    "request_specs",
    metadata,
    sa.Column("batch_id", Uuid, primary_key=True),
    sa.Column("spec", Json, nullable=False),
    sa.Column("created_at", Time, nullable=False),
    # fields of the spec that lists filter and sort by (db/api/rows/spec_fields.py)
    sa.Column("flavor_id", Name),  # NULL: an older release wrote the row; empty: the spec cannot be decoded
    sa.Column("image_id", Name),
    sa.Column("key_name", Name),
    sa.Column("config_drive", sa.Boolean),
    sa.Column("description", Name),
    sa.Column("group_uuid", Name, index=True),  # NULL: an older release wrote the row; empty: no server group
)

request_tags = define_table(
    "request_tags",
    metadata,
    sa.Column("batch_id", Uuid, primary_key=True),
    sa.Column("tag", Name, primary_key=True),
)

request_metadata = define_table(
    "request_metadata",
    metadata,
    sa.Column("batch_id", Uuid, primary_key=True),
    sa.Column("key", Name, primary_key=True),
    sa.Column("value", Name, nullable=False),
)

server_tags = define_table(
    "server_tags",
    metadata,
    # of servers whose tags were changed: replaces those of the batch. Written with instance_mappings.tags
    sa.Column("instance_uuid", Uuid, primary_key=True),
    sa.Column("tag", Name, primary_key=True),
)

server_metadata = define_table(
    "server_metadata",
    metadata,
    # of servers whose metadata was changed, likewise
    sa.Column("instance_uuid", Uuid, primary_key=True),
    sa.Column("key", Name, primary_key=True),
    sa.Column("value", Name, nullable=False),
)

request_secrets = define_table(
    "request_secrets",
    metadata,
    sa.Column("batch_id", Uuid, primary_key=True),
    sa.Column("sealed", Sealed, nullable=False),  # BootSecrets, for scope "api"; erased once no request of the batch is queued
    sa.Column("created_at", Time, nullable=False),
)

build_requests = define_table(
    "build_requests",
    metadata,
    sa.Column("instance_uuid", Uuid, primary_key=True),
    sa.Column("batch_id", Uuid, nullable=False, index=True),
    sa.Column("state", sa.String(16), nullable=False),  # queued | leased | held
    sa.Column("owner", Name),
    sa.Column("lease_until", Time, nullable=False, default=0.0),
    sa.Column("fence", sa.BigInteger, nullable=False, default=0),
    sa.Column("deadline", Time, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False, default=0),
    sa.Column("created_at", Time, nullable=False),
    sa.Column("held_until", Time),  # it was accepted with a hold, which ends then; NULL: it was not
    sa.Index("ix_build_requests_queue", "lease_until", "priority", "created_at"),
)

holds = define_table(
    "holds",
    metadata,
    # A batch that keeps its hosts and is not built, until it is booted, released or expired: the one that deletes the row decides
    sa.Column("batch_id", Uuid, primary_key=True),
    sa.Column("project_id", Name, nullable=False),
    sa.Column("user_id", Name, nullable=False),
    sa.Column("created_at", Time, nullable=False),
    sa.Column("expires_at", Time, nullable=False),
    sa.Column("held_at", Time),  # when servers of it were held last; NULL: none was yet
    sa.Index("ix_holds_project_id", "project_id"),
    sa.Index("ix_holds_expires_at", "expires_at"),
)

all_or_nothing = define_table(
    "all_or_nothing",
    metadata,
    # A batch that is built as a whole, until it is settled (all ACTIVE) or rolled back (all in ERROR), not counting deleted servers
    sa.Column("batch_id", Uuid, primary_key=True),
    sa.Column("fault", sa.Text),  # NULL: open; else the batch failed, and this is the fault of its other members
    sa.Column("created_at", Time, nullable=False),
    sa.Column("failed_at", Time),
)

instance_mappings = define_table(
    "instance_mappings",
    metadata,
    sa.Column("instance_uuid", Uuid, primary_key=True),
    sa.Column("batch_id", Uuid, nullable=False, index=True),
    sa.Column("cell_uuid", Uuid),  # NULL: still a build request, or shelved; written once
    sa.Column("deleted", sa.Boolean, nullable=False, default=False),  # never false again
    sa.Column("fence", sa.BigInteger, nullable=False, default=0),
    sa.Column("seen", sa.BigInteger, nullable=False, default=0),  # row version of the last feed event applied
    sa.Column("project_id", Name, nullable=False),
    sa.Column("user_id", Name, nullable=False),
    sa.Column("name", Name, nullable=False),
    sa.Column("launch_index", sa.Integer, nullable=False, default=0),
    sa.Column("created_at", Time, nullable=False),
    sa.Column("vcpus", sa.Integer),  # charged to the project's quota until it is deleted; NULL: never charged
    sa.Column("memory_mb", sa.Integer),
    sa.Column("mapped_at", Time),  # when cell_uuid was written: at the hand-over or burial
    sa.Column("deleted_at", Time),
    sa.Column("deleted_by", Name),  # the request that asked for it
    sa.Column("deleted_by_user", Name),  # NULL: nobody's, or an older release did not record it
    # the summary: what lists show without querying the cell
    sa.Column("state", sa.String(16), nullable=False),  # building | active | shelved (in no cell) | error | deleted
    sa.Column("host", Name),
    sa.Column("node", Name),
    sa.Column("availability_zone", Name),
    sa.Column("updated_at", Time, nullable=False),
    sa.Column("launched_at", Time),
    sa.Column("terminated_at", Time),
    sa.Column("fault", sa.Text),
    # A row is a body of a server: what runs on a host. A boot makes the first one, which has the server's uuid and is its home row;
    # an operation that moves the server makes another (docs/moves.md). A boot writes none of these columns
    sa.Column("body_uuid", Uuid),  # of the home row: the body that is the server now; NULL: itself
    sa.Column("server_uuid", Uuid),  # of later bodies: whose they are
    sa.Column("turn", sa.Integer, nullable=False, server_default=sa.text("0")),  # which body of its server this is
    sa.Column("hidden", sa.Boolean, nullable=False, server_default=sa.false()),  # not the body that users see
    sa.Column("last_number", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # of the home row: task numbers given out
    sa.Column("power", sa.String(16), nullable=False, server_default=sa.text("'on'")),  # this and the next three as the cell told
    sa.Column("task_number", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("task_state", sa.String(16), nullable=False, server_default=sa.text("'done'")),
    sa.Column("task_fault", sa.Text),
    sa.Column("task_stored", Json),  # StoredContent: what the latest task has written into the image store
    sa.Column("image_id", Name),  # of its last rebuild; NULL: as in the request spec
    sa.Column("image_hash", sa.String(128)),  # of its content; NULL: not known
    sa.Column("rebuilt_from", Json),  # that image, with its properties; another one: an older release has rebuilt the server since
    # what the tenant has changed since the boot; NULL: as in the request spec
    sa.Column("locked_by", Name),  # owner | admin
    sa.Column("locked_reason", Name),
    sa.Column("description", Name),
    sa.Column("metadata", Json),
    sa.Column("tags", Json),
    sa.Column("hostname", Name),
    sa.Column("access_ip_v4", Name),
    sa.Column("access_ip_v6", Name),
    sa.Column("auto_disk_config", sa.Boolean),
    sa.Column("key_name", Name),  # of its last rebuild that named one; empty: none; NULL: as in the spec
    sa.Column("public_key", sa.Text),
    sa.Column("user_version", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("name_key", sa.String(80)),  # of the home row, where names must be unique (db/api/servers/names.py)
    sa.Index("ix_instance_mappings_name_key", "name_key", unique=True),
    sa.Index("ix_instance_mappings_list", "project_id", "deleted", "created_at", "instance_uuid"),
    sa.Index("ix_instance_mappings_deleting", "deleted", "state"),
)

operations = define_table(
    "operations",
    metadata,
    # What users and operators asked of a server after its boot: open, or a record of what came of it
    sa.Column("uuid", Uuid, primary_key=True),
    sa.Column("server_uuid", Uuid, nullable=False),
    sa.Column("open_for", Uuid, unique=True),  # the server while it is open, so that there is one at a time; NULL: it has ended
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("args", Json, nullable=False),  # OperationArgs
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),  # the first of its four task numbers
    sa.Column("power_before", sa.String(16), nullable=False),
    sa.Column("held", sa.Boolean, nullable=False, default=False),  # whether its source was ever asked to be off
    sa.Column("forced", sa.Boolean, nullable=False, default=False),  # the source's host is called dead
    sa.Column("source_uuid", Uuid),
    sa.Column("twin_uuid", Uuid),
    sa.Column("project_id", Name, nullable=False),
    sa.Column("user_id", Name, nullable=False),
    sa.Column("request_id", Name, nullable=False),
    sa.Column("source_host", Name),
    sa.Column("target_host", Name),
    sa.Column("vcpus", sa.Integer),  # of the twin: what its server is charged for once it is confirmed
    sa.Column("memory_mb", sa.Integer),
    sa.Column("created_at", Time, nullable=False),
    sa.Column("updated_at", Time, nullable=False),
    sa.Column("deadline", Time, nullable=False),
    sa.Column("ended_at", Time),
    sa.Column("outcome", sa.String(16)),  # done | failed | given-up | reverted | deleted
    sa.Column("fault", sa.Text),
    sa.Column("sealed", Sealed),  # BootSecrets of a rebuild, for scope "api"; erased with the end of its task
    sa.Column("frozen", sa.Text),  # why it takes no step before it was compared with the cells; NULL: it was
    sa.Index("ix_operations_twin_uuid", "twin_uuid"),
    sa.Index("ix_operations_server", "server_uuid", "created_at"),
    sa.Index("ix_operations_ended_at", "ended_at"),
)

client_tokens = define_table(
    "client_tokens",
    metadata,
    sa.Column("project_id", Name, primary_key=True),
    sa.Column("token", Name, primary_key=True),
    sa.Column("batch_id", Uuid, nullable=False),
    sa.Column("created_at", Time, nullable=False),
    sa.Column("digest", sa.String(80)),  # of the request (api/servers/handlers.py); NULL: an older release wrote the row
)

quotas = define_table(
    "quotas",
    metadata,
    sa.Column("project_id", Name, primary_key=True),
    sa.Column("max_instances", sa.BigInteger),  # set by an operator; -1: no limit; NULL: the configured default
    sa.Column("max_cores", sa.BigInteger),
    sa.Column("max_ram", sa.BigInteger),
    sa.Column("used_instances", sa.BigInteger, nullable=False, default=0),  # sums over the mappings that are not deleted
    sa.Column("used_cores", sa.BigInteger, nullable=False, default=0),
    sa.Column("used_ram", sa.BigInteger, nullable=False, default=0),
    sa.Column("limited_users", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # its rows in user_quotas
)

user_quotas = define_table(
    "user_quotas",
    metadata,
    # Of users with limits of servers of their own. A transaction that writes one locks the project's row in quotas before
    sa.Column("project_id", Name, primary_key=True),
    sa.Column("user_id", Name, primary_key=True),
    sa.Column("max_instances", sa.BigInteger),  # -1: no limit; NULL: the project's
    sa.Column("max_cores", sa.BigInteger),
    sa.Column("max_ram", sa.BigInteger),
    sa.Column("used_instances", sa.BigInteger, nullable=False),  # sums over the mappings of the user's servers in the project
    sa.Column("used_cores", sa.BigInteger, nullable=False),
    sa.Column("used_ram", sa.BigInteger, nullable=False),
)

quota_limits = define_table(
    "quota_limits",
    metadata,
    # What administrators have set beside the limits of servers; with an empty project all names, as the default class
    sa.Column("project_id", Name, primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),  # -1: no limit
)

user_quota_limits = define_table(
    "user_quota_limits",
    metadata,
    # The same of users. Apart, because older releases take every row of quota_limits for a project's
    sa.Column("project_id", Name, primary_key=True),
    sa.Column("user_id", Name, primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)

feed_cursors = define_table(
    "feed_cursors",
    metadata,
    sa.Column("cell_uuid", Uuid, primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False, default=0),
)

incarnation = define_table(
    "incarnation",
    metadata,
    # One row, id 1. The mark rises every few seconds, and the cells store it to detect restores (db/api/rows/incarnation.py)
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("uuid", Uuid, nullable=False),
    sa.Column("mark", sa.BigInteger, nullable=False),
    sa.Column("server", sa.String(64), nullable=False),  # identity of the database server at the last comparison with the cells
    sa.Column("state", sa.String(16), nullable=False),  # leasing | comparing
    sa.Column("reason", sa.Text, nullable=False),  # why it is compared, and what that waits for
    sa.Column("changed_at", Time, nullable=False),
)

cell_marks = define_table(
    "cell_marks",
    metadata,
    # The mark that a cell's database has confirmed. A lower mark in the cell means that the cell was restored
    sa.Column("cell_uuid", Uuid, primary_key=True),
    sa.Column("mark", sa.BigInteger, nullable=False),
)

cell_silences = define_table(
    "cell_silences",
    metadata,
    # A cell whose database does not answer: its servers' summaries may be out of date since then
    sa.Column("cell_uuid", Uuid, primary_key=True),
    sa.Column("since", Time, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
)

image_removals = define_table(
    "image_removals",
    metadata,
    # Snapshots and images that nothing needs any more, until they are removed from the image store
    sa.Column("image_id", Uuid, primary_key=True),
    sa.Column("written_by", Uuid),  # the body whose host may still be at it; NULL: none
    sa.Column("since", Time, nullable=False),
)

images = define_table(
    "images",
    metadata,
    # The complete images in the image store, as whoever wrote their contents said: hosts refuse any other content. A list of
    # images is one of these rows. An image without a row is in no list
    sa.Column("image_id", Uuid, primary_key=True),
    sa.Column("project_id", Name, nullable=False),  # empty: of the operator, for all projects
    sa.Column("name", Name, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),  # active
    sa.Column("disk_format", sa.String(16), nullable=False),  # raw | qcow2; empty: not known
    sa.Column("size", sa.BigInteger, nullable=False),  # bytes of the file
    sa.Column("virtual_size", sa.BigInteger),  # bytes of the disk that guests see; NULL: not known
    sa.Column("hash_value", sa.String(128), nullable=False),  # SHA-512 of the file; empty: not known
    sa.Column("created_at", Time, nullable=False),
    sa.Column("updated_at", Time),
    sa.Column("details", Json),  # ImageDetails; NULL: a process of an older release wrote the row
    sa.Index("ix_images_project_id_created_at", "project_id", "created_at"),
)

server_images = define_table(
    "server_images",
    metadata,
    # Images of projects, made of servers or uploaded, and those that are not complete yet. Complete ones have a row in images, too
    sa.Column("image_id", Uuid, primary_key=True),  # the operation that makes it
    sa.Column("project_id", Name, nullable=False),
    sa.Column("server_uuid", Uuid, nullable=False),  # empty: it was uploaded
    sa.Column("complete", sa.Boolean, nullable=False),
    sa.Column("backup_type", Name, nullable=False),  # empty: it is no backup
    sa.Column("asked", Json, nullable=False),  # NewImage, of an upload UploadedImage
    sa.Column("created_at", Time, nullable=False),
    sa.Index("ix_server_images_project_id_created_at", "project_id", "created_at"),
    sa.Index("ix_server_images_server_uuid_created_at", "server_uuid", "created_at"),
)

# -- claims: written only by claiming.py, claims.py, claim_repair.py, inventories.py and resources.py of db/api -------------------

writers = define_table(
    "writers",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("name", Name, nullable=False),
    sa.Column("started", Time, nullable=False),
)

inventories = define_table(
    "inventories",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("host", Name, nullable=False),
    sa.Column("node", Name, nullable=False),
    sa.Column("cell_uuid", Uuid, nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False, default=0),
    sa.Column("cap_vcpus", sa.Double, nullable=False),  # capacity x ratio, minus reserved
    sa.Column("cap_memory_mb", sa.Double, nullable=False),
    sa.Column("cap_disk_gb", sa.Double, nullable=False),
    sa.Column("used_vcpus", sa.BigInteger, nullable=False, default=0),
    sa.Column("used_memory_mb", sa.BigInteger, nullable=False, default=0),
    sa.Column("used_disk_gb", sa.BigInteger, nullable=False, default=0),
    sa.Column("instances", sa.BigInteger, nullable=False, default=0),
    sa.Column("writer", sa.BigInteger, nullable=False, default=0),
    sa.Column("wseq", sa.BigInteger, nullable=False, default=0),
    sa.Column("cap_resources", Json),  # {"CUSTOM_GPU": 4}; NULL: no custom resource class
    sa.Column("used_resources", Json),
    sa.Column("service_event", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # read by schedulers before a claim
    sa.UniqueConstraint("host", "node"),
    sa.Index("ix_inventories_log", "writer", "wseq"),
)

allocations = define_table(
    "allocations",
    metadata,
    sa.Column("instance_uuid", Uuid, primary_key=True),
    sa.Column("inventory_id", BigId, nullable=False, index=True),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("vcpus", sa.Integer, nullable=False),
    sa.Column("memory_mb", sa.Integer, nullable=False),
    sa.Column("disk_gb", sa.Integer, nullable=False),
    sa.Column("group_uuid", Uuid),
    sa.Column("selection", Json, nullable=False),  # [Selection, alternates...] as answered; a repeated request gets the same answer
    sa.Column("writer", sa.BigInteger, nullable=False),
    sa.Column("wseq", sa.BigInteger, nullable=False),
    sa.Column("resources", Json),  # {"CUSTOM_GPU": 1}; NULL: no custom resource class
)

group_slots = define_table(
    "group_slots",
    metadata,
    sa.Column("group_uuid", Uuid, primary_key=True),
    sa.Column("instance_uuid", Uuid, primary_key=True),
    sa.Column("host", Name, primary_key=True),
    sa.Column("held", sa.Boolean, nullable=False, default=False),  # an alternate kept free until the build ends
    sa.Column("fault_domain", Name),  # members of different ones are on different racks; NULL: of none
    sa.Index("ix_group_slots_instance_uuid", "instance_uuid"),
)

decisions = define_table(
    "decisions",
    metadata,
    sa.Column("id", Uuid, primary_key=True),
    sa.Column("batch_id", Uuid, nullable=False),
    sa.Column("at", Time, nullable=False),
    sa.Column("decision", Json, nullable=False),
    sa.Index("ix_decisions_batch_id_at", "batch_id", "at"),
)

notifications = notifications_table("notifications", metadata)

finalized = define_table(
    "finalized",
    metadata,
    # At most one row, id 1: the messages version up to which an operator has finalized the upgrade (db/api/rows/finalized.py)
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("messages", sa.String(16), nullable=False),
    sa.Column("release", sa.String(64), nullable=False),
    sa.Column("at", Time, nullable=False),
)

# -- processes and dead letters ------------------------------------------------------------------------------------------------

api_processes = define_processes("api_processes", metadata)

api_dead_letters = dead_letters("api_dead_letters", metadata)

api_certification = define_certification(metadata)
