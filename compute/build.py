"""One build or guest on this host: its phase and its state. ``compute/work_table.py`` shows the order of the phases."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field

from compute.driver import Guest, GuestSpec
from objects.build import Origin
from objects.instance import Failure
from objects.spec import BootSecrets
from objects.task import StoredContent, TaskOrder


class Phase(enum.StrEnum):
    ACCEPTING = "accepting"  # has its claim; waits for the cell's answer to ``accept``
    WAITING = "waiting"  # has its claim; a shared service is down, so it will ask the cell again later
    QUEUED = "queued"  # accepted; waits for a thread
    SPAWNING = "spawning"  # the driver spawns the guest
    REPORTING = "reporting"  # the guest runs; ``active`` is not answered yet
    RUNNING = "running"  # the guest is there, and the cell has confirmed it; its power may be off
    ASKING = "asking"  # has a task; waits for the cell's answer to ``begin``
    GRANTED = "granted"  # the task was granted; waits for a thread
    WORKING = "working"  # the driver carries out the task
    RETRYING = "retrying"  # the hold failed, no hypervisor, or the cell cannot decide yet: it will ask the cell again later
    FINISHING = "finishing"  # the task is over; ``done`` or ``task-failed`` is not answered yet
    DESTROYING = "destroying"  # the driver destroys the guest and all that belongs to it
    FAILED = "failed"  # no guest, no claim; ``failed`` is not answered yet


AT_TASK = frozenset({Phase.ASKING, Phase.GRANTED, Phase.WORKING, Phase.RETRYING, Phase.FINISHING})
"""The phases of a task: the guest is there and confirmed, as in RUNNING."""


@dataclass(eq=False, slots=True)
class Work:
    """The task of a guest."""

    order: TaskOrder
    restores: bool = False  # the task is over, and the host has lost the power that it gave
    tries: int = 0  # how often the guest could not be held
    failure: Failure | None = None
    stored: StoredContent | None = None  # what it has written into the image store
    secrets: BootSecrets | None = None  # of a rebuild, from the grant until the driver has returned

    @property
    def is_hard(self) -> bool:
        """Whether the guest's system is not asked to stop by itself. For a hold, only the first try asks."""
        return self.order.args.hard or self.tries > 0


@dataclass(eq=False, slots=True)
class Build:
    """One entry. Change it only while holding the lock of its ``compute.work_table.Entries``."""

    uuid: str
    fence: int
    attempt: int
    builder: str
    phase: Phase
    guest: Guest | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    failure: Failure | None = None
    delete_attempt: int | None = None  # the attempt with which to report ``gone`` once destroyed
    abandoned: bool = False  # the cell has revoked it: destroy without a report
    outage: bool = False  # a shared service was down: wait once destroyed
    outages: int = 0  # consecutive outages
    resume_at: float = 0.0  # when to ask the cell again, while WAITING or RETRYING
    confirmed: bool = False  # the cell has accepted ``active`` of the guest from this start of the agent
    unknown_since: float | None = None  # when the cell first said that it has no record of the guest
    unaccounted: str = ""  # why the cell's records do not account for a guest that stays
    overdue_at: float | None = None
    stuck: bool = False  # a destroy failed and must be retried
    wants_secrets: bool = False
    secrets: BootSecrets | None = None  # from the grant until a thread takes the build out of the queue
    spec: GuestSpec | None = None  # what was asked, until its guest runs
    origin: Origin | None = None  # the disk to copy; None: make it from the image
    work: Work | None = None  # from ASKING to FINISHING; in REPORTING one that waits for the answer


def build_of(guest: Guest, phase: Phase) -> Build:
    """The entry of a planned or existing guest."""
    return Build(uuid=guest.uuid, fence=guest.fence, attempt=guest.attempt, builder=guest.builder, phase=phase, guest=guest)
