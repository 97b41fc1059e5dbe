"""Notifications, with Nova's event names: which notices follow from a change, and their content.

A notice is written in the transaction of its change (``db/outbox.py``) and sent later. Every start has exactly one end or error. An
attempt, a delete and a call of the scheduler each begin once and end once, as their rows do.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID, uuid5

from objects.base import Object
from objects.compute_node import Service
from objects.decision import Decision
from objects.instance import Instance, Server, State
from objects.task import Power

_NAMESPACE = UUID("7d3f0c52-8f5b-4b52-9c39-2f6f6c0d0a2e")
"""Our namespace for IDs that are derived from the notice."""


class EventType(enum.StrEnum):
    """Nova's names, except ``.error`` of the scheduler's call: in Nova, a call that found no host has no end."""

    CREATE_START = "instance.create.start"
    CREATE_END = "instance.create.end"
    CREATE_ERROR = "instance.create.error"
    DELETE_START = "instance.delete.start"
    DELETE_END = "instance.delete.end"
    UPDATE = "instance.update"
    SELECT_START = "scheduler.select_destinations.start"
    SELECT_END = "scheduler.select_destinations.end"
    SELECT_ERROR = "scheduler.select_destinations.error"
    BUILD_ERROR = "compute_task.build_instances.error"
    SERVICE_CREATE = "service.create"
    SERVICE_UPDATE = "service.update"
    SERVICE_DELETE = "service.delete"

    @property
    def log_priority(self) -> str:
        """ERROR for failures, INFO for the rest."""
        return "ERROR" if self.endswith(".error") else "INFO"


class Facts(Object, frozen=True, kw_only=True):
    """The state when it happened. All other data about a subject is constant."""

    state: str | None = None
    old_state: str | None = None
    host: str | None = None
    node: str | None = None
    availability_zone: str | None = None
    attempt: int | None = None
    launched_at: float | None = None
    terminated_at: float | None = None
    error: str | None = None
    message: str | None = None
    instance_uuids: tuple[str, ...] = ()
    service: Service | None = None


class Notice(Object, frozen=True, kw_only=True):
    """One event. ``subject`` is an instance, for the scheduler a batch, for services a host. ``at`` in seconds since the epoch.

    ``key`` distinguishes events of one type about one subject: the version of the row, or the ID of the decision.
    """

    event_type: EventType
    subject: str
    key: str
    at: float
    facts: Facts = Facts()

    @property
    def message_id(self) -> str:
        """Always the same for this event, whichever process sends it, so that receivers can detect duplicates."""
        return str(uuid5(_NAMESPACE, f"{self.subject}/{self.key}/{self.event_type}"))


def of_change(old: Instance | None, new: Instance, now: float) -> list[Notice]:
    """The notices of a transition of an instance's row. ``old`` None: a delete found no row and left a tombstone.

    The build and the end of a later body are no birth and no death of its server: the API level tells of those that are.
    """
    if new.turn:
        return []
    notices = [*_of_attempt(old, new), *_of_state(old, new)]
    return [Notice(event_type=event, subject=new.uuid, key=f"{new.version}", at=now, facts=facts) for event, facts in notices]


Told = Iterator[tuple[EventType, Facts]]


def _of_attempt(old: Instance | None, new: Instance) -> Told:
    """An attempt ended without a guest. If its host had not begun, its start is added, because each end needs one."""
    if old is None:
        return
    began = old.state is State.BUILDING
    if len(new.history) > len(old.history):
        failure = new.history[-1].failure
        if not began:
            yield EventType.CREATE_START, _facts_of(old, old)
        yield EventType.CREATE_ERROR, _facts_of(old, old, failure.error, failure.message)
    elif began and new.state not in (State.BUILDING, State.ACTIVE):
        why = new.rolled_back or "The server was deleted while it was built."
        yield EventType.CREATE_ERROR, _facts_of(old, old, "BuildAborted", why)


def _of_state(old: Instance | None, new: Instance) -> Told:
    """A rolled back server is not deleted: nothing is sent while its guest is destroyed, and its end is a failed build.

    Nor is the server of a body that is held: another one runs by now, or the API level has told of the delete.
    """
    was = old.state if old is not None else None
    undone = old is not None and old.rolled_back is not None
    begun = was is State.DELETING and not undone
    facts = _facts_of(new, old)
    if new.state is State.BUILDING and was is not State.BUILDING:
        yield EventType.CREATE_START, facts
    elif new.state is State.ACTIVE and was is not State.ACTIVE:
        if was is not State.BUILDING:  # the cell had lost the grant of the build
            yield EventType.CREATE_START, facts
        yield EventType.CREATE_END, facts
    elif new.state is State.ERROR and was is not State.ERROR and new.host is not None:  # of_burial sends that of cell0
        yield EventType.BUILD_ERROR, _facts_of(new, old, "BuildFailed", new.fault)
    elif _is_deleted(new) and was is not State.DELETED:
        if not begun:
            yield EventType.DELETE_START, facts
        if new.state is State.DELETED:
            yield EventType.DELETE_END, facts


def _is_deleted(new: Instance) -> bool:
    return new.state in (State.DELETING, State.DELETED) and new.rolled_back is None and new.power is not Power.HELD


def of_decision(decision: Decision) -> list[Notice]:
    """Both notices of a scheduler call, sent when its decision is written."""
    uuids = tuple(choice.instance_uuid for choice in decision.choices)
    end = EventType.SELECT_ERROR if decision.is_refused else EventType.SELECT_END
    failed = Facts(error="NoValidHost", message=decision.message) if decision.is_refused else Facts()
    over = Facts(instance_uuids=uuids, error=failed.error, message=failed.message)
    began = decision.at - decision.elapsed_ms / 1000
    return [
        Notice(
            event_type=EventType.SELECT_START,
            subject=decision.batch_id,
            key=decision.id,
            at=began,
            facts=Facts(instance_uuids=uuids),
        ),
        Notice(event_type=end, subject=decision.batch_id, key=decision.id, at=decision.at, facts=over),
    ]


def of_hand_over(uuid: str, fence: int, host: str, node: str, now: float) -> Notice:
    """The request became a server in a cell."""
    facts = Facts(state="building", host=host, node=node)
    return Notice(event_type=EventType.UPDATE, subject=uuid, key=f"fence {fence}", at=now, facts=facts)


def of_burial(uuid: str, fence: int, fault: str, now: float) -> Notice:
    """The request found no host, and its server is in ERROR in cell0."""
    facts = Facts(state="error", error="NoValidHost", message=fault)
    return Notice(event_type=EventType.BUILD_ERROR, subject=uuid, key=f"fence {fence}", at=now, facts=facts)


def of_queued_delete(uuid: str, now: float) -> list[Notice]:
    """The request was deleted before it got a cell: start and end together."""
    gone = Facts(state="deleted", old_state="building", terminated_at=now)
    kinds = (EventType.DELETE_START, EventType.DELETE_END)
    return [Notice(event_type=kind, subject=uuid, key="queued", at=now, facts=gone) for kind in kinds]


def of_switch(server_uuid: str, operation_uuid: str, shown: Server, old_state: str, now: float) -> Notice:
    """The server is another body now: a move came to its goal, or was reverted, or the server left its host as it is shelved."""
    host, node = shown.host, shown.node
    facts = Facts(state=shown.state, old_state=old_state, host=host, node=node)
    return Notice(event_type=EventType.UPDATE, subject=server_uuid, key=f"{operation_uuid} {host}", at=now, facts=facts)


def of_moved_delete(server_uuid: str, host: str | None, now: float) -> list[Notice]:
    """A server that was moved, or is being moved, is deleted: start and end together, as its cells tell of no body's end."""
    gone = Facts(state="deleted", old_state="active", host=host, terminated_at=now)
    kinds = (EventType.DELETE_START, EventType.DELETE_END)
    return [Notice(event_type=kind, subject=server_uuid, key="moved", at=now, facts=gone) for kind in kinds]


def of_service(event: EventType, service: Service, now: float) -> Notice:
    """A service appeared, was changed by an operator, or was removed."""
    return Notice(event_type=event, subject=service.host, key=f"{service.uuid} {now}", at=now, facts=Facts(service=service))


def of_decisions(decisions: Iterable[Decision]) -> list[Notice]:
    return [notice for decision in decisions for notice in of_decision(decision)]


def of_changes(changes: Sequence[tuple[Instance | None, Instance]], now: float) -> list[Notice]:
    return [notice for old, new in changes for notice in of_change(old, new, now)]


_SHOWN = {State.ACTIVE: "active", State.ERROR: "error", State.DELETED: "deleted", State.DELETING: "active"}


def _facts_of(row: Instance, old: Instance | None, error: str | None = None, message: str | None = None) -> Facts:
    return Facts(
        state=_SHOWN.get(row.state, "building"),
        old_state=_SHOWN.get(old.state, "building") if old is not None else None,
        host=row.host,
        node=row.node,
        availability_zone=row.availability_zone,
        attempt=row.attempt,
        launched_at=row.launched_at,
        terminated_at=row.terminated_at,
        error=error,
        message=message,
    )
