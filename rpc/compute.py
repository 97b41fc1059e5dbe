"""Orders to the agent on a host, and questions. Orders have no answer: the agent reports to its cell's conductor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, Protocol

import msgspec

from objects.build import BuildOrders, DeleteOrder
from objects.console import ConsoleKind, ConsoleListener
from objects.context import RequestContext
from objects.diagnostics import Diagnostics
from objects.task import TaskOrder
from rpc.agents import TOPIC as TOPIC  # of agents, whose queues it names too
from rpc.arguments import ITEMS_LIMIT, Id
from rpc.client import MethodCall
from rpc.server import TopicServer
from rpc.transport import Bus

ANSWERING_VERSION = 2
"""Service version of the first agents that answer questions. An older one must not be asked: with a broker user of its own it may
not send answers.
"""
CONNECTING_VERSION = 4
"""Service version of the first agents that connect to consoles."""
DIAGNOSING_VERSION = 5
"""Service version of the first agents that tell the diagnostics of guests."""

QUESTIONS = ("console_output", "open_console", "diagnostics")
"""The methods that have an answer."""

Lines = Annotated[int, msgspec.Meta(ge=0)]
"""A number of lines."""

Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""The digest of a secret (``objects.console.digest_of``)."""

Lifetime = Annotated[float, msgspec.Meta(gt=0.0, le=86400.0)]
"""Seconds for which a token is good."""


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

    def introduce_again(self, context: RequestContext) -> None:
        """See ``ComputeClient.introduce_again``."""
        ...

    def console_output(self, context: RequestContext, uuid: Id, lines: Lines | None) -> str:
        """See ``ComputeClient.console_output``."""
        ...

    def open_console(
        self, context: RequestContext, uuid: Id, kind: ConsoleKind, path_digest: Digest, lifetime: Lifetime
    ) -> ConsoleListener:
        """See ``ComputeClient.open_console``."""
        ...

    def diagnostics(self, context: RequestContext, uuid: Id) -> Diagnostics:
        """See ``ComputeClient.diagnostics``."""
        ...


class HostOrders(NamedTuple):
    """What one host is ordered to do, in whose name: orders of one kind."""

    context: RequestContext
    host: str
    orders: BuildOrders | Sequence[DeleteOrder] | Sequence[TaskOrder]


class ComputeClient:
    """Sends orders over a cell's bus, and asks."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._client = bus.make_client(TOPIC)
        bus.take_answers_of_agents()

    def send_orders(self, orders: Sequence[HostOrders]) -> None:
        """Order hosts to build or to destroy: one cast for each, all of them sent in one go.

        Raises Unreachable; then some may have been sent, and a sweep sends the others again. Raises Invalid if one of them is too
        large for a broker; then none was sent.
        """
        casts: list[tuple[RequestContext, str, MethodCall]] = []
        for context, host, its in orders:
            if isinstance(its, BuildOrders):
                call = MethodCall("build_instances", {"orders": its})
            else:
                tasks = bool(its) and isinstance(its[0], TaskOrder)
                call = MethodCall("do_tasks" if tasks else "delete_instances", {"orders": list(its)})
            casts.append((context, host, call))
        self._client.cast_each(casts)

    def introduce_again(self, context: RequestContext, hosts: Sequence[str]) -> None:
        """Have the agents of these hosts introduce themselves, and so learn whether their machines still run as the hosts.

        An agent of an older release ignores it. Raises Unreachable.
        """
        self._client.cast_each([(context, host, MethodCall("introduce_again", {})) for host in hosts])

    def console_output(self, context: RequestContext, host: str, uuid: str, lines: int | None, timeout: float) -> str:
        """The end of what the guest of a body has written to its console: so many lines, or all that is kept if None.

        Raises what ``Client.call`` does, NotFound if the host has no such guest, NotOffered if its driver keeps no consoles.
        """
        client = self._bus.make_client(TOPIC, timeout=timeout).on_server(host)
        return client.call(context, "console_output", str, uuid=uuid, lines=lines)

    def open_console(
        self, context: RequestContext, host: str, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float, timeout: float
    ) -> ConsoleListener:
        """Have the agent connect to a console of the guest of a body whoever shows the access path with this digest.

        Raises what ``Client.call`` does, NotFound if the host has no such guest, NotOffered if the guest has no such console,
        Conflict if the guest is off.
        """
        client = self._bus.make_client(TOPIC, timeout=timeout).on_server(host)
        arguments = {"uuid": uuid, "kind": kind, "path_digest": path_digest, "lifetime": lifetime}
        return client.call(context, "open_console", ConsoleListener, **arguments)

    def diagnostics(self, context: RequestContext, host: str, uuid: str, timeout: float) -> Diagnostics:
        """What the hypervisor knows of the guest of a body.

        Raises what ``Client.call`` does, NotFound if the host has no such guest, NotOffered if its driver tells no diagnostics.
        """
        return self._bus.make_client(TOPIC, timeout=timeout).on_server(host).call(context, "diagnostics", Diagnostics, uuid=uuid)


def serve_topic(bus: Bus, host: str, endpoint: ComputeEndpoint, *, threads: int = 2) -> TopicServer:
    """Serve ``host``'s part of the compute topic with ``endpoint``."""
    return bus.serve_topic(TOPIC, host, [endpoint], threads=threads, interface=ComputeEndpoint, apart=QUESTIONS)


def serve_each(bus: Bus, endpoints: Mapping[str, ComputeEndpoint]) -> TopicServer:
    """Serve the parts of several hosts, by name, on one connection. Their agents must not have broker users of their own."""
    return bus.serve_each(TOPIC, endpoints, interface=ComputeEndpoint, apart=QUESTIONS)
