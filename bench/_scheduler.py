"""One scheduler process as ``bench/fleet_start.py`` measures it.

Arguments: the API database's URL, a leased request, and how many claims to make once all cells have been read, by how many threads.
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


def measure_claims(service: SchedulerService, api: Database, count: int, threads: int) -> None:
    """Say what durable claims cost, those that come one after the other and those of several threads."""
    from bench import _ledger, claims  # not before the start is measured

    claims.by_threads(service.manager, _ledger.lease_requests(api, 200), threads)
    for thread_count in sorted({1, threads}):
        leased = _ledger.lease_requests(api, count // (8 if thread_count == 1 else 1))
        began, burnt = time.perf_counter(), time.process_time()
        seconds = claims.by_threads(service.manager, leased, thread_count)
        took, burnt = time.perf_counter() - began, time.process_time() - burnt
        rate = f"{len(leased) / took:.0f} claims/s, {claims.describe_percentiles(seconds)}"
        print(f"  {thread_count} threads: {rate}, {burnt / len(leased) * 1e3:.2f} ms of CPU per claim", flush=True)


def main(url: str, request: str, claims: str = "0", threads: str = "8") -> None:
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
    if int(claims):
        measure_claims(service, api, int(claims), int(threads))
    service.stop()
    registry.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
