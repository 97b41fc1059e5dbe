"""The work of this agent start, per instance: the agent's half of the boot protocol, without any I/O.

An entry locks its uuid: while it exists, nothing else can begin for that uuid. The thread that moved it into a phase does that
phase's work alone. So no lock is held during a spawn, a destroy or a call, yet two threads never work on one guest.

                 +---------------- WAITING                                a service that hosts share is down: ask again later
                 v                    ^
    begin -> ACCEPTING -> QUEUED -> SPAWNING -> REPORTING -> RUNNING      a guest that was found starts at REPORTING
                 |           |          |           |
              refused     stopping  DESTROYING <----+ refused             a delete goes to DESTROYING from anywhere
                 |           v          |                                 (from SPAWNING, WORKING: when the driver has returned)
              (forgotten)  FAILED <-----+---> (forgotten), WAITING

                                  +----- RETRYING <----+                  a guest is not off yet, no hypervisor, or "later"
                                  v                    |
    task order -> RUNNING -> ASKING -> GRANTED -> WORKING -> FINISHING -> RUNNING
                                  |        |           |
                               refused  stopping    restored -----------> RUNNING

``Builds`` moves them from the order to the reported guest, ``Guests`` by the cell's answers about that guest, ``Tasks`` from a task
order back to RUNNING, ``Ends`` into DESTROYING by a delete, and out of it.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

from compute import failures
from compute.build import Build, Phase
from compute.tracker import ResourceTracker
from objects.build import Report, ReportKind
from objects.instance import Failure

BARRED_LIMIT = 10_000
"""Ended builds that are remembered per host. For older ones, the answer to ``accept`` still refuses the order."""

ANY_FENCE = sys.maxsize
"""A delete without a fence bars every order that is still on its way, because a delete is final."""


class Entries:
    """The entries of one start of the agent on one host. ``builder`` names that start.

    Read and change them only inside ``with entries:``, which holds the lock, for one short step.
    """

    def __init__(self, host: str, builder: str, tracker: ResourceTracker, clock: Callable[[], float]) -> None:
        """``clock``: seconds since the epoch, noted in failures."""
        self.host = host
        self.builder = builder
        self.tracker = tracker
        self.clock = clock
        self.stopping = False
        """Whether the agent stops: nothing more may begin."""
        self.trouble = ""
        """Why the hypervisor cannot be used now; empty if it can. Meanwhile nothing begins, and nothing is tried again."""
        self._lock = threading.Lock()
        self._builds: dict[str, Build] = {}
        self._barred: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """By uuid, the highest fence and attempt whose orders are refused; oldest first."""

    def __enter__(self) -> Entries:
        self._lock.acquire()
        return self

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def __iter__(self) -> Iterator[Build]:
        return iter(self._builds.values())

    def __contains__(self, uuid: str) -> bool:
        return uuid in self._builds

    @property
    def is_busy(self) -> bool:
        """Whether anything but confirmed guests is here."""
        return any(build.phase is not Phase.RUNNING for build in self)

    def refusal_to_begin(self) -> Failure | None:
        """Why no build may begin now; None if one may."""
        if self.stopping:
            return failures.agent_stopping(self.clock())
        return failures.hypervisor_down(self.trouble, self.clock()) if self.trouble else None

    def get(self, uuid: str) -> Build | None:
        """The entry of this uuid, if there is one."""
        return self._builds.get(uuid)

    def enter_build(self, build: Build) -> Build:
        """Add a new entry; its attempt cannot begin again."""
        self._builds[build.uuid] = build
        self.bar_attempt(build.uuid, build.fence, build.attempt)
        return build

    def is_at(self, build: Build, *phases: Phase) -> bool:
        """Whether the build is still the entry of its uuid, and in one of these phases."""
        return build.phase in phases and self._builds.get(build.uuid) is build

    def move_build(self, build: Build, before: Phase, after: Phase) -> bool:
        """Move the build from one phase to another. Returns False, without a change, if it is not in the first one."""
        if not self.is_at(build, before):
            return False
        build.phase = after
        return True

    def forget_build(self, build: Build) -> None:
        """Release its claim and end the entry: its uuid is free again."""
        self.tracker.release_resources(build.uuid)
        del self._builds[build.uuid]

    def bar_attempt(self, uuid: str, fence: int, attempt: int) -> None:
        """Refuse orders of this attempt and of earlier ones, even after the entry has ended."""
        self._barred[uuid] = max((fence, attempt), self._barred.get(uuid, (0, 0)))
        self._barred.move_to_end(uuid)
        if len(self._barred) > BARRED_LIMIT:
            self._barred.popitem(last=False)

    def is_barred(self, uuid: str, fence: int, attempt: int) -> bool:
        """Whether an order of this attempt comes too late."""
        return (fence, attempt) <= self._barred.get(uuid, (0, 0))

    def make_report(self, kind: ReportKind, build: Build, *, attempt: int | None = None) -> Report:
        """A report of ``kind`` on this build. ``attempt`` None: the build's own."""
        last_task = build.guest.last_task if build.guest is not None and kind is ReportKind.ACTIVE else 0
        return Report(
            kind=kind,
            instance_uuid=build.uuid,
            host=self.host,
            fence=build.fence,
            attempt=build.attempt if attempt is None else attempt,
            builder=build.builder,
            failure=build.failure if kind is ReportKind.FAILED else None,
            wants_secrets=build.wants_secrets and kind is ReportKind.ACCEPT,
            confirmed=build.confirmed and kind is ReportKind.ACTIVE,
            last_task=last_task,
            power=build.guest.power if build.guest is not None and last_task else "",
        )
