"""The heartbeats of several agents in one process, sent together."""

from __future__ import annotations

from collections.abc import Callable

from objects.context import RequestContext
from objects.process import AGENT_BINARY
from rpc.arguments import ITEMS_LIMIT
from rpc.cell_conductor import CellConductorClient
from rpc.transport import Bus
from service.periodic import Periodic


class Heartbeats:
    """Sends a heartbeat for all its agents every ``interval`` seconds, in one message.

    Its thread does nothing else, so that a call which hangs does not make a cell look down. The agents belong to one cell, whose
    conductors must be of this release or a later one.
    """

    def __init__(self, bus: Bus, interval: float, version: int, machine: str) -> None:
        """``version``: the service version of the agents. ``machine``: the ID of their machine."""
        self._client = CellConductorClient(bus)
        self._context = RequestContext(request_id="req-heartbeats", is_admin=True, machine=machine)
        self._version = version
        self._agents: dict[str, Callable[[], bool]] = {}
        self._beating = Periodic(f"heartbeats-{bus.name}", interval, self._send)

    def start(self) -> Heartbeats:
        self._beating.start()
        return self

    def stop(self) -> None:
        self._beating.stop()

    def add_agent(self, host: str, stopping: Callable[[], bool]) -> None:
        """Report the agent of ``host``. ``stopping``: whether it takes no orders."""
        self._agents[host] = stopping

    def remove_agent(self, host: str) -> None:
        """Report this agent no more."""
        self._agents.pop(host, None)

    def _send(self) -> None:
        said = {host: stopping() for host, stopping in list(self._agents.items())}
        for stopping in (False, True):
            hosts = [host for host, is_stopping in said.items() if is_stopping is stopping]
            for start in range(0, len(hosts), ITEMS_LIMIT):
                hosts_page = hosts[start : start + ITEMS_LIMIT]
                self._client.report_states(self._context, hosts_page, AGENT_BINARY, self._version, stopping=stopping)
