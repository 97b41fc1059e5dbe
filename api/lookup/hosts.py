"""Which hosts are up, for display only: code that acts on it judges heartbeats by its own clock."""

from __future__ import annotations

import threading
import time
from collections import Counter

from msgspec import field

from cells.discovery import in_two_cells
from cells.fan_out import Answered, fan_out_within
from cells.registry import CellRegistry
from db.cell import services
from db.cell.services import SeenService
from objects.base import Object
from objects.process import AGENT_BINARY
from service.threads import start_daemon

CACHE_LIFETIME_S = 5.0
"""Seconds that the cells' answers are cached."""
CACHE_MAX_AGE_S = 60.0
"""Seconds after which a caller waits for new answers."""


class CellView(Object, frozen=True, kw_only=True):
    """The agents of one cell, by host. ``silent``: why they are unknown."""

    cell_uuid: str
    agents: dict[str, SeenService] = field(default_factory=dict)
    silent: str | None = None


class HostWatch:
    """The cells' records of their agents, cached.

    ``patience``: the longest that a caller waits, in seconds. Callers wait only if the cache is empty or older than
    ``CACHE_MAX_AGE_S``.
    Otherwise they use the cache, and a thread refreshes it.
    """

    def __init__(self, registry: CellRegistry, down_time: float, patience: float) -> None:
        self._registry = registry
        self._down_time = down_time
        self._patience = patience
        self._asking = threading.Lock()
        self._views: tuple[CellView, ...] = ()
        self._statuses: dict[str, str] = {}
        self._asked_at = -CACHE_MAX_AGE_S  # when the latest question began (monotonic clock, like the next)
        self._changed_at = self._asked_at

    def status_of(self, host: str | None) -> str:
        """The Compute API's ``host_status``, empty without a host.

        UP, DOWN (forced, or its agent has said that it stops), MAINTENANCE (disabled), UNKNOWN.
        """
        if host is None:
            return ""
        self._refresh_views()
        return self._statuses.get(host, "UNKNOWN")

    def list_views(self) -> tuple[CellView, ...]:
        """Every cell except cell0."""
        self._refresh_views()
        return self._views

    def invalidate_views(self) -> None:
        """An agent's record was changed: the next caller asks the cells."""
        self._changed_at = time.monotonic()

    def count_by_status(self, view: CellView) -> dict[str, int]:
        """The number of hosts of a cell by status."""
        return dict(Counter(self.agent_status(agent) for agent in view.agents.values()))

    def in_two_cells(self) -> dict[str, tuple[str, ...]]:
        """Hosts that have running agents in several cells, with the uuids of these cells."""
        return in_two_cells(
            (host, view.cell_uuid)
            for view in self.list_views()
            for host, agent in view.agents.items()
            if self.agent_status(agent) in ("UP", "MAINTENANCE")
        )

    def misplaced_hosts(self) -> dict[str, tuple[str, str]]:
        """Hosts whose agent runs in one cell but that belong to another: the uuids of both, in this order."""
        up = [
            (host, view.cell_uuid)
            for view in self.list_views()
            for host, agent in view.agents.items()
            if self.agent_status(agent) in ("UP", "MAINTENANCE")
        ]
        twins = in_two_cells(up)
        homes = {host: self._registry.home_of(host) for host, _ in up}
        return {host: (cell, home) for host, cell in up if host not in twins and (home := homes[host]) not in (None, cell) and home}

    def _refresh_views(self) -> None:
        age = time.monotonic() - self._asked_at
        is_outdated = self._asked_at < self._changed_at
        if age < CACHE_LIFETIME_S and not is_outdated:
            return
        if age < CACHE_MAX_AGE_S and not is_outdated:
            if self._asking.acquire(blocking=False) and start_daemon("hosts", self._ask_and_release) is None:
                self._asking.release()
            return
        with self._asking:
            if time.monotonic() - self._asked_at >= CACHE_LIFETIME_S or self._asked_at < self._changed_at:
                self._ask_cells()

    def _ask_and_release(self) -> None:
        try:
            self._ask_cells()
        finally:
            self._asking.release()

    def _ask_cells(self) -> None:
        began = time.monotonic()
        views = []
        for answer in fan_out_within(self._patience, self._registry.list_cells(), services.list_seen, AGENT_BINARY):
            if isinstance(answer, Answered):
                agents = {seen.service.host: seen for seen in answer.value}
                views.append(CellView(cell_uuid=answer.cell.uuid, agents=agents))
            else:
                views.append(CellView(cell_uuid=answer.cell.uuid, silent=answer.reason))
        self._statuses = {
            host: self.agent_status(agent)
            for view in views
            for host, agent in view.agents.items()
            if self._registry.home_of(host) in (None, view.cell_uuid)  # ignore what a cell reports about another cell's host
        }
        self._views = tuple(views)
        self._asked_at = began

    def is_down(self, agent: SeenService) -> bool:
        """Whether nothing can be asked of the host: it is called dead, or silent. One that only restarts its agent is not down."""
        return agent.service.forced_down or agent.age > self._down_time

    def agent_status(self, agent: SeenService) -> str:
        """The status at the time when the cell was asked."""
        if agent.service.forced_down or agent.service.stopping:
            return "DOWN"
        if agent.age > self._down_time:
            return "UNKNOWN"
        return "MAINTENANCE" if agent.service.disabled else "UP"
