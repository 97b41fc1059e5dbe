"""What an open operation needs next, as far as the API level knows: from its row and those of its two bodies."""

from __future__ import annotations

import enum

from db.api.operations.operations import Body, OpenOperation
from db.api.operations.steps import has_closed, has_received, has_started
from objects.operation import Operation, OperationKind, OperationState


class Next(enum.StrEnum):
    """The steps of ``db/api/operations/steps.py``, and two that write nothing there."""

    WAIT = "wait"
    ASK = "ask"  # a cell is to be told of a task
    DUE = "due"
    SEND = "send"
    SWITCH = "switch"
    CONFIRM = "confirm"
    POINT_BACK = "point back"
    GIVE_UP = "give up"
    GIVEN_UP = "given up"
    TIME_OUT = "time out"
    FINISH = "finish"
    OFFLOAD = "offload"
    RECLAIM = "reclaim"


def next_step(each: OpenOperation, now: float, auto_confirm: float = 0.0, shelved_offload_time: float = 0.0) -> Next:
    """The next step. ``auto_confirm``: seconds after which a resize is confirmed; 0: only its user does.

    ``shelved_offload_time``: seconds after which a shelved server leaves its host; -1: never.
    """
    operation, source, twin = each.operation, each.source, each.twin
    late = operation.deadline < now
    match operation.state:
        case OperationState.TASK:
            return _of_task(operation, source, late=late)
        case OperationState.SHELVED:
            is_due = shelved_offload_time >= 0 and operation.updated_at + shelved_offload_time <= now
            return Next.OFFLOAD if is_due else Next.WAIT
        case OperationState.SOFT_DELETED:
            return Next.RECLAIM if late else _ask_unless_told(source, operation.number)
        case OperationState.PLACING:
            return Next.GIVE_UP if late else Next.WAIT
        case OperationState.HOLDING:
            return _of_holding(operation, source, late=late)
        case OperationState.BUILDING:
            return _of_building(operation, twin, late=late)
        case OperationState.SENDING:
            return _of_sending(each, late=late)
        case OperationState.VERIFY:
            return Next.CONFIRM if auto_confirm and operation.updated_at + auto_confirm < now else Next.WAIT
        case OperationState.REVERTING:
            held = twin is not None and twin.is_held(operation.number + 2, forced=True)  # the step looks whether its host is dead
            return Next.POINT_BACK if held else _ask_unless_told(twin, operation.number + 2)
        case OperationState.UNDOING:
            return Next.GIVEN_UP if twin is None or twin.server.state == "deleted" else Next.WAIT
        case OperationState.STARTING:
            return Next.FINISH if has_started(each) else _ask_unless_told(source, operation.number + 3)
        case _:
            return Next.WAIT


def _of_task(operation: Operation, source: Body | None, *, late: bool) -> Next:
    if source is None or source.server.deleted:
        return Next.FINISH
    if source.server.task_number == operation.number and source.server.task_state.over:
        return Next.FINISH
    return Next.TIME_OUT if late else _ask_unless_told(source, operation.number)


def _of_holding(operation: Operation, source: Body | None, *, late: bool) -> Next:
    if late:
        return Next.GIVE_UP
    if not operation.kind.holds:
        return Next.DUE
    if source is not None and source.is_held(operation.number, forced=operation.forced):
        return Next.DUE
    return _ask_unless_told(source, operation.number)


def _of_building(operation: Operation, twin: Body | None, *, late: bool) -> Next:
    if twin is None or twin.server.deleted or twin.server.state in ("error", "deleted"):
        return Next.GIVE_UP
    if twin.server.state == "active":
        if operation.kind is not OperationKind.LIVE_MIGRATE:
            return Next.SWITCH
        return Next.GIVE_UP if late else Next.SEND
    return Next.GIVE_UP if late else Next.WAIT


def _of_sending(each: OpenOperation, *, late: bool) -> Next:
    """The source is asked to go over. When it has answered, or the time is over, the twin is asked: its answer decides."""
    operation, twin = each.operation, each.twin
    if has_received(each):
        return Next.SWITCH
    if has_closed(each):
        return Next.GIVE_UP
    if twin is not None and twin.was_told(operation.number + 2):
        return Next.GIVE_UP if late else Next.WAIT  # the step looks whether its host is dead
    return Next.ASK if body_to_ask(each, late=late) is not None else Next.WAIT


def body_to_ask(each: OpenOperation, *, late: bool = False) -> Body | None:
    """The body whose cell is to be told of the task that the operation's state calls for; None: none yet.

    ``late``: the deadline of the operation has passed.
    """
    operation, source, twin = each.operation, each.source, each.twin
    if operation.state is OperationState.REVERTING:
        return twin
    if operation.state is not OperationState.SENDING or source is None or not source.was_told(operation.number):
        return source
    return twin if source.answer is not None or late else None


def _ask_unless_told(body: Body | None, number: int) -> Next:
    """A task that the cell has told of is with the cell, which repeats its orders itself."""
    return Next.WAIT if body is None or body.server.task_number >= number else Next.ASK
