"""Apply one cell's change feed to the API database: summaries, claims that moved or ended, capacities."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from cells.cell import Cell
from db import compute_nodes, events, feed, rebuild
from db.claims import Ledger, set_inventory
from db.engine import Database
from objects import stored
from objects.compute_node import ComputeNode
from objects.feed import EventKind
from objects.selection import Limits

LOG = logging.getLogger(__name__)

PAGE = 500


class Applier:
    """Keeps the API database level with one cell. Several may run for one cell: the cursor lets one win each page."""

    def __init__(self, api_database: Database, ledger: Ledger, cell: Cell) -> None:
        self._database = api_database
        self._ledger = ledger
        self._cell = cell
        self._cursor: int | None = None
        self._capacities: dict[tuple[str, str], Limits] = {}
        self._mapped: frozenset[str] = frozenset()

    def apply(self) -> bool:
        """Read and apply one page; return whether there is more.

        Raises ``errors.Conflict`` when another applier got ahead: the next call starts from its cursor.
        """
        cursor = self._database.write(events.cursor, self._cell.uuid) if self._cursor is None else self._cursor
        page = self._cell.read(feed.read, cursor, PAGE)
        if page.trimmed or page.head < cursor:
            self._rebuild(cursor, page.head)
            return True
        if not page.events:
            self._cursor = cursor
            return False
        upto = page.events[-1].sequence
        position = events.Position(cell_uuid=self._cell.uuid, cursor=cursor, upto=upto)
        self._cursor = None  # unknown until this page is committed
        self._ledger.write(events.apply, position, page.events)
        self._cursor = upto
        self._inventory(stored.load(e.payload, ComputeNode) for e in page.events if e.kind is EventKind.HOST)
        return len(page.events) == PAGE

    def _rebuild(self, cursor: int, head: int) -> None:
        """The feed was trimmed behind our cursor, or restored from a backup: take every row's state instead, page by page.

        The cursor goes to where the feed stood before the first row was read, so what changes meanwhile is read again.
        """
        LOG.warning("cell %s: its feed no longer holds what follows event %d: rebuilding from its rows", self._cell.name, cursor)
        after: str | None = ""
        while after is not None:
            page = self._cell.read(rebuild.snapshot, after, PAGE, time.time())
            upto = head if page.last_uuid is None else cursor
            position = events.Position(cell_uuid=self._cell.uuid, cursor=cursor, upto=upto)
            self._cursor = None
            self._ledger.write(events.apply, position, page.events)
            after = page.last_uuid
        self._mapped = frozenset()  # capacities are read anew as well

    def map_hosts(self, hosts: frozenset[str]) -> None:
        """The hosts mapped to this cell changed (or are told for the first time): take their capacities from the cell's records."""
        if hosts != self._mapped:
            nodes = self._cell.read(compute_nodes.list_all)
            self._mapped = hosts
            self._inventory(nodes)

    def _inventory(self, nodes: Iterable[ComputeNode]) -> None:
        """Write capacities that are new. Only a host's own cell may: a namesake in another cell is kept out."""
        latest = {(node.host, node.node): node for node in nodes if node.host in self._mapped}
        changed = [node for key, node in latest.items() if self._capacities.get(key) != node.capacity]
        if changed:
            self._ledger.write(set_inventory, changed, self._cell.uuid)
            self._capacities |= {(node.host, node.node): node.capacity for node in changed}
