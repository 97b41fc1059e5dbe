"""Orders to the agent on a host. They have no answer: the agent reports to its cell's conductor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple, Protocol

import msgspec

from objects.build import BuildOrders, DeleteOrder
from objects.context import RequestContext
from objects.task import TaskOrder
from rpc.agents import TOPIC as TOPIC  # of agents, whose queues it names too
from rpc.arguments import ITEMS_LIMIT
from rpc.client import MethodCall
from rpc.server import TopicServer
from rpc.transport import Bus


class ComputeEndpoint(Protocol):
    """What an agent serves, as server ``host`` of the topic. Orders may come never, twice, or late."""

    def build_instances(self, context: RequestContext, orders: BuildOrders) -> None:
        """Build these instances on this host."""
        ...

    def delete_instances(
        self, context: RequestContext, orders: Annotated[Sequence[DeleteOrder], msgspec.Meta(max_length=ITEMS_LIMIT)]
    ) -> None:
        """Destroy the guests of these instances."""
        ...

    def do_tasks(
        self, context: RequestContext, orders: Annotated[Sequence[TaskOrder], msgspec.Meta(max_length=ITEMS_LIMIT)]
    ) -> None:
        """Carry out these tasks on running guests, those that the cell grants."""
        ...


class HostOrders(NamedTuple):
    """What one host is ordered to do, in whose name: orders of one kind."""

    context: RequestContext
    host: str
    orders: BuildOrders | Sequence[DeleteOrder] | Sequence[TaskOrder]

    @property
    def message(self) -> MethodCall:
        if isinstance(self.orders, BuildOrders):
            return MethodCall("build_instances", {"orders": self.orders})
        tasks = bool(self.orders) and isinstance(self.orders[0], TaskOrder)
        return MethodCall("do_tasks" if tasks else "delete_instances", {"orders": list(self.orders)})


class ComputeClient:
    """Sends orders over a cell's bus."""

    def __init__(self, bus: Bus) -> None:
        self._client = bus.client(TOPIC)

    def order(self, orders: Sequence[HostOrders]) -> None:
        """Order hosts to build or to destroy: one cast for each, all of them sent in one go.

        Raises Unreachable; then some may have been sent, and a sweep sends the others again. Raises Invalid if one of them is too
        large for a broker; then none was sent.
        """
        self._client.cast_each([(each.context, each.host, each.message) for each in orders])


def serve(bus: Bus, host: str, endpoint: ComputeEndpoint, *, threads: int = 2) -> TopicServer:
    """Serve ``host``'s part of the compute topic with ``endpoint``."""
    return bus.serve(TOPIC, host, [endpoint], threads=threads, interface=ComputeEndpoint)
