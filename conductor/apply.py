"""Apply one cell's change feed to the API database: summaries, claims that moved or ended, capacities."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from cells.cell import Cell
from db import compute_nodes, events, feed, rebuild
from db.claims import Ledger
from db.engine import Database
from objects import stored
from objects.compute_node import ComputeNode
from objects.context import request_of
from objects.feed import EventKind, FeedEvent, InstanceSummary
from objects.selection import Limits
from service import metrics
from service.steps import step

LOG = logging.getLogger(__name__)

PAGE = 500


class Applier:
    """Keeps the API database level with one cell. Several may run for one cell: the cursor lets one win each page."""

    def __init__(
        self, api_database: Database, ledger: Ledger, cell: Cell, newcomers: Callable[[Collection[str]], None] | None = None
    ) -> None:
        """``newcomers`` is told of hosts of the cell that are not mapped to it, before events of them count as read."""
        self._database = api_database
        self._ledger = ledger
        self._cell = cell
        self._cursor: int | None = None
        self._capacities: dict[tuple[str, str], Limits] = {}
        self._mapped: frozenset[str] = frozenset()
        self._newcomers = newcomers
        self._looked = False
        self.pages = 0
        """Pages of events that were applied from here."""
        self._behind, self._level_at = 0, time.monotonic()
        metrics.FEED_BEHIND.follow(self._lag_events)
        metrics.FEED_LAG.follow(self._lag_seconds)

    def apply(self) -> bool:
        """Read and apply one page; return whether there is more.

        Raises ``errors.Conflict`` when another applier got ahead: the next call starts from its cursor.
        """
        cursor = self._position()
        page = self._cell.read(feed.read, cursor, PAGE)
        self._note(page.head, cursor)
        if page.trimmed or page.head < cursor:
            self._rebuild(cursor, page.head)
            return True
        if not page.events:
            return False
        told = [compute_nodes.readable(event.payload) for event in page.events if event.kind is EventKind.HOST]
        self._meet(node.host for node in told if node is not None)
        nodes = [node for node in told if node is not None and node.host in self._mapped]
        self._write(cursor, page.events[-1].sequence, page.events, nodes)
        self.pages += 1
        self._note(page.head, page.events[-1].sequence)
        return len(page.events) == PAGE

    def forget(self) -> None:
        """Others may have gone on meanwhile: begin where the cursor is now."""
        self._cursor = None

    def _rebuild(self, cursor: int, head: int) -> None:
        """The feed was trimmed behind our cursor, or restored from a backup: take every row's state instead, page by page.

        The cursor goes to where the feed stood before the first row was read, so what changes meanwhile is read again.
        """
        LOG.warning("cell %s: its feed no longer holds what follows event %d: rebuilding from its rows", self._cell.name, cursor)
        after: str | None = ""
        while after is not None:
            page = self._cell.read(rebuild.snapshot, after, PAGE, time.time())
            self._write(cursor, head if page.last_uuid is None else cursor, page.events)
            after = page.last_uuid
        self._mapped, self._looked = frozenset(), False  # capacities are read anew as well

    def map_hosts(self, hosts: frozenset[str]) -> None:
        """The hosts mapped to this cell changed (or are told for the first time): take their capacities from the cell's records.

        Only a host's own cell may say what it offers: a namesake in another cell is kept out. Raises ``errors.Conflict`` as above.
        """
        if hosts == self._mapped and (self._looked or self._newcomers is None):
            return
        cursor = self._position()
        added = hosts - self._mapped
        if self._looked and len(added) <= PAGE:  # hosts that come one by one cost what they are, not what the cell has
            known = self._cell.read(compute_nodes.of_hosts, added)
        else:
            known = self._cell.read(compute_nodes.list_all)
        nodes = [node for node in known if node.host in hosts]
        for key in [key for key in self._capacities if key[0] in hosts ^ self._mapped]:
            del self._capacities[key]  # another cell may have had the host meanwhile
        self._write(cursor, cursor, (), nodes)
        self._mapped = hosts
        self._meet(node.host for node in known)
        self._looked = True

    def _meet(self, hosts: Iterable[str]) -> None:
        if self._newcomers is not None and (strangers := set(hosts) - self._mapped):
            self._newcomers(strangers)

    def _note(self, head: int, applied: int) -> None:
        """For who measures: how far behind the cell this is now."""
        self._behind = max(0, head - applied)
        if not self._behind:
            self._level_at = time.monotonic()

    def _lag_events(self) -> metrics.Values:
        return [((self._cell.name,), self._behind)]

    def _lag_seconds(self) -> metrics.Values:
        return [((self._cell.name,), time.monotonic() - self._level_at)]

    def _position(self) -> int:
        """The cursor. Where it had to be looked up, others may have written capacities that we know nothing of."""
        if self._cursor is None:
            self._cursor = self._database.write(events.cursor, self._cell.uuid)
            self._capacities.clear()
        return self._cursor

    def _write(self, cursor: int, upto: int, page: Sequence[FeedEvent], nodes: Iterable[ComputeNode] = ()) -> None:
        """Events and capacities that are new, in the transaction that moves the cursor: who was overtaken puts no old one back."""
        latest = {(node.host, node.node): node for node in nodes}
        changed = {key: node for key, node in latest.items() if self._capacities.get(key) != node.capacity}
        if not page and not changed and upto == cursor:
            return
        position = events.Position(cell_uuid=self._cell.uuid, cursor=cursor, upto=upto)
        self._cursor = None  # unknown until this is committed
        self._ledger.write(events.apply, position, page, list(changed.values()))
        self._cursor = upto
        for event in page:
            if event.kind in (EventKind.MOVED, EventKind.ACTIVE, EventKind.ENDED):
                told = stored.load(event.payload, InstanceSummary)
                about = (event.key, request_of(told.batch_id))
                step(LOG, "applied", *about, cell=self._cell.name, host=told.host, attempt=told.attempt, state=told.state)
        self._capacities |= {key: node.capacity for key, node in changed.items()}
