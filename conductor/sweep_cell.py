"""A cell's own sweeps: orders and deletes that were lost, hosts that died, builds that took too long."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from cells.presence import REMEMBERED
from conductor.cell_conductor import CellConductor
from conductor.erase import erase_finished
from conductor.measure import measure
from conductor.orders import Sender, send_deletes, send_orders
from db import feed, instances, processes, services
from db.due import look
from db.engine import Database
from objects import lifecycle
from objects.context import RequestContext, request_of
from objects.instance import Failure, FailureClass, Instance, State
from objects.lifecycle import Change, Outcome
from service.liveness import Liveness
from service.periodic import Every
from service.steps import step

LOG = logging.getLogger(__name__)

PAGE = 200
COMPUTE = "superconductor-compute"


class CellSweep:
    """Every round may be repeated or run early: each write is conditional on what was read."""

    def __init__(
        self, database: Database, sender: Sender, conductor: CellConductor, *, resend_age: float, down_time: float, feed_age: float
    ) -> None:
        self._database = database
        self._sender = sender
        self._conductor = conductor
        self._resend_age = resend_age
        self._feed_age = feed_age
        self._trim_now = Every(60.0)
        self._liveness = Liveness(down_time)
        self._context = RequestContext(request_id=f"sweep-{sender.name}")

    def sweep(self) -> None:
        """One round of all of them, as far as there is anything to do."""
        self.dead_hosts()
        now = time.time()
        due = self._database.read(look, now, now - self._resend_age)
        if due.overdue:
            self.deadlines()
        if due.unaccepted:
            self.orders()
        if due.deleting:
            self.deletes()
        if due.finished:
            erase_finished(self._database)
        if self._trim_now():
            self._database.write(feed.trim, time.time() - self._feed_age)
            self._database.write(processes.forget, "cell", REMEMBERED)

    def orders(self) -> None:
        """SCHEDULED and not accepted for a while: the order was lost, or its host is slow; sending it again is harmless."""
        now = time.time()
        orders = self._database.read(instances.unaccepted, now - self._resend_age, PAGE)
        if orders:
            self._database.write(instances.sent, [order.instance.uuid for order in orders], now)
            send_orders(self._sender, orders)

    def deletes(self) -> None:
        """DELETING for a while: the delete order or its answer was lost."""
        before, after = time.time() - self._resend_age, ""
        while rows := self._database.read(instances.in_state, [State.DELETING], before, PAGE, after):
            send_deletes(self._sender, self._context, rows)
            after = rows[-1].uuid

    def deadlines(self) -> None:
        """Builds whose time is over end as ERROR, under a new attempt that fences their agent off."""
        now = time.time()
        late = {row.uuid: row for row in self._database.read(instances.overdue, now, PAGE)}
        if late:
            outcomes = self._database.write(instances.transition, late, lambda row: _deadline(row, late[row.uuid], now), now)
            measure(outcomes.values(), now)
            for row in _changed(outcomes.values()):
                about = (row.uuid, request_of(row.batch_id))
                step(LOG, "error", *about, cell=self._sender.name, host=row.host, note=row.fault or "")
            ended = [row for uuid, row in late.items() if row.state is State.BUILDING and isinstance(outcomes[uuid], Change)]
            send_deletes(self._sender, self._context, ended)  # lost? then the agent's audit finds out

    def dead_hosts(self) -> None:
        """Builds on a host that is down go on to their alternates; guests being deleted there are called gone.

        From a host whose agent is stopping, the builds go that it has not accepted.
        """
        found = [service for service in self._database.read(services.list_all) if service.binary == COMPUTE]
        down = self._liveness.down(found, time.monotonic())
        stopping = {service.host for service in found if service.stopping} - down
        if stopping and (moved := self._conductor.move_off(self._context, sorted(stopping))):
            LOG.info("hosts stopping: %s; %d builds that waited for them went on", ", ".join(sorted(stopping)), moved)
        if not down:
            return
        now = time.time()
        states = [*lifecycle.LIVE, State.DELETING]
        rows = {row.uuid: row for row in self._database.read(instances.on_hosts, sorted(down), states)}
        if not rows:
            return
        outcomes = self._database.write(instances.transition, rows, lambda row: _host_dead(row, rows[row.uuid], now), now)
        measure(outcomes.values(), now)
        for row in _changed(outcomes.values()):
            about = (row.uuid, request_of(row.batch_id))
            step(LOG, "taken off", *about, cell=self._sender.name, host=rows[row.uuid].host, attempt=rows[row.uuid].attempt)
            if row.state is State.ERROR:
                step(LOG, "error", *about, cell=self._sender.name, note=row.fault or "")
        self._conductor.resend(_rescheduled(outcomes.values()))
        LOG.warning("hosts down: %s; %d builds and deletes there were taken off them", ", ".join(sorted(down)), len(rows))


def _host_dead(row: Instance, read: Instance, now: float) -> Outcome:
    if row.state is State.DELETING:
        return lifecycle.gone(row, read.host or "", read.attempt, now)
    failure = Failure(kind=FailureClass.HOST, error="HostDown", message=f"Host {read.host} stopped reporting", at=now)
    return lifecycle.host_dead(row, read.attempt, failure)


def _deadline(row: Instance, read: Instance, now: float) -> Outcome:
    stage = "building" if read.state is State.BUILDING else "waiting for its host"
    failure = Failure(kind=FailureClass.DEADLINE, error="BuildTimeout", message=f"timed out in {stage}", at=now)
    return lifecycle.deadline(row, read.attempt, failure)


def _changed(outcomes: Iterable[Outcome]) -> list[Instance]:
    return [outcome.row for outcome in outcomes if isinstance(outcome, Change)]


def _rescheduled(outcomes: Iterable[Outcome]) -> list[str]:
    return [row.uuid for row in _changed(outcomes) if row.state is State.SCHEDULED]
