"""Orders to agents, and what agents report back."""

from __future__ import annotations

import enum

from objects.base import Message
from objects.instance import Failure
from objects.selection import Limits
from objects.spec import RequestSpec


class BuildOrder(Message, frozen=True, kw_only=True):
    """Build this instance on this host, as this attempt under this fence. Doubled and stale orders are ignored by the agent."""

    instance_uuid: str
    name: str
    host: str
    node: str
    fence: int
    attempt: int
    limits: Limits | None = None


class BuildOrders(Message, frozen=True, kw_only=True):
    """All orders of one batch for one host: one cast."""

    spec: RequestSpec
    orders: tuple[BuildOrder, ...]


class DeleteOrder(Message, frozen=True, kw_only=True):
    """Destroy the guest of this instance, whatever it is doing, and answer ``gone`` with this attempt."""

    instance_uuid: str
    attempt: int


class ReportKind(enum.StrEnum):
    ACCEPT = "accept"  # may I spawn? (also: is this still mine to build?)
    ACTIVE = "active"  # the guest runs
    FAILED = "failed"  # this attempt is over, its guest destroyed
    GONE = "gone"  # a delete was carried out


class Report(Message, frozen=True, kw_only=True):
    """One agent's report on one attempt; ``builder`` is the agent's start that speaks (or, handing back, that had built)."""

    kind: ReportKind
    instance_uuid: str
    host: str
    fence: int
    attempt: int
    builder: str
    failure: Failure | None = None


class Verdict(Message, frozen=True, kw_only=True):
    """The cell's answer to a report. Refused: forget the build, and destroy its guest if there is one."""

    instance_uuid: str
    accepted: bool
    reason: str = ""


class Holding(Message, frozen=True, kw_only=True):
    """What the cell's records say about one instance on a host: all an agent needs to compare with its guests."""

    instance_uuid: str
    state: str
    fence: int
    attempt: int
    builder: str | None = None
