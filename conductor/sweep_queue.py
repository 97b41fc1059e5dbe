"""The queue's sweep: builds whose doorbell was lost, and builds whose driver died."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

from conductor.build import Builder
from db import leases
from db.engine import Database

PAGE = 50


class QueueSweep:
    """Lease and build what waits, a bounded number of batches at a time."""

    def __init__(self, api_database: Database, builder: Builder, workers: int) -> None:
        self._database = api_database
        self._builder = builder
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="build")

    def sweep(self) -> bool:
        """One page of batches; returns whether there may be more."""
        batch_ids = self._database.read(leases.waiting, time.time(), PAGE)
        builds: list[Future[None]] = [self._pool.submit(self._builder.schedule_and_build, [batch]) for batch in batch_ids]
        for build in builds:
            build.result()
        return len(batch_ids) == PAGE

    def stop(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
