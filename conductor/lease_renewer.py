"""What this process drives just now, and the leases that say so to the other conductors."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from db.api import leases
from db.sql.engine import ApiDatabase


@dataclasses.dataclass(kw_only=True, eq=False)
class Drive:
    """Requests under way.

    ``began``: seconds of this process's steady clock. ``deadline``: until when it is worth going on, by the API database's clock.
    """

    fences: dict[str, int]
    began: float
    deadline: float


class LeaseRenewer:
    """Extends the leases of requests that are under way for longer than expected, so that a lease may be short.

    Whoever is killed is succeeded soon; who is only slow, with a large batch or a slow server, keeps what it drives. A step that
    never ends is given up at the deadline of its requests. Safe for threads.
    """

    def __init__(self, api_database: ApiDatabase, lease_seconds: float) -> None:
        self._database = api_database
        self._lease_seconds = lease_seconds
        self._lock = threading.Lock()
        self._drives: list[Drive] = []

    @contextmanager
    def of(self, requests: Iterable[leases.LeasedRequest]) -> Iterator[None]:
        """While these requests are under way."""
        found = list(requests)
        deadline = min((r.deadline for r in found), default=0.0)
        drive = Drive(fences={r.instance_uuid: r.fence for r in found}, began=time.monotonic(), deadline=deadline)
        with self._lock:
            self._drives.append(drive)
        try:
            yield
        finally:
            with self._lock:
                self._drives.remove(drive)

    @contextmanager
    def each(self, batches: Iterable[leases.LeasedBatch]) -> Iterator[None]:
        """While these batches are under way, each up to its own deadline."""
        with ExitStack() as stack:
            for batch in batches:
                stack.enter_context(self.of(batch.requests))
            yield

    def leave(self, fences: Mapping[str, int], until: float) -> None:
        """Let the leases of these requests run out at ``until``, by the API database's clock: not extended from now on.

        An extension that is being written at this moment may come last: then they run out a lease later.
        """
        with self._lock:
            for drive in self._drives:
                for uuid in fences:
                    drive.fences.pop(uuid, None)
        self._database.write(leases.renew, fences, until)

    def renew(self) -> None:
        """To be called every third of a lease, or so. It writes only where something takes that long."""
        with self._lock:
            slow = [drive for drive in self._drives if drive.began < time.monotonic() - self._lease_seconds / 4]
            now = self._database.now() if slow else 0.0
            fences: dict[str, int] = {}
            for drive in slow:  # a later fence of the same request comes later
                if now < drive.deadline:
                    fences |= drive.fences
        if fences:
            self._database.write(leases.renew, fences, now + self._lease_seconds)
