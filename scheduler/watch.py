"""Keep one cell's part of the host table fresh."""

from __future__ import annotations

import logging
import time

from cells.cell import Cell
from cells.discovery import AGENT
from cells.feed import FeedReader
from db import compute_nodes, services
from objects import stored
from objects.compute_node import ComputeNode, Service
from objects.feed import EventKind
from scheduler.settings import Settings
from scheduler.table import HostTable
from service.periodic import Every

LOG = logging.getLogger(__name__)

PAGE = 1000
RELOAD = 300.0
"""Seconds after which a cell's nodes are read anew: nodes that were deleted leave no event."""


class Heard:
    """When a host's agent was last heard of, by this process's monotonic clock.

    Its report count rose since our last look: now. At the first look only the cell's own record says how long ago it last reported.
    """

    def __init__(self, service: Service, mono: float, wall: float) -> None:
        self.service = service
        self.at = mono - max(0.0, wall - service.last_seen)

    def look(self, service: Service, mono: float) -> bool:
        """Whether that tells anything new."""
        before = self.service
        self.service = service
        if service.report_count != before.report_count:
            self.at = mono
            return True
        return (service.disabled, service.forced_down) != (before.disabled, before.forced_down)


class CellWatch:
    """Reads a cell's nodes once, its feed from then on, and its heartbeats at their own pace. ``look`` is called by one thread."""

    def __init__(self, cell: Cell, table: HostTable, settings: Settings) -> None:
        self.cell = cell
        self.seen_at: float | None = None  # monotonic clock; None: never
        self._table = table
        self._reader = FeedReader(cell)
        self._reload = Every(RELOAD)
        self._poll = Every(settings.service_poll_interval)
        self._behind = True
        self._heard: dict[str, Heard] = {}

    def look(self) -> bool:
        """One round; return whether there is more to read at once. Raises CellUnavailable: what is known stays, and ages."""
        began = time.monotonic()
        if self._reload() or self._behind:
            self._behind = True
            self._load()
            self._behind = False
            self._read_services(every_row=True)
            more = False
        else:
            more = self._follow()
            if self._poll():
                self._read_services(every_row=False)
        self.seen_at = began
        return more

    def _load(self) -> None:
        self._reader.restart()
        nodes = self.cell.read(compute_nodes.list_all)
        with self._table.lock:
            self._table.keep_nodes(self.cell.uuid, {(node.host, node.node) for node in nodes})
            for node in nodes:
                self._table.set_node(self.cell.uuid, node)

    def _follow(self) -> bool:
        batch = self._reader.read(PAGE)
        if batch.behind:
            LOG.info("cell %s: its feed was trimmed behind this reader: reading its nodes anew", self.cell.name)
            self._behind = True
            return True
        nodes: dict[tuple[str, str], ComputeNode] = {}
        look_at_services = False
        for event in batch.events:
            if event.kind is EventKind.HOST:
                node = stored.load(event.payload, ComputeNode)
                nodes[node.host, node.node] = node
            look_at_services |= event.kind is EventKind.SERVICE
        with self._table.lock:
            new = any(self._table.unheard(host, node) for host, node in nodes)
            for node in nodes.values():
                self._table.set_node(self.cell.uuid, node)
        if new or look_at_services:
            self._read_services(every_row=new)
        return len(batch.events) == PAGE

    def _read_services(self, *, every_row: bool) -> None:
        """Judge who is alive. Rows hear of it where it changed, or where they may be new."""
        mono, wall = time.monotonic(), time.time()
        found = {service.host: service for service in self.cell.read(services.list_all) if service.binary == AGENT}
        told: dict[str, Heard] = {}
        for host, service in found.items():
            heard = self._heard.get(host)
            if heard is None:
                self._heard[host] = told[host] = Heard(service, mono, wall)
            elif heard.look(service, mono) or every_row:
                told[host] = heard
        with self._table.lock:
            for host, heard in told.items():
                flags = {"disabled": heard.service.disabled, "forced_down": heard.service.forced_down}
                self._table.set_service(self.cell.uuid, host, heard.at, **flags)
            for host in self._heard.keys() - found.keys():
                del self._heard[host]
                self._table.set_service(self.cell.uuid, host, float("-inf"), disabled=False, forced_down=False)
