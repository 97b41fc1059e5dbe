"""Orders to the agent on a host. They have no answer: the agent reports to its cell's conductor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from objects.build import BuildOrders, DeleteOrder
from objects.context import RequestContext
from rpc.server import Server
from rpc.transport import Bus

TOPIC = "compute"


class ComputeEndpoint(Protocol):
    """What an agent serves, as server ``host`` of the topic. Orders may come never, twice, or late."""

    def build_instances(self, context: RequestContext, orders: BuildOrders) -> None:
        """Build these instances on this host."""
        ...

    def delete_instances(self, context: RequestContext, orders: Sequence[DeleteOrder]) -> None:
        """Destroy the guests of these instances."""
        ...


class ComputeClient:
    """Sends orders over a cell's bus. Every method may raise Unreachable: then a sweep sends the order again."""

    def __init__(self, bus: Bus) -> None:
        self._client = bus.client(TOPIC)

    def build_instances(self, context: RequestContext, host: str, orders: BuildOrders) -> None:
        """Order ``host`` to build, one cast for all that a batch puts there."""
        self._client.on(host).cast(context, "build_instances", orders=orders)

    def delete_instances(self, context: RequestContext, host: str, orders: Sequence[DeleteOrder]) -> None:
        """Order ``host`` to destroy guests."""
        self._client.on(host).cast(context, "delete_instances", orders=list(orders))


def serve(bus: Bus, host: str, endpoint: ComputeEndpoint, *, threads: int = 2) -> Server:
    """Serve ``host``'s part of the compute topic with ``endpoint``."""
    return bus.serve(TOPIC, host, [endpoint], threads=threads, interface=ComputeEndpoint)
