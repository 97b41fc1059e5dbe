"""Actions on a server and their progress. Only the start of an action is stored; the rest is derived from other rows.

Nothing extra is written when an action ends, a stage is passed or an attempt fails. The mapping has the time of the hand-over, and
decisions have their times. The instance's row has its launch, its end, its fault and the history of its attempts.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from objects.base import Object
from objects.decision import Decision
from objects.instance import Attempt, Instance, Server, State
from objects.operation import Operation, OperationKind, Outcome


class ActionKind(enum.StrEnum):
    """The kinds of actions that are not operations (``objects/operation.py``), which go under their kinds.

    A cell stores the deletes only: a create is told from the server's mapping. Earlier releases stored it too.
    """

    CREATE = "create"
    DELETE = "delete"


class Stage(enum.StrEnum):
    """The names of events: those of Nova where it has the same event, otherwise similar ones (service and call)."""

    ACCEPT = "api_accept_build_request"
    SCHEDULE = "scheduler_select_destinations"
    STAGE = "conductor_stage_instance"
    HAND_OVER = "conductor_schedule_and_build_instances"  # from the request to its hand-over to a cell, or to cell0
    ORDER = "conductor_build_instances"  # from the order until its host begins to build
    BUILD = "compute__do_build_and_run_instance"
    DELETE = "compute_terminate_instance"


class Started(Object, frozen=True, kw_only=True):
    """A stored action. ``request_id`` None: a sweep brought it to the cell. Times in seconds since the epoch.

    ``user_id``: who asked for it; None: the server's user.
    ``written_at``: when an earlier release wrote it in the cell, which was when the instance was staged.
    """

    kind: ActionKind
    request_id: str | None
    started_at: float
    written_at: float | None = None
    user_id: str | None = None


class Event(Object, frozen=True, kw_only=True):
    """One stage, or one attempt on one host. ``finished_at`` None: under way. ``error`` None: no failure."""

    stage: str
    started_at: float
    finished_at: float | None = None
    attempt: int | None = None
    host: str | None = None
    error: str | None = None
    message: str | None = None


class Action(Object, frozen=True, kw_only=True):
    """``fault``: why a creation ended in ERROR. ``finished_at`` None: under way. ``events``: by attempt and stage.

    ``user_id``: who asked for it; None: the server's user.
    """

    kind: str
    request_id: str | None
    started_at: float
    finished_at: float | None = None
    fault: str | None = None
    events: tuple[Event, ...] = ()
    user_id: str | None = None

    @property
    def changed_at(self) -> float:
        """When it made progress for the last time, in seconds since the epoch."""
        times = [event.finished_at or event.started_at for event in self.events]
        return max(times, default=self.finished_at or self.started_at)


_STAGES = {
    OperationKind.CREATE_IMAGE: "compute_snapshot_instance",
    OperationKind.CREATE_BACKUP: "compute_backup_instance",
    OperationKind.CHANGE_PASSWORD: "compute_set_admin_password",
    OperationKind.CRASH_DUMP: "compute_trigger_crash_dump",
    OperationKind.SOFT_DELETE: "compute_soft_delete_instance",
    OperationKind.ATTACH_INTERFACE: "compute_attach_interface",
    OperationKind.DETACH_INTERFACE: "compute_detach_interface",
    OperationKind.MIGRATE: "cold_migrate",
    OperationKind.RESIZE: "compute_resize_instance",
    OperationKind.LIVE_MIGRATE: "compute_live_migration",
    OperationKind.EVACUATE: "rebuild_server",
}
"""The names of the events of moves, and of some others. Of the rest they are made of the kind."""


_NAMES = {
    OperationKind.LIVE_MIGRATE: "live-migration",
    OperationKind.CREATE_IMAGE: "createImage",
    OperationKind.CREATE_BACKUP: "createBackup",
    OperationKind.CHANGE_PASSWORD: "changePassword",
    OperationKind.CRASH_DUMP: "trigger_crash_dump",
    OperationKind.SOFT_DELETE: "softDelete",
    OperationKind.ATTACH_INTERFACE: "attach_interface",
    OperationKind.DETACH_INTERFACE: "detach_interface",
}
"""The names of actions that are not those of their kinds."""


def of_operation(operation: Operation) -> Action:
    """An operation as an action with one event, on the host where its server is then."""
    failed = operation.outcome not in (None, Outcome.DONE, Outcome.REVERTED)
    event = Event(
        stage=_STAGES.get(operation.kind, f"compute_{operation.kind}_instance"),
        started_at=operation.created_at,
        finished_at=operation.ended_at,
        host=operation.target_host if operation.outcome is Outcome.DONE and operation.target_host else operation.source_host,
        error=str(operation.outcome) if failed else None,
        message=operation.fault,
    )
    return Action(
        kind=_NAMES.get(operation.kind, operation.kind),
        request_id=operation.request_id,
        started_at=operation.created_at,
        finished_at=operation.ended_at,
        fault=operation.fault if failed else None,
        events=(event,),
        user_id=operation.user_id,
    )


_CURRENT = (State.SCHEDULED, State.BUILDING, State.ACTIVE)


def action_with_events(started: Started, server: Server, row: Instance | None, decisions: Iterable[Decision] = ()) -> Action:
    """The action with its events. ``row`` None: the cell has none or does not answer. ``decisions``: those about this server."""
    begun = Action(kind=started.kind, request_id=started.request_id, started_at=started.started_at, user_id=started.user_id)
    if started.kind is ActionKind.DELETE:
        return _deletion_of(begun, server, row)
    before = [*_before_its_cell(started, server, decisions)]
    if row is None:
        over = server.updated_at if server.state == "error" else None
        return msgspec.structs.replace(
            begun, finished_at=server.launched_at or over, fault=server.fault, events=tuple(_in_order(before))
        )
    attempts = _events_of_attempts(row, server.mapped_at or started.written_at or started.started_at)
    ended = row.state in (State.ERROR, State.DELETED)
    last = row.history[-1].failure.at if row.history else started.started_at
    return msgspec.structs.replace(
        begun,
        finished_at=row.launched_at or ((row.terminated_at or last) if ended else None),
        fault=row.fault,
        events=tuple(_in_order([*before, *attempts])),
    )


def _deletion_of(begun: Action, server: Server, row: Instance | None) -> Action:
    ended = row.terminated_at if row is not None else server.terminated_at
    host = row.host if row is not None else None
    event = Event(stage=Stage.DELETE, started_at=begun.started_at, finished_at=ended, host=host)
    return msgspec.structs.replace(begun, finished_at=ended, events=(event,))


def _before_its_cell(started: Started, server: Server, decisions: Iterable[Decision]) -> Iterable[Event]:
    """The work of the API level up to the hand-over, whose event has the reason if no host was found."""
    at = started.started_at
    yield Event(stage=Stage.ACCEPT, started_at=at, finished_at=at)
    staging_from = at
    for decision in decisions:
        error = "NoValidHost" if decision.is_refused else None
        began = max(at, decision.at - decision.elapsed_ms / 1000)
        yield Event(stage=Stage.SCHEDULE, started_at=began, finished_at=decision.at, error=error, message=decision.message or None)
        staging_from = decision.at
    buried = server.host is None and server.state == "error"
    staged_at = server.mapped_at if started.written_at is None and not buried else started.written_at
    if staged_at is not None:
        yield Event(stage=Stage.STAGE, started_at=min(staging_from, staged_at), finished_at=staged_at)
    yield Event(
        stage=Stage.HAND_OVER,
        started_at=at,
        finished_at=server.mapped_at,
        error="BuildFailed" if buried else None,
        message=server.fault if buried else None,
    )


def _events_of_attempts(row: Instance, handed_over: float) -> Iterable[Event]:
    """Each attempt begins with its order, when the previous one has ended. Its host begins to build when the build is granted."""
    at = handed_over
    for attempt in row.history:
        yield from _events_of_failure(attempt, at)
        at = attempt.failure.at
    if row.host is not None and (row.state in _CURRENT or row.launched_at is not None):
        began = row.building_at
        yield Event(stage=Stage.ORDER, started_at=at, finished_at=began or row.launched_at, attempt=row.attempt, host=row.host)
        if began is not None or row.state is not State.SCHEDULED:
            yield Event(stage=Stage.BUILD, started_at=began or at, finished_at=row.launched_at, attempt=row.attempt, host=row.host)


def _events_of_failure(attempt: Attempt, ordered_at: float) -> Iterable[Event]:
    failure, number, host = attempt.failure, attempt.number, attempt.host
    yield Event(stage=Stage.ORDER, started_at=ordered_at, finished_at=attempt.started_at or failure.at, attempt=number, host=host)
    yield Event(
        stage=Stage.BUILD,
        started_at=attempt.started_at or ordered_at,
        finished_at=failure.at,
        attempt=number,
        host=host,
        error=failure.error,
        message=failure.message,
    )


_ORDER: dict[str, int] = {stage: number for number, stage in enumerate(Stage)}


def _in_order(events: Sequence[Event]) -> list[Event]:
    """By attempt, with each stage after the one that leads to it. The hand-over spans its parts and comes after them."""
    return sorted(events, key=lambda event: (event.attempt or 0, _ORDER[event.stage], event.started_at))
