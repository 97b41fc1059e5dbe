"""The demo's strict verdict: what every server, claim, quota, row and guest must be at rest, as databases and journals say."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cli.demo.plan import GROUPS, ExpectedOutcome, HostPlan, Item
from cli.demo.site import Records
from compute.journal import read_guests
from compute.simulated import METADATA_KEY, journal_path, scripted_outcome
from compute.simulated import SpawnOutcome as Spawn
from db.api import cell_mappings, mappings
from db.audit import quotas, snapshot
from db.sql.engine import ApiDatabase, CellDatabase
from objects.base import Object
from objects.instance import Attempt, FailureClass, Instance, Server, State


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


def gather(records: Records, hosts: Sequence[HostPlan]) -> Evidence:
    """Read API database, cells and guest files. The deployment may be running; the verdict wants it at rest."""
    database = ApiDatabase(records.database_url("api"), name="api")
    rows: list[InstanceState] = []
    try:
        servers = database.read(mappings.list_, mappings.ServerQuery(include_deleted=True, limit=100_000))
        requests = database.read(mappings.queue).depth
        claims = database.read(snapshot.claims)
        usage = database.read(snapshot.usage)
        drifts = database.read(quotas.differences)
        for mapping in database.read(cell_mappings.list_all):
            cell = CellDatabase(mapping.database_url, name=mapping.name)
            rows += [InstanceState(cell=mapping.name, instance=row) for row in cell.read(snapshot.rows)]
            cell.dispose()
    finally:
        database.dispose()
    claimed: Counter[str] = Counter()
    for claim in claims:
        claimed[claim.host] += claim.vcpus
    journals = {host.name: journal_path(str(records.path / "hosts"), host.name) for host in hosts}
    guests = {host: tuple(guest.uuid for guest in read_guests(journal)) for host, journal in journals.items()}
    return Evidence(
        servers=tuple(servers),
        requests=requests,
        claims={claim.instance_uuid: claim.host for claim in claims},
        charged={node.host: node.vcpus for node in usage},
        claimed=claimed,
        memory_used={node.host: node.memory_mb for node in usage},
        rows=tuple(rows),
        guests=guests,
        drifts=tuple(drifts),
    )


def at_rest(evidence: Evidence) -> bool:
    """Nothing is on its way any more."""
    final = {State.ACTIVE, State.ERROR, State.DELETED}
    return (
        not evidence.requests
        and all(server.state != "building" for server in evidence.servers)
        and all(not server.deleted or server.state == "deleted" for server in evidence.servers)
        and all(row.instance.state in final for row in evidence.rows)
    )


def judge(evidence: Evidence, items: Sequence[Item], hosts: Sequence[HostPlan]) -> list[str]:
    """Every way in which the deployment differs from what was scripted; empty: it is as it must be."""
    faults: list[str] = []
    servers = {server.uuid: server for server in evidence.servers}
    rows = {row.instance.uuid: row for row in evidence.rows}
    by_name: dict[str, list[str]] = defaultdict(list)
    for server in evidence.servers:
        by_name[server.name].append(server.uuid)
    script = Script({host.name: host.failure_rate for host in hosts}, _retried(evidence.rows))
    posted = {item.name: [uuid for name in item.server_names() for uuid in by_name.pop(name, ())] for item in items}
    for item in items:
        if len(posted[item.name]) != item.count:
            faults.append(f"{item.name}: {len(posted[item.name])} servers were accepted, {item.count} asked for")
        for uuid in posted[item.name]:
            faults += [f"{item.name} {uuid}: {fault}" for fault in _judge_server(item, servers[uuid], rows.get(uuid), script)]
    faults += [f"server {name} was never asked for" for name in by_name]
    faults += judge_leftovers(evidence)
    faults += _judge_groups(items, posted, rows)
    return faults


class Script(NamedTuple):
    """What may fail where: ``rates`` by host, and no room on hosts that retries went to.

    A retry goes to an alternate, which nobody claimed for it: so it may find no room there, and so may whoever had claimed it.
    """

    rates: Mapping[str, float]
    retried: frozenset[str]


def _retried(rows: Iterable[InstanceState]) -> frozenset[str]:
    """The hosts of all attempts but first ones."""
    tried = [[*(attempt.host for attempt in row.instance.history), row.instance.host or ""] for row in rows]
    return frozenset(host for hosts in tried for host in hosts[1:])


def _judge_server(item: Item, server: Server, row: InstanceState | None, script: Script) -> list[str]:
    if item.outcome is ExpectedOutcome.DELETED:
        return [] if server.deleted and server.state == "deleted" else [f"should be deleted, is {server.state}"]
    if row is None:
        return ["has no row in any cell"]
    fault = row.instance.fault or ""
    if row.instance.state is State.ERROR:
        return _judge_error(item, row, fault, script)
    if item.outcome is not ExpectedOutcome.ACTIVE:
        return [f"should be in ERROR ({item.outcome}), is {row.instance.state}"]
    if row.instance.state is not State.ACTIVE or server.state != "active":
        return [f"should be ACTIVE, row {row.instance.state}, summary {server.state}"]
    return _unscripted(row.instance.history, item, server.uuid, script)


def _judge_error(item: Item, row: InstanceState, fault: str, script: Script) -> list[str]:
    history = row.instance.history
    match item.outcome:
        case ExpectedOutcome.CANNOT_FIT:
            ok = row.cell == "cell0" and fault.startswith("No valid host was found")
        case ExpectedOutcome.ABORTED:
            ok = len(history) > 0 and history[-1].failure.kind is FailureClass.REQUEST and "aborted" in fault
        case ExpectedOutcome.EXHAUSTED:
            ok = len(history) > 0 and ("maximum number of attempts" in fault or "Exhausted" in fault)
        case _:  # a server that should run may end in ERROR only where every host it was given was to fail it
            ok = len(history) > 0 and "maximum number of attempts" in fault
    if not ok:
        return [f"in ERROR for a cause that was not scripted ({item.outcome} expected): {fault}"]
    return _unscripted(history, item, row.instance.uuid, script)


ENDED_WITH_THE_DEMO = (FailureClass.RESTARTED, FailureClass.STOPPING)
"""Attempts that ended because the demo itself was killed or interrupted, which costs a build no try."""


def _unscripted(history: Sequence[Attempt], item: Item, uuid: str, script: Script) -> list[str]:
    """Failed attempts that the simulated hosts were not scripted to fail."""
    metadata = {METADATA_KEY: item.simulated} if item.simulated else {}
    return [
        f"attempt {attempt.number} on {attempt.host} failed unscripted: {attempt.failure.message}"
        for attempt in history
        if attempt.failure.kind not in ENDED_WITH_THE_DEMO
        and not (attempt.failure.kind is FailureClass.NO_ROOM and attempt.host in script.retried)
        and scripted_outcome(attempt.host, uuid, script.rates[attempt.host], metadata) is Spawn.OK
    ]


def judge_leftovers(evidence: Evidence) -> list[str]:
    """Claims, charges, guests and rows that do not belong to exactly the live instances."""
    rows = {row.instance.uuid: row for row in evidence.rows}
    live = {uuid: row.instance.host for uuid, row in rows.items() if row.instance.state is State.ACTIVE}
    places: dict[str, list[str]] = defaultdict(list)
    for host, uuids in evidence.guests.items():
        for uuid in uuids:
            places[uuid].append(host)
    counted = Counter(row.instance.uuid for row in evidence.rows)
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
            f"{uuid}: guests on {places.get(uuid, [])}, instance on {live.get(uuid)}"
            for uuid in places.keys() | live.keys()
            if places.get(uuid, []) != ([live[uuid]] if uuid in live else [])
        ),
        *(f"project {drift.project_id}: charged for {drift.used}, has {drift.counted}" for drift in evidence.drifts),
        *(f"{uuid}: rows in several cells" for uuid, count in counted.items() if count > 1),
    ]


def _judge_groups(items: Iterable[Item], posted: Mapping[str, Sequence[str]], rows: Mapping[str, InstanceState]) -> list[str]:
    policies = {group.name: group.policy for group in GROUPS}
    members: dict[str, list[str]] = defaultdict(list)
    for item in items:
        if item.group:
            members[item.group] += [
                row.instance.host or ""
                for uuid in posted.get(item.name, ())
                if (row := rows.get(uuid)) and row.instance.state is State.ACTIVE
            ]
    faults = []
    for group, hosts in members.items():
        if policies[group] == "affinity" and len(set(hosts)) > 1:
            faults.append(f"group {group} should share one host: {sorted(set(hosts))}")
        if policies[group] == "anti-affinity" and len(set(hosts)) < len(hosts):
            faults.append(f"group {group} should be on {len(hosts)} hosts: {sorted(hosts)}")
    return faults
