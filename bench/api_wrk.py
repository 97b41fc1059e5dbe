"""What the API answers per second, and how long an answer takes: a list of 1,000 servers, a show, a create. Asked by wrk over HTTP.

    python bench/api_wrk.py            a region of separate processes on RabbitMQ and MariaDB, with one API (about two minutes)
    python bench/api_wrk.py --smoke    with few servers, for a moment; figures not to be quoted

``--servers N``, ``--seconds S`` of each request, ``--connections N``. wrk is Debian's; root gets it if it is missing. MariaDB
counts statements; those of an idle region are taken off. Accepted creates are told per second: their servers are built meanwhile,
on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from bench._place import IMAGE, SMALL, Bench, end_unmeasured, running_region
from bench._script import parser_of, print_table
from deploy import packages
from deploy.servers import Unavailable

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


class Wrk:
    """Asks the API of a region."""

    def __init__(self, bench: Bench, options: argparse.Namespace) -> None:
        (self._endpoint,) = bench.region.notes.api_endpoints()
        self._options = options
        self._meter = bench.meter
        before = self._count_statements()
        time.sleep(IDLE_S)
        self._idle = (self._count_statements() - before) / IDLE_S

    def measure_request(self, request: str, path: str, method: str = "GET", body: object = None) -> list[str]:
        """A row of the table, of all answers in these seconds. Raises AssertionError where a request is refused or fails."""
        script = SCRIPT.format(method=method, body="nil" if body is None else f"[[{json.dumps(body)}]]")
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
            file.write(script)
            file.flush()
            command = [PROGRAM, "--threads", "1", "--connections", str(self._options.connections), "--timeout", "30s"]
            before, began = self._count_statements(), time.monotonic()
            command += ["--duration", f"{max(1, round(self._options.seconds))}s", "--script", file.name, f"{self._endpoint}{path}"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            executed, spent = self._count_statements() - before, time.monotonic() - began
        summary: dict[str, Any] = json.loads(done.stdout.split("FIGURES ", 1)[1])
        assert (summary["refused"], summary["failed"]) == (0, 0), f"{request}: {done.stdout}"
        rate = summary["requests"] / (summary["microseconds"] / 1e6)
        statements = max(0.0, executed - self._idle * spent) / summary["requests"]
        return [request, f"{rate:.0f}", f"{summary['p50'] / 1000:.1f}", f"{summary['p99'] / 1000:.1f}", f"{statements:.1f}"]

    def _count_statements(self) -> float:
        return sum(self._meter.count_statements().values())


def measure_requests(bench: Bench, options: argparse.Namespace) -> list[list[str]]:
    servers, client = options.servers, bench.client
    server = client.boot_servers("fill", servers)
    bench.meter.wait_active("fill", servers, pause=0.5, timeout_s=300.0)
    wrk = Wrk(bench, options)
    new = {"server": {"name": "wrk", "flavorRef": client.flavor, "imageRef": IMAGE}}
    return [
        wrk.measure_request(f"list of {servers}, in detail", f"/servers/detail?limit={servers}"),
        wrk.measure_request(f"list of {servers}, names only", f"/servers?limit={servers}"),
        wrk.measure_request("show", f"/servers/{server}"),
        wrk.measure_request("create", "/servers", "POST", new),
    ]


def main() -> None:
    parser = parser_of(__doc__, "a moment; the figures mean nothing")
    parser.add_argument("--servers", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--connections", type=int, default=8)
    options = parser.parse_args()
    options.servers = options.servers or (20 if options.smoke else 1000)
    options.seconds = options.seconds or (1 if options.smoke else 10)
    try:
        if packages.find_program(PROGRAM, os.environ.get("PATH", "").split(os.pathsep)) is None:
            packages.install_packages(PROGRAM)
    except Unavailable as error:
        end_unmeasured(f"It cannot be measured here: {error}", smoke=options.smoke)
    with running_region(SMALL, smoke=options.smoke, messages=False) as bench:
        rows = measure_requests(bench, options)
    headings = ("request", "per second", "p50, ms", "p99, ms", "SQL statements each")
    print_table(Console(width=130), "Requests over HTTP", headings, rows)


if __name__ == "__main__":
    main()
