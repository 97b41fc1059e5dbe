"""What a trace asks for, and what no policy can avoid to lose.

The bound is one of volume. At any time the servers that run take no more than the fleet has, whatever their places. So the demand
beyond the capacity is lost at that time, and its integral over the window is lost in all:

    vCPU-days lost >= integral of max(0, vCPUs asked for - vCPUs of the fleet)

Where memory is short, servers must be missing that make up for it. Those with the fewest vCPUs for their memory cost least, taken
as divisible, so that this too is a bound. The larger of the two counts at each time. Memory-days are bounded alike.

At least so many servers are refused as are needed to fill the gap at its widest, with the largest servers of that time.

Servers that are larger than every host are lost for certain. They count whole, and are no part of the volume.

Members of an affinity group that outlive the trace run together at its end, on one host. So at least those are refused that are
left when the smallest members fill the host that takes the most of them.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from lab.figures import Demand, LowerBound
from lab.fleet import FleetHost
from lab.table_file import place_of
from lab.trace import DAY_S, FAULT_DOMAINS, NUMA, Arrival, Trace
from objects import errors
from objects.group import GroupPolicy

Size = tuple[int, int]
"""vCPUs and MiB."""


class _Gap(NamedTuple):
    """What is missing at one time: amounts per second that are lost, and servers at least."""

    vcpus: float
    memory_mb: float
    servers: int


NO_GAP = _Gap(0.0, 0.0, 0)


class _Volume:
    """The demand as time goes on."""

    def __init__(self, capacity: Size, begins: float | None) -> None:
        self._capacity = capacity
        self._hopeless = [0, 0]  # what servers ask for that are larger than every host
        self.begins = begins
        self.now = -math.inf
        self.vcpus = self.memory_mb = 0
        self.peak_vcpus = self.peak_memory_mb = 0
        self.vcpu_seconds = self.memory_seconds = 0.0
        self.lost_vcpu_seconds = self.lost_memory_seconds = 0.0
        self.rejected = 0
        self._sizes: Counter[Size] = Counter()

    def advance_until(self, until: float) -> None:
        """The demand stays as it is until then."""
        if self.begins is None:
            self.begins = until
        seconds = until - max(self.now, self.begins)
        self.now = until
        if seconds <= 0:
            return
        self.peak_vcpus, self.peak_memory_mb = max(self.peak_vcpus, self.vcpus), max(self.peak_memory_mb, self.memory_mb)
        gap = self._demand_gap()
        self.vcpu_seconds += self.vcpus * seconds
        self.memory_seconds += self.memory_mb * seconds
        self.lost_vcpu_seconds += (gap.vcpus + self._hopeless[0]) * seconds
        self.lost_memory_seconds += (gap.memory_mb + self._hopeless[1]) * seconds
        self.rejected = max(self.rejected, gap.servers)

    def change_demand(self, size: Size, count: int, *, hopeless: bool) -> None:
        """A server comes or goes. ``hopeless``: it is larger than every host."""
        self.vcpus += size[0] * count
        self.memory_mb += size[1] * count
        if hopeless:
            self._hopeless = [self._hopeless[0] + size[0] * count, self._hopeless[1] + size[1] * count]
            return
        self._sizes[size] += count
        if not self._sizes[size]:
            del self._sizes[size]

    def at_once(self) -> None:
        """Look at the demand of this moment, also if it does not last: a trace without times has all its servers at its end."""
        self.peak_vcpus, self.peak_memory_mb = max(self.peak_vcpus, self.vcpus), max(self.peak_memory_mb, self.memory_mb)
        self.rejected = max(self.rejected, self._demand_gap().servers)

    def _demand_gap(self) -> _Gap:
        vcpus = self.vcpus - self._hopeless[0] - self._capacity[0]
        memory_mb = self.memory_mb - self._hopeless[1] - self._capacity[1]
        if vcpus <= 0 and memory_mb <= 0:
            return NO_GAP
        return _Gap(
            max(vcpus, self._least_cost(memory_mb, lambda size: size[1], lambda size: size[0]), 0.0),
            max(memory_mb, self._least_cost(vcpus, lambda size: size[0], lambda size: size[1]), 0.0),
            max(self._fewest_servers(vcpus, 0), self._fewest_servers(memory_mb, 1)),
        )

    def _least_cost(self, missing: float, has: Callable[[Size], int], costs: Callable[[Size], int]) -> float:
        """The least cost of servers that have so much together, taken as divisible."""
        cost = 0.0
        for size in sorted((size for size in self._sizes if has(size)), key=lambda size: costs(size) / has(size)):
            if missing <= 0:
                break
            part = min(missing, has(size) * self._sizes[size])
            cost += part * costs(size) / has(size)
            missing -= part
        return cost

    def _fewest_servers(self, missing: float, of: int) -> int:
        """The fewest servers that have so much together."""
        servers = 0
        for size in sorted(self._sizes, key=lambda size: size[of], reverse=True):
            if missing <= 0:
                break
            count = min(self._sizes[size], math.ceil(missing / size[of]))
            servers += count
            missing -= count * size[of]
        return servers


class _Hosts:
    """The sizes of the hosts of a fleet."""

    def __init__(self, fleet: Sequence[FleetHost]) -> None:
        self._kinds = {(host.vcpus, host.memory_mb, host.disk_gb, host.nodes) for host in fleet}
        self._takes: dict[tuple[int, int, int, int], bool] = {}
        self._largest = _not_dominated((host.vcpus, host.memory_mb) for host in fleet)

    def take_arrival(self, arrival: Arrival) -> bool:
        """Whether some host that is empty takes the server."""
        size = arrival.vcpus, arrival.memory_mb, arrival.disk_gb
        key = (*size, arrival.numa_nodes)
        if key not in self._takes:
            part = arrival.vcpus // arrival.numa_nodes, arrival.memory_mb // arrival.numa_nodes
            self._takes[key] = any(
                all(map(int.__le__, size, host))
                and (not nodes or sum(all(map(int.__le__, part, node)) for node in nodes) >= key[3])
                for *host, nodes in self._kinds
            )
        return self._takes[key]

    def refused_of(self, members: Iterable[Size]) -> int:
        """How many of these servers must be refused if all are to run on one host, at least."""
        sizes = list(members)
        vcpus, memory_mb = (sorted(size[of] for size in sizes) for of in (0, 1))
        return len(sizes) - max(min(_count_fitting(vcpus, host[0]), _count_fitting(memory_mb, host[1])) for host in self._largest)


def _not_dominated(sizes: Iterable[Size]) -> list[Size]:
    """Those of these sizes of which no other has as much or more of both."""
    remaining: list[Size] = []
    for size in sorted(set(sizes), reverse=True):
        if not remaining or size[1] > remaining[-1][1]:
            remaining.append(size)
    return remaining


def _count_fitting(amounts: Iterable[int], room: int) -> int:
    """How many of these amounts, the smallest first, fit into the room."""
    count = 0
    for amount in amounts:
        room -= amount
        if room < 0:
            break
        count += 1
    return count


def demand_of(trace: Trace, fleet: Sequence[FleetHost]) -> Demand:
    """Read the whole trace once. Raises Invalid if it cannot be read to its end, or has no servers."""
    capacity = sum(host.vcpus for host in fleet), sum(host.memory_mb for host in fleet)
    hosts, volume = _Hosts(fleet), _Volume(capacity, trace.begins)
    ends: list[tuple[float, Size, bool]] = []
    together: defaultdict[str, list[Size]] = defaultdict(list)
    servers = hopeless_servers = 0
    has_nodes = any(host.nodes for host in fleet)
    has_racks = any(host.rack is not None for host in fleet)
    for arrival in trace.list_arrivals():
        if arrival.fault_domain is not None and not has_racks:
            raise errors.Invalid(
                f"{place_of(trace.path, arrival.line)}: asks for a fault domain, and no host of the fleet is in a rack; "
                f"give --racks, or --ignore {FAULT_DOMAINS} to leave that out"
            )
        if arrival.numa_nodes > 1 and not has_nodes:
            raise errors.Invalid(
                f"{place_of(trace.path, arrival.line)}: asks for {arrival.numa_nodes} NUMA nodes, and no host of the fleet has "
                f"any; give a fleet with nodes, or --ignore {NUMA} to leave that out"
            )
        while ends and ends[0][0] <= arrival.start:
            end, size, hopeless = heapq.heappop(ends)
            volume.advance_until(end)
            volume.change_demand(size, -1, hopeless=hopeless)
        volume.advance_until(arrival.start)
        size, hopeless = (arrival.vcpus, arrival.memory_mb), not hosts.take_arrival(arrival)
        volume.change_demand(size, 1, hopeless=hopeless)
        servers, hopeless_servers = servers + 1, hopeless_servers + hopeless
        if arrival.end < math.inf:
            heapq.heappush(ends, (arrival.end, size, hopeless))
        elif arrival.policy is GroupPolicy.AFFINITY and not hopeless:
            together[arrival.group].append(size)
    if not servers or volume.begins is None:
        raise errors.Invalid(f"{trace.path}: has no servers; the first line names the columns, and each line after it is a server")
    volume.at_once()
    of_groups = sum(map(hosts.refused_of, together.values()))
    return Demand(
        servers=servers,
        begins=volume.begins,
        ends=max(volume.now, volume.begins),
        vcpu_days=volume.vcpu_seconds / DAY_S,
        memory_days=volume.memory_seconds / DAY_S,
        peak_vcpus=volume.peak_vcpus,
        peak_memory_mb=volume.peak_memory_mb,
        bound=_lower_bound(volume, hopeless_servers + max(volume.rejected, of_groups), trace.timed, len(fleet), capacity),
    )


def _lower_bound(volume: _Volume, rejected: int, timed: bool, hosts: int, capacity: Size) -> LowerBound:
    needed = [peak * hosts / most for peak, most in zip((volume.peak_vcpus, volume.peak_memory_mb), capacity, strict=True) if most]
    return LowerBound(
        rejected=rejected,
        vcpu_days_lost=per_cent(volume.lost_vcpu_seconds, volume.vcpu_seconds) if timed else None,
        memory_days_lost=per_cent(volume.lost_memory_seconds, volume.memory_seconds) if timed else None,
        hosts=math.ceil(max(needed, default=0.0)),
    )


def per_cent(part: float, total: float) -> float:
    """0 of nothing."""
    return 100.0 * part / total if total else 0.0
