"""Takes operations from step to step: tells cells what servers' hosts are to do, and points servers to their new bodies.

``docs/moves.md`` has the states and their guards. Everything here may be repeated at any time: a step that another conductor has
taken changes nothing. What a guard reads of a cell is what the cell's feed has told.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Concatenate, ParamSpec

import msgspec

from cells import last_body
from cells.cell import Cell
from cells.last_body import Ending
from cells.thaw import Thaw
from conductor.build import Builder
from conductor.context import ConductorContext
from conductor.delete import Deleter
from conductor.next_step import Next, body_to_ask, next_step
from conductor.operation_tasks import task_of
from conductor.orders import send_tasks
from db.api.claims.claims import Stamp
from db.api.operations import operations, shelving, steps, thaw
from db.api.operations.operations import OpenOperation
from db.api.operations.steps import Stepped, has_closed
from db.api.queue.due import SweepsDue
from db.api.rows import incarnation
from db.api.servers import addresses
from db.cell import services, tasks
from db.cell.tasks import DueTask, TaskFor
from db.sql.connection import ApiTransaction
from images.drop import DropFolders
from objects import errors
from objects.context import RequestContext
from objects.instance import Instance
from objects.lifecycle import Change
from objects.operation import CALLED_FAILED, OperationKind, OperationState
from objects.process import AGENT_BINARY
from objects.task import Task, TaskOrder, TaskState
from service.periodic import Every
from service.rate_limited_log import RateLimitedLog
from service.steps import step

P = ParamSpec("P")

LOG = logging.getLogger(__name__)

OPERATION_PAGE_SIZE = 200

STEPS_AT_ONCE = 4
"""Steps that one operation takes in one go at most; the next sweep goes on."""

THAW_INTERVAL_S = 10.0
"""Seconds between two comparisons of operations that could not be decided: each reads tables of all cells."""

STEP = "operate"
"""The step of dead letters about operations. Their keys are the UUIDs of the operations."""


_ENDINGS = {
    Next.GIVE_UP: Ending.GIVE_UP,
    Next.POINT_BACK: Ending.POINT_BACK,
    Next.CONFIRM: Ending.CONFIRM,
    Next.RECLAIM: Ending.RECLAIM,
}
"""Steps that delete a body of a server that may have another one."""


class Operator:
    """The sweep of open operations, and the steps themselves for those that hear of a change."""

    name = "operations"

    def __init__(
        self,
        context: ConductorContext,
        deleter: Deleter,
        builder: Builder,
        *,
        auto_confirm: float = 0.0,
        shelved_offload_time: float = 0.0,
        drop: DropFolders | None = None,
        page: int = OPERATION_PAGE_SIZE,
    ) -> None:
        """``builder``: builds the twins that may be handed over. ``auto_confirm``: seconds after which a resize is
        confirmed; 0: only its user does. ``shelved_offload_time``: those after which a shelved server leaves its host; -1: never.
        ``drop``: where hosts leave snapshots and images; None: they write into the image store.
        """
        self._context = context
        self._thaw = Thaw(context.ledger, context.registry, context.images)
        self._thaw_now = Every(THAW_INTERVAL_S)
        self._ledger = context.ledger
        self._database = context.database
        self._registry = context.registry
        self._deleter = deleter
        self._builder = builder
        self._auto_confirm = auto_confirm
        self._shelved_offload_time = shelved_offload_time
        self._vault = context.vault
        self._aside = context.aside
        self._drop = drop
        self._page = page
        self._complaints = RateLimitedLog(LOG)

    def has_work(self, due: SweepsDue) -> bool:
        return due.operations

    def sweep(self) -> None:
        """Take every open operation as far as it goes, page by page."""
        if self._context.is_held:
            return
        after, compares = "", self._thaw_now()
        while page := self._database.read(operations.open_page, self._page, after):
            self._run(self._compared(page) if compares else page)
            after = page[-1].operation.server_uuid

    def _compared(self, page: Sequence[OpenOperation]) -> Sequence[OpenOperation]:
        """The page, once its frozen operations were compared with the cells."""
        frozen = [each for each in page if each.operation.frozen is not None]
        if not frozen:
            return page
        self._thaw.compare(frozen)
        return self._database.read(operations.with_bodies, [_uuid(each) for each in page])

    def advance(self, uuids: Collection[str]) -> None:
        """Take these operations as far as they go."""
        self._run(self._database.read(operations.with_bodies, sorted(uuids)))

    def advance_servers(self, servers: Sequence[str]) -> None:
        """Take the open operations of these servers as far as they go: a cell has told of a change."""
        found = self._database.read(operations.open_for, servers)
        if found:
            self.advance([operation.uuid for operation in found.values()])

    # -- one step of each --------------------------------------------------------------------------------------------------------

    def _run(self, found: Sequence[OpenOperation]) -> None:
        if not self._context.is_held:
            with contextlib.suppress(errors.NotCompared):  # the next sweep goes on
                self._take_steps(found)

    def _take_steps(self, found: Sequence[OpenOperation]) -> None:
        for _ in range(STEPS_AT_ONCE):
            due = self._ready(self._aside.due(STEP, found, key=_uuid))
            now = self._database.now()
            by_step: dict[Next, list[OpenOperation]] = defaultdict(list)
            for each in due:
                by_step[next_step(each, now, self._auto_confirm, self._shelved_offload_time)].append(each)
            changed: list[str] = []
            for wanted, some in by_step.items():
                changed += self._take(wanted, some, now)
            if not changed:
                return
            found = self._database.read(operations.with_bodies, sorted(changed))

    def _ready(self, found: Sequence[OpenOperation]) -> list[OpenOperation]:
        """Without those that are frozen, and those that cannot be read: these are set aside."""
        odd = {
            _uuid(each): errors.Invalid(f"its row cannot be read: {each.operation.unreadable}")
            for each in found
            if each.operation.unreadable
        }
        self._aside.failed(STEP, odd)
        return [each for each in found if _uuid(each) not in odd and each.operation.frozen is None]

    def _take(self, wanted: Next, some: Sequence[OpenOperation], now: float) -> list[str]:
        """Take this step; returns the UUIDs of the operations that may go on at once."""
        if wanted is Next.WAIT:
            return []
        if wanted is Next.ASK:
            self._ask(some, now)
            return []
        if wanted is Next.FINISH and self._drop is not None:
            some = [each for each in some if self._is_stored(each, self._drop)]
        if wanted in _ENDINGS:
            some = self._not_last(_ENDINGS[wanted], some, now)
        done = self._aside.run(STEP, lambda chunk: self._write(wanted, chunk, now), some, key=_uuid)
        changed: list[str] = []
        for result in done.results:
            for each in result.operations:
                operation = each.operation
                step(LOG, f"{operation.kind}: {wanted}", operation.server_uuid, operation.request_id, state=operation.state)
                changed.append(operation.uuid)
            if result.deleted:
                self._deleter.carry_out(result.deleted)
            if wanted is Next.DUE:
                self._builder.schedule_and_build([each.twin.server.batch_id for each in result.operations if each.twin is not None])
        return [] if wanted is Next.DUE else changed

    def _write(self, wanted: Next, some: Sequence[OpenOperation], now: float) -> Stepped:
        uuids = [each.operation.uuid for each in some]
        match wanted:
            case Next.DUE:
                return self._step(steps.due, uuids, now)
            case Next.SEND:
                return self._step(steps.send, uuids, now)
            case Next.SWITCH:
                return self._charged(steps.switch, uuids, now)
            case Next.CONFIRM:
                return self._charged(steps.confirm, uuids, now)
            case Next.POINT_BACK:
                return self._charged(steps.point_back, uuids, self._on_dead_hosts(some), now)
            case Next.GIVE_UP:
                faults = {each.operation.uuid: _why(each, now) for each in some}
                return self._charged(steps.give_up, faults, now, dead=self._on_dead_hosts(some))
            case Next.GIVEN_UP:
                return self._step(steps.given_up, uuids, now)
            case Next.OFFLOAD:
                return self._charged(shelving.offload, uuids, now)
            case Next.RECLAIM:
                return self._charged(steps.reclaim, uuids, now)
            case Next.TIME_OUT:
                return self._step(steps.time_out, uuids, now)
            case _:
                return self._step(steps.finish, uuids, now)

    def _step(self, fn: Callable[Concatenate[ApiTransaction, P], Stepped], *args: P.args, **kwargs: P.kwargs) -> Stepped:
        return self._database.write(incarnation.if_compared, self._context.known, fn, *args, **kwargs)

    def _charged(self, fn: Callable[Concatenate[ApiTransaction, Stamp, P], Stepped], *args: P.args, **kwargs: P.kwargs) -> Stepped:
        return self._ledger.write(incarnation.charged_if_compared, self._context.known, fn, *args, **kwargs)

    def _not_last(self, ending: Ending, some: Sequence[OpenOperation], now: float) -> list[OpenOperation]:
        """Those whose end deletes no last body of a server. The others are frozen, or wait for their cells."""
        last = last_body.look(self._registry, ending, some)
        for uuid, why in last.wrong.items():
            LOG.error("operation %s is not ended (%s): %s; it is compared with its cells", uuid, ending, why)
            self._database.write(thaw.freeze, [uuid], why, now)
        for why in set(last.silent.values()):
            self._complaints(f"{ending} {why}", logging.WARNING, "operations wait: %s: %s", ending, why)
        return [each for each in some if _uuid(each) not in last.wrong and _uuid(each) not in last.silent]

    def _is_stored(self, each: OpenOperation, drop: DropFolders) -> bool:
        """Whether the image store has what the host of this operation has made, which is moved there now. Otherwise it waits."""
        operation, told = each.operation, each.source.server if each.source is not None else None
        writes = operation.kind is OperationKind.SHELVE or operation.kind.makes_image
        if not writes or operation.state is not OperationState.TASK or told is None:
            return True
        if told.task_number != operation.number or told.task_state is not TaskState.DONE:
            return True
        try:
            drop.take(told.host or "", operation.uuid, operation.args.image, told.task_stored)
        except errors.ServiceUnavailable as error:
            self._complaints("drop folders", logging.WARNING, "operation %s waits: %s", operation.uuid, error)
            return False
        except errors.Invalid as error:  # it is not in the store, so nothing is built from it
            LOG.error("what host %s has made for operation %s is not safe: %s", told.host, operation.uuid, error)
        return True

    def _on_dead_hosts(self, some: Sequence[OpenOperation]) -> list[str]:
        """The operations among these whose twins have not carried out what they were asked, and are on hosts that are called dead.

        Of a cell that does not answer that is not known, and its twins wait. Other operations must not wait with them.
        """
        waiting = [each for each in some if _waits_for_twin(each)]
        dead: list[str] = []
        for cell_uuid in {each.twin.server.cell_uuid for each in waiting if each.twin is not None}:
            try:
                hosts = set(self._registry.get(cell_uuid or "").read(services.forced_down, AGENT_BINARY))
            except (errors.Transient, errors.NotFound) as error:
                self._complaints(f"dead {cell_uuid}", logging.WARNING, "reverts wait for cell %s: %s", cell_uuid, error)
                continue
            dead += [each.operation.uuid for each in waiting if each.twin is not None and each.twin.server.host in hosts]
        return dead

    # -- tasks for cells -----------------------------------------------------------------------------------------------------------

    def _ask(self, some: Sequence[OpenOperation], now: float) -> None:
        """Write tasks into the rows of their cells, one transaction for each cell, and send the orders."""
        by_cell: dict[str, list[tuple[OpenOperation, TaskFor]]] = defaultdict(list)
        connected = sorted({each.operation.server_uuid for each in some if each.operation.settles})
        ports = self._database.read(addresses.ports_of, connected) if connected else {}
        for each in some:
            body = body_to_ask(each, late=each.operation.deadline < now)
            if body is not None and body.server.cell_uuid is not None:
                fault = CALLED_FAILED if each.operation.kind is OperationKind.FAIL else None
                wanted = TaskFor(
                    instance_uuid=body.uuid, task=task_of(each, body, ports.get(each.operation.server_uuid, ())), fault=fault
                )
                by_cell[body.server.cell_uuid].append((each, wanted))
        for cell_uuid, asked in by_cell.items():
            try:
                cell = self._registry.get(cell_uuid)
                ready = self._with_secrets(cell_uuid, asked)
                self._aside.run(STEP, partial(self._ask_cell, cell), ready, key=lambda pair: _uuid(pair[0]))
            except (errors.Transient, errors.NotFound) as error:
                text = "%d operations wait for cell %s: %s"
                self._complaints(cell_uuid, logging.WARNING, text, len(asked), cell_uuid, error)

    def _with_secrets(self, cell_uuid: str, asked: Sequence[tuple[OpenOperation, TaskFor]]) -> list[tuple[OpenOperation, TaskFor]]:
        """The tasks with their secrets, sealed for the cell. An operation whose secrets no key opens waits up to its deadline.

        A task whose secrets are gone is asked for without them, and its host fails it.
        """
        wanting = [_uuid(each) for each, wanted in asked if wanted.task.args.drive.has_secrets]
        kept = self._database.read(operations.kept_secrets, wanting) if wanting else {}
        ready: list[tuple[OpenOperation, TaskFor]] = []
        for each, wanted in asked:
            sealed = kept.get(_uuid(each))
            if sealed is not None:
                name = tasks.secrets_name(wanted.instance_uuid, wanted.task.number)
                try:
                    sealed = self._vault.seal(cell_uuid, name, self._vault.open(_uuid(each), sealed))
                except errors.Misconfigured as error:
                    self._complaints(f"secrets {_uuid(each)}", logging.ERROR, "operation %s waits: %s", _uuid(each), error)
                    continue
            ready.append((each, msgspec.structs.replace(wanted, sealed=sealed)))
        return ready

    def _ask_cell(self, cell: Cell, asked: Sequence[tuple[OpenOperation, TaskFor]]) -> None:
        wanted = [each for _, each in asked]
        outcomes = cell.write(tasks.ask, wanted, cell.now())
        taken = {uuid: outcome.row for uuid, outcome in outcomes.items() if isinstance(outcome, Change)}
        ordered = [each for each in wanted if each.instance_uuid in taken and each.fault is None]
        due = [_order(taken[each.instance_uuid], each.task) for each in ordered]
        if due:
            send_tasks(cell, RequestContext(request_id=asked[0][0].operation.request_id), due)


def _uuid(each: OpenOperation) -> str:
    return each.operation.uuid


def _waits_for_twin(each: OpenOperation) -> bool:
    if each.twin is None or each.operation.state not in (OperationState.REVERTING, OperationState.SENDING):
        return False
    return not (each.twin.was_told(each.operation.number + 2) and each.twin.answer is TaskState.DONE)


def _order(row: Instance, task: Task) -> DueTask:
    order = TaskOrder(
        instance_uuid=row.uuid,
        fence=row.fence,
        attempt=row.attempt,
        number=task.number,
        kind=task.kind,
        power=task.power,
        args=task.args,
        request_id=task.request_id,
    )
    return DueTask(instance_uuid=row.uuid, host=row.host or "", order=order)


def _why(each: OpenOperation, now: float) -> str:
    operation, twin = each.operation, each.twin
    if twin is not None and twin.server.state == "error" and twin.server.fault:
        return twin.server.fault
    if has_closed(each):
        fault = each.source.server.task_fault if each.source is not None else None
        return f"The server did not go over: {fault or 'its host has not answered in time.'}"
    if operation.deadline < now:
        return f"The {operation.kind} timed out in state {operation.state}."
    return f"The {operation.kind} lost its new host."
