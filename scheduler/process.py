"""``superconductor-scheduler``: runs schedulers as separate processes, any number of them, without a leader."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from oslo_config import cfg

from cells import api_level
from cells import opts as cells_opts
from cells.api_level import ApiLevel
from cells.presence import Presence
from objects.process import SCHEDULER_BINARY
from scheduler import opts
from scheduler.main import SchedulerService
from scheduler.plugins import load_driver
from service import process
from service.process import Plan
from service.waiting import wait_for

POOL_SIZE = 5


class SchedulerRole:
    """One scheduler worker process."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._level = ApiLevel(conf, POOL_SIZE)
        self._service = SchedulerService(opts.read_settings(conf), self._level.registry, self._level.database, self._level.bus)
        self._presence = Presence(self._level.database, "api", SCHEDULER_BINARY, conf.report_interval)

    def start(self, stopped: threading.Event) -> None:
        if self._level.wait_ready(stopped, for_bus=True) and wait_for("a first look at the fleet", self._service.start, stopped):
            wait_for("the scheduler's topic", self._service.check_listening, stopped)
            self._presence.start()

    def stop(self) -> None:
        self._service.stop()
        self._presence.stop()
        self._level.close()

    def reload_settings(self) -> None:
        self._service.reload_settings(opts.read_settings(self._conf))


def read_plan(conf: cfg.ConfigOpts) -> Plan:
    """What to run. Raises Misconfigured for an unknown driver, filter or weigher, listing the known ones."""
    api_level.check_config(conf)
    load_driver(opts.read_settings(conf))
    return Plan(make=lambda: SchedulerRole(conf), workers=conf.scheduler.workers)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command ``superconductor-scheduler``. Returns its exit status."""
    return process.main(SCHEDULER_BINARY, argv, [opts.list_opts(), cells_opts.list_opts()], read_plan)


if __name__ == "__main__":
    sys.exit(main())
