"""The heartbeats of several agents in one process, sent together."""

from __future__ import annotations

from collections.abc import Callable

from objects.context import RequestContext
from objects.process import AGENT_BINARY
from rpc.cell_conductor import CellConductorClient, StateReport
from rpc.transport import Bus
from service.periodic import Periodic


class Heartbeats:
    """Sends a heartbeat for each of its agents every ``interval`` seconds: one message per agent, all in one go.

    Its thread does nothing else, so that a call which hangs does not make a cell look down. The agents belong to one cell.
    """

    def __init__(self, bus: Bus, interval: float) -> None:
        self._client = CellConductorClient(bus)
        self._context = RequestContext(request_id="req-heartbeats", is_admin=True)
        self._agents: dict[str, tuple[int, Callable[[], bool]]] = {}
        self._beating = Periodic(f"heartbeats-{bus.name}", interval, self._send)

    def start(self) -> Heartbeats:
        self._beating.start()
        return self

    def stop(self) -> None:
        self._beating.stop()

    def add(self, host: str, version: int, stopping: Callable[[], bool]) -> None:
        """Report the agent of ``host``, which has this service version. ``stopping``: whether it takes no orders."""
        self._agents[host] = version, stopping

    def remove(self, host: str) -> None:
        """Report this agent no more."""
        self._agents.pop(host, None)

    def _send(self) -> None:
        reports = [StateReport(host, AGENT_BINARY, version, stopping()) for host, (version, stopping) in list(self._agents.items())]
        if reports:
            self._client.report_states(self._context, reports)
