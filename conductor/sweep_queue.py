"""The queue's sweep: builds whose doorbell was lost, and builds whose conductor died."""

from __future__ import annotations

from conductor.build import Builder
from db.api.queue import leases
from db.api.queue.due import SweepsDue
from db.sql.engine import ApiDatabase
from service.periodic import Every
from service.worker_pool import WorkerPool

LEASE_PAGE_SIZE = 50
GROUP_SIZE = 10
"""Number of batches that are built as one group; a slow batch delays only its group."""


class QueueSweep:
    """Leases and builds batches that wait for ``age`` seconds or whose lease has expired, a bounded number at a time.

    ``specless_interval``: seconds between looks for requests past their deadline whose spec is missing.
    """

    name = "queue"

    def __init__(
        self, api_database: ApiDatabase, builder: Builder, workers: int, age: float = 0.0, specless_interval: float = 30.0
    ) -> None:
        self._age = age
        self._database = api_database
        self._builder = builder
        self._look_for_specless = Every(specless_interval)
        self._pool = WorkerPool("build", workers)

    def has_work(self, due: SweepsDue) -> bool:
        return due.waiting or due.overdue

    def run_round(self) -> bool:
        """One page of batches; returns whether there may be more."""
        batch_ids = self._database.read(
            leases.list_waiting, self._database.current_time(), LEASE_PAGE_SIZE, self._age, self._builder.lease_seconds
        )
        groups = [batch_ids[start : start + GROUP_SIZE] for start in range(0, len(batch_ids), GROUP_SIZE)]
        builds = [self._pool.submit_call(self._builder.schedule_and_build, group) for group in groups]
        if self._look_for_specless():
            builds.append(self._pool.submit_call(self._builder.end_without_spec))
        self._pool.drain_calls(None)  # wait for all before raising the error of one
        for build in builds:
            if build.wait_end(0):  # a build that stop() dropped never ends
                build.get_result()
        return len(batch_ids) == LEASE_PAGE_SIZE

    def stop(self) -> None:
        """Drop the builds that have not begun, and wait for the others."""
        self._pool.stop()
        self._pool.drain_calls(None)
