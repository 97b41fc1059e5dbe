"""The statements on Nova's and Placement's databases. Each function takes a connection of ``database.NovaDatabase.read``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from beside_nova import schema
from beside_nova.records import (
    ApiFacts,
    InventoryRecord,
    NovaAggregate,
    NovaCell,
    NovaGroup,
    NovaInstance,
    NovaMigration,
    NovaNode,
    NovaService,
    Provider,
)
from objects.flavor import Flavor

IN_LIST_SIZE = 1_000
"""Values in one ``IN``: more of them are asked for in several statements."""


def pages_of(values: Collection[Any]) -> Iterator[list[Any]]:
    """The values in lists that fit into an ``IN``."""
    ordered = sorted(values)
    for start in range(0, len(ordered), IN_LIST_SIZE):
        yield ordered[start : start + IN_LIST_SIZE]


# -- Nova's API database -------------------------------------------------------------------------------------------------------


def api_watermark(connection: sa.Connection) -> tuple[object, ...]:
    """A value that changes whenever cells, host mappings or aggregates do. One statement.

    Rows of these tables are really deleted, so counts and highest IDs tell of what came and went, and times of what was updated.
    """
    cells, homes, groups = schema.cell_mappings.c, schema.host_mappings.c, schema.aggregates.c
    hosts, metadata = schema.aggregate_hosts.c, schema.aggregate_metadata.c
    parts = [
        sa.select(sa.func.count(homes.id), sa.func.max(homes.id), sa.func.max(homes.updated_at)),
        sa.select(sa.func.count(groups.id), sa.func.max(groups.id), sa.func.max(groups.updated_at)),
        sa.select(sa.func.count(hosts.id), sa.func.max(hosts.id), sa.null()),
        sa.select(sa.func.count(metadata.id), sa.func.max(metadata.id), sa.func.max(metadata.updated_at)),
        sa.select(sa.func.count(cells.id), sa.func.sum(sa.func.coalesce(cells.disabled, 0)), sa.null()),
    ]
    return tuple(tuple(row) for row in connection.execute(sa.union_all(*parts)))


def read_api(connection: sa.Connection) -> ApiFacts:
    """Cells, host mappings and aggregates. Five statements."""
    c = schema.cell_mappings.c
    cells = [
        NovaCell(row.id, row.uuid, row.name or row.uuid, row.database_connection or "", bool(row.disabled))
        for row in connection.execute(sa.select(c.id, c.uuid, c.name, c.database_connection, c.disabled).order_by(c.id))
    ]
    homes = schema.host_mappings.c
    hosts: defaultdict[int, list[str]] = defaultdict(list)
    members = schema.aggregate_hosts.c
    for number, host in connection.execute(sa.select(members.aggregate_id, members.host)):
        hosts[number].append(host)
    metadata: defaultdict[int, dict[str, str]] = defaultdict(dict)
    values = schema.aggregate_metadata.c
    for number, key, value in connection.execute(sa.select(values.aggregate_id, values.key, values.value)):
        metadata[number][key] = value
    groups = schema.aggregates.c
    return ApiFacts(
        cells=tuple(cells),
        homes=dict(map(tuple, connection.execute(sa.select(homes.host, homes.cell_id)))),
        aggregates=tuple(
            NovaAggregate(number, uuid or "", name or "", tuple(sorted(hosts[number])), dict(metadata[number]))
            for number, uuid, name in connection.execute(sa.select(groups.id, groups.uuid, groups.name).order_by(groups.id))
        ),
    )


def list_flavors(connection: sa.Connection) -> list[Flavor]:
    """All flavors. Two statements."""
    specs: defaultdict[int, dict[str, str]] = defaultdict(dict)
    extra = schema.flavor_extra_specs.c
    for number, key, value in connection.execute(sa.select(extra.flavor_id, extra.key, extra.value)):
        specs[number][key] = value or ""
    return [
        Flavor(
            flavor_id=row.flavorid,
            name=row.name,
            vcpus=row.vcpus,
            memory_mb=row.memory_mb,
            root_gb=row.root_gb or 0,
            ephemeral_gb=row.ephemeral_gb or 0,
            swap_mb=row.swap or 0,
            is_public=bool(row.is_public),
            disabled=bool(row.disabled),
            extra_specs=specs[row.id],
        )
        for row in connection.execute(sa.select(schema.flavors).order_by(schema.flavors.c.id))
    ]


# -- the databases of cells ----------------------------------------------------------------------------------------------------


class CellFacts(NamedTuple):
    """``node_count``: of all nodes that are not deleted; ``nodes`` may be those that have changed only."""

    nodes: tuple[NovaNode, ...]
    services: tuple[NovaService, ...]
    node_count: int


def read_cell(connection: sa.Connection, since: datetime | None = None, *, all_services: bool = True) -> CellFacts:
    """Nodes and compute services; with ``since``, nodes that have reported since then (UTC). Three statements.

    ``all_services`` False: of services, too, those that have reported since then. What operators change of one counts as a report.
    """
    nodes, services = schema.compute_nodes.c, schema.services.c
    changed_at = sa.func.coalesce(nodes.updated_at, nodes.created_at)
    seen_at = sa.func.coalesce(services.last_seen_up, services.updated_at, services.created_at)
    of_nodes = sa.select(
        nodes.uuid,
        nodes.host,
        nodes.hypervisor_hostname,
        nodes.vcpus,
        nodes.memory_mb,
        nodes.local_gb,
        nodes.hypervisor_type,
        nodes.hypervisor_version,
        nodes.supported_instances,
        nodes.stats,
        nodes.host_ip,
        nodes.running_vms,
        changed_at,
    ).where(nodes.deleted == 0)
    of_services = sa.select(services.host, services.disabled, services.forced_down, seen_at).where(
        services.deleted == 0, services.binary == "nova-compute"
    )
    if since is not None:
        of_nodes = of_nodes.where(changed_at >= since)
    if since is not None and not all_services:
        of_services = of_services.where(sa.or_(services.updated_at >= since, services.created_at >= since))
    return CellFacts(
        nodes=tuple(
            NovaNode(
                uuid=uuid or "",
                host=host or "",
                node=node or "",
                vcpus=vcpus,
                memory_mb=memory_mb,
                local_gb=local_gb,
                hypervisor_type=kind or "",
                hypervisor_version=version or 0,
                supported_instances=supported or "",
                stats=stats or "",
                host_ip=host_ip or "",
                running_vms=running_vms or 0,
                changed_at=changed,
            )
            for (
                uuid,
                host,
                node,
                vcpus,
                memory_mb,
                local_gb,
                kind,
                version,
                supported,
                stats,
                host_ip,
                running_vms,
                changed,
            ) in connection.execute(of_nodes)
        ),
        services=tuple(
            NovaService(host, bool(disabled), bool(forced_down), seen)
            for host, disabled, forced_down, seen in connection.execute(of_services)
        ),
        node_count=connection.execute(sa.select(sa.func.count(nodes.id)).where(nodes.deleted == 0)).scalar_one(),
    )


# -- Placement's database ------------------------------------------------------------------------------------------------------


def list_generations(connection: sa.Connection, since: datetime | None = None) -> dict[int, int]:
    """The generation of each provider, by its number; with ``since``, of those that have changed since then (UTC).

    Placement raises it with each change of allocations, inventories, traits and aggregates.
    """
    c = schema.resource_providers.c
    query = sa.select(c.id, c.generation)
    if since is not None:
        query = query.where(sa.func.coalesce(c.updated_at, c.created_at) >= since)
    return {number: generation or 0 for number, generation in connection.execute(query)}


def read_providers(
    connection: sa.Connection, numbers: Collection[int] | None = None, without: Sequence[str] = ()
) -> dict[int, Provider]:
    """Providers with all that belongs to them, by number; None: all. ``without``: consumers whose allocations do not count.

    Seven statements, and five for each further thousand of ``numbers``.
    """
    names = {table: dict(map(tuple, connection.execute(sa.select(table.c.id, table.c.name)))) for table in _NAME_TABLES}
    providers: dict[int, Provider] = {}
    for page in [None] if numbers is None else pages_of(numbers):
        providers |= _providers_of_page(connection, page, without, names)
    return providers


_NAME_TABLES = (schema.resource_classes, schema.traits)


def _providers_of_page(
    connection: sa.Connection, page: Sequence[int] | None, without: Sequence[str], names: Mapping[sa.Table, Mapping[int, str]]
) -> dict[int, Provider]:
    classes, trait_names = names[schema.resource_classes], names[schema.traits]

    def of_page(query: Any, column: sa.Column[Any]) -> Any:
        return connection.execute(query if page is None else query.where(column.in_(page)))

    inventory: defaultdict[int, dict[str, InventoryRecord]] = defaultdict(dict)
    i = schema.inventories.c
    fields = (i.total, i.reserved, i.min_unit, i.max_unit, i.step_size, i.allocation_ratio)
    for number, name, *values in of_page(sa.select(i.resource_provider_id, i.resource_class_id, *fields), i.resource_provider_id):
        inventory[number][classes[name]] = InventoryRecord(*values)

    used: defaultdict[int, dict[str, int]] = defaultdict(dict)
    consumers: defaultdict[int, int] = defaultdict(int)
    a = schema.allocations.c
    usage = sa.select(a.resource_provider_id, a.resource_class_id, sa.func.sum(a.used), sa.func.count(a.id))
    if without:
        usage = usage.where(a.consumer_id.not_in(without))
    for number, name, amount, count in of_page(usage.group_by(a.resource_provider_id, a.resource_class_id), a.resource_provider_id):
        used[number][classes[name]] = int(amount)
        consumers[number] = max(consumers[number], count)  # a consumer has one row for each class that it uses

    traits: defaultdict[int, set[str]] = defaultdict(set)
    t = schema.resource_provider_traits.c
    for number, trait in of_page(sa.select(t.resource_provider_id, t.trait_id), t.resource_provider_id):
        traits[number].add(trait_names[trait])

    aggregates: defaultdict[int, set[str]] = defaultdict(set)
    g, of = schema.placement_aggregates.c, schema.resource_provider_aggregates.c
    pairs = sa.select(of.resource_provider_id, g.uuid).join_from(
        schema.resource_provider_aggregates, schema.placement_aggregates, g.id == of.aggregate_id
    )
    for number, uuid in of_page(pairs, of.resource_provider_id):
        aggregates[number].add(uuid)

    p = schema.resource_providers.c
    return {
        row.id: Provider(
            number=row.id,
            uuid=row.uuid,
            name=row.name or "",
            generation=row.generation or 0,
            root=row.root_provider_id or row.id,
            inventory=inventory[row.id],
            used=used[row.id],
            consumers=consumers[row.id],
            traits=frozenset(traits[row.id]),
            aggregates=frozenset(aggregates[row.id]),
        )
        for row in of_page(sa.select(p.id, p.uuid, p.name, p.generation, p.root_provider_id), p.id)
    }


def providers_of_consumers(connection: sa.Connection, consumers: Collection[str]) -> dict[str, set[int]]:
    """The numbers of the providers on which each of these consumers has allocations."""
    return _providers_by_consumer(connection, schema.allocations.c.consumer_id, consumers)


def consumers_of_providers(connection: sa.Connection, numbers: Collection[int]) -> dict[str, set[int]]:
    """The servers and migrations with allocations on these providers, each with those of the providers that it uses."""
    return _providers_by_consumer(connection, schema.allocations.c.resource_provider_id, numbers)


def _providers_by_consumer(connection: sa.Connection, column: sa.Column[Any], keys: Collection[Any]) -> dict[str, set[int]]:
    """Of the allocations with one of these values in ``column``."""
    a = schema.allocations.c
    providers: defaultdict[str, set[int]] = defaultdict(set)
    for page in pages_of(keys):
        query = sa.select(a.consumer_id, a.resource_provider_id).where(column.in_(page)).distinct()
        for consumer, number in connection.execute(query):
            providers[consumer].add(number)
    return dict(providers)


def parse_object(text: str) -> dict[str, Any]:
    """A JSON object; empty if the text is none."""
    try:
        value = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


# -- servers and their requests ------------------------------------------------------------------------------------------------


def list_request_specs(connection: sa.Connection, uuids: Collection[str]) -> dict[str, str]:
    """The stored request specs of these servers."""
    c = schema.request_specs.c
    specs: dict[str, str] = {}
    for page in pages_of(uuids):
        specs |= dict(map(tuple, connection.execute(sa.select(c.instance_uuid, c.spec).where(c.instance_uuid.in_(page)))))
    return specs


def list_groups(connection: sa.Connection, members: Collection[str] | None = None, uuid: str = "") -> list[NovaGroup]:
    """The groups of these servers, or the one with this UUID; of neither: all. Three statements."""
    g, m, p = schema.instance_groups.c, schema.instance_group_member.c, schema.instance_group_policy.c
    numbers: set[int] | None = None
    if uuid:
        numbers = set(connection.execute(sa.select(g.id).where(g.uuid == uuid)).scalars())
    elif members is not None:
        numbers = set[int]()
        for page in pages_of(members):
            numbers |= set(connection.execute(sa.select(m.group_id).where(m.instance_uuid.in_(page))).scalars())
    groups: list[NovaGroup] = []
    for of_page in [None] if numbers is None else pages_of(numbers):
        groups += _groups_of_page(connection, of_page, (g, m, p))
    return groups


def _groups_of_page(connection: sa.Connection, page: Sequence[int] | None, columns: tuple[Any, Any, Any]) -> list[NovaGroup]:
    g, m, p = columns

    def of_page(query: Any, column: Any) -> Any:
        return connection.execute(query if page is None else query.where(column.in_(page)))

    members: defaultdict[int, list[str]] = defaultdict(list)
    for number, member in of_page(sa.select(m.group_id, m.instance_uuid), m.group_id):
        members[number].append(member)
    policies = {number: (policy, rules) for number, policy, rules in of_page(sa.select(p.group_id, p.policy, p.rules), p.group_id)}
    groups: list[NovaGroup] = []
    for number, uuid, name, project_id in of_page(sa.select(g.id, g.uuid, g.name, g.project_id), g.id):
        policy, rules = policies.get(number, ("", ""))
        limit = parse_object(rules or "").get("max_server_per_host") or 1
        groups.append(NovaGroup(uuid, name or "", project_id or "", policy or "", int(limit), tuple(sorted(members[number]))))
    return groups


def cells_of_servers(connection: sa.Connection, uuids: Collection[str]) -> dict[str, int | None]:
    """The number of the cell of each of these servers that Nova knows; None: it has not been given to one."""
    c = schema.instance_mappings.c
    cells: dict[str, int | None] = {}
    for page in pages_of(uuids):
        cells |= dict(map(tuple, connection.execute(sa.select(c.instance_uuid, c.cell_id).where(c.instance_uuid.in_(page)))))
    return cells


def list_instances(connection: sa.Connection, cell: str, uuids: Collection[str] | None = None) -> list[NovaInstance]:
    """These servers of a cell, deleted ones too; None: all that are not deleted. ``cell``: its name."""
    c = schema.instances.c
    query = sa.select(schema.instances)
    pages = [None] if uuids is None else list(pages_of(uuids))
    rows: list[Any] = []
    for page in pages:
        rows += connection.execute(query.where(c.deleted == 0) if page is None else query.where(c.uuid.in_(page)))
    return [_instance_of(row, cell) for row in rows]


def _instance_of(row: Any, cell: str) -> NovaInstance:
    return NovaInstance(
        uuid=row.uuid,
        name=row.display_name or "",
        project_id=row.project_id or "",
        host=row.host or "",
        node=row.node or "",
        vm_state=row.vm_state or "",
        task_state=row.task_state or "",
        zone=row.availability_zone or "",
        cell=cell,
        created_at=row.created_at,
        launched_at=row.launched_at,
        ended_at=(row.terminated_at or row.deleted_at) if row.deleted else None,
        vcpus=row.vcpus or 0,
        memory_mb=row.memory_mb or 0,
        disk_gb=(row.root_gb or 0) + (row.ephemeral_gb or 0),
    )


def latest_fault(connection: sa.Connection, uuid: str) -> str:
    """The message of a server's last fault; empty if it has none."""
    c = schema.instance_faults.c
    query = sa.select(c.message).where(c.instance_uuid == uuid, c.deleted == 0).order_by(c.created_at.desc(), c.id.desc())
    return str(connection.execute(query.limit(1)).scalar() or "")


