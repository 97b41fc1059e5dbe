"""Filters by nearness: to members of the server group, to named servers, to a network."""

from __future__ import annotations

from collections import Counter

import numpy as np

from objects import errors, hints
from objects.group import GroupPolicy
from scheduler.framework.batch_request import Request
from scheduler.framework.columns import HostTable, Ints, Mask
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts


class ServerGroupAffinityFilter(Filter):
    """Passes the host of the group's other members.

    The first member may go anywhere. While members are on several hosts, because one of them is moving, no host passes. After an
    evacuation that has left some of them behind, the hosts of all pass.
    """

    reason = "not where the server group is"
    guards_host = True
    reads = ("group",)
    row_inputs = ("group",)
    per_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if request.group_policy is not GroupPolicy.AFFINITY or request.founds_group:
            return None
        return np.zeros(len(hosts), dtype=np.bool_) if self._is_closed(request) else hosts.member_counts > 0

    @staticmethod
    def _is_closed(request: Request) -> bool:
        return request.is_split and not request.yielding


class ServerGroupAntiAffinityFilter(Filter):
    """Limits the members of the group per host.

    Members in the same batch count, and so do slots held for the retries of other members.
    """

    reason = "too many members of the server group there already"
    guards_host = True
    reads = ("group",)
    row_inputs = ("group",)
    per_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if request.server_group is None or request.group_policy is not GroupPolicy.ANTI_AFFINITY:
            return None
        return hosts.member_counts < request.server_group.max_server_per_host


class ServerGroupRackFilter(Filter):
    """Always runs. Limits the members of the group per rack, and keeps its fault domains on racks of their own.

    Aggregates with the key ``rack`` say which rack a host is in. A host that is in none does not pass. ``max_server_per_rack``
    limits the members. Members of different fault domains, which the hint ``fault_domain`` names, share no rack.
    """

    reason = "in no rack, or in one that other members of the server group close"
    guards_host = True
    on_demand = True
    hint_names = (hints.FAULT_DOMAIN,)
    applies_when = ("group",)
    reads = ("group", "scheduler_hints")
    row_inputs = ("racks",)
    per_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if not request.spec.keeps_to_racks:
            return None
        table, group = hosts.table, request.server_group
        if group is None or group.max_server_per_rack is None or not hosts.with_more:
            return hosts.in_racks_but(_closed_racks(table, request))
        members: Ints = hosts.by_rack(_members_by_rack(table, request)) + hosts.more
        return hosts.in_racks_but(_racks_of_other_domains(table, request)) & (members < group.max_server_per_rack)

    def explain_refusal(self, hosts: Hosts, request: Request) -> str:
        """Tell missing racks from full ones."""
        if not (hosts.rack_numbers >= 0).any():
            return "in no rack: no aggregate of a host has the key rack"
        return self.reason


def _closed_racks(table: HostTable, request: Request) -> set[int]:
    """The racks, by number, where other fault domains of the group have members, or as many members are as the group allows."""
    closed = _racks_of_other_domains(table, request)
    if request.server_group is not None and (limit := request.server_group.max_server_per_rack) is not None:
        closed.update(rack for rack, count in _members_by_rack(table, request).items() if count >= limit)
    return closed


def _racks_of_other_domains(table: HostTable, request: Request) -> set[int]:
    """The racks, by number, where other fault domains of the group have members."""
    if request.spec.fault_domain is None:
        return set()
    hosts = request.members.of_other_domains(request.spec.fault_domain)
    return {rack for rack, _ in table.racks_named(hosts)}


def _members_by_rack(table: HostTable, request: Request) -> Counter[int]:
    """How many members of the group are in each rack, by number."""
    counts = request.members.counts_by_host(with_held=not request.yielding)
    by_rack = Counter[int]()
    for rack, host in table.racks_named(counts):
        by_rack[rack] += counts[host]
    return by_rack


class SameHostFilter(Filter):
    """Passes hosts that have at least one of the named servers.

    The hint ``same_host`` names the servers by uuid. Servers of other projects, and servers without a host, match no host.
    """

    reason = "not with the servers of the hint same_host"
    on_demand = True
    hint_names = (hints.SAME_HOST,)
    applies_when = ("scheduler_hints",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        named = hints.server_uuids(request.spec.scheduler_hints, hints.SAME_HOST)
        if not named:
            return None
        places = tuple(request.places[uuid] for uuid in named if uuid in request.places)
        return hosts.bear_name(places) if places else np.zeros(len(hosts), dtype=np.bool_)


class DifferentHostFilter(Filter):
    """Passes hosts that have none of the named servers.

    The hint ``different_host`` names the servers by uuid.
    """

    reason = "with one of the servers of the hint different_host"
    on_demand = True
    hint_names = (hints.DIFFERENT_HOST,)
    applies_when = ("scheduler_hints",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        named = hints.server_uuids(request.spec.scheduler_hints, hints.DIFFERENT_HOST)
        places = tuple(request.places[uuid] for uuid in named if uuid in request.places)
        return ~hosts.bear_name(places) if places else None


class SimpleCIDRAffinityFilter(Filter):
    """Passes hosts with an address in a given network.

    The hints ``build_near_host_ip`` and ``cidr`` (default /24) give the network. A host without the attribute ``host_ip``
    does not pass.
    """

    reason = "not near the address of the hint build_near_host_ip"
    on_demand = True
    hint_names = (hints.NEAR, hints.CIDR)
    applies_when = ("scheduler_hints",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if hints.NEAR not in request.spec.scheduler_hints:
            return None
        try:
            network = hints.near_network(request.spec.scheduler_hints)
        except errors.Invalid:  # the API refuses these
            return np.zeros(len(hosts), dtype=np.bool_)
        return None if network is None else hosts.in_network(network)
