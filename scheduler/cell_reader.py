"""Keep one cell's part of the host table fresh."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Container, Mapping
from itertools import compress, repeat

import numpy as np

from cells.cell import Cell
from cells.feed import FeedReader
from db.cell import compute_nodes, services
from db.cell.services import Signs
from objects.compute_node import ComputeNode
from objects.feed import EventKind
from objects.process import AGENT_BINARY
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.arrays import Floats, Ints, Mask
from scheduler.table.host_table import HostTable, ServiceReports
from service.pace import Pace
from service.periodic import Every

LOG = logging.getLogger(__name__)

FEED_PAGE_SIZE = 1000
"""Events of the feed read in one query."""
NODES_PAGE_SIZE = 2000
"""Nodes read in one query, so that a large cell answers in time and is never held in memory as a whole."""
RELOAD_INTERVAL_S = 300.0
"""Seconds between full reads of a cell's nodes, which are needed because deleted nodes leave no event."""

SERVICES_RELOAD_INTERVAL_S = 60.0
"""Seconds between full reads of a cell's heartbeats; otherwise only those since the last look are read."""
SERVICES_PAGE_SIZE = 2000
"""Heartbeats entered in one hold of the table's lock."""
COMMIT_WAIT_S = 1.0
"""Seconds that the transaction of a heartbeat may take to commit after it has read the clock."""


