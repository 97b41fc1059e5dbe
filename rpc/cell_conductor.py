"""A cell's conductor as the agents of the cell speak to it. Agents have no database: this is all they know of the cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol

import msgspec

from objects.base import Number
from objects.build import Holding, Report, Verdict, with_secrets
from objects.compute_node import ComputeNode
from objects.context import RequestContext
from objects.process import About
from objects.unknown_guest import REPORTED_LIMIT, UnknownGuest
from rpc.arguments import ITEMS_LIMIT, Name
from rpc.server import TopicServer
from rpc.transport import Bus

TOPIC = "cell-conductor"
CELL_CONDUCTOR_TIMEOUT_S = 30.0

Reports = Annotated[Sequence[Report], msgspec.Meta(max_length=ITEMS_LIMIT)]
Names = Annotated[Sequence[Name], msgspec.Meta(max_length=ITEMS_LIMIT)]
UnknownGuests = Annotated[Sequence[UnknownGuest], msgspec.Meta(max_length=REPORTED_LIMIT)]


class CellConductorEndpoint(Protocol):
    """What a cell conductor serves."""

    def report(self, context: RequestContext, reports: Reports) -> list[Verdict]:
        """See ``CellConductorClient.report``."""
        ...

    def build_instances(self, context: RequestContext, reports: Reports) -> list[Verdict]:
        """See ``CellConductorClient.build_instances``."""
        ...

    def holdings(self, context: RequestContext, host: Name) -> list[Holding]:
        """See ``CellConductorClient.holdings``."""
        ...

    def update_resource_stats(self, context: RequestContext, node: ComputeNode) -> None:
        """See ``CellConductorClient.update_resource_stats``."""
        ...

    def report_state(self, context: RequestContext, host: Name, binary: Name, version: Number, stopping: bool = False) -> None:
        """See ``CellConductorClient.report_state``."""
        ...

    def report_states(self, context: RequestContext, hosts: Names, binary: Name, version: Number, stopping: bool = False) -> None:
        """See ``CellConductorClient.report_states``."""
        ...

    def introduce(self, context: RequestContext, host: Name, binary: Name, about: About, uptime: float) -> None:
        """See ``CellConductorClient.introduce``."""
        ...

    def unknown_guests(self, context: RequestContext, host: Name, guests: UnknownGuests) -> None:
        """See ``CellConductorClient.unknown_guests``."""
        ...


class CellConductorClient:
    """Calls of an agent. Every one may raise Timeout or Unreachable: then it is to be made again, which is harmless."""

    def __init__(self, bus: Bus, *, timeout: float = CELL_CONDUCTOR_TIMEOUT_S) -> None:
        self._client = bus.make_client(TOPIC, timeout=timeout)

    def report(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        """Ask to spawn (accept), or tell that guests run (active) or are gone. Returns a verdict for each, in order."""
        return with_secrets(self._client.call(context, "report", list[Verdict], reports=list(reports)))

    def build_instances(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        """Hand failed builds back, to be built on their next alternates. Returns a verdict for each, in order."""
        return self._client.call(context, "build_instances", list[Verdict], reports=list(reports))

    def holdings(self, context: RequestContext, host: str) -> list[Holding]:
        """Return what the cell's records say about the instances on ``host``."""
        return self._client.call(context, "holdings", list[Holding], host=host)

    def update_resource_stats(self, context: RequestContext, node: ComputeNode) -> None:
        """Tell what a node offers and uses now; it is in the cell's database, and where changed in its feed, on return."""
        self._client.call(context, "update_resource_stats", type(None), node=node)

    def report_state(self, context: RequestContext, host: str, binary: str, version: int, *, stopping: bool = False) -> None:
        """A heartbeat, without answer. ``version`` is the service's own, which rises when what it can do changes.

        ``stopping``: it takes no more orders; its next start will say otherwise.
        """
        flags = {"stopping": True} if stopping else {}  # left out if False: an older conductor does not know it
        self._client.cast(context, "report_state", host=host, binary=binary, version=version, **flags)

    def report_states(
        self, context: RequestContext, hosts: Sequence[str], binary: str, version: int, *, stopping: bool = False
    ) -> None:
        """The same heartbeat of several hosts, whose agents share a process. A conductor of an older release ignores it."""
        self._client.cast(context, "report_states", hosts=list(hosts), binary=binary, version=version, stopping=stopping)

    def introduce(self, context: RequestContext, host: str, binary: str, about: About, uptime: float) -> None:
        """Say at a start what the process is, and for how many seconds it has run. Raises Unsupported at an older conductor."""
        self._client.call(context, "introduce", type(None), host=host, binary=binary, about=about, uptime=uptime)

    def unknown_guests(self, context: RequestContext, host: str, guests: Sequence[UnknownGuest]) -> None:
        """Say which guests of ``host`` the cell's records do not account for: these, and no others.

        Raises Unsupported at an older conductor.
        """
        self._client.call(context, "unknown_guests", type(None), host=host, guests=list(guests))


def serve_topic(bus: Bus, server: str, endpoint: CellConductorEndpoint, *, threads: int = 16) -> TopicServer:
    """Serve the cell conductor's topic with ``endpoint``."""
    return bus.serve_topic(
        TOPIC, server, [endpoint], threads=threads, interface=CellConductorEndpoint, shared_name=True, from_agents=True
    )
