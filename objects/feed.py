"""Change events of a cell."""

from __future__ import annotations

import enum
from typing import ClassVar

import msgspec

from objects import text
from objects.base import Message, Object
from objects.task import Power, StoredContent, TaskState


class EventKind(enum.StrEnum):
    MOVED = "moved"  # SCHEDULED on another host
    ACTIVE = "active"
    ENDED = "ended"  # ERROR or DELETED
    TASK = "task"  # a task of an ACTIVE instance was taken, or is over
    HOST = "host"  # a compute node appeared or changed; payload: ComputeNode
    SERVICE = "service"  # a service was disabled, enabled or forced down


INSTANCE_EVENTS = frozenset((EventKind.MOVED, EventKind.ACTIVE, EventKind.ENDED, EventKind.TASK))
"""Events about an instance: their payload is its ``InstanceSummary``."""


class FeedEvent(Message, frozen=True, kw_only=True):
    """One change in a cell, written in the transaction of the change. ``sequence`` is the commit order within the cell.

    ``key``: the instance uuid or the host. ``version``: the instance row's version after the change. ``payload``: JSON text of an
    ``InstanceSummary`` for instance events, and of a ``ComputeNode`` for host events.
    """

    VERSION: ClassVar[str] = "1.1"

    sequence: int
    kind: EventKind
    key: str
    version: int
    payload: str


class InstanceSummary(Message, frozen=True, kw_only=True):
    """The API level's copy of an instance, so that lists and quota are right while its cell is down. ``batch_id``: for logs.

    ``fault`` has no unsafe characters and at most ``text.FAULTS_SIZE`` bytes of UTF-8, even if an older release wrote it.
    ``power``, ``task_number``, ``task_state``: see ``Instance``. ``task_fault``: why the task failed. ``task_stored``: what it has
    written into the image store. ``server_uuid``: of a later
    body of a server (``objects/operation.py``), whose it is. ``exhausted``: no host of the cell could take its build.
    """

    VERSION: ClassVar[str] = "1.5"

    state: str
    host: str | None = None
    node: str | None = None
    availability_zone: str | None = None
    launched_at: float | None = None
    terminated_at: float | None = None
    updated_at: float = 0.0
    fault: str | None = None
    attempt: int = 1
    has_group: bool = False
    batch_id: str | None = None
    power: Power = Power.ON
    task_number: int = 0
    task_state: TaskState = TaskState.DONE
    task_fault: str | None = None
    task_stored: StoredContent | None = None
    server_uuid: str | None = None
    exhausted: bool = False

    def __post_init__(self) -> None:
        if self.fault:
            msgspec.structs.force_setattr(self, "fault", text.clean_text(self.fault, text.FAULTS_SIZE))
        if self.task_fault:
            msgspec.structs.force_setattr(self, "task_fault", text.clean_text(self.task_fault, text.FAULT_SIZE))


class InstanceEvent(Object, frozen=True, kw_only=True):
    """A feed event about an instance, checked (``objects/feed_check.py``), with the summary from its payload."""

    kind: EventKind
    key: str
    version: int
    summary: InstanceSummary
