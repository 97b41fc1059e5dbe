"""One build on this host: the phase it is in, and what is known of it. ``compute/entries.py`` says how phases follow each other."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field

from compute.driver import Guest
from objects.instance import Failure
from objects.spec import BootSecrets


class Phase(enum.StrEnum):
    ACCEPTING = "accepting"  # has its claim; the cell was asked
    WAITING = "waiting"  # has its claim; a shared service is down, and the cell will be asked again
    QUEUED = "queued"  # accepted; waits for a thread
    SPAWNING = "spawning"  # the driver is at it
    REPORTING = "reporting"  # the guest runs; ``active`` is not answered yet
    RUNNING = "running"  # the guest runs and the cell has said so
    DESTROYING = "destroying"  # the driver is to leave nothing
    FAILED = "failed"  # no guest, no claim; ``failed`` is not answered yet


@dataclass(eq=False, slots=True)
class Build:
    """One entry: changed only by who holds the lock of its ``compute.entries.Entries``."""

    uuid: str
    fence: int
    attempt: int
    builder: str
    phase: Phase
    guest: Guest | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    failure: Failure | None = None
    delete_attempt: int | None = None  # answer a delete with this attempt once destroyed
    abandoned: bool = False  # the cell has taken it away: destroy, and say nothing
    outage: bool = False  # a shared service was down: once destroyed, wait
    outages: int = 0  # how often in a row
    resume_at: float = 0.0  # when the cell is to be asked again, while WAITING
    confirmed: bool = False  # the cell has accepted ``active`` of the guest, to this start of the agent
    unknown_since: float | None = None  # when the cell first said that it has no record of the guest
    unaccounted: str = ""  # why the cell's records do not account for a guest that stays
    overdue_at: float | None = None
    stuck: bool = False  # a destroy failed and is to be tried again
    wants_secrets: bool = False
    secrets: BootSecrets | None = None  # from the grant until a thread takes the build out of the queue


def build_of(guest: Guest, phase: Phase) -> Build:
    """The entry of a guest that is to be, or that is there."""
    return Build(uuid=guest.uuid, fence=guest.fence, attempt=guest.attempt, builder=guest.builder, phase=phase, guest=guest)
