"""Apply one cell's change feed to the API database: summaries, claims that move or end, capacities."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from cells.cell import Cell
from conductor.host_mapper import HostMapper
from conductor.quarantine import Quarantine, reason_of
from conductor.signals import NoSignals, WorkSignals
from db.api.claims import claims
from db.api.claims.claims import Ledger
from db.api.reconcile import events
from db.api.reconcile.events import Applied
from db.api.servers import mappings
from db.cell import compute_nodes, feed, rebuild
from objects import errors, feed_check
from objects.compute_node import ComputeNode
from objects.context import request_of
from objects.feed import INSTANCE_EVENTS, EventKind, FeedEvent, InstanceEvent
from objects.selection import HostCapacity
from service import metrics
from service.bisect import isolate_failures
from service.logs import log_step
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

FEED_PAGE_SIZE = 500

STEP = "feed"
"""The step of dead letters about instances whose events cannot be applied. Their keys are the UUIDs of the instances."""
HOST_STEP = "feed host"
"""The step of dead letters about hosts whose capacities cannot be applied. The host's next report brings them again."""
TRANSIENT = (errors.Transient, errors.Conflict)
"""Errors that no event causes: a database does not answer, or another applier was quicker."""


class Applier:
    """Keeps the API database up to date with one cell. Several may run for one cell: only one can move the cursor past a page."""

    def __init__(
        self,
        ledger: Ledger,
        cell: Cell,
        host_mapper: HostMapper | None = None,
        aside: Quarantine | None = None,
        *,
        page: int = FEED_PAGE_SIZE,
        signals: WorkSignals | None = None,
        other_cell_timeout: float = 0.0,
    ) -> None:
        """``host_mapper``: maps hosts of the cell that are not mapped to it, before the cursor moves past their events.

        ``page``: number of events that are read and applied at once. ``signals``: told of changed services, and of servers whose
        operations may go on. ``other_cell_timeout``: see ``db.api.reconcile.events.apply_page``.
        """
        self._signals: WorkSignals = signals or NoSignals()
        self._other_cell_timeout = other_cell_timeout
        self._database = ledger.database
        self._aside = aside or Quarantine(ledger.database, "api")
        self._page = page
        self._ledger = ledger
        self._cell = cell
        self._cursor: int | None = None
        self._capacities: dict[tuple[str, str], HostCapacity] = {}
        self._mapped: frozenset[str] = frozenset()
        self._host_mapper = host_mapper
        self._looked = False
        self._complaints = RateLimitedLog(LOG)
        self.pages = 0
        """Number of pages that this applier has applied."""
        self._behind, self._level_at = 0, time.monotonic()
        metrics.FEED_BEHIND.follow_reader(self._lag_events)
        metrics.FEED_LAG.follow_reader(self._lag_seconds)

    def apply_page(self, *, is_followed_elsewhere: bool = False) -> bool:
        """Read and apply one page; return whether there is more. ``is_followed_elsewhere``: other appliers move the cursor, too.

        Raises ``errors.Conflict`` when another applier got ahead: the next call starts from its cursor.
        """
        known = self._cursor
        cursor = self._read_cursor()
        page = self._cell.read(feed.read, cursor, self._page)
        if is_followed_elsewhere and known is not None and page.head != known:
            self.forget_cursor()  # where the feed ends at the known cursor, there is nothing to apply, wherever the cursor is
            cursor = self._read_cursor()
            page = self._cell.read(feed.read, cursor, self._page)
        self._note_lag(page.head, cursor)
        if page.trimmed or page.head < cursor:
            self._rebuild_from_rows(cursor, page.head)
            return True
        if not page.count:
            return False
        read = [compute_nodes.decode_node(event.payload) for event in page.events if event.kind is EventKind.HOST]
        self._report_hosts(node.host for node in read if node is not None)
        nodes = [node for node in read if node is not None and node.host in self._mapped]
        self._write(cursor, page.last, self._valid_events(page.events), nodes)
        self.pages += 1
        self._note_lag(page.head, page.last)
        if any(event.kind is EventKind.SERVICE for event in page.events):
            self._signals.check_services()
        return page.count == self._page

    def retry_due(self) -> None:
        """Apply the current rows of instances that were set aside and are due."""
        due = self._aside.due_keys(STEP)[: self._page]
        if not due:
            return
        states = self._database.read(mappings.states_by_uuid, due)
        nobodys = [uuid for uuid in due if (state := states.get(uuid)) is None or state.cell_uuid is None]
        self._aside.note_succeeded(STEP, nobodys)  # an instance in no cell has no events
        own_uuids = [uuid for uuid in due if uuid not in nobodys and states[uuid].cell_uuid == self._cell.uuid]
        if not own_uuids:
            return
        snapshot = self._cell.read(rebuild.snapshot_of, own_uuids, self._cell.current_time())
        self._set_aside_unreadable(snapshot)
        events = self._valid_events(snapshot.events)
        cursor = self._read_cursor()
        failed = self._apply_alone(cursor, events)
        odd = {event.key for event in snapshot.events} - {event.key for event in events}
        self._aside.note_succeeded(STEP, set(own_uuids) - failed - odd - set(snapshot.unreadable))

    def _valid_events(self, events: Sequence[FeedEvent]) -> list[InstanceEvent]:
        """The valid instance events. Instances with an invalid event are set aside, to be read from their rows later."""
        good: list[InstanceEvent] = []
        odd: dict[str, Exception] = {}
        for event in events:
            if event.kind in INSTANCE_EVENTS:
                try:
                    good.append(feed_check.checked_event(event))
                except errors.Invalid as error:
                    odd[str(event.key)] = error
        if odd:
            self._aside.note_failed(STEP, odd)
        return good

    def _set_aside_unreadable(self, snapshot: rebuild.Snapshot) -> None:
        self._aside.note_failed(STEP, {uuid: errors.Invalid(reason) for uuid, reason in snapshot.unreadable.items()})

    def forget_cursor(self) -> None:
        """Read the cursor again at the next call, as other appliers may have moved it."""
        self._cursor = None

    def _rebuild_from_rows(self, cursor: int, head: int) -> None:
        """Apply every row's state, page by page: the feed was trimmed beyond the cursor, or restored from a backup.

        The cursor moves to the feed's end as of before the first row was read, so later changes are read again.
        """
        LOG.warning("cell %s: its feed no longer has the events after %d: rebuilding from its rows", self._cell.name, cursor)
        after: str | None = ""
        while after is not None:
            page = self._cell.read(rebuild.read_snapshot, after, self._page, self._cell.current_time())
            self._set_aside_unreadable(page)
            self._write(cursor, head if page.last_uuid is None else cursor, self._valid_events(page.events))
            after = page.last_uuid
        self._ledger.write(claims.forget_lost_events, self._cell.uuid, head)
        self._mapped, self._looked = frozenset(), False  # capacities are read anew as well

    def map_hosts(self, hosts: frozenset[str]) -> None:
        """Set the hosts mapped to this cell. If they changed, take capacities from the cell's records.

        Only a host's own cell reports what it offers; a host of the same name in another cell is ignored. Raises
        ``errors.Conflict`` as ``apply`` does.
        """
        if hosts == self._mapped and (self._looked or self._host_mapper is None):
            return
        cursor = self._read_cursor()
        added = hosts - self._mapped
        if self._looked and len(added) <= self._page:  # read a few new hosts, not the whole cell
            known = self._cell.read(compute_nodes.of_hosts, added)
        else:
            known = self._cell.read(compute_nodes.list_all)
        nodes = [node for node in known if node.host in hosts]
        for key in [key for key in self._capacities if key[0] in hosts ^ self._mapped]:
            del self._capacities[key]  # the host may have been in another cell meanwhile
        self._write(cursor, cursor, (), nodes)
        self._mapped = hosts
        self._report_hosts(node.host for node in known)
        self._looked = True

    def _refuse_events(self, events: Sequence[InstanceEvent]) -> None:
        """Set aside the instances of these events, which place them on another cell's host and were not applied."""
        faults: dict[str, Exception] = {}
        for event in events:
            metrics.FEED_REFUSED.labels(self._cell.name).inc()
            text = f"its cell {self._cell.name} reports it on host {event.summary.host}, which is mapped to another cell"
            faults[event.key] = errors.Invalid(f"{text}; see 'superconductor host list'")
        self._aside.note_failed(STEP, faults)

    def _report_hosts(self, hosts: Iterable[str]) -> None:
        if self._host_mapper is not None and (unmapped := set(hosts) - self._mapped):
            self._host_mapper.map_new(unmapped)

    def _note_lag(self, head: int, applied: int) -> None:
        """Note the lag for the metrics. ``head``, ``applied``: event numbers."""
        self._behind = max(0, head - applied)
        if not self._behind:
            self._level_at = time.monotonic()

    def _lag_events(self) -> metrics.Values:
        return [((self._cell.name,), self._behind)]

    def _lag_seconds(self) -> metrics.Values:
        return [((self._cell.name,), time.monotonic() - self._level_at)]

    def _read_cursor(self) -> int:
        """The cursor. Reading it clears the cached capacities, as other appliers may have written newer ones."""
        if self._cursor is None:
            self._cursor = self._database.write(events.lock_cursor, self._cell.uuid)
            self._capacities.clear()
        return self._cursor

    def _write(self, cursor: int, upto: int, page: Sequence[InstanceEvent], nodes: Iterable[ComputeNode] = ()) -> None:
        """Write events and changed capacities in the transaction that moves the cursor: a stale applier cannot write old ones."""
        latest = {(node.host, node.node): node for node in nodes}
        changed = {key: node for key, node in latest.items() if self._capacities.get(key) != node.total_capacity}
        if not page and not changed and upto == cursor:
            return
        self._cursor = None  # unknown until this is committed
        foreign: set[tuple[str, str]] = set()
        try:
            foreign = self._commit_page(cursor, upto, page, list(changed.values())).foreign_nodes
        except (errors.Transient, errors.Conflict):
            raise
        except Exception as error:  # noqa: BLE001 - one event or node causes it: each is tried alone, and set aside if it fails
            text = "cell %s: %d events cannot be applied together: %s"
            self._complaints("together", logging.WARNING, text, self._cell.name, len(page), reason_of(error))
            self._apply_alone(cursor, page)
            done = isolate_failures(
                lambda groups: self._commit_page(cursor, cursor, (), groups), list(changed.values()), transient=TRANSIENT
            )
            self._aside.note_failed(HOST_STEP, {node.host: error for node, error in done.failed})
            self._commit_page(cursor, upto, (), ())
        self._cursor = upto
        self._capacities |= {key: node.total_capacity for key, node in changed.items() if key not in foreign}

    def _apply_alone(self, cursor: int, page: Sequence[InstanceEvent]) -> set[str]:
        """Apply the events in smaller and smaller groups without moving the cursor. Set aside the instances that fail alone.

        Returns the UUIDs of those that failed or were refused. It may be repeated: an event counts once.
        """
        by_uuid: dict[str, list[InstanceEvent]] = {}
        for event in page:
            by_uuid.setdefault(event.key, []).append(event)

        refused: set[str] = set()

        def apply_groups(groups: Sequence[list[InstanceEvent]]) -> None:
            applied = self._commit_page(cursor, cursor, [event for group in groups for event in group], ())
            refused.update(event.key for event in applied.refused)

        done = isolate_failures(apply_groups, list(by_uuid.values()), transient=TRANSIENT)
        faults = {group[0].key: error for group, error in done.failed}
        self._aside.note_failed(STEP, faults)
        return set(faults) | refused

    def _commit_page(self, cursor: int, upto: int, page: Sequence[InstanceEvent], nodes: Sequence[ComputeNode]) -> Applied:
        """Apply in one transaction."""
        position = events.FeedPosition(cell_uuid=self._cell.uuid, cursor=cursor, upto=upto)
        now, timeout = self._database.current_time(), self._other_cell_timeout
        applied = self._ledger.write(events.apply_page, position, page, nodes, self._mapped, now=now, other_cell_timeout=timeout)
        if applied.refused:
            self._refuse_events(applied.refused)
        concerned: set[str] = set()
        for event in page:
            if event not in applied.refused:
                summary = event.summary
                if event.kind is EventKind.TASK or summary.server_uuid is not None:
                    concerned.add(summary.server_uuid or event.key)
                about = (event.key, request_of(summary.batch_id))
                log_step(
                    LOG, "applied", *about, cell=self._cell.name, host=summary.host, attempt=summary.attempt, state=summary.state
                )
        if concerned:
            self._signals.advance_servers(sorted(concerned))
        return applied
