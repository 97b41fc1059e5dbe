"""The filter by NUMA nodes, which always runs. Otherwise schedulers would claim more of a node than there is."""

from __future__ import annotations

from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Mask
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts


class NUMATopologyFilter(Filter):
    """Passes hosts with room on one NUMA node, or on as many as ``hw:numa_nodes`` says, for an equal part of the server on each.

    Hosts that report no nodes pass: their driver divides the guest, or refuses it.
    """

    reason = "not enough room on NUMA nodes"
    guards_host = True
    on_demand = True
    reads = ("amounts", "extra_specs", "image")

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        return hosts.take_on_nodes(request.node_part) if hosts.table.classes.numa else None

    def explain_refusal(self, hosts: Hosts, request: Request) -> str:
        nodes = request.node_part.nodes
        if not nodes:
            return "it cannot be divided into equal NUMA nodes"
        if nodes > len(hosts.table.classes.numa):
            return f"no host reports {nodes} NUMA nodes"
        return "not enough room on one NUMA node" if nodes == 1 else f"not enough room on {nodes} NUMA nodes of one host"
