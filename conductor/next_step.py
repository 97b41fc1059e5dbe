"""What an open operation needs next, as far as the API level knows: from its row and those of its two bodies."""

from __future__ import annotations

import enum

from db.api.operations.operations import Body, OpenOperation
from db.api.operations.steps import has_closed, has_received, has_started
from objects.operation import Operation, OperationKind, OperationState


class NextStep(enum.StrEnum):
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


def next_step(opened: OpenOperation, now: float, auto_confirm: float = 0.0, shelved_offload_time: float = 0.0) -> NextStep:
    """The next step. ``auto_confirm``: seconds after which a resize is confirmed; 0: only its user does.

    ``shelved_offload_time``: seconds after which a shelved server leaves its host; -1: never.
    """
    operation, source, twin = opened.operation, opened.source, opened.twin
    late = operation.deadline < now
    match operation.state:
        case OperationState.TASK:
            return _of_task(operation, source, late=late)
        case OperationState.SHELVED:
            is_due = shelved_offload_time >= 0 and operation.updated_at + shelved_offload_time <= now
            return NextStep.OFFLOAD if is_due else NextStep.WAIT
        case OperationState.SOFT_DELETED:
            return NextStep.RECLAIM if late else _ask_unless_told(source, operation.number)
        case OperationState.PLACING:
            return NextStep.GIVE_UP if late else NextStep.WAIT
        case OperationState.HOLDING:
            return _of_holding(operation, source, late=late)
        case OperationState.BUILDING:
            return _of_building(operation, twin, late=late)
        case OperationState.SENDING:
            return _of_sending(opened, late=late)
        case OperationState.VERIFY:
            return NextStep.CONFIRM if auto_confirm and operation.updated_at + auto_confirm < now else NextStep.WAIT
        case OperationState.REVERTING:
            held = twin is not None and twin.is_held(operation.number + 2, forced=True)  # the step looks whether its host is dead
            return NextStep.POINT_BACK if held else _ask_unless_told(twin, operation.number + 2)
        case OperationState.UNDOING:
            return NextStep.GIVEN_UP if twin is None or twin.server.state == "deleted" else NextStep.WAIT
        case OperationState.STARTING:
            return NextStep.FINISH if has_started(opened) else _ask_unless_told(source, operation.number + 3)
        case _:
            return NextStep.WAIT


def _of_task(operation: Operation, source: Body | None, *, late: bool) -> NextStep:
    if source is None or source.server.deleted:
        return NextStep.FINISH
    if source.server.task_number == operation.number and source.server.task_state.is_over:
        return NextStep.FINISH
    return NextStep.TIME_OUT if late else _ask_unless_told(source, operation.number)


def _of_holding(operation: Operation, source: Body | None, *, late: bool) -> NextStep:
    if late:
        return NextStep.GIVE_UP
    if not operation.kind.holds_source:
        return NextStep.DUE
    if source is not None and source.is_held(operation.number, forced=operation.forced):
        return NextStep.DUE
    return _ask_unless_told(source, operation.number)


def _of_building(operation: Operation, twin: Body | None, *, late: bool) -> NextStep:
    if twin is None or twin.server.deleted or twin.server.state in ("error", "deleted"):
        return NextStep.GIVE_UP
    if twin.server.state == "active":
        if operation.kind is not OperationKind.LIVE_MIGRATE:
            return NextStep.SWITCH
        return NextStep.GIVE_UP if late else NextStep.SEND
    return NextStep.GIVE_UP if late else NextStep.WAIT


def _of_sending(opened: OpenOperation, *, late: bool) -> NextStep:
    """The source is asked to go over. When it has answered, or the time is over, the twin is asked: its answer decides."""
    operation, twin = opened.operation, opened.twin
    if has_received(opened):
        return NextStep.SWITCH
    if has_closed(opened):
        return NextStep.GIVE_UP
    if twin is not None and twin.was_told(operation.number + 2):
        return NextStep.GIVE_UP if late else NextStep.WAIT  # the step looks whether its host is dead
    return NextStep.ASK if body_to_ask(opened, late=late) is not None else NextStep.WAIT


def body_to_ask(opened: OpenOperation, *, late: bool = False) -> Body | None:
    """The body whose cell is to be told of the task that the operation's state calls for; None: none yet.

    ``late``: the deadline of the operation has passed.
    """
    operation, source, twin = opened.operation, opened.source, opened.twin
    if operation.state is OperationState.REVERTING:
        return twin
    if operation.state is not OperationState.SENDING or source is None or not source.was_told(operation.number):
        return source
    return twin if source.task_answer is not None or late else None


def _ask_unless_told(body: Body | None, number: int) -> NextStep:
    """A task that the cell has told of is with the cell, which repeats its orders itself."""
    return NextStep.WAIT if body is None or body.server.task_number >= number else NextStep.ASK
