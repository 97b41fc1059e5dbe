"""What a replay has placed, looked through without the scheduler: hosts, NUMA nodes, groups and racks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from lab.fleet import FleetHost
from lab.replay import Running
from lab.trace import Arrival
from objects.group import GroupPolicy


def violations(fleet: Sequence[FleetHost], running: Iterable[Running], asked: dict[str, Arrival]) -> Iterator[str]:
    """One sentence for each. ``running``: of one moment; a row is the number of the host. ``asked``: by the server's name."""
    on_host: defaultdict[int, list[tuple[Running, Arrival]]] = defaultdict(list)
    in_group: defaultdict[str, list[tuple[int, Arrival]]] = defaultdict(list)
    for each in running:
        arrival = asked[each.name]
        on_host[each.row].append((each, arrival))
        if arrival.group:
            in_group[arrival.group].append((each.row, arrival))
    for row, servers in on_host.items():
        yield from _of_host(fleet[row], servers)
    for name, members in in_group.items():
        yield from _of_group(name, members, fleet)


def _of_host(host: FleetHost, servers: Sequence[tuple[Running, Arrival]]) -> Iterator[str]:
    vcpus, memory_mb = sum(asked.vcpus for _, asked in servers), sum(asked.memory_mb for _, asked in servers)
    if vcpus > host.vcpus or memory_mb > host.memory_mb:
        yield f"{host.name} has {vcpus} of {host.vcpus} vCPUs and {memory_mb} of {host.memory_mb} MiB"
    used: Counter[tuple[int, str]] = Counter()
    for placed, asked in servers:
        if len(set(placed.nodes)) != (asked.numa_nodes if host.nodes else 0):
            yield f"{placed.name} asks for {asked.numa_nodes} nodes and is on {placed.nodes} of {host.name}"
        for node in placed.nodes:
            used[node, "vcpus"] += asked.vcpus // asked.numa_nodes
            used[node, "memory_mb"] += asked.memory_mb // asked.numa_nodes
    for node, (cpus, memory) in enumerate(host.nodes):
        if used[node, "vcpus"] > cpus or used[node, "memory_mb"] > memory:
            yield f"node {node} of {host.name} has {used[node, 'vcpus']} of {cpus} vCPUs, {used[node, 'memory_mb']} of {memory} MiB"


def _of_group(name: str, members: Sequence[tuple[int, Arrival]], fleet: Sequence[FleetHost]) -> Iterator[str]:
    rows = [row for row, _ in members]
    policy = members[0][1].policy
    if policy is GroupPolicy.AFFINITY and len(set(rows)) > 1:
        yield f"{name}: on {len(set(rows))} hosts"
    if policy is GroupPolicy.ANTI_AFFINITY and len(set(rows)) < len(rows):
        yield f"{name}: {len(rows)} members on {len(set(rows))} hosts"
    domains: defaultdict[str | None, set[str]] = defaultdict(set)
    for row, asked in members:
        if asked.fault_domain is not None:
            domains[fleet[row].rack].add(asked.fault_domain)
    for rack, there in domains.items():
        if rack is None or len(there) > 1:
            yield f"{name}: fault domains {sorted(there)} in rack {rack}"
