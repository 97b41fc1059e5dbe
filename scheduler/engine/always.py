"""Filters for what the request itself demands of a host. They always run, whatever the configuration enables."""

from __future__ import annotations

import numpy as np

from objects.move import MoveKind
from scheduler.filters.affinity import ServerGroupRackFilter
from scheduler.filters.numa import NUMATopologyFilter
from scheduler.framework.batch_request import Request
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.arrays import Mask


class ForceHosts(Filter):
    """Always runs. Host names are case-insensitive, node names case-sensitive."""

    reason = "not the host asked for"
    guards_host = True
    on_demand = True
    applies_when = ("force_hosts", "force_nodes")

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return hosts.bear_name(request.spec.force_hosts, request.spec.force_nodes) if request.is_forced else None


class RequestedDestination(Filter):
    """Always runs; so do all other filters. Host names are case-insensitive, node names case-sensitive."""

    reason = "not the destination asked for"
    guards_host = True
    on_demand = True
    applies_when = ("requested_destination",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        destination = request.spec.requested_destination
        if destination is None or (destination.host is None and destination.node is None):
            return None
        return hosts.bear_name((destination.host,) if destination.host else (), (destination.node,) if destination.node else ())


class RequestedCell(Filter):
    """Always runs. ComputeFilter checks whether the cell takes builds."""

    reason = "in another cell"
    guards_host = True
    on_demand = True
    applies_when = ("requested_destination", "move")

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return None if request.only_cell is None else hosts.cell_numbers == request.only_cell


class SourceHost(Filter):
    """Always runs. A resize may stay on its host if ``allow_resize_to_same_host`` is set."""

    reason = "the server is there already"
    guards_host = True
    on_demand = True
    applies_when = ("move",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        move = request.spec.move
        if move is None or (move.kind is MoveKind.RESIZE and self.settings.allow_resize_to_same_host):
            return None
        return ~hosts.bear_name((move.source_host,))


class IgnoreHosts(Filter):
    """Always runs. Host names are case-insensitive."""

    reason = "ignored by the request"
    guards_host = True
    on_demand = True
    applies_when = ("ignore_hosts",)
    row_inputs = ("ignore_hosts",)
    per_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return ~hosts.bear_name(request.spec.ignore_hosts) if request.spec.ignore_hosts else None


class ExcludedCells(Filter):
    """Always runs. The conductor excludes cells that it could not reach, under a new fence."""

    reason = "in a cell that cannot take the build now"
    guards_host = True
    on_demand = True
    applies_when = ("excluded_cells",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if not request.excluded_cells:
            return None
        cell = hosts.cell_numbers
        mask = cell >= 0
        for number in request.excluded_cells:
            mask &= cell != number
        return mask


class ExcludedHosts(Filter):
    """Always runs. The caller excludes hosts of earlier attempts, under a new fence (Nova's RetryFilter).

    So does the scheduler with hosts that were held for the request, and would not be chosen now.
    """

    reason = "tried before, or held and no longer fit"
    guards_host = True
    on_demand = True
    applies_when = ("excluded_hosts",)
    row_inputs = ("excluded_hosts",)
    per_host = True

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return ~hosts.bear_name(request.spec.excluded_hosts) if request.spec.excluded_hosts else None


class ResourceClassFilter(Filter):
    """The flavor's extra specs ask for ``resources:CUSTOM_NAME`` = amount. Free is the capacity without over-allocation, less what
    is claimed or used by unknown guests."""

    reason = "not enough of a custom resource class"
    guards_host = True
    on_demand = True
    applies_when = ("flavor.extra_specs",)
    reads = ("resources",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if not request.resources:
            return None
        passed = np.ones(len(hosts), dtype=np.bool_)
        for name, amount in request.resources.items():
            passed &= hosts.free_resource(name) >= amount
        return passed

    def explain_refusal(self, hosts: Hosts, request: Request) -> str:
        """Name the resource classes that are missing or short."""
        amounts = request.resources.items()
        missing = [name for name, _ in amounts if not hosts.offers_resource(name).any()]
        if missing:
            return f"no host offers {', '.join(missing)}"
        short = [name for name, amount in amounts if not (hosts.free_resource(name) >= amount).any()]
        return f"not enough {', '.join(short)}" if short else f"not enough {' and '.join(request.resources)} on any host left"


def constant_filters(settings: SchedulerSettings) -> tuple[Filter, ...]:
    """The filters that always run first, whatever the configuration enables."""
    places = (ForceHosts, RequestedDestination, RequestedCell, SourceHost, IgnoreHosts, ExcludedCells, ExcludedHosts)
    return (*(place(settings) for place in places), ResourceClassFilter(settings), ServerGroupRackFilter(settings))


def at_last(settings: SchedulerSettings) -> tuple[Filter, ...]:
    """Those that always run after the enabled ones: what these refuse for an amount, no node of the host has either."""
    return (NUMATopologyFilter(settings),)
