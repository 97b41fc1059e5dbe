"""Change events of a cell."""

from __future__ import annotations

import enum
from typing import ClassVar

import msgspec

from objects import text
from objects.base import Message


class EventKind(enum.StrEnum):
    MOVED = "moved"  # SCHEDULED on another host
    ACTIVE = "active"
    ENDED = "ended"  # ERROR or DELETED
    HOST = "host"  # a compute node appeared or changed; payload: ComputeNode
    SERVICE = "service"  # a service was disabled, enabled or forced down


class FeedEvent(Message, frozen=True, kw_only=True):
    """One change in a cell, written in the transaction of the change. ``sequence`` is the commit order within the cell.

    ``key``: the instance uuid or the host. ``version``: the instance row's version after the change. ``payload``: JSON text of an
    ``InstanceSummary`` for instance events, and of a ``ComputeNode`` for host events.
    """

    sequence: int
    kind: EventKind
    key: str
    version: int
    payload: str


class InstanceSummary(Message, frozen=True, kw_only=True):
    """The API level's copy of an instance, so that lists and quota are right while its cell is down. ``batch_id``: for logs.

    ``fault`` has no unsafe characters and at most ``text.FAULTS_SIZE`` bytes of UTF-8, even if an older release wrote it.
    """

    VERSION: ClassVar[str] = "1.1"

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

    def __post_init__(self) -> None:
        if self.fault:
            msgspec.structs.force_setattr(self, "fault", text.clean(self.fault, text.FAULTS_SIZE))
