"""One idle process of the API level as ``bench/listing.py`` measures it. Arguments: its role, the API database's URL, seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import falcon.testing
import psutil

from api.main import build_app
from api.opts import ApiSettings
from cells.registry import CellRegistry
from conductor.main import SuperConductorService
from conductor.opts import ConductorSettings
from db.sql.engine import Database
from rpc.transport import Bus


def main(role: str, url: str, seconds: str) -> None:
    database = Database(url, name="api")
    registry = CellRegistry(database)
    bus = Bus("embedded://bench/listing", name="api")
    if role == "conductor":
        SuperConductorService(ConductorSettings(), registry, database, bus).start()
    else:
        app = build_app(ApiSettings(allowed_hosts=("falconframework.org",)), registry, database, bus, None)
        client = falcon.testing.TestClient(app)
        assert client.simulate_get("/v2.1/servers/detail").status_code == 200
        if role == "api asked":  # everything of every cell
            assert client.simulate_get("/v2.1/superconductor/status").status_code == 200
    time.sleep(float(seconds))  # what the start and the request set off comes to its end
    process = psutil.Process()
    before = process.cpu_times()
    time.sleep(float(seconds))  # what is used meanwhile runs by the clock
    after = process.cpu_times()
    cpu = (after.user + after.system - before.user - before.system) * 1000 / float(seconds)
    memory = process.memory_info().rss / (1 << 20)
    print(f"{memory:.1f} {threading.active_count()} {process.num_fds()} {cpu:.0f}", flush=True)
    os._exit(0)  # nothing here has to be ended in order


if __name__ == "__main__":
    main(*sys.argv[1:])
