"""A cell's own sweeps: lost orders and deletes, dead hosts, overdue builds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from cells.presence import RECORD_LIFETIME_S
from conductor.cell_conductor import CellConductor, measure_transitions
from conductor.orders import OrderSender, send_deletes, send_orders, send_tasks
from conductor.quarantine import REFRESH_INTERVAL_S
from conductor.tidy import erase_finished
from db import processes
from db.cell import due, feed, instances, minimal_end, services, tasks
from db.cell.instances import DueRow
from db.sql.engine import CellDatabase
from objects import errors, lifecycle
from objects.context import RequestContext, request_of
from objects.instance import Failure, FailureClass, Instance, State
from objects.lifecycle import Change, Outcome
from objects.process import AGENT_BINARY
from objects.text import checked_name
from service.bisect import isolate_failures
from service.liveness import Liveness
from service.logs import log_step
from service.periodic import Every

LOG = logging.getLogger(__name__)

SWEEP_PAGE_SIZE = 200
MARK_LOOK_INTERVAL_S = 5.0
"""Seconds between two looks at the database's mark while nothing is due: one that is lower later shows a restore."""
HOST_LOOKS_PER_DOWN_TIME = 3
"""How often hosts are looked at in a down time while nothing is under way."""

DEADLINES, DEAD_HOSTS, DELETES, ORDERS, TASKS = "deadlines", "dead hosts", "deletes", "orders", "tasks"
"""The steps of the sweep's dead letters. Their keys are the UUIDs of the instances."""


