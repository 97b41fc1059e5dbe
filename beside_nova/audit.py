"""Compare what Nova's databases and Placement say of servers, claims and hosts. Each fault has the command of Nova that mends it.

Nothing is changed. Servers are booted and moved meanwhile, so a fault counts only if a second look at the claims shows it too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from beside_nova import readers
from beside_nova.records import NovaGroup, NovaInstance, NovaNode, Provider
from beside_nova.request import plain_data
from beside_nova.state import NovaCellView, NovaState
from objects.aggregate import ZONE
from objects.base import Object
from objects.group import GroupPolicy

WITHOUT_HOST = frozenset({"shelved_offloaded", "deleted", "soft-delete", "building"})
"""States of servers that hold no room, or do not yet."""
BUILD_WAIT = timedelta(hours=1)
"""A build request that is older is stuck."""
NO_COMMAND = ""


class NovaFault(Object, frozen=True, kw_only=True):
    """``kind``: what is wrong, in a few words. ``subject``: the UUID or name of what it is wrong with.

    ``mend``: a command of Nova or of the OpenStack client; empty: there is none.
    """

    kind: str
    subject: str
    text: str
    mend: str


class NovaAudit(Object, frozen=True, kw_only=True):
    """``skipped``: comparisons that were not made, because a cell could not be read."""

    faults: tuple[NovaFault, ...]
    skipped: tuple[str, ...]


class _Facts(NamedTuple):
    """``claims``: the numbers of the compute providers of each consumer. ``moving``: servers with a migration under way."""

    instances: Mapping[str, NovaInstance]
    claims: Mapping[str, set[int]]
    moving: frozenset[str]
    migrations: frozenset[str]
    nodes: Mapping[str, tuple[NovaNode, NovaCellView]]
    builds: Mapping[str, datetime]
    groups: tuple[NovaGroup, ...]


def audit_cloud(state: NovaState) -> NovaAudit:
    """Read everything anew and compare it. Raises what reading the API database or Placement raises."""
    state.load_all()
    views = list(state.cells.values())
    failed = [view.cell.name for view in views if view.error]
    facts = _read_facts(state)
    faults = [*_host_faults(state, facts), *_inventory_faults(state, facts), *_aggregate_faults(state, facts)]
    skipped: tuple[str, ...] = ()
    if failed:
        skipped = (f"servers and their claims: cell {failed[0]} could not be read",)
    else:
        of_claims = [*_claims_without_owner(state, facts), *_servers_without_claim(state, facts), *_doubled_claims(state, facts)]
        faults += _confirmed_faults(state, of_claims, facts)
        faults += [*_stuck_builds(state, facts), *_zone_faults(state, facts), *_broken_groups(facts)]
    return NovaAudit(faults=tuple(faults), skipped=skipped)


def _read_facts(state: NovaState) -> _Facts:
    instances: dict[str, NovaInstance] = {}
    moving: set[str] = set()
    migrations: set[str] = set()
    nodes: dict[str, tuple[NovaNode, NovaCellView]] = {}
    for view in state.cells.values():
        if view.error:
            continue
        nodes |= {node.uuid: (node, view) for node in view.nodes.values()}
        database = state.database_of(view.cell)
        instances |= {one.uuid: one for one in database.read(readers.list_instances, view.cell.name)}
        for migration in database.read(readers.list_migrations):
            moving.add(migration.instance_uuid)
            migrations.add(migration.uuid)
    computes = [number for number, provider in state.providers.items() if provider.uuid in nodes]
    return _Facts(
        instances=instances,
        claims=state.databases.placement.read(readers.consumers_of_providers, computes),
        moving=frozenset(moving),
        migrations=frozenset(migrations),
        nodes=nodes,
        builds=state.databases.api.read(readers.list_build_requests),
        groups=tuple(state.databases.api.read(readers.list_groups)),
    )


def _confirmed_faults(state: NovaState, faults: list[NovaFault], facts: _Facts) -> list[NovaFault]:
    """Those of them whose subject has the same claims now as then."""
    now = state.databases.placement.read(readers.providers_of_consumers, [fault.subject for fault in faults])
    computes = {number for number, provider in state.providers.items() if provider.uuid in facts.nodes}
    return [fault for fault in faults if now.get(fault.subject, set()) & computes == facts.claims.get(fault.subject, set())]


# -- claims --------------------------------------------------------------------------------------------------------------------


def _claims_without_owner(state: NovaState, facts: _Facts) -> Iterator[NovaFault]:
    owners = facts.instances.keys() | facts.migrations | facts.builds.keys()
    ownerless = sorted(facts.claims.keys() - owners)
    finished: dict[str, str] = {}
    for view in state.cells.values():
        for migration in state.database_of(view.cell).read(readers.list_migrations, ownerless):
            finished[migration.uuid] = migration.status
    for consumer in ownerless:
        for number in sorted(facts.claims[consumer]):
            provider = state.providers[number]
            mend = f"nova-manage placement audit --resource_provider {provider.uuid} --delete"
            if consumer in finished:
                text = f"migration {consumer} is {finished[consumer]} and still claims room on {provider.name}"
                yield NovaFault(kind="claim of a finished migration", subject=consumer, text=text, mend=mend)
            else:
                text = f"{consumer} claims room on {provider.name}, and no server or migration has this UUID"
                yield NovaFault(kind="claim without a server", subject=consumer, text=text, mend=mend)


def _servers_without_claim(state: NovaState, facts: _Facts) -> Iterator[NovaFault]:
    del state
    for uuid, instance in sorted(facts.instances.items()):
        is_placed = bool(instance.host) and instance.vm_state not in WITHOUT_HOST and not instance.task_state
        if is_placed and uuid not in facts.claims and uuid not in facts.moving:
            text = f"server {uuid} runs on {instance.host} and claims no room"
            mend = f"nova-manage placement heal_allocations --instance {uuid}"
            yield NovaFault(kind="server without a claim", subject=uuid, text=text, mend=mend)


def _doubled_claims(state: NovaState, facts: _Facts) -> Iterator[NovaFault]:
    for uuid, instance in sorted(facts.instances.items()):
        numbers = facts.claims.get(uuid, set())
        if len(numbers) < 2 or uuid in facts.moving or instance.task_state:
            continue
        for number in sorted(numbers):
            provider = state.providers[number]
            node = facts.nodes[provider.uuid][0]
            if (node.host, node.node) != (instance.host, instance.node):
                text = f"server {uuid} is on {instance.host} and also claims room on {node.host}"
                mend = f"openstack resource provider allocation unset --provider {provider.uuid} {uuid}"
                yield NovaFault(kind="doubled claim", subject=uuid, text=text, mend=mend)


# -- hosts ---------------------------------------------------------------------------------------------------------------------


def _host_faults(state: NovaState, facts: _Facts) -> Iterator[NovaFault]:
    by_number = {cell.number: cell for cell in state.facts.cells}
    reporting: defaultdict[str, set[int]] = defaultdict(set)
    for node, view in facts.nodes.values():
        reporting[node.host].add(view.cell.number)
        home = state.facts.homes.get(node.host)
        if home is None:
            text = f"host {node.host} reports in cell {view.cell.name} and has no mapping"
            mend = f"nova-manage cell_v2 discover_hosts --by-service --cell_uuid {view.cell.uuid}"
            yield NovaFault(kind="host without a mapping", subject=node.host, text=text, mend=mend)
    unread = {view.cell.number for view in state.cells.values() if view.error}
    for host, number in sorted(state.facts.homes.items()):
        cell = by_number.get(number)
        if cell is None or number in unread or number in reporting[host]:
            continue
        is_known = host in state.cells[cell.uuid].services if cell.uuid in state.cells else False
        if not is_known:
            text = f"host {host} is mapped to cell {cell.name}, where no such host reports"
            mend = f"nova-manage cell_v2 delete_host --cell_uuid {cell.uuid} --host {host}"
            yield NovaFault(kind="mapping without a host", subject=host, text=text, mend=mend)


def _inventory_faults(state: NovaState, facts: _Facts) -> Iterator[NovaFault]:
    by_uuid = {provider.uuid: provider for provider in state.providers.values()}
    for uuid, (node, _) in sorted(facts.nodes.items(), key=lambda item: item[1][0].host):
        mend = f"systemctl restart nova-compute  # on {node.host}"
        provider = by_uuid.get(uuid)
        if provider is None:
            text = f"node {node.node} of host {node.host} has no resource provider"
            yield NovaFault(kind="node without a provider", subject=node.host, text=text, mend=mend)
            continue
        for name, (in_placement, in_nova) in _differing_totals(provider, node).items():
            text = f"host {node.host} has {in_nova} {name}, and its inventory {in_placement}"
            yield NovaFault(kind="inventory unlike its node", subject=node.host, text=text, mend=mend)
    if not any(view.error for view in state.cells.values()):
        for provider in state.providers.values():
            if provider.is_root and "VCPU" in provider.inventory and provider.uuid not in facts.nodes:
                text = f"resource provider {provider.name} is of no compute node"
                mend = f"openstack resource provider delete {provider.uuid}"
                yield NovaFault(kind="provider without a node", subject=provider.uuid, text=text, mend=mend)


def _differing_totals(provider: Provider, node: NovaNode) -> dict[str, tuple[int, int]]:
    """By resource class: what the inventory says, and what the node says. Dedicated CPUs are CPUs of the node, too."""
    totals = {name: record.total for name, record in provider.inventory.items()}
    pairs = {
        "VCPU": (totals.get("VCPU", 0) + totals.get("PCPU", 0), node.vcpus),
        "MEMORY_MB": (totals.get("MEMORY_MB", 0), node.memory_mb),
        "DISK_GB": (totals.get("DISK_GB", 0), node.local_gb),
    }
    return {name: pair for name, pair in pairs.items() if name in totals and pair[0] != pair[1]}


def _aggregate_faults(state: NovaState, facts: _Facts) -> Iterator[NovaFault]:
    hosts_of: defaultdict[str, set[str]] = defaultdict(set)
    by_uuid = {provider.uuid: provider for provider in state.providers.values()}
    for uuid, (node, _) in facts.nodes.items():
        if uuid in by_uuid:
            for aggregate in by_uuid[uuid].aggregates:
                hosts_of[aggregate].add(node.host)
    with_provider = {node.host for uuid, (node, _) in facts.nodes.items() if uuid in by_uuid}
    for one in state.facts.aggregates:
        if different := sorted((set(one.hosts) & with_provider) ^ hosts_of[one.uuid]):
            text = f"aggregate {one.name} has or lacks {different[0]}, and Placement's copy of it does not"
            mend = "nova-manage placement sync_aggregates"
            yield NovaFault(kind="aggregate unlike its copy", subject=one.name, text=text, mend=mend)


# -- servers -------------------------------------------------------------------------------------------------------------------


def _stuck_builds(state: NovaState, facts: _Facts) -> Iterator[NovaFault]:
    now = datetime.now(UTC).replace(tzinfo=None)
    late = [uuid for uuid, since in facts.builds.items() if since is not None and now - since > BUILD_WAIT]
    cells = state.databases.api.read(readers.cells_of_servers, late)
    for uuid in sorted(late):
        if cells.get(uuid) is None:
            text = f"server {uuid} was accepted at {facts.builds[uuid]:%Y-%m-%dT%H:%M:%SZ} and given to no cell"
            yield NovaFault(kind="stuck build request", subject=uuid, text=text, mend=f"openstack server delete {uuid}")
        else:
            text = f"server {uuid} is in a cell, and its build request is still there"
            yield NovaFault(kind="stuck build request", subject=uuid, text=text, mend=NO_COMMAND)


def _zone_faults(state: NovaState, facts: _Facts) -> Iterator[NovaFault]:
    zones = state.zone_names
    if not zones:
        return
    zones_of: defaultdict[str, set[str]] = defaultdict(set)
    for one in state.facts.aggregates:
        for host in one.hosts:
            if zone := one.metadata.get(ZONE):
                zones_of[host].add(zone)
    placed = {uuid for uuid, instance in facts.instances.items() if instance.host and instance.vm_state not in WITHOUT_HOST}
    for uuid, text in sorted(state.databases.api.read(readers.list_request_specs, placed - facts.moving).items()):
        zone = plain_data(readers.parse_object(text)).get("availability_zone")
        host = facts.instances[uuid].host
        if zone in zones and zone not in zones_of[host]:
            message = f"server {uuid} asked for zone {zone} and is on {host}, which is not in it"
            mend = f"openstack server migrate {uuid}"
            yield NovaFault(kind="server outside its zone", subject=uuid, text=message, mend=mend)


def _broken_groups(facts: _Facts) -> Iterator[NovaFault]:
    for group in facts.groups:
        members = [uuid for uuid in group.members if uuid in facts.instances and facts.instances[uuid].host]
        if not facts.moving.isdisjoint(members):
            continue
        counts: Counter[str] = Counter(facts.instances[uuid].host for uuid in members)
        surplus: list[str] = []
        if group.policy == GroupPolicy.ANTI_AFFINITY:
            seen: Counter[str] = Counter()
            for uuid in members:
                host = facts.instances[uuid].host
                seen[host] += 1
                if seen[host] > group.max_server_per_host:
                    surplus.append(uuid)
        elif group.policy == GroupPolicy.AFFINITY and len(counts) > 1:
            [(most, _)] = counts.most_common(1)
            surplus = [uuid for uuid in members if facts.instances[uuid].host != most]
        for uuid in surplus:
            text = f"server {uuid} on {facts.instances[uuid].host} breaks the {group.policy} policy of group {group.uuid}"
            mend = f"openstack server migrate {uuid}"
            yield NovaFault(kind="broken server group", subject=uuid, text=text, mend=mend)
