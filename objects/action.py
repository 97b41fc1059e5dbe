"""What was asked of a server, and how it went: a start that is stored, and the rest read off the instance's row.

Nothing is written when an action ends or an attempt fails that is not written anyway: the row has its launch, its end, its fault
and the history of its attempts.
"""

from __future__ import annotations

import enum

import msgspec

from objects.base import Object
from objects.instance import Instance, State


class Kind(enum.StrEnum):
    """The actions there are."""

    CREATE = "create"
    DELETE = "delete"


class Started(Object, frozen=True, kw_only=True):
    """An action as it is stored. ``request_id`` None: a sweep carried it into the cell. Seconds since the epoch."""

    kind: Kind
    request_id: str | None
    started_at: float


class Event(Object, frozen=True, kw_only=True):
    """One attempt to build on one host, from its order to its end. ``finished_at`` None: under way; ``error`` None: no failure."""

    attempt: int
    host: str
    started_at: float
    finished_at: float | None = None
    error: str | None = None
    message: str | None = None


class Action(Object, frozen=True, kw_only=True):
    """``fault`` is why a creation ended in ERROR. ``finished_at`` None: under way."""

    kind: Kind
    request_id: str | None
    started_at: float
    finished_at: float | None = None
    fault: str | None = None
    events: tuple[Event, ...] = ()


_CURRENT = (State.SCHEDULED, State.BUILDING, State.ACTIVE)


def told(started: Started, row: Instance | None) -> Action:
    """The action with what the row says of it. Without a row, only that it was begun."""
    begun = Action(kind=started.kind, request_id=started.request_id, started_at=started.started_at)
    if row is None:
        return begun
    return _deletion(begun, row) if started.kind is Kind.DELETE else _creation(begun, row)


def _deletion(begun: Action, row: Instance) -> Action:
    return msgspec.structs.replace(begun, finished_at=row.terminated_at)


def _creation(begun: Action, row: Instance) -> Action:
    events: list[Event] = []
    at = begun.started_at
    for attempt in row.history:
        failure = attempt.failure
        events.append(
            Event(
                attempt=attempt.number,
                host=attempt.host,
                started_at=at,
                finished_at=failure.at,
                error=failure.error,
                message=failure.message,
            )
        )
        at = failure.at
    if row.host is not None and (row.state in _CURRENT or row.launched_at is not None):
        events.append(Event(attempt=row.attempt, host=row.host, started_at=at, finished_at=row.launched_at))
    over = row.state in (State.ERROR, State.DELETED)
    return msgspec.structs.replace(
        begun,
        finished_at=row.launched_at or ((row.terminated_at or at) if over else None),
        fault=row.fault,
        events=tuple(events),
    )