class CellSweep:
    """A round may be repeated or run early: each write is conditional on what was read.

    While builds, deletes or tasks are under way, it hurries the conductor's pace.

    A row that cannot be written does not affect others: it is set aside. Past its deadline it is ended by a write of the essential
    columns only (``db/cell/minimal_end.py``).
    """

    def __init__(
        self,
        database: CellDatabase,
        sender: OrderSender,
        conductor: CellConductor,
        *,
        resend_age: float,
        down_time: float,
        feed_age: float,
    ) -> None:
        self._database = database
        self._sender = sender
        self._conductor = conductor
        self._aside = conductor.aside
        self._resend_age = resend_age
        self._feed_age = feed_age
        self._trim_now = Every(60.0)
        self._refresh_now = Every(REFRESH_INTERVAL_S)
        self._look_at_mark_now = Every(MARK_LOOK_INTERVAL_S)
        self._liveness = Liveness(down_time)
        self._look_at_hosts_now = Every(down_time / HOST_LOOKS_PER_DOWN_TIME)
        self._context = RequestContext(request_id=f"sweep-{sender.name}")

    def sweep_cell(self) -> None:
        """Run all steps that have something to do.

        The steps after a failed one run nonetheless. Raises the first error at the end.
        """
        failed: list[Exception] = []
        steps: list[Callable[[], None]] = []
        self._try_step(lambda: steps.extend(self._due_steps()), failed)
        if failed:
            steps = [self.dead_hosts]
        for sweep_step in steps:
            self._try_step(sweep_step, failed)
        if failed:
            raise failed[0]

    def _try_step(self, sweep_step: Callable[[], None], failed: list[Exception]) -> None:
        try:
            sweep_step()
        except Exception as error:  # noqa: BLE001 - the other steps must run; the first error is raised, the others are logged
            if failed:
                name = type(error).__name__
                text = "cell %s: a step of the sweep failed: %s: %s"
                trace = None if isinstance(error, errors.SuperconductorError) else error
                self._sender.complaints(f"sweep {name}", logging.WARNING, text, self._sender.name, name, error, exc_info=trace)
            failed.append(error)

    def _due_steps(self) -> list[Callable[[], None]]:
        """The steps that have something to do, found with one statement."""
        now = self._database.current_time()
        due_now = self._database.read(due.look_for_work, now, now - self._resend_age, now - self._feed_age, RECORD_LIFETIME_S)
        if due_now.live:
            self._conductor.pace.hurry_for()
        may_repeat = True
        if self._look_at_mark_now() or due_now.overdue or due_now.unaccepted:
            may_repeat = not self._conductor.marks.read_mark()
        # hosts are judged by their silence, so they are also looked at while nothing is under way
        steps: list[tuple[bool, Callable[[], None]]] = [
            (self._look_at_hosts_now() or due_now.live, self.dead_hosts),
            ((due_now.letters or self._aside.holds_letters) and self._refresh_now(), self._aside.refresh_letters),
            (due_now.overdue and may_repeat, self.end_overdue),  # a restored row may be of a build that is over
            (due_now.unaccepted and may_repeat, self.resend_orders),
            (due_now.deleting, self.resend_deletes),
            (due_now.tasks, self.resend_tasks),
            (due_now.finished, lambda: erase_finished(self._database, self._aside)),
            (due_now.dead_processes, self._forget_processes),
            (due_now.old_events and self._trim_now(), self._trim_feed),
        ]
        return [sweep_step for is_due, sweep_step in steps if is_due]

    def resend_orders(self) -> None:
        """Send again the orders of rows that stay SCHEDULED: the order was lost or the host is slow. A repeated order is harmless.

        Each goes in its own message: the host may have refused the first message because of another order in it.
        """
        now = self._database.current_time()
        unaccepted = self._database.read(instances.list_unaccepted, now - self._resend_age, SWEEP_PAGE_SIZE)
        uuids = [*unaccepted.unreadable, *(order.instance.uuid for order in unaccepted.orders)]
        if not uuids:
            return
        self._database.write(instances.record_sent, uuids, now)  # unreadable ones too, or they would fill every page
        due_uuids = set(self._aside.due_items(ORDERS, uuids))
        refused = send_orders(self._sender, [order for order in unaccepted.orders if order.instance.uuid in due_uuids], apart=True)
        self._settle_letters(
            ORDERS, due_uuids, {uuid: unaccepted.unreadable[uuid] for uuid in unaccepted.unreadable if uuid in due_uuids} | refused
        )

    def resend_tasks(self) -> None:
        """Send again the orders of tasks that are not over, and forget those whose instances are not ACTIVE any more."""
        now = self._database.current_time()
        unfinished, unreadable = self._database.read(tasks.list_unfinished, now - self._resend_age, SWEEP_PAGE_SIZE)
        self._database.write(tasks.record_sent, [*unreadable, *(task.instance_uuid for task in unfinished)], now)
        self._database.write(tasks.forget_tasks, [task.instance_uuid for task in unfinished if task.order is None])
        due_uuids = set(self._aside.due_items(TASKS, [*unreadable, *(task.instance_uuid for task in unfinished)]))
        refused = send_tasks(self._sender, self._context, [task for task in unfinished if task.instance_uuid in due_uuids])
        self._settle_letters(TASKS, due_uuids, {uuid: error for uuid, error in unreadable.items() if uuid in due_uuids} | refused)

    def resend_deletes(self) -> None:
        """Send again the deletes of rows that stay DELETING: order or answer was lost. Rows that can have no agent end."""
        now = self._database.current_time()
        before = now - self._resend_age
        for page in _page_rows(
            lambda after: self._database.read(instances.in_state, [State.DELETING], before, SWEEP_PAGE_SIZE, after)
        ):
            nowhere = [due_row for due_row in page if not _has_agent(due_row)]
            self._carry_out(
                DELETES, nowhere, lambda row, due_row: lifecycle.confirm_gone(row, due_row.host, due_row.attempt, now), now
            )
            due_rows = self._aside.due_items(DELETES, [due_row for due_row in page if _has_agent(due_row)], key=_uuid_of)
            refused = send_deletes(self._sender, self._context, due_rows)
            self._settle_letters(DELETES, map(_uuid_of, due_rows), refused)

    def end_overdue(self) -> None:
        """End overdue builds as ERROR, under a new attempt that fences off their agent."""
        now = self._database.current_time()
        before = now - self._resend_age
        for page in _page_rows(lambda after: self._database.read(instances.list_overdue, now, before, SWEEP_PAGE_SIZE, after)):
            ended = self._carry_out(DEADLINES, page, lambda row, due_row: _miss_deadline(row, due_row, now), now)
            self._settle_letters(ORDERS, ended, {})
            building = [due_row for due_row in page if due_row.state == State.BUILDING and due_row.uuid in ended]
            send_deletes(self._sender, self._context, building, builds_only=True)  # if lost, the agent's audit finds the guests

    def dead_hosts(self) -> None:
        """Move builds from hosts that are down to their alternates, and end deletes there.

        Builds that a stopping host has not accepted move as well.
        """
        due_row = [service for service in self._database.read(services.list_all) if service.binary == AGENT_BINARY]
        down = self._liveness.hosts_down(due_row, time.monotonic())
        stopping = {service.host for service in due_row if service.stopping} - down
        if stopping and (moved := self._conductor.move_off(self._context, sorted(stopping))):
            LOG.info("hosts stopping: %s; %d builds that they had not accepted moved on", ", ".join(sorted(stopping)), moved)
        if not down or self._conductor.marks.read_mark():
            return
        now = self._database.current_time()
        rows = self._database.read(instances.on_hosts, sorted(down), [*lifecycle.LIVE, State.DELETING])
        ended = self._carry_out(DEAD_HOSTS, rows, lambda row, due_row: _host_dead(row, due_row, now), now)
        if not ended:
            return
        self._conductor.resend_orders([uuid for uuid, row in ended.items() if row is not None and row.state is State.SCHEDULED])
        LOG.warning("hosts down: %s; %d of their builds and deletes moved on or ended", ", ".join(sorted(down)), len(ended))

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _carry_out(
        self, name: str, rows: Sequence[DueRow], decide: Callable[[Instance, DueRow], Outcome], now: float
    ) -> dict[str, Instance | None]:
        """Apply ``decide`` to these rows. Returns the changed rows by instance UUID; None for a row that could only be ended.

        A row whose transition cannot be written is ended with a minimal write, unless it is a build that has time left.
        """
        due_rows = self._aside.due_items(name, rows, key=_uuid_of)
        read = {due_row.uuid: due_row for due_row in due_rows}

        def write(members: Sequence[DueRow]) -> dict[str, Outcome]:
            uuids = [due_row.uuid for due_row in members]
            return self._database.write(instances.transition_rows, uuids, lambda row: decide(row, read[row.uuid]), now)

        done = isolate_failures(write, due_rows)
        outcomes = {uuid: outcome for result in done.results for uuid, outcome in result.items()}
        measure_transitions(outcomes.values(), now)
        changed: dict[str, Instance | None] = {u: outcome.row for u, outcome in outcomes.items() if isinstance(outcome, Change)}
        self._log_changes(name, read, changed)
        faults = {due_row.uuid: error for due_row, error in done.failed}
        endable = [due_row for due_row, _ in done.failed if name == DEADLINES or due_row.state == State.DELETING]
        ended = isolate_failures(lambda members: self._end_rows(members, faults, now), endable)
        for result in ended.results:
            changed |= dict.fromkeys(result)
            faults = {uuid: error for uuid, error in faults.items() if uuid not in result}
        self._settle_letters(name, read, faults | {due_row.uuid: error for due_row, error in ended.failed})
        return changed

    def _end_rows(self, rows: Sequence[DueRow], faults: dict[str, Exception], now: float) -> list[str]:
        """End these rows with a minimal write. Returns the UUIDs of those that had not changed since they were read."""
        states = self._database.write(minimal_end.end_all, rows, now)
        for due_row in rows:
            if (state := states.get(due_row.uuid)) is not None:
                text = "%s: the end of instance %s could not be written in full; it is %s, without its history"
                about = (self._sender.name, due_row.uuid, state)
                self._sender.complaints("minimal end", logging.ERROR, text, *about, exc_info=faults[due_row.uuid])
        return list(states)

    def _settle_letters(self, name: str, processed: Iterable[str], faults: dict[str, Exception]) -> None:
        """Set aside the items that failed, and remove the dead letters of those that succeeded."""
        self._aside.note_failed(name, faults)
        if self._aside.holds_letters:
            self._aside.note_succeeded(name, [uuid for uuid in processed if uuid not in faults])

    def _log_changes(self, name: str, read: dict[str, DueRow], changed: dict[str, Instance | None]) -> None:
        for uuid, row in changed.items():
            if row is None:
                continue
            about = (uuid, request_of(row.batch_id))
            if name == DEAD_HOSTS:
                log_step(LOG, "taken off", *about, cell=self._sender.name, host=read[uuid].host, attempt=read[uuid].attempt)
            if row.state is State.ERROR:
                host = row.host if name == DEADLINES else None
                log_step(LOG, "error", *about, cell=self._sender.name, host=host, note=row.fault or "")

    def _trim_feed(self) -> None:
        self._database.write(feed.trim_events, self._database.current_time() - self._feed_age)

    def _forget_processes(self) -> None:
        self._database.write(processes.forget_dead, "cell", RECORD_LIFETIME_S)