def servers_of_request(connection: sa.Connection, request_id: str) -> list[str]:
    """The servers of a cell that a request was for."""
    c = schema.instance_actions.c
    query = sa.select(c.instance_uuid).where(c.request_id == request_id).distinct().order_by(c.instance_uuid)
    return list(connection.execute(query).scalars())


# -- what an audit compares ----------------------------------------------------------------------------------------------------

FINISHED_MIGRATIONS = ("confirmed", "reverted", "error", "failed", "completed", "cancelled")
"""Statuses after which a migration has no claim. ``done`` is none: an evacuated host keeps its claims until it returns."""


def list_migrations(connection: sa.Connection, uuids: Collection[str] | None = None) -> list[NovaMigration]:
    """The migrations of a cell that are under way; with ``uuids``, these, finished ones too."""
    c = schema.migrations.c
    query = sa.select(c.uuid, c.instance_uuid, c.status)
    pages = [None] if uuids is None else list(pages_of(uuids))
    rows: list[Any] = []
    for page in pages:
        chosen = c.uuid.in_(page) if page is not None else sa.and_(c.deleted == 0, c.status.not_in(FINISHED_MIGRATIONS))
        rows += connection.execute(query.where(chosen))
    return [NovaMigration(uuid or "", instance or "", status or "") for uuid, instance, status in rows]


def list_build_requests(connection: sa.Connection) -> dict[str, datetime]:
    """When each server was accepted whose build request is still there (UTC)."""
    c = schema.build_requests.c
    return dict(map(tuple, connection.execute(sa.select(c.instance_uuid, c.created_at))))


def past_instances(connection: sa.Connection, cell: str, after: int, limit: int) -> tuple[list[NovaInstance], int]:
    """Servers of a cell, deleted ones too, in the order of their IDs from ``after`` on; and the last ID of them."""
    c = schema.instances.c
    query = sa.select(schema.instances).where(c.id > after, sa.func.coalesce(c.hidden, 0) == 0).order_by(c.id).limit(limit)
    rows = list(connection.execute(query))
    return [_instance_of(row, cell) for row in rows], rows[-1].id if rows else after
