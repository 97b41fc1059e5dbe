"""Orders to agents, and what agents report back."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from objects.base import Message, Number
from objects.instance import Failure
from objects.selection import HostCapacity
from objects.spec import BootSecrets, RequestSpec


class BuildOrder(Message, frozen=True, kw_only=True):
    """Build this instance on this host, as this attempt under this fence. Doubled and stale orders are ignored by the agent."""

    VERSION: ClassVar[str] = "1.1"

    instance_uuid: str
    name: str
    host: str
    node: str
    fence: int
    attempt: int
    limits: HostCapacity | None = None


class BuildOrders(Message, frozen=True, kw_only=True):
    """All orders of one batch for one host: one cast. No secrets: a cast may wait on a broker's disk."""

    VERSION: ClassVar[str] = "2.2"

    spec: RequestSpec
    orders: tuple[BuildOrder, ...]


class DeleteOrder(Message, frozen=True, kw_only=True):
    """Destroy the guest of this instance, whatever it is doing, and answer ``gone`` with this attempt.

    What is of a later attempt than the order stays. ``fence`` 0: from a sender that does not say; whatever the fence.
    ``builds_only``: end a build under way; about a guest that runs, ask the cell by another ``active`` instead.
    """

    VERSION: ClassVar[str] = "1.2"

    instance_uuid: str
    attempt: int
    fence: int = 0
    builds_only: bool = False


class ReportKind(enum.StrEnum):
    ACCEPT = "accept"  # may I spawn? (also: is this still mine to build?)
    ACTIVE = "active"  # the guest runs
    FAILED = "failed"  # this attempt is over, its guest destroyed
    GONE = "gone"  # a delete was carried out


class Report(Message, frozen=True, kw_only=True):
    """One agent's report on one attempt; ``builder`` is the agent's start that speaks (or, handing back, that had built).

    ``wants_secrets``: with an ``accept`` of a build whose spec says that there are some. ``confirmed``: with an ``active`` that the
    cell has accepted before, from this start of the agent.
    """

    VERSION: ClassVar[str] = "1.4"

    kind: ReportKind
    instance_uuid: str
    host: str
    fence: Number
    attempt: Number
    builder: str
    failure: Failure | None = None
    wants_secrets: bool = False
    confirmed: bool = False


class Verdict(Message, frozen=True, kw_only=True):
    """The cell's answer to a report. Refused: forget the build, and destroy its guest if there is one, unless ``keep`` is true.

    ``secrets``: what a granted ``accept`` asked for. On the wire those of a batch are in one verdict of the answer, and the others
    name its instance in ``secrets_with``. ``known`` false: refused because the cell has no record of the instance, not even of its
    end; what becomes of a guest of it is the operator's to say. ``keep``: the record does not prove that the guest is superseded,
    so it stays. ``known`` is false with it: an older agent then keeps the guest as well.
    """

    VERSION: ClassVar[str] = "1.3"

    instance_uuid: str
    accepted: bool
    reason: str = ""
    known: bool = True
    keep: bool = False
    secrets: BootSecrets | None = None
    secrets_with: str | None = None


def with_secrets(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts of one answer, each with its own secrets rather than a reference to another's."""
    carried = {verdict.instance_uuid: verdict.secrets for verdict in verdicts if verdict.secrets is not None}
    return [
        msgspec.structs.replace(verdict, secrets=carried.get(verdict.secrets_with), secrets_with=None)
        if verdict.secrets_with is not None
        else verdict
        for verdict in verdicts
    ]


class Holding(Message, frozen=True, kw_only=True):
    """What the cell's records say about one instance on a host: all an agent needs to compare with its guests.

    ``builder``: to an agent that shares its broker user a digest of it (``objects.builder_digest``).
    """

    instance_uuid: str
    state: str
    fence: int
    attempt: int
    builder: str | None = None
