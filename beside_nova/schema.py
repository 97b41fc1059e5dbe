"""The tables and columns of Nova and Placement that are read, and the schema revisions in which they are known to mean this.

Only what is read is declared: the tests make these tables, and ``check_schema`` looks for them in a real database.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

from objects import errors

RELEASES = "2024.1 to 2026.2"
"""The OpenStack releases whose schemas are known."""


class Schema(NamedTuple):
    """``kind``: what the database is called in messages. ``revisions``: of Alembic, those that are known."""

    kind: str
    metadata: sa.MetaData
    revisions: frozenset[str]


NOVA_API = Schema("Nova's API database", sa.MetaData(), frozenset({"cdeec0c85668"}))
CELL = Schema(
    "the database of a Nova cell", sa.MetaData(), frozenset({"13863f4e1612", "2903cd72dc14", "d60bddf7a903", "ab450ba04102"})
)
PLACEMENT = Schema("Placement's database", sa.MetaData(), frozenset({"a082b8bb98d0"}))

_TYPES: dict[str, type[sa.types.TypeEngine[Any]]] = {
    "text": sa.Text,
    "int": sa.Integer,
    "float": sa.Float,
    "time": sa.DateTime,
}


def _declare_table(schema: Schema, name: str, **columns: str) -> sa.Table:
    """``columns``: the names of columns by type, separated by spaces."""
    declared = [sa.Column(column, _TYPES[kind]) for kind, names in columns.items() for column in names.split()]
    return sa.Table(name, schema.metadata, *declared)


for _schema in (NOVA_API, CELL, PLACEMENT):
    _declare_table(_schema, "alembic_version", text="version_num")

cell_mappings = _declare_table(NOVA_API, "cell_mappings", int="id disabled", text="uuid name database_connection")
host_mappings = _declare_table(NOVA_API, "host_mappings", int="id cell_id", text="host", time="updated_at")
instance_mappings = _declare_table(NOVA_API, "instance_mappings", int="cell_id queued_for_delete", text="instance_uuid project_id")
build_requests = _declare_table(NOVA_API, "build_requests", text="instance_uuid project_id", time="created_at updated_at")
request_specs = _declare_table(NOVA_API, "request_specs", text="instance_uuid spec")
flavors = _declare_table(
    NOVA_API,
    "flavors",
    int="id memory_mb vcpus swap root_gb ephemeral_gb disabled is_public",
    text="name flavorid description",
)
flavor_extra_specs = _declare_table(NOVA_API, "flavor_extra_specs", int="flavor_id", text="key value")
aggregates = _declare_table(NOVA_API, "aggregates", int="id", text="uuid name", time="updated_at")
aggregate_hosts = _declare_table(NOVA_API, "aggregate_hosts", int="id aggregate_id", text="host")
aggregate_metadata = _declare_table(NOVA_API, "aggregate_metadata", int="id aggregate_id", text="key value", time="updated_at")
instance_groups = _declare_table(NOVA_API, "instance_groups", int="id", text="uuid name project_id user_id")
instance_group_member = _declare_table(NOVA_API, "instance_group_member", int="group_id", text="instance_uuid")
instance_group_policy = _declare_table(NOVA_API, "instance_group_policy", int="group_id", text="policy rules")

compute_nodes = _declare_table(
    CELL,
    "compute_nodes",
    int="id vcpus memory_mb local_gb hypervisor_version running_vms deleted",
    text="uuid host hypervisor_hostname hypervisor_type supported_instances stats host_ip",
    time="created_at updated_at",
)
services = _declare_table(
    CELL, "services", int="id disabled forced_down deleted", text="host binary", time="created_at updated_at last_seen_up"
)
instances = _declare_table(
    CELL,
    "instances",
    int="id deleted memory_mb vcpus root_gb ephemeral_gb hidden",
    text="uuid display_name project_id host node vm_state task_state availability_zone",
    time="created_at launched_at terminated_at deleted_at",
)
migrations = _declare_table(
    CELL,
    "migrations",
    int="id deleted",
    text="uuid instance_uuid status migration_type source_compute dest_compute",
)
instance_faults = _declare_table(CELL, "instance_faults", int="id deleted code", text="instance_uuid message", time="created_at")
instance_actions = _declare_table(CELL, "instance_actions", int="id", text="instance_uuid request_id action")

resource_providers = _declare_table(
    PLACEMENT,
    "resource_providers",
    int="id generation root_provider_id parent_provider_id",
    text="uuid name",
    time="created_at updated_at",
)
inventories = _declare_table(
    PLACEMENT,
    "inventories",
    int="resource_provider_id resource_class_id total reserved min_unit max_unit step_size",
    float="allocation_ratio",
)
allocations = _declare_table(PLACEMENT, "allocations", int="id resource_provider_id resource_class_id used", text="consumer_id")
resource_classes = _declare_table(PLACEMENT, "resource_classes", int="id", text="name")
traits = _declare_table(PLACEMENT, "traits", int="id", text="name")
resource_provider_traits = _declare_table(PLACEMENT, "resource_provider_traits", int="trait_id resource_provider_id")
placement_aggregates = _declare_table(PLACEMENT, "placement_aggregates", int="id", text="uuid")
resource_provider_aggregates = _declare_table(PLACEMENT, "resource_provider_aggregates", int="resource_provider_id aggregate_id")


def check_schema(connection: sa.Connection, schema: Schema, name: str) -> str:
    """Return the revision of the database. Raises Misconfigured, naming it, for a schema that is not known."""
    inspector = sa.inspect(connection)
    known = set(inspector.get_table_names())
    if missing := sorted(set(schema.metadata.tables) - known):
        raise errors.Misconfigured(f"{name} is not {schema.kind}: it has no table {missing[0]}")
    version = schema.metadata.tables["alembic_version"]
    revisions: list[str] = sorted(connection.execute(sa.select(version.c.version_num)).scalars())
    if unknown := sorted(set(revisions) - schema.revisions):
        raise errors.Misconfigured(
            f"{name} has the schema revision {unknown[0]}, which is of no release that is known; those of {RELEASES} are"
        )
    if not revisions:
        raise errors.Misconfigured(f"{name} has no schema revision; was its 'db sync' interrupted?")
    columns = inspector.get_multi_columns(filter_names=list(schema.metadata.tables))
    for (_, table), described in columns.items():
        absent = {column.name for column in schema.metadata.tables[table].columns} - {column["name"] for column in described}
        if absent:
            raise errors.Misconfigured(f"{name} has no column {table}.{min(absent)}")
    return revisions[0]
