"""The fleet of a replay: the scheduler's own host table, and claims in memory."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from lab.fleet import FleetHost
from lab.trace import Arrival
from objects import numa
from objects.aggregate import RACK, Aggregate
from objects.cell import CellMapping, CellState
from objects.compute_node import ComputeNode
from objects.flavor import Flavor
from objects.group import GroupPolicy, ServerGroup
from objects.hints import FAULT_DOMAIN
from objects.inventory import Inventory, Slot
from objects.spec import RequestSpec
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.survey import Survey
from scheduler.engine.surveying import survey
from scheduler.framework.batch_request import Request
from scheduler.framework.members import Members
from scheduler.table.arrays import mix_bits
from scheduler.table.host_table import HostTable, ServiceReports

SEED_BITS = 32
"""Requests of a replay have seeds of their own: the replay's seed, and the number of the request below it."""
_WORD = (1 << 63) - 1


class ChosenPlace(NamedTuple):
    """A row of the table, and the NUMA nodes of its host; none if its nodes are not counted."""

    row: int
    nodes: tuple[int, ...]


class World:
    """Hosts that are always up, whose agents run a guest at once and report it."""

    def __init__(self, fleet: Sequence[FleetHost], default_zone: str) -> None:
        self.table = HostTable(default_zone)
        names = sorted({host.cell for host in fleet})
        uuids = {name: f"00000000-0000-0000-0000-{number:012}" for number, name in enumerate(names)}
        self.table.set_topology(
            [
                CellMapping(uuid=uuid, name=name, database_url="", transport_url="", state=CellState.ENABLED)
                for name, uuid in uuids.items()
            ],
            {host.name: uuids[host.cell] for host in fleet},
            {host.name: host.zone for host in fleet if host.zone is not None},
            _rack_aggregates(fleet),
        )
        self._ledger = [
            Inventory(
                id=number + 1,
                host=host.name,
                node=host.name,
                cell_uuid=uuids[host.cell],
                generation=0,
                cap_vcpus=float(host.vcpus),
                cap_memory_mb=float(host.memory_mb),
                cap_disk_gb=float(host.disk_gb),
                cap_resources=_of_nodes(host),
            )
            for number, host in enumerate(fleet)
        ]
        self.table.set_inventories(self._ledger, 0.0)
        for name, uuid in uuids.items():
            theirs = [host for host in fleet if host.cell == name]
            self.table.set_nodes(uuid, [_node_of_host(host) for host in theirs])
            self.table.set_services(uuid, ServiceReports.same_for_all([host.name for host in theirs], math.inf))
        self._flavors: dict[tuple[int, int, int, int], Flavor] = {}
        self._places_of: dict[str, Counter[tuple[str, str | None]]] = {}

    def flavor_of(self, arrival: Arrival) -> Flavor:
        """The size of a server."""
        size = arrival.vcpus, arrival.memory_mb, arrival.disk_gb, arrival.numa_nodes
        known = self._flavors.get(size)
        if known is None:
            name = ".".join(map(str, size))
            specs = {numa.FLAVOR_KEY: str(size[3])} if size[3] > 1 else {}
            known = Flavor(flavor_id=name, name=name, vcpus=size[0], memory_mb=size[1], root_gb=size[2], extra_specs=specs)
            self._flavors[size] = known
        return known

    def decide_host(self, driver: SchedulerDriver, arrival: Arrival, number: int, seed: int) -> tuple[ChosenPlace | None, Survey]:
        """The place that the driver chooses for the server; None if it fits nowhere. Needs the table's lock."""
        spec = RequestSpec(
            batch_id=arrival.name,
            request_id="",
            project_id=arrival.project,
            user_id="",
            name=arrival.name,
            flavor=self.flavor_of(arrival),
            availability_zone=arrival.zone,
            group=_group_of_arrival(arrival),
            scheduler_hints={} if arrival.fault_domain is None else {FAULT_DOMAIN: (arrival.fault_domain,)},
        )
        request = Request(
            spec=spec,
            vcpus=arrival.vcpus,
            memory_mb=arrival.memory_mb,
            disk_gb=arrival.disk_gb,
            seed=mix_bits((seed << SEED_BITS) + number) & _WORD,
            zone=None if arrival.zone is None else self.table.zone_number(arrival.zone),
            alive_since=arrival.start,
        )
        if arrival.policy is not None:
            request.members = self._members_of(arrival)
        survey_found = survey(self.table, driver, request, 1)
        row = driver.choose_one(self.table, request, survey_found)
        nodes = None if row is None else self.table.nodes_for(row, request.node_part)
        return (None if row is None or nodes is None else ChosenPlace(row, nodes)), survey_found

    def claim_room(self, row: int, nodes: tuple[int, ...], arrival: Arrival, now: float) -> None:
        """The server has room on the host of the row, on these NUMA nodes."""
        self._enter_usage(row, nodes, now, arrival, 1)

    def release_room(self, row: int, nodes: tuple[int, ...], arrival: Arrival, now: float) -> None:
        """The server gives its room back."""
        self._enter_usage(row, nodes, now, arrival, -1)

    def _enter_usage(self, row: int, nodes: tuple[int, ...], now: float, arrival: Arrival, count: int) -> None:
        table, before = self.table, self._ledger[row]
        used = before.used_resources
        if nodes:
            taken = numa.taken_by_class(nodes, arrival.vcpus, arrival.memory_mb)
            used = {**used, **{name: used.get(name, 0) + count * amount for name, amount in taken.items()}}
        after = msgspec.structs.replace(
            before,
            generation=before.generation + 1,
            used_vcpus=before.used_vcpus + count * arrival.vcpus,
            used_memory_mb=before.used_memory_mb + count * arrival.memory_mb,
            used_disk_gb=before.used_disk_gb + count * arrival.disk_gb,
            instances=before.instances + count,
            used_resources=used,
        )
        self._ledger[row] = after
        table.guests[row] = after.instances
        table.set_inventory(after, now)
        if arrival.group:
            self._places_of.setdefault(arrival.group, Counter())[before.host, arrival.fault_domain] += count

    def _members_of(self, arrival: Arrival) -> Members:
        """The other members of the server's group."""
        places = self._places_of.get(arrival.group, Counter())
        return Members(
            [Slot(group_uuid=arrival.group, instance_uuid="", host=host, fault_domain=domain) for host, domain in places.elements()]
        )


def _rack_aggregates(fleet: Sequence[FleetHost]) -> list[Aggregate]:
    """An aggregate for each rack, as an operator would make it."""
    hosts: defaultdict[str, list[str]] = defaultdict(list)
    for host in fleet:
        if host.rack is not None:
            hosts[host.rack].append(host.name)
    return [
        Aggregate(id=number, name=f"rack {rack}", hosts=tuple(theirs), metadata={RACK: rack})
        for number, (rack, theirs) in enumerate(hosts.items(), 1)
    ]


def _of_nodes(host: FleetHost) -> dict[str, int]:
    """What its NUMA nodes have, by class."""
    return {
        name: amount
        for number, node in enumerate(host.nodes)
        for name, amount in zip(numa.class_names(number), node, strict=True)
        if amount
    }


def _node_of_host(host: FleetHost) -> ComputeNode:
    return ComputeNode(host=host.name, node=host.name, vcpus=host.vcpus, memory_mb=host.memory_mb, disk_gb=host.disk_gb)


def _group_of_arrival(arrival: Arrival) -> ServerGroup | None:
    policy: GroupPolicy | None = arrival.policy
    if policy is None:
        return None
    return ServerGroup(uuid=arrival.group, name=arrival.group, project_id=arrival.project, policy=policy)
