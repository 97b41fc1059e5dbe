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
from conductor.next_step import NextStep, body_to_ask, next_step
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
from service.logs import log_step
from service.periodic import Every
from service.rate_limited_log import RateLimitedLog

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
    NextStep.GIVE_UP: Ending.GIVE_UP,
    NextStep.POINT_BACK: Ending.POINT_BACK,
    NextStep.CONFIRM: Ending.CONFIRM,
    NextStep.RECLAIM: Ending.RECLAIM,
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

    def run_round(self) -> None:
        """Take every open operation as far as it goes, page by page."""
        if self._context.is_held:
            return
        after, compares = "", self._thaw_now()
        while page := self._database.read(operations.open_page, self._page, after):
            self._run(self._compare_frozen(page) if compares else page)
            after = page[-1].operation.server_uuid

    def _compare_frozen(self, page: Sequence[OpenOperation]) -> Sequence[OpenOperation]:
        """The page, once its frozen operations were compared with the cells."""
        frozen = [opened for opened in page if opened.operation.frozen is not None]
        if not frozen:
            return page
        self._thaw.compare_page(frozen)
        return self._database.read(operations.with_bodies, [_operation_uuid(opened) for opened in page])

    def advance_operations(self, uuids: Collection[str]) -> None:
        """Take these operations as far as they go."""
        self._run(self._database.read(operations.with_bodies, sorted(uuids)))

    def advance_servers(self, servers: Sequence[str]) -> None:
        """Take the open operations of these servers as far as they go: a cell has told of a change."""
        open_operations = self._database.read(operations.open_for, servers)
        if open_operations:
            self.advance_operations([operation.uuid for operation in open_operations.values()])

    # -- one step of each --------------------------------------------------------------------------------------------------------

    def _run(self, operations_found: Sequence[OpenOperation]) -> None:
        if not self._context.is_held:
            with contextlib.suppress(errors.NotCompared):  # the next sweep goes on
                self._take_steps(operations_found)

    def _take_steps(self, changed_operations: Sequence[OpenOperation]) -> None:
        for _ in range(STEPS_AT_ONCE):
            due = self._ready_operations(self._aside.due_items(STEP, changed_operations, key=_operation_uuid))
            now = self._database.current_time()
            by_step: dict[NextStep, list[OpenOperation]] = defaultdict(list)
            for opened in due:
                by_step[next_step(opened, now, self._auto_confirm, self._shelved_offload_time)].append(opened)
            changed: list[str] = []
            for next_step_wanted, members in by_step.items():
                changed += self._take_step(next_step_wanted, members, now)
            if not changed:
                return
            changed_operations = self._database.read(operations.with_bodies, sorted(changed))

    def _ready_operations(self, page: Sequence[OpenOperation]) -> list[OpenOperation]:
        """Without those that are frozen, and those that cannot be read: these are set aside."""
        odd = {
            _operation_uuid(opened): errors.Invalid(f"its row cannot be read: {opened.operation.unreadable}")
            for opened in page
            if opened.operation.unreadable
        }
        self._aside.note_failed(STEP, odd)
        return [opened for opened in page if _operation_uuid(opened) not in odd and opened.operation.frozen is None]

    def _take_step(self, step_due: NextStep, members: Sequence[OpenOperation], now: float) -> list[str]:
        """Take this step; returns the UUIDs of the operations that may go on at once."""
        if step_due is NextStep.WAIT:
            return []
        if step_due is NextStep.ASK:
            self._ask_cells(members, now)
            return []
        if step_due is NextStep.FINISH and self._drop is not None:
            members = [opened for opened in members if self._is_stored(opened, self._drop)]
        if step_due in _ENDINGS:
            members = self._not_last(_ENDINGS[step_due], members, now)
        done = self._aside.run(STEP, lambda chunk: self._write(step_due, chunk, now), members, key=_operation_uuid)
        changed: list[str] = []
        for result in done.results:
            for opened in result.operations:
                operation = opened.operation
                log_step(LOG, f"{operation.kind}: {step_due}", operation.server_uuid, operation.request_id, state=operation.state)
                changed.append(operation.uuid)
            if result.deleted:
                self._deleter.carry_out(result.deleted)
            if step_due is NextStep.DUE:
                self._builder.schedule_and_build(
                    [opened.twin.server.batch_id for opened in result.operations if opened.twin is not None]
                )
        return [] if step_due is NextStep.DUE else changed

    def _write(self, step_due: NextStep, members: Sequence[OpenOperation], now: float) -> Stepped:
        uuids = [opened.operation.uuid for opened in members]
        match step_due:
            case NextStep.DUE:
                return self._write_step(steps.queue_twins, uuids, now)
            case NextStep.SEND:
                return self._write_step(steps.send, uuids, now)
            case NextStep.SWITCH:
                return self._write_charged(steps.switch_servers, uuids, now)
            case NextStep.CONFIRM:
                return self._write_charged(steps.confirm_moves, uuids, now)
            case NextStep.POINT_BACK:
                return self._write_charged(steps.point_back, uuids, self._on_dead_hosts(members), now)
            case NextStep.GIVE_UP:
                faults = {opened.operation.uuid: _fault_of(opened, now) for opened in members}
                return self._write_charged(steps.give_up, faults, now, dead=self._on_dead_hosts(members))
            case NextStep.GIVEN_UP:
                return self._write_step(steps.given_up, uuids, now)
            case NextStep.OFFLOAD:
                return self._write_charged(shelving.offload_servers, uuids, now)
            case NextStep.RECLAIM:
                return self._write_charged(steps.reclaim_servers, uuids, now)
            case NextStep.TIME_OUT:
                return self._write_step(steps.time_out, uuids, now)
            case _:
                return self._write_step(steps.finish_tasks, uuids, now)

    def _write_step(self, fn: Callable[Concatenate[ApiTransaction, P], Stepped], *args: P.args, **kwargs: P.kwargs) -> Stepped:
        return self._database.write(incarnation.if_compared, self._context.known, fn, *args, **kwargs)

    def _write_charged(
        self, fn: Callable[Concatenate[ApiTransaction, Stamp, P], Stepped], *args: P.args, **kwargs: P.kwargs
    ) -> Stepped:
        return self._ledger.write(incarnation.charged_if_compared, self._context.known, fn, *args, **kwargs)

    def _not_last(self, ending: Ending, members: Sequence[OpenOperation], now: float) -> list[OpenOperation]:
        """Those whose end deletes no last body of a server. The others are frozen, or wait for their cells."""
        last = last_body.look_at_rows(self._registry, ending, members)
        for uuid, why in last.wrong.items():
            LOG.error("operation %s is not ended (%s): %s; it is compared with its cells", uuid, ending, why)
            self._database.write(thaw.freeze_operations, [uuid], why, now)
        for why in set(last.silent.values()):
            self._complaints(f"{ending} {why}", logging.WARNING, "operations wait: %s: %s", ending, why)
        return [
            opened for opened in members if _operation_uuid(opened) not in last.wrong and _operation_uuid(opened) not in last.silent
        ]

    def _is_stored(self, opened: OpenOperation, drop: DropFolders) -> bool:
        """Whether the image store has what the host of this operation has made, which is moved there now. Otherwise it waits."""
        operation, reported = opened.operation, opened.source.server if opened.source is not None else None
        writes = operation.kind is OperationKind.SHELVE or operation.kind.makes_image
        if not writes or operation.state is not OperationState.TASK or reported is None:
            return True
        if reported.task_number != operation.number or reported.task_state is not TaskState.DONE:
            return True
        try:
            drop.take_from_host(reported.host or "", operation.uuid, operation.args.image, reported.task_stored)
        except errors.ServiceUnavailable as error:
            self._complaints("drop folders", logging.WARNING, "operation %s waits: %s", operation.uuid, error)
            return False
        except errors.Invalid as error:  # it is not in the store, so nothing is built from it
            LOG.error("what host %s has made for operation %s is not safe: %s", reported.host, operation.uuid, error)
        return True

    def _on_dead_hosts(self, members: Sequence[OpenOperation]) -> list[str]:
        """The operations among these whose twins have not carried out what they were asked, and are on hosts that are called dead.

        Of a cell that does not answer that is not known, and its twins wait. Other operations must not wait with them.
        """
        waiting = [opened for opened in members if _waits_for_twin(opened)]
        dead: list[str] = []
        for cell_uuid in {opened.twin.server.cell_uuid for opened in waiting if opened.twin is not None}:
            try:
                hosts = set(self._registry.get(cell_uuid or "").read(services.forced_down, AGENT_BINARY))
            except (errors.Transient, errors.NotFound) as error:
                self._complaints(f"dead {cell_uuid}", logging.WARNING, "reverts wait for cell %s: %s", cell_uuid, error)
                continue
            dead += [opened.operation.uuid for opened in waiting if opened.twin is not None and opened.twin.server.host in hosts]
        return dead

    # -- tasks for cells -----------------------------------------------------------------------------------------------------------

    def _ask_cells(self, members: Sequence[OpenOperation], now: float) -> None:
        """Write tasks into the rows of their cells, one transaction for each cell, and send the orders."""
        by_cell: dict[str, list[tuple[OpenOperation, TaskFor]]] = defaultdict(list)
        connected = sorted({opened.operation.server_uuid for opened in members if opened.operation.settles_interfaces})
        ports = self._database.read(addresses.ports_of, connected) if connected else {}
        for opened in members:
            body = body_to_ask(opened, late=opened.operation.deadline < now)
            if body is not None and body.server.cell_uuid is not None:
                fault = CALLED_FAILED if opened.operation.kind is OperationKind.FAIL else None
                task_wanted = TaskFor(
                    instance_uuid=body.uuid, task=task_of(opened, body, ports.get(opened.operation.server_uuid, ())), fault=fault
                )
                by_cell[body.server.cell_uuid].append((opened, task_wanted))
        for cell_uuid, orders_of_cell in by_cell.items():
            try:
                cell = self._registry.get(cell_uuid)
                ready = self._with_secrets(cell_uuid, orders_of_cell)
                self._aside.run(STEP, partial(self._ask_cell, cell), ready, key=lambda pair: _operation_uuid(pair[0]))
            except (errors.Transient, errors.NotFound) as error:
                text = "%d operations wait for cell %s: %s"
                self._complaints(cell_uuid, logging.WARNING, text, len(orders_of_cell), cell_uuid, error)

    def _with_secrets(
        self, cell_uuid: str, task_pairs: Sequence[tuple[OpenOperation, TaskFor]]
    ) -> list[tuple[OpenOperation, TaskFor]]:
        """The tasks with their secrets, sealed for the cell. An operation whose secrets no key opens waits up to its deadline.

        A task whose secrets are gone is asked for without them, and its host fails it.
        """
        wanting = [_operation_uuid(opened) for opened, task_wanted in task_pairs if task_wanted.task.args.drive.has_secrets]
        secrets_kept = self._database.read(operations.kept_secrets, wanting) if wanting else {}
        ready: list[tuple[OpenOperation, TaskFor]] = []
        for opened, task_wanted in task_pairs:
            sealed = secrets_kept.get(_operation_uuid(opened))
            if sealed is not None:
                name = tasks.secrets_name(task_wanted.instance_uuid, task_wanted.task.number)
                try:
                    sealed = self._vault.seal_secrets(cell_uuid, name, self._vault.open(_operation_uuid(opened), sealed))
                except errors.Misconfigured as error:
                    self._complaints(
                        f"secrets {_operation_uuid(opened)}",
                        logging.ERROR,
                        "operation %s waits: %s",
                        _operation_uuid(opened),
                        error,
                    )
                    continue
            ready.append((opened, msgspec.structs.replace(task_wanted, sealed=sealed)))
        return ready

    def _ask_cell(self, cell: Cell, task_pairs: Sequence[tuple[OpenOperation, TaskFor]]) -> None:
        tasks_wanted = [ordered_task for _, ordered_task in task_pairs]
        outcomes = cell.write(tasks.ask_tasks, tasks_wanted, cell.current_time())
        taken = {uuid: outcome.row for uuid, outcome in outcomes.items() if isinstance(outcome, Change)}
        ordered = [
            ordered_task for ordered_task in tasks_wanted if ordered_task.instance_uuid in taken and ordered_task.fault is None
        ]
        due = [_due_task(taken[ordered_task.instance_uuid], ordered_task.task) for ordered_task in ordered]
        if due:
            send_tasks(cell, RequestContext(request_id=task_pairs[0][0].operation.request_id), due)


def _operation_uuid(opened: OpenOperation) -> str:
    return opened.operation.uuid


def _waits_for_twin(opened: OpenOperation) -> bool:
    if opened.twin is None or opened.operation.state not in (OperationState.REVERTING, OperationState.SENDING):
        return False
    return not (opened.twin.was_told(opened.operation.number + 2) and opened.twin.task_answer is TaskState.DONE)


def _due_task(row: Instance, task: Task) -> DueTask:
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


def _fault_of(opened: OpenOperation, now: float) -> str:
    operation, twin = opened.operation, opened.twin
    if twin is not None and twin.server.state == "error" and twin.server.fault:
        return twin.server.fault
    if has_closed(opened):
        fault = opened.source.server.task_fault if opened.source is not None else None
        return f"The server did not go over: {fault or 'its host has not answered in time.'}"
    if operation.deadline < now:
        return f"The {operation.kind} timed out in state {operation.state}."
    return f"The {operation.kind} lost its new host."
