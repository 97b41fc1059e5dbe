"""Which hosts are up, for display only: whoever decides by it judges heartbeats by a clock of its own."""

from __future__ import annotations

import threading
import time
from collections import Counter

from msgspec import field

from cells.discovery import in_two_cells
from cells.registry import CellRegistry
from db import services
from db.services import Seen
from objects import errors
from objects.base import Object

BINARY = "superconductor-compute"
LIFETIME = 5.0
"""Seconds that an answer of the cells is used again."""


class CellView(Object, frozen=True, kw_only=True):
    """The agents of one cell, by host; ``silent`` is why they are not known."""

    cell_uuid: str
    agents: dict[str, Seen] = field(default_factory=dict)
    silent: str | None = None


class HostWatch:
    """What the cells say of their agents. A cell that does not answer costs the one who asks again, and nobody else meanwhile."""

    def __init__(self, registry: CellRegistry, down_time: float, timeout: float) -> None:
        self._registry = registry
        self._down_time = down_time
        self._timeout = timeout
        self._asking = threading.Lock()
        self._views: tuple[CellView, ...] = ()
        self._statuses: dict[str, str] = {}
        self._fresh_until = 0.0

    def status_of(self, host: str | None) -> str:
        """The Compute API's ``host_status``, empty without a host.

        UP, DOWN (forced, or its agent has said that it stops), MAINTENANCE (disabled), UNKNOWN.
        """
        if host is None:
            return ""
        self._look()
        return self._statuses.get(host, "UNKNOWN")

    def views(self) -> tuple[CellView, ...]:
        """Every cell but cell0."""
        self._look()
        return self._views

    def tally(self, view: CellView) -> dict[str, int]:
        """Hosts of a cell by their status."""
        return dict(Counter(self._judge(agent) for agent in view.agents.values()))

    def in_two_cells(self) -> dict[str, tuple[str, ...]]:
        """Hosts of which agents are up in several cells, with the uuids of these."""
        return in_two_cells(
            (host, view.cell_uuid)
            for view in self.views()
            for host, agent in view.agents.items()
            if self._judge(agent) in ("UP", "MAINTENANCE")
        )

    def elsewhere(self) -> dict[str, tuple[str, str]]:
        """Hosts of which an agent is up in one cell, which is not theirs: the uuids of that cell and of theirs."""
        up = [
            (host, view.cell_uuid)
            for view in self.views()
            for host, agent in view.agents.items()
            if self._judge(agent) in ("UP", "MAINTENANCE")
        ]
        twins = in_two_cells(up)
        homes = {host: self._registry.home_of(host) for host, _ in up}
        return {host: (cell, home) for host, cell in up if host not in twins and (home := homes[host]) not in (None, cell) and home}

    def _look(self) -> None:
        if time.monotonic() < self._fresh_until:
            return
        if not self._asking.acquire(blocking=self._fresh_until == 0.0):
            return  # another thread is asking: what was known last will do
        try:
            if time.monotonic() >= self._fresh_until:
                self._ask()
        finally:
            self._asking.release()

    def _ask(self) -> None:
        views = []
        cells = self._registry.cells()
        for cell, collect in [(cell, cell.within(self._timeout).begin_read(services.list_seen, BINARY)) for cell in cells]:
            try:
                agents = {seen.service.host: seen for seen in collect()}
                views.append(CellView(cell_uuid=cell.uuid, agents=agents))
            except errors.CellUnavailable as error:
                views.append(CellView(cell_uuid=cell.uuid, silent=str(error)))
        self._statuses = {host: self._judge(agent) for view in views for host, agent in view.agents.items()}
        self._views = tuple(views)
        self._fresh_until = time.monotonic() + LIFETIME

    def _judge(self, agent: Seen) -> str:
        """As it was when its cell was asked."""
        if agent.service.forced_down or agent.service.stopping:
            return "DOWN"
        if agent.age > self._down_time:
            return "UNKNOWN"
        return "MAINTENANCE" if agent.service.disabled else "UP"
