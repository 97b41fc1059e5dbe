"""Orders to agents, and the agents' reports."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from objects.base import Message, Number
from objects.instance import Failure
from objects.port import Port
from objects.selection import HostCapacity
from objects.spec import BootSecrets, RequestSpec
from objects.task import Power, StoredContent, TaskState


class Origin(Message, frozen=True, kw_only=True):
    """The disk to copy for a new guest: that of ``instance_uuid`` on ``host``, whose agent serves it at ``address``.

    ``image_id``: copy this snapshot in the image store instead. ``image_hash``: the SHA-512 of its content; empty: not known.
    """

    VERSION: ClassVar[str] = "1.2"

    instance_uuid: str
    host: str
    address: str = ""
    image_id: str | None = None
    image_hash: str = ""


class BuildOrder(Message, frozen=True, kw_only=True):
    """Build this instance on this host, as this attempt under this fence. The agent ignores duplicate and stale orders.

    ``server_uuid``: what the guest itself sees; None: the instance's. ``power``: what the guest is to be once it is built.
    ``origin``: copy this disk; None: make the disk from the image. ``ports``: the network interfaces of the guest.
    """

    VERSION: ClassVar[str] = "1.7"

    instance_uuid: str
    name: str
    host: str
    node: str
    fence: int
    attempt: int
    limits: HostCapacity | None = None
    server_uuid: str | None = None
    power: Power = Power.ON
    origin: Origin | None = None
    ports: tuple[Port, ...] = ()


class BuildOrders(Message, frozen=True, kw_only=True):
    """All orders of one batch for one host, in one cast. It holds no secrets, because a broker may store a cast on disk."""

    VERSION: ClassVar[str] = "2.13"

    spec: RequestSpec
    orders: tuple[BuildOrder, ...]


class DeleteOrder(Message, frozen=True, kw_only=True):
    """Destroy the guest of this instance in any phase, and answer ``gone`` with this attempt.

    A guest or build of a later attempt than the order's stays. ``fence`` 0: the sender names none; any fence matches.
    ``builds_only``: end a build under way; for a running guest, send another ``active`` to the cell instead.
    """

    VERSION: ClassVar[str] = "1.2"

    instance_uuid: str
    attempt: int
    fence: int = 0
    builds_only: bool = False


class ReportKind(enum.StrEnum):
    ACCEPT = "accept"  # asks whether to spawn, or whether the build is still its own
    ACTIVE = "active"  # the guest runs
    FAILED = "failed"  # this attempt is over, its guest destroyed
    GONE = "gone"  # a delete was carried out
    BEGIN = "begin"  # asks whether to carry out a task
    DONE = "done"  # a task was carried out
    TASK_FAILED = "task-failed"  # a task was given up; the guest stays as it is
    POWER = "power"  # the guest is off, and no task turned it off


class Report(Message, frozen=True, kw_only=True):
    """One agent's report on one attempt. ``builder``: the agent start that reports, or when handing back, the one that had
    built.

    ``wants_secrets``: with an ``accept`` of a build whose spec has secrets, and with a ``begin`` of a rebuild: the agent can make
    the guest a new config drive. ``confirmed``: with an ``active`` that the cell has accepted before from this start of the agent.
    ``task``: the number of the task that the last four kinds are about; of ``power`` that of the latest one on record. Its
    ``failure`` says why the guest is off.
    ``restores``: with a ``begin`` of a task that is done, whose power the host has lost. ``stored``: with a ``done``, what the task
    has written into the image store. ``last_task``, ``power``: with an ``active``, the number of the guest's latest task, and the
    power that the guest has; 0 and empty: it had none, or its driver keeps none.
    """

    VERSION: ClassVar[str] = "1.8"

    kind: ReportKind
    instance_uuid: str
    host: str
    fence: Number
    attempt: Number
    builder: str
    failure: Failure | None = None
    wants_secrets: bool = False
    confirmed: bool = False
    task: Number = 0
    restores: bool = False
    stored: StoredContent | None = None
    last_task: Number = 0
    power: str = ""


class Verdict(Message, frozen=True, kw_only=True):
    """The cell's answer to a report. If it refuses, the agent forgets the build and destroys its guest, if any, unless ``keep``
    is true.

    ``secrets``: those that a granted ``accept`` or ``begin`` asked for. On the wire, one verdict of the answer has the secrets of a
    batch, and the others name its instance in ``secrets_with``.

    ``known`` false: refused because the cell has no record of the instance, not even of its end. The operator then decides what
    happens to its guest. ``keep``: the record does not prove that the guest is superseded, so it stays. ``known`` is then false
    too, so that an older agent also keeps the guest. ``later``: a ``begin`` that nobody can decide yet; the agent asks again.
    """

    VERSION: ClassVar[str] = "1.5"

    instance_uuid: str
    accepted: bool
    reason: str = ""
    known: bool = True
    keep: bool = False
    secrets: BootSecrets | None = None
    secrets_with: str | None = None
    later: bool = False


def with_secrets(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts of one answer, with references to another verdict's secrets replaced by the secrets."""
    carried = {verdict.instance_uuid: verdict.secrets for verdict in verdicts if verdict.secrets is not None}
    return [
        msgspec.structs.replace(verdict, secrets=carried.get(verdict.secrets_with), secrets_with=None)
        if verdict.secrets_with is not None
        else verdict
        for verdict in verdicts
    ]


class Holding(Message, frozen=True, kw_only=True):
    """The cell's record of one instance on a host, for comparison with the agent's guests.

    ``builder``: a digest of it (``objects.builder_digest``) if the agent shares its broker user. ``power``, ``task_number``,
    ``task_state``: what its guest is to be, and the latest task (``objects.task``).
    """

    VERSION: ClassVar[str] = "1.1"

    instance_uuid: str
    state: str
    fence: int
    attempt: int
    builder: str | None = None
    power: str = Power.ON
    task_number: int = 0
    task_state: str = TaskState.DONE