def _page_rows(read: Callable[[str], list[DueRow]]) -> Iterable[list[DueRow]]:
    """Pages by UUID, so that rows that do not change do not hide the following ones."""
    after = ""
    while (page := read(after)) and page[-1].uuid != after:
        after = page[-1].uuid
        yield page


def _uuid_of(due_row: DueRow) -> str:
    return due_row.uuid


def _has_agent(due_row: DueRow) -> bool:
    """Whether there can be an agent that gets an order for this row and answers it."""
    try:
        checked_name("host", due_row.host)
    except errors.Invalid:
        return False
    return isinstance(due_row.attempt, int) and isinstance(due_row.fence, int)


def _host_dead(row: Instance, read: DueRow, now: float) -> Outcome:
    if row.state is State.DELETING:
        return lifecycle.confirm_gone(row, read.host or "", read.attempt, now)
    failure = Failure(kind=FailureClass.HOST, error="HostDown", message=f"Host {read.host} stopped reporting", at=now)
    return lifecycle.host_dead(row, read.attempt, failure)


def _miss_deadline(row: Instance, read: DueRow, now: float) -> Outcome:
    stage = "building" if read.state == State.BUILDING else "waiting for its host"
    failure = Failure(kind=FailureClass.DEADLINE, error="BuildTimeout", message=f"timed out in {stage}", at=now)
    return lifecycle.end_overdue(row, read.attempt, failure)
