"""What a region has written and what runs in it at one moment, and what must hold of it at rest, whatever was asked of it.

The demo, chaos runs and random schedules of the real code judge by this. What was asked for, and what excuses an ERROR, is theirs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from cli.standalone.demo.hosts import HostFindings
from cli.standalone.demo.site import Records
from db.api.deployment import cell_mappings
from db.api.operations import operations
from db.api.servers import mappings
from db.audit import quotas, snapshot
from db.sql.engine import ApiDatabase, CellDatabase
from objects.base import Object
from objects.group import GroupPolicy
from objects.instance import Instance, Server, State
from objects.inventory import Slot
from objects.operation import Operation, OperationState
from objects.task import Power, TaskState

FINAL = (State.ACTIVE, State.ERROR, State.DELETED)


class InstanceState(Object, frozen=True, kw_only=True):
    """One instance row of one cell."""

    cell: str
    instance: Instance


class Evidence(Object, frozen=True, kw_only=True):
    """Everything the deployment has written, in one piece."""

    servers: tuple[Server, ...]
    requests: int
    claims: dict[str, str]  # instance uuid -> host
    charged: dict[str, int]  # host -> vCPUs that inventories count as used
    claimed: dict[str, int]  # host -> vCPUs of its allocations
    memory_used: dict[str, int]  # host -> MiB that inventories count as used
    rows: tuple[InstanceState, ...]
    guests: dict[str, tuple[str, ...]]  # host -> uuids on it
    drifts: tuple[quotas.Drift, ...] = ()  # projects that are not charged for what they have
    counted: dict[str, int] = msgspec.field(default_factory=dict)  # host -> instances that inventories count
    slots: tuple[Slot, ...] = ()  # hosts that members of groups hold
    hidden: tuple[Server, ...] = ()  # bodies that lists do not show
    operations: tuple[Operation, ...] = ()  # open ones
    history: tuple[Operation, ...] = ()  # those that have ended, the newest first
    powers: dict[str, Power] = msgspec.field(default_factory=dict)  # uuid -> what its guest is
    spoiled: dict[str, str] = msgspec.field(default_factory=dict)  # uuid of a guest -> what is wrong with its disk
    disks: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)  # host -> uuids of the disks on it


def gather_evidence(records: Records, hosts: HostFindings) -> Evidence:
    """Read API database, cells and hosts. The deployment may be running."""
    api = ApiDatabase(records.database_url("api"), name="api")
    cells: dict[str, CellDatabase] = {}
    try:
        for mapping in api.read(cell_mappings.list_all):
            cells[mapping.name] = CellDatabase(mapping.database_url, name=mapping.name)
        guests_by_host = hosts.guests_by_host()
        evidence = read(api, cells, {host: tuple(guest.uuid for guest in guests) for host, guests in guests_by_host.items()})
        powers = {guest.uuid: guest.power for guests in guests_by_host.values() for guest in guests}
        faults = {guest.uuid: hosts.disk_fault(host, guest) for host, guests in guests_by_host.items() for guest in guests}
        disks = {host: tuple(uuids) for host, uuids in hosts.disks_by_host().items()}
        spoiled = {uuid: fault for uuid, fault in faults.items() if fault}
        return msgspec.structs.replace(evidence, powers=powers, spoiled=spoiled, disks=disks)
    finally:
        for database in (api, *cells.values()):
            database.dispose_connections()


def read(api: ApiDatabase, cells: Mapping[str, CellDatabase], guests: Mapping[str, Sequence[str]]) -> Evidence:
    """Read these databases. ``guests``: the uuids of the guests on each host."""
    servers = api.read(mappings.list_, mappings.ServerQuery(include_deleted=True, limit=100_000))
    requests = api.read(mappings.measure_queue).depth
    claims = api.read(snapshot.list_claims)
    usage = api.read(snapshot.list_usage)
    drifts = api.read(quotas.list_differences)
    slots = api.read(snapshot.list_slots)
    hidden = api.read(snapshot.list_hidden)
    every = api.read(operations.list_, operations.OperationQuery(include_ended=True, limit=100_000))
    rows = [InstanceState(cell=name, instance=row) for name, cell in cells.items() for row in cell.read(snapshot.list_rows)]
    claimed: Counter[str] = Counter()
    for claim in claims:
        claimed[claim.host] += claim.vcpus
    return Evidence(
        servers=tuple(servers),
        requests=requests,
        claims={claim.instance_uuid: claim.host for claim in claims},
        charged={node.host: node.vcpus for node in usage},
        claimed=claimed,
        memory_used={node.host: node.memory_mb for node in usage},
        rows=tuple(rows),
        guests={host: tuple(uuids) for host, uuids in guests.items()},
        drifts=tuple(drifts),
        counted={node.host: node.instances for node in usage},
        slots=tuple(slots),
        hidden=tuple(hidden),
        operations=tuple(operation for operation in every if operation.outcome is None),
        history=tuple(operation for operation in every if operation.outcome is not None),
    )


def list_unfinished(evidence: Evidence) -> list[str]:
    """What is still to come to an end: requests, servers and their tasks, operations, rows. Empty at rest.

    A resize that waits for its user is at rest, and so is a server that is shelved on its host or soft-deleted.
    """
    return [
        *([f"{evidence.requests} build requests are left"] if evidence.requests else []),
        *(
            f"{server.uuid}: {server.state}" + (", deleted" if server.deleted else "")
            for server in (*evidence.servers, *evidence.hidden)
            if server.state == "building" or (server.deleted and server.state != "deleted")
        ),
        *(
            f"{operation.server_uuid}: {operation.kind} is {operation.state}"
            for operation in evidence.operations
            if operation.state not in (OperationState.VERIFY, OperationState.SHELVED, OperationState.SOFT_DELETED)
        ),
        *(f"{row.instance.uuid}: {row.instance.state} in {row.cell}" for row in evidence.rows if row.instance.state not in FINAL),
        *(
            f"{server.body_uuid}: task {server.task_number} is {server.task_state}"
            for server in (*evidence.servers, *evidence.hidden)
            if server.state == "active" and not server.deleted and not server.task_state.is_over
        ),
    ]


def at_rest(evidence: Evidence) -> bool:
    """Whether everything has come to an end."""
    return not list_unfinished(evidence)


def list_leftovers(evidence: Evidence) -> list[str]:
    """Requests, claims, usage, slots, guests, charges and rows that do not belong to exactly the ACTIVE instances.

    Bodies of a server that no open operation needs are left over, too.
    """
    needed = {body for operation in evidence.operations for body in (operation.source_uuid, operation.twin_uuid)}
    live = {row.instance.uuid: row.instance.host for row in evidence.rows if row.instance.state is State.ACTIVE}
    places, disks = _hosts_by_uuid(evidence.guests), _hosts_by_uuid(evidence.disks)
    homes: dict[str, list[str]] = defaultdict(list)
    for row in evidence.rows:
        homes[row.instance.uuid].append(row.cell)
    claims = Counter(evidence.claims.values())
    return [
        *([f"{evidence.requests} build requests are left"] if evidence.requests else []),
        *(
            f"{uuid}: claim on {evidence.claims.get(uuid)}, instance on {live.get(uuid)}"
            for uuid in evidence.claims.keys() | live.keys()
            if evidence.claims.get(uuid) != live.get(uuid)
        ),
        *(
            f"{host}: {evidence.charged.get(host, 0)} vCPUs charged, {evidence.claimed.get(host, 0)} claimed"
            for host in evidence.charged.keys() | evidence.claimed.keys()
            if evidence.charged.get(host, 0) != evidence.claimed.get(host, 0)
        ),
        *(
            f"{host}: {count} instances counted, {claims[host]} claimed"
            for host, count in evidence.counted.items()
            if count != claims[host]
        ),
        *(
            f"{slot.instance_uuid}: {'held ' if slot.held else ''}slot on {slot.host}, instance on {live.get(slot.instance_uuid)}"
            for slot in evidence.slots
            if slot.held or live.get(slot.instance_uuid) != slot.host
        ),
        *(
            f"{uuid}: guests on {places.get(uuid, [])}, instance on {live.get(uuid)}"
            for uuid in places.keys() | live.keys()
            if places.get(uuid, []) != ([live[uuid]] if uuid in live else [])
        ),
        *(
            f"{row.instance.uuid}: its guest is {evidence.powers[row.instance.uuid]}, its row says {row.instance.power}"
            for row in evidence.rows
            if row.instance.state is State.ACTIVE
            and row.instance.task_state is TaskState.DONE
            and evidence.powers.get(row.instance.uuid, row.instance.power) is not row.instance.power
        ),
        *(f"{uuid}: {fault}" for uuid, fault in evidence.spoiled.items() if uuid in live),
        *(f"{uuid}: disks on {hosts}, instance on {live.get(uuid)}" for uuid, hosts in disks.items() if hosts != [live.get(uuid)]),
        *(
            f"{body.body_uuid}: a hidden body is left"
            for body in evidence.hidden
            if not body.deleted and body.body_uuid not in needed
        ),
        *(f"project {drift.project_id}: charged for {drift.used}, has {drift.counted}" for drift in evidence.drifts),
        *(f"{uuid}: rows in several cells: {sorted(cells)}" for uuid, cells in homes.items() if len(cells) > 1),
    ]


def _hosts_by_uuid(uuids_by_host: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The hosts of each uuid. ``uuids_by_host``: the uuids on each host."""
    places: dict[str, list[str]] = defaultdict(list)
    for host, uuids in uuids_by_host.items():
        for uuid in uuids:
            places[uuid].append(host)
    return places


def misplaced_reason(policy: GroupPolicy, hosts: Sequence[str]) -> str:
    """How the hosts of a group's ACTIVE members break its strict policy; empty: they do not."""
    if policy is GroupPolicy.AFFINITY and len(set(hosts)) > 1:
        return f"should share one host, its members are on {sorted(hosts)}"
    if policy is GroupPolicy.ANTI_AFFINITY and len(set(hosts)) < len(hosts):
        return f"should be on {len(hosts)} hosts, its members are on {sorted(hosts)}"
    return ""