class LastReports:
    """When each host's agent was last heard of, by this process's monotonic clock, in seconds.

    At the first look, the cell's database says how long ago the agent last reported, by its own clock. Later, a changed report
    count means that the agent has reported now.

    A host takes a place in three arrays, because a fleet may have a million: as an object it would take six times as much memory.
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._free: list[int] = []
        self._at, self._counts, self._flags = np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int8)

    def enter_signs(self, signs: Signs, mono: float, names: Mapping[str, str] | None = None) -> tuple[Floats, Mask]:
        """Enter newer signs of life. Returns when each host was last heard of, and which have news.

        That is a host that is new, a report of its agent, or a changed flag. ``names``: hosts' names as others have them in memory,
        to be kept instead of those of the signs.
        """
        places: Ints = np.fromiter(map(self._places.get, signs.hosts, repeat(-1)), np.int64, len(signs.hosts))
        is_new = places < 0
        if is_new.any():
            new_hosts = list(compress(signs.hosts, is_new))
            places[is_new] = self._new_places(len(new_hosts))
            remembered_names = map((names or {}).get, new_hosts, new_hosts)
            self._places.update(zip(remembered_names, places[is_new].tolist(), strict=True))
        counts, ages = np.array(signs.report_counts, np.int64), np.array(signs.ages, np.float64)
        disabled, forced_down, stopping = np.array((signs.disabled, signs.forced_down, signs.stopping), np.int8)
        flags = disabled | forced_down << 1 | stopping << 2
        has_reported = ~is_new & (counts != self._counts[places])
        news: Mask = is_new | has_reported | (flags != self._flags[places])
        self._at[places[is_new]] = mono - np.maximum(ages[is_new], 0.0)
        self._at[places[has_reported]] = mono
        self._counts[places], self._flags[places] = counts, flags
        return self._at[places], news

    def forget_others(self, hosts: Container[str]) -> list[str]:
        """Forget all hosts but these. Returns the forgotten ones."""
        gone = [host for host in self._places if host not in hosts]
        self._free += [self._places.pop(host) for host in gone]
        return gone

    def _new_places(self, count: int) -> list[int]:
        again, self._free = self._free[:count], self._free[count:]
        size = self._at.size
        more = count - len(again)
        if more:
            self._at, self._counts, self._flags = (
                np.concatenate((column, np.zeros(more, column.dtype))) for column in (self._at, self._counts, self._flags)
            )
        return [*again, *range(size, size + more)]


class CellWatch:
    """Keeps one cell's nodes and heartbeats up to date in the table. Only one thread may call ``look``.

    Reads all nodes at first and every ``RELOAD_INTERVAL_S`` seconds, otherwise the cell's feed. Heartbeats have their own interval.
    """

    def __init__(self, cell: Cell, table: HostTable, settings: SchedulerSettings, loads: threading.Semaphore) -> None:
        """``loads``: how many watches may read all nodes at the same time."""
        self.cell = cell
        self._loads = loads
        self.seen_at: float | None = None
        """When the last look began that read the cell (monotonic clock); None: it was never read as a whole."""
        self.first_read_at: float | None = None
        """When it had been read for the first time."""
        self._table = table
        self._reader = FeedReader(cell)
        self.pace = Pace(settings.feed_poll_interval, settings.idle_interval)
        """Of the loop that calls ``look``. News of the feed hurry it."""
        self._reload = Every(RELOAD_INTERVAL_S)
        self._poll = Every(settings.service_poll_interval)
        self._read_all_services = Every(SERVICES_RELOAD_INTERVAL_S)
        self._services_read_at = time.monotonic()
        self._behind = True
        self._services_changed = False
        self._anew = threading.Event()
        self._stopped = False
        self._last_reports = LastReports()

    def read_changes(self) -> bool:
        """Read once. Returns whether there is more to read at once. Raises CellUnavailable; the table then keeps what it has."""
        began = time.monotonic()
        if self._reload() or self._behind or self._anew.is_set():
            self._behind = True
            self._anew.clear()
            self._reader.restart_at_end()  # before its turn: a cell that does not answer takes no other cell's
            with self._loads:
                if self._stopped:
                    return False
                self._read_all_nodes()
                self._read_services(every_row=True)
            self._behind = False
            more = False
        else:
            head = self._read_services(recent=not self._read_all_services()) if self._poll() else None
            more = self._read_feed() if head != self._reader.last_event else False
        with self._table.lock:
            self._table.set_feed_read(self.cell.uuid, self._reader.last_event)
        if self.first_read_at is None:
            self.first_read_at = time.monotonic()
        self.seen_at = began
        return more

    @property
    def is_reading(self) -> bool:
        """Whether the cell was never read as a whole, but answers."""
        return self.seen_at is None and self.cell.database_silent_since is None

    def stop(self) -> None:
        """Read no more: a watch that waits for its turn gives up."""
        self._stopped = True

    def read_anew(self) -> None:
        """Read all nodes of the cell at the next look. Needed when hosts that the table took from other cells are mapped to it."""
        self._anew.set()
        self.pace.hurry_for()

    def _read_all_nodes(self) -> None:
        """Read all nodes, page by page. Changes made meanwhile come with the feed, which was restarted first."""
        seen_nodes: set[tuple[str, str]] = set()
        after: tuple[str, str] | None = compute_nodes.BEFORE_FIRST_PAGE
        while after is not None:
            page = self.cell.read(compute_nodes.list_after, after, NODES_PAGE_SIZE)
            with self._table.lock:
                self._table.set_nodes(self.cell.uuid, page.nodes, ahead=True)
            seen_nodes.update((node.host, node.node) for node in page.nodes)
            after = page.last
        with self._table.lock:
            self._table.keep_nodes(self.cell.uuid, seen_nodes)

    def _read_feed(self) -> bool:
        batch = self._reader.read(FEED_PAGE_SIZE)
        if batch.events:
            self.pace.hurry_for()
        if batch.behind:
            LOG.info("cell %s: its feed was trimmed behind this reader: reading its nodes anew", self.cell.name)
            self._behind = True
            return True
        nodes: dict[tuple[str, str], ComputeNode] = {}
        for event in batch.events:
            if event.kind is EventKind.HOST:
                node = compute_nodes.decode_node(event.payload)
                if node is not None:
                    nodes[node.host, node.node] = node
            self._services_changed |= event.kind is EventKind.SERVICE  # kept if the cell does not answer below
        with self._table.lock:
            new = any(self._table.is_unheard(host, node) for host, node in nodes)
            self._table.set_nodes(self.cell.uuid, list(nodes.values()), ahead=True)
        if new or self._services_changed:
            self._read_services(every_row=new)
            self._services_changed = False
        return len(batch.events) == FEED_PAGE_SIZE

    def _read_services(self, *, every_row: bool = False, recent: bool = False) -> int:
        """Read the heartbeats, and enter those that have changed into the table. Returns the number of the feed's newest event.

        ``every_row``: enter all of them, as rows may be new. ``recent``: read only those since the last look. A missed one does
        little harm: the agent reports again before it counts as down.
        """
        mono = time.monotonic()
        window = mono - self._services_read_at + COMMIT_WAIT_S if recent else None
        signs = self.cell.read(services.read_signs, AGENT_BINARY, window)
        heard_at, changed = self._last_reports.enter_signs(signs, mono, self._host_names() if every_row else None)
        if every_row:
            changed[:] = True
        self._services_read_at = mono
        # an agent that is stopping takes no more orders, so it counts as down
        heard_at[np.array(signs.stopping, np.bool_)] = -np.inf
        disabled, forced_down = np.array(signs.disabled, np.bool_), np.array(signs.forced_down, np.bool_)
        self._enter_reports(
            ServiceReports(list(compress(signs.hosts, changed)), heard_at[changed], disabled[changed], forced_down[changed])
        )
        if not recent:
            self._enter_reports(ServiceReports.same_for_all(self._last_reports.forget_others(frozenset(signs.hosts)), -np.inf))
        return signs.head

    def _enter_reports(self, reports: ServiceReports) -> None:
        for start in range(0, len(reports.hosts), SERVICES_PAGE_SIZE):
            with self._table.lock:
                self._table.set_services(self.cell.uuid, reports.slice_from(start, SERVICES_PAGE_SIZE))

    def _host_names(self) -> dict[str, str]:
        """The names of the cell's hosts as the table has them in memory, by name."""
        with self._table.lock:
            rows = self._table.of_cell(self._table.cell_number(self.cell.uuid)).tolist()
            return {name: name for name in map(self._table.hosts.__getitem__, rows)}
