"""What the API answers per second, and how long an answer takes: a list of 1,000 servers, a show, a create. Asked by wrk over HTTP.

    python bench/api_wrk.py            an all-in-one, then a region of separate processes (about four minutes)
    python bench/api_wrk.py --smoke    the all-in-one with few servers, for a moment; figures not to be quoted

``--servers N``, ``--seconds S`` of each request, ``--connections N``, ``--only all-in-one|region``. wrk is Debian's; root gets it
if it is missing. The all-in-one is on SQLite files; its statements are counted in the process, without those of an idle deployment.
The region is one of deploy.local on RabbitMQ and MariaDB, which counts statements itself. Accepted creates are told per second:
their servers are built meanwhile, on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import requests
from rich.console import Console
from rich.table import Table

from bench._counters import Meter
from bench._place import FLAVOR, IMAGE, prepared_region, start_processes
from bench._script import parser_of
from bench.boots import running_deployment
from ci.stages import ACCEPT
from cli.standalone.all_in_one import DeploymentTimes
from deploy import packages
from deploy.local.processes import clean_environment
from deploy.local.shape import Shape
from deploy.servers import Unavailable
from objects.base import Object
from service.periodic import wait_until

PROGRAM = "wrk"
IDLE_S = 3.0
"""Seconds in which the statements of an idle deployment are counted."""
SCRIPT = """
wrk.method = "{method}"
wrk.headers["Content-Type"] = "application/json"
wrk.body = {body}
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\\nFIGURES {{"requests": %d, "microseconds": %d, "p50": %d, "p99": %d, "refused": %d, "failed": %d}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), errors.status,
    errors.connect + errors.read + errors.write + errors.timeout))
end
"""
SMALL = Shape(apis=1, supers=1, schedulers=1, conductors=1, agents=2)


class Figures(Object, frozen=True, kw_only=True):
    """``rate``: answers per second. ``p50`` and ``p99``: milliseconds. ``statements``: of SQL per answer."""

    request: str
    rate: float
    p50: float
    p99: float
    statements: float


class Wrk:
    """Asks one endpoint."""

    def __init__(self, endpoint: str, connections: int, seconds: float, statements: Callable[[], float]) -> None:
        """``statements``: the SQL statements so far."""
        self._endpoint = endpoint
        self._connections = connections
        self._seconds = seconds
        self._statements = statements
        before = statements()
        time.sleep(IDLE_S)
        self._idle = (statements() - before) / IDLE_S

    def measure_request(self, request: str, path: str, method: str = "GET", body: object = None) -> Figures:
        """Raises AssertionError where a request is refused or fails."""
        script = SCRIPT.format(method=method, body="nil" if body is None else f"[[{json.dumps(body)}]]")
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
            file.write(script)
            file.flush()
            command = [PROGRAM, "--threads", "1", "--connections", str(self._connections), "--timeout", "30s"]
            before, began = self._statements(), time.monotonic()
            command += ["--duration", f"{max(1, round(self._seconds))}s", "--script", file.name, f"{self._endpoint}{path}"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            executed, spent = self._statements() - before, time.monotonic() - began
        summary: dict[str, Any] = json.loads(done.stdout.split("FIGURES ", 1)[1])
        assert (summary["refused"], summary["failed"]) == (0, 0), f"{request}: {done.stdout}"
        answers = summary["requests"]
        return Figures(
            request=request,
            rate=answers / (summary["microseconds"] / 1e6),
            p50=summary["p50"] / 1000,
            p99=summary["p99"] / 1000,
            statements=max(0.0, executed - self._idle * spent) / answers,
        )

    def measure_all(self, server: str, flavor: str, servers: int) -> list[Figures]:
        new = {"server": {"name": "wrk", "flavorRef": flavor, "imageRef": IMAGE}}
        return [
            self.measure_request(f"list of {servers}, in detail", f"/servers/detail?limit={servers}"),
            self.measure_request(f"list of {servers}, names only", f"/servers?limit={servers}"),
            self.measure_request("show", f"/servers/{server}"),
            self.measure_request("create", "/servers", "POST", new),
        ]


def all_in_one(options: argparse.Namespace) -> list[Figures]:
    hosts = 4
    with running_deployment(hosts, max(1, options.servers // hosts), DeploymentTimes()) as bench, bench.statements as counter:
        server = bench.boot_servers("shown")

        def count_executed() -> float:
            return sum(count.executions for count in counter.totals_by_database().values())

        bench.wait("shown", 1)
        wrk = Wrk(bench.region.api_endpoint, options.connections, options.seconds, count_executed)
        return wrk.measure_all(server, "tiny", options.servers)


def measure_region(options: argparse.Namespace) -> list[Figures]:
    for name in os.environ.keys() - clean_environment().keys():  # a region reads its files only
        del os.environ[name]
    with prepared_region(SMALL) as running:
        meter = Meter(running)
        try:
            start_processes(running)
            endpoint = running.notes.api_endpoints()[0]
            with requests.Session() as http:
                http.trust_env = False
                flavors = http.get(f"{endpoint}/flavors", timeout=60).json()["flavors"]
                (flavor,) = [candidate["id"] for candidate in flavors if candidate["name"] == FLAVOR[0]]
                server = _boot_and_wait(http, endpoint, flavor, options.servers)
            wrk = Wrk(endpoint, options.connections, options.seconds, lambda: sum(meter.read_counts().statements.values()))
            return wrk.measure_all(server, flavor, options.servers)
        finally:
            meter.close()


def _boot_and_wait(http: requests.Session, endpoint: str, flavor: str, servers: int) -> str:
    """Boot so many servers and wait until the last is ACTIVE; the ID of one."""
    body: Any = {"name": "fill", "flavorRef": flavor, "imageRef": IMAGE, "min_count": servers, "max_count": servers}
    answer = http.post(f"{endpoint}/servers", json={"server": body}, timeout=60)
    assert answer.status_code == 202, answer.text

    def is_built() -> bool:
        active = http.get(f"{endpoint}/servers?status=ACTIVE&limit={servers}", timeout=60).json()["servers"]
        return len(active) == servers

    assert wait_until(is_built, 300.0, pause=0.5)
    return str(answer.json()["server"]["id"])


def main() -> int:
    parser = parser_of(__doc__, "a moment; the figures mean nothing")
    parser.add_argument("--servers", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--only", choices=("all-in-one", "region"))
    options = parser.parse_args()
    options.servers = options.servers or (20 if options.smoke else 1000)
    options.seconds = options.seconds or (1 if options.smoke else 10)
    console = Console(width=130)
    where = [options.only] if options.only else ["all-in-one"] if options.smoke else ["all-in-one", "region"]
    try:
        if packages.find_program(PROGRAM, os.environ.get("PATH", "").split(os.pathsep)) is None:
            packages.install_packages(PROGRAM)
        for kind in where:
            table = Table("request", "per second", "p50, ms", "p99, ms", "SQL statements each", title=kind)
            for figures in (all_in_one if kind == "all-in-one" else measure_region)(options):
                table.add_row(
                    figures.request, f"{figures.rate:.0f}", f"{figures.p50:.1f}", f"{figures.p99:.1f}", f"{figures.statements:.1f}"
                )
            console.print(table)
    except Unavailable as error:
        console.print(f"It cannot be measured here: {error}", markup=False)
        return 0 if options.smoke and any(os.environ.get(name) for name in ACCEPT) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
