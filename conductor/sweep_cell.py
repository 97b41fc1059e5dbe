"""A cell's own sweeps: lost orders and deletes, dead hosts, overdue builds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from cells.presence import RECORD_LIFETIME_S
from conductor.cell_conductor import CellConductor, measure
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
from service.bisect import isolate
from service.liveness import Liveness
from service.periodic import Every
from service.steps import step

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

    def sweep(self) -> None:
        """Run all steps that have something to do.

        The steps after a failed one run nonetheless. Raises the first error at the end.
        """
        failed: list[Exception] = []
        steps: list[Callable[[], None]] = []
        self._try(lambda: steps.extend(self._due()), failed)
        if failed:
            steps = [self.dead_hosts]
        for each in steps:
            self._try(each, failed)
        if failed:
            raise failed[0]

    def _try(self, each: Callable[[], None], failed: list[Exception]) -> None:
        try:
            each()
        except Exception as error:  # noqa: BLE001 - the other steps must run; the first error is raised, the others are logged
            if failed:
                name = type(error).__name__
                text = "cell %s: a step of the sweep failed: %s: %s"
                trace = None if isinstance(error, errors.SuperconductorError) else error
                self._sender.complaints(f"sweep {name}", logging.WARNING, text, self._sender.name, name, error, exc_info=trace)
            failed.append(error)

    def _due(self) -> list[Callable[[], None]]:
        """The steps that have something to do, found with one statement."""
        now = self._database.now()
        found = self._database.read(due.look, now, now - self._resend_age, now - self._feed_age, RECORD_LIFETIME_S)
        if found.live:
            self._conductor.pace.hurry()
        may_repeat = True
        if self._look_at_mark_now() or found.overdue or found.unaccepted:
            may_repeat = not self._conductor.marks.look()
        # hosts are judged by their silence, so they are also looked at while nothing is under way
        steps: list[tuple[bool, Callable[[], None]]] = [
            (self._look_at_hosts_now() or found.live, self.dead_hosts),
            ((found.letters or self._aside.holds_letters) and self._refresh_now(), self._aside.refresh),
            (found.overdue and may_repeat, self.deadlines),  # a restored row may be of a build that is over
            (found.unaccepted and may_repeat, self.orders),
            (found.deleting, self.deletes),
            (found.tasks, self.tasks),
            (found.finished, lambda: erase_finished(self._database, self._aside)),
            (found.dead_processes, self._forget_processes),
            (found.old_events and self._trim_now(), self._trim),
        ]
        return [each for wanted, each in steps if wanted]

    def orders(self) -> None:
        """Send again the orders of rows that stay SCHEDULED: the order was lost or the host is slow. A repeated order is harmless.

        Each goes in its own message: the host may have refused the first message because of another order in it.
        """
        now = self._database.now()
        found = self._database.read(instances.unaccepted, now - self._resend_age, SWEEP_PAGE_SIZE)
        uuids = [*found.unreadable, *(order.instance.uuid for order in found.orders)]
        if not uuids:
            return
        self._database.write(instances.sent, uuids, now)  # unreadable ones too, or they would fill every page
        wanted = set(self._aside.due(ORDERS, uuids))
        refused = send_orders(self._sender, [order for order in found.orders if order.instance.uuid in wanted], apart=True)
        self._settle(ORDERS, wanted, {uuid: found.unreadable[uuid] for uuid in found.unreadable if uuid in wanted} | refused)

    def tasks(self) -> None:
        """Send again the orders of tasks that are not over, and forget those whose instances are not ACTIVE any more."""
        now = self._database.now()
        found, unreadable = self._database.read(tasks.unfinished, now - self._resend_age, SWEEP_PAGE_SIZE)
        self._database.write(tasks.sent, [*unreadable, *(task.instance_uuid for task in found)], now)
        self._database.write(tasks.over, [task.instance_uuid for task in found if task.order is None])
        wanted = set(self._aside.due(TASKS, [*unreadable, *(task.instance_uuid for task in found)]))
        refused = send_tasks(self._sender, self._context, [task for task in found if task.instance_uuid in wanted])
        self._settle(TASKS, wanted, {uuid: error for uuid, error in unreadable.items() if uuid in wanted} | refused)

    def deletes(self) -> None:
        """Send again the deletes of rows that stay DELETING: order or answer was lost. Rows that can have no agent end."""
        now = self._database.now()
        before = now - self._resend_age
        for page in _pages(lambda after: self._database.read(instances.in_state, [State.DELETING], before, SWEEP_PAGE_SIZE, after)):
            nowhere = [found for found in page if not _has_agent(found)]
            self._carry_out(DELETES, nowhere, lambda row, found: lifecycle.gone(row, found.host, found.attempt, now), now)
            wanted = self._aside.due(DELETES, [found for found in page if _has_agent(found)], key=_uuid)
            refused = send_deletes(self._sender, self._context, wanted)
            self._settle(DELETES, map(_uuid, wanted), refused)

    def deadlines(self) -> None:
        """End overdue builds as ERROR, under a new attempt that fences off their agent."""
        now = self._database.now()
        before = now - self._resend_age
        for page in _pages(lambda after: self._database.read(instances.overdue, now, before, SWEEP_PAGE_SIZE, after)):
            ended = self._carry_out(DEADLINES, page, lambda row, found: _deadline(row, found, now), now)
            self._settle(ORDERS, ended, {})
            building = [found for found in page if found.state == State.BUILDING and found.uuid in ended]
            send_deletes(self._sender, self._context, building, builds_only=True)  # if lost, the agent's audit finds the guests

    def dead_hosts(self) -> None:
        """Move builds from hosts that are down to their alternates, and end deletes there.

        Builds that a stopping host has not accepted move as well.
        """
        found = [service for service in self._database.read(services.list_all) if service.binary == AGENT_BINARY]
        down = self._liveness.down(found, time.monotonic())
        stopping = {service.host for service in found if service.stopping} - down
        if stopping and (moved := self._conductor.move_off(self._context, sorted(stopping))):
            LOG.info("hosts stopping: %s; %d builds that they had not accepted moved on", ", ".join(sorted(stopping)), moved)
        if not down or self._conductor.marks.look():
            return
        now = self._database.now()
        rows = self._database.read(instances.on_hosts, sorted(down), [*lifecycle.LIVE, State.DELETING])
        ended = self._carry_out(DEAD_HOSTS, rows, lambda row, found: _host_dead(row, found, now), now)
        if not ended:
            return
        self._conductor.resend([uuid for uuid, row in ended.items() if row is not None and row.state is State.SCHEDULED])
        LOG.warning("hosts down: %s; %d of their builds and deletes moved on or ended", ", ".join(sorted(down)), len(ended))

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _carry_out(
        self, name: str, rows: Sequence[DueRow], decide: Callable[[Instance, DueRow], Outcome], now: float
    ) -> dict[str, Instance | None]:
        """Apply ``decide`` to these rows. Returns the changed rows by instance UUID; None for a row that could only be ended.

        A row whose transition cannot be written is ended with a minimal write, unless it is a build that has time left.
        """
        wanted = self._aside.due(name, rows, key=_uuid)
        read = {found.uuid: found for found in wanted}

        def write(some: Sequence[DueRow]) -> dict[str, Outcome]:
            uuids = [found.uuid for found in some]
            return self._database.write(instances.transition, uuids, lambda row: decide(row, read[row.uuid]), now)

        done = isolate(write, wanted)
        outcomes = {uuid: outcome for result in done.results for uuid, outcome in result.items()}
        measure(outcomes.values(), now)
        changed: dict[str, Instance | None] = {u: outcome.row for u, outcome in outcomes.items() if isinstance(outcome, Change)}
        self._tell(name, read, changed)
        faults = {found.uuid: error for found, error in done.failed}
        endable = [found for found, _ in done.failed if name == DEADLINES or found.state == State.DELETING]
        ended = isolate(lambda some: self._end(some, faults, now), endable)
        for result in ended.results:
            changed |= dict.fromkeys(result)
            faults = {uuid: error for uuid, error in faults.items() if uuid not in result}
        self._settle(name, read, faults | {found.uuid: error for found, error in ended.failed})
        return changed

    def _end(self, rows: Sequence[DueRow], faults: dict[str, Exception], now: float) -> list[str]:
        """End these rows with a minimal write. Returns the UUIDs of those that had not changed since they were read."""
        states = self._database.write(minimal_end.end_all, rows, now)
        for found in rows:
            if (state := states.get(found.uuid)) is not None:
                text = "%s: the end of instance %s could not be written in full; it is %s, without its history"
                about = (self._sender.name, found.uuid, state)
                self._sender.complaints("minimal end", logging.ERROR, text, *about, exc_info=faults[found.uuid])
        return list(states)

    def _settle(self, name: str, wanted: Iterable[str], faults: dict[str, Exception]) -> None:
        """Set aside the items that failed, and remove the dead letters of those that succeeded."""
        self._aside.failed(name, faults)
        if self._aside.holds_letters:
            self._aside.succeeded(name, [uuid for uuid in wanted if uuid not in faults])

    def _tell(self, name: str, read: dict[str, DueRow], changed: dict[str, Instance | None]) -> None:
        for uuid, row in changed.items():
            if row is None:
                continue
            about = (uuid, request_of(row.batch_id))
            if name == DEAD_HOSTS:
                step(LOG, "taken off", *about, cell=self._sender.name, host=read[uuid].host, attempt=read[uuid].attempt)
            if row.state is State.ERROR:
                host = row.host if name == DEADLINES else None
                step(LOG, "error", *about, cell=self._sender.name, host=host, note=row.fault or "")

    def _trim(self) -> None:
        self._database.write(feed.trim, self._database.now() - self._feed_age)

    def _forget_processes(self) -> None:
        self._database.write(processes.forget, "cell", RECORD_LIFETIME_S)


def _pages(read: Callable[[str], list[DueRow]]) -> Iterable[list[DueRow]]:
    """Pages by UUID, so that rows that do not change do not hide the following ones."""
    after = ""
    while (page := read(after)) and page[-1].uuid != after:
        after = page[-1].uuid
        yield page


def _uuid(found: DueRow) -> str:
    return found.uuid


def _has_agent(found: DueRow) -> bool:
    """Whether there can be an agent that gets an order for this row and answers it."""
    try:
        checked_name("host", found.host)
    except errors.Invalid:
        return False
    return isinstance(found.attempt, int) and isinstance(found.fence, int)


def _host_dead(row: Instance, read: DueRow, now: float) -> Outcome:
    if row.state is State.DELETING:
        return lifecycle.gone(row, read.host or "", read.attempt, now)
    failure = Failure(kind=FailureClass.HOST, error="HostDown", message=f"Host {read.host} stopped reporting", at=now)
    return lifecycle.host_dead(row, read.attempt, failure)


def _deadline(row: Instance, read: DueRow, now: float) -> Outcome:
    stage = "building" if read.state == State.BUILDING else "waiting for its host"
    failure = Failure(kind=FailureClass.DEADLINE, error="BuildTimeout", message=f"timed out in {stage}", at=now)
    return lifecycle.deadline(row, read.attempt, failure)
