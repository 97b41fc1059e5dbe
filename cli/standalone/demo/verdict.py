"""The demo's strict verdict: how each server must end by its script. ``evidence.py`` says what must hold besides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cli.standalone.demo.evidence import Evidence, InstanceState, list_leftovers, misplaced_reason
from cli.standalone.demo.plan import GROUPS, ExpectedOutcome, HostPlan, Item
from compute.simulated import METADATA_KEY, scripted_outcome
from compute.simulated import SpawnOutcome as Spawn
from objects.group import GroupPolicy
from objects.instance import Attempt, FailureClass, Server, State


def judge_evidence(evidence: Evidence, items: Sequence[Item], hosts: Sequence[HostPlan]) -> list[str]:
    """Every way in which the deployment differs from what was scripted; empty: it is as it must be."""
    faults: list[str] = []
    servers = {server.uuid: server for server in evidence.servers}
    rows = {row.instance.uuid: row for row in evidence.rows}
    by_name: dict[str, list[str]] = defaultdict(list)
    for server in evidence.servers:
        by_name[server.name].append(server.uuid)
    script = Script({host.name: host.failure_rate for host in hosts}, _retried_hosts(evidence.rows))
    posted = {item.name: [uuid for name in item.server_names() for uuid in by_name.pop(name, ())] for item in items}
    for item in items:
        if len(posted[item.name]) != item.count:
            faults.append(f"{item.name}: {len(posted[item.name])} servers were accepted, {item.count} asked for")
        for uuid in posted[item.name]:
            faults += [f"{item.name} {uuid}: {fault}" for fault in _judge_server(item, servers[uuid], rows.get(uuid), script)]
    faults += [f"server {name} was never asked for" for name in by_name]
    faults += list_leftovers(evidence)
    faults += _judge_groups(items, posted, rows)
    return faults


class Script(NamedTuple):
    """What may fail where: ``rates`` by host, and no room on hosts that retries went to.

    A retry goes to an alternate, which nobody claimed for it: so it may find no room there, and so may whoever had claimed it.
    """

    rates: Mapping[str, float]
    retried: frozenset[str]


def _retried_hosts(rows: Iterable[InstanceState]) -> frozenset[str]:
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
    return _unscripted_failures(row.instance.history, item, server.uuid, script)


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
    return _unscripted_failures(history, item, row.instance.uuid, script)


ENDED_WITH_THE_DEMO = (FailureClass.RESTARTED, FailureClass.STOPPING)
"""Attempts that ended because the demo itself was killed or interrupted, which costs a build no try."""


def _unscripted_failures(history: Sequence[Attempt], item: Item, uuid: str, script: Script) -> list[str]:
    """Failed attempts that the simulated hosts were not scripted to fail."""
    metadata = {METADATA_KEY: item.simulated} if item.simulated else {}
    return [
        f"attempt {attempt.number} on {attempt.host} failed unscripted: {attempt.failure.message}"
        for attempt in history
        if attempt.failure.kind not in ENDED_WITH_THE_DEMO
        and not (attempt.failure.kind is FailureClass.NO_ROOM and attempt.host in script.retried)
        and scripted_outcome(attempt.host, uuid, script.rates[attempt.host], metadata) is Spawn.OK
    ]


def _judge_groups(items: Iterable[Item], posted: Mapping[str, Sequence[str]], rows: Mapping[str, InstanceState]) -> list[str]:
    policies = {group.name: GroupPolicy(group.policy) for group in GROUPS}
    members: dict[str, list[str]] = defaultdict(list)
    for item in items:
        if item.group:
            members[item.group] += [
                row.instance.host or ""
                for uuid in posted.get(item.name, ())
                if (row := rows.get(uuid)) and row.instance.state is State.ACTIVE
            ]
    return [f"group {group} {wrong}" for group, hosts in members.items() if (wrong := misplaced_reason(policies[group], hosts))]
