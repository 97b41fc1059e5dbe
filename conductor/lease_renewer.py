"""The requests that this process drives, and the renewal of their leases."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from db.api.queue import leases
from db.sql.engine import ApiDatabase


@dataclasses.dataclass(kw_only=True, eq=False)
class Drive:
    """Requests of one batch in progress.

    ``fences``: by instance UUID. ``began``: seconds of the monotonic clock. ``deadline``: when renewal stops, by the API database's
    clock.
    """

    fences: dict[str, int]
    began: float
    deadline: float


class LeaseRenewer:
    """Renews the leases of requests that take longer than expected, so that leases can be short.

    Another conductor soon takes over from one that was killed; one that is only slow keeps its requests. Renewal stops at the
    deadline of the requests, in case a step never ends. Thread-safe.
    """

    def __init__(self, api_database: ApiDatabase, lease_seconds: float) -> None:
        self._database = api_database
        self._lease_seconds = lease_seconds
        self._lock = threading.Lock()
        self._drives: list[Drive] = []

    @contextmanager
    def renew_during(self, batches: Sequence[leases.LeasedBatch]) -> Iterator[None]:
        """Renew the leases of these batches inside the ``with`` block, each up to its own deadline."""
        drives = [
            Drive(
                fences={request.instance_uuid: request.fence for request in batch.requests},
                began=time.monotonic(),
                deadline=min((request.deadline for request in batch.requests), default=0.0),
            )
            for batch in batches
        ]
        with self._lock:
            self._drives += drives
        try:
            yield
        finally:
            with self._lock:
                self._drives = [drive for drive in self._drives if drive not in drives]

    def leave_leases(self, fences: Mapping[str, int], until: float) -> None:
        """Let the leases of these requests expire at ``until``, by the API database's clock: they are not renewed any more.

        A concurrent renewal may be written last: then they expire one lease time later.
        """
        self.forget_requests(fences)
        self._database.write(leases.renew_leases, fences, until)

    def forget_requests(self, uuids: Iterable[str]) -> None:
        """Do not renew the leases of these requests any more."""
        with self._lock:
            for drive in self._drives:
                for uuid in uuids:
                    drive.fences.pop(uuid, None)

    def renew_leases(self) -> None:
        """Renew leases; call it about every third of a lease. It writes only for requests older than a quarter of a lease."""
        with self._lock:
            slow = [drive for drive in self._drives if drive.began < time.monotonic() - self._lease_seconds / 4]
            now = self._database.current_time() if slow else 0.0
            fences: dict[str, int] = {}
            for drive in slow:  # in order, so the later fence of a request wins
                if now < drive.deadline:
                    fences |= drive.fences
        if fences:
            self._database.write(leases.renew_unlocked, fences, now + self._lease_seconds)
