"""Filters by amounts: pass hosts with enough free memory, vCPUs and local disk for the flavor."""

from __future__ import annotations

from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Mask, at_least
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts


class RamFilter(Filter):
    """Passes hosts with enough free memory for the flavor.

    Free is the capacity with the allocation ratio applied, less what is claimed or used by unknown guests. A flavor without
    memory fits on every host, even an over-full one.
    """

    reason = "not enough memory"
    guards_host = True
    reads = ("amounts",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return at_least(hosts.free_room("memory_mb"), request.memory_mb) if request.memory_mb else None


class CoreFilter(Filter):
    """Passes hosts with enough free vCPUs for the flavor.

    Free is the capacity with the allocation ratio applied, less what is claimed or used by unknown guests.
    """

    reason = "not enough vCPUs"
    guards_host = True
    reads = ("amounts",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return at_least(hosts.free_room("vcpus"), request.vcpus) if request.vcpus else None


class DiskFilter(Filter):
    """Passes hosts with enough free local disk for the flavor.

    Free is computed as in RamFilter. A server without local disk fits on every host, even an over-full one.
    """

    reason = "not enough disk"
    guards_host = True
    reads = ("amounts",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return at_least(hosts.free_room("disk_gb"), request.disk_gb) if request.disk_gb else None
