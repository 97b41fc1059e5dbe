"""One scheduler process as ``bench/fleet_start.py`` measures it.

Arguments: the API database's URL, and a leased request.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cells.registry import CellRegistry
from db.sql.engine import Database
from objects import errors, stored
from objects.context import RequestContext
from objects.selection import Selection
from objects.spec import RequestSpec
from rpc.transport import Bus
from scheduler.framework.settings import SchedulerSettings
from scheduler.main import SchedulerService
from service.periodic import wait_until

SETTINGS = SchedulerSettings(service_down_time=1e6)
"""No agent reports here."""
READ_TIMEOUT_S = 600.0
"""Seconds in which all cells are to be read."""


def process_age() -> float:
    """Seconds since this process was started, to a hundredth."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def choose_host(service: SchedulerService, spec: RequestSpec) -> Selection:
    """The first decision. As a conductor would, ask again while not all hosts are known."""
    context = RequestContext(request_id="req-bench", project_id="p")
    while True:
        try:
            [[chosen, *_]] = service.manager.select_destinations(context, spec, list(spec.fences))
        except errors.Conflict:
            continue
        return chosen


def main(url: str, request: str) -> None:
    imported, importing = process_age(), time.process_time()
    spec = stored.load_text(request, RequestSpec)
    api = Database(url, name="api")
    registry = CellRegistry(api)
    service = SchedulerService(SETTINGS, registry, api, Bus("embedded://bench/fleet-start", name="api"))
    service.start()
    started = process_age()
    chosen = choose_host(service, spec)
    decided = process_age()
    wait_until(lambda: not service.freshness.is_reading, READ_TIMEOUT_S)
    read = process_age()
    memory = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now, most = (int(memory[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    moments = f"serving {started:.2f} s, first decision {decided:.2f} s, all cells read {read:.2f} s"
    times = f"imports {imported:.2f} s ({importing:.2f} s of CPU), {moments}"
    print(
        f"{times} ({time.process_time():.2f} s of CPU); {now:.0f} MiB, {most:.0f} MiB at most; {service.count_schedulable()} "
        "hosts, "
        f"chosen {chosen.host}",
        flush=True,
    )
    service.stop()
    registry.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
