"""A whole region on this machine, small: its commands on one folder, what it serves, and what it leaves behind."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from deploy import packages, processes
from deploy.local.folder import Folder, Notes
from deploy.local.processes import REGION, Table, is_master
from deploy.servers import MariaDB, RabbitMQ
from service.periodic import wait_until

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--apis", "1", "--proxies", "1", "--supers", "1", "--schedulers", "1", "--conductors", "1", "--agents", "2")
IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
COUNT = 2
LONG = 120.0
"""Seconds after which something hangs; what is waited for takes a few."""

needs_servers = pytest.mark.skipif(
    any(packages.find_program(server.PROGRAM, server.PLACES) is None for server in (RabbitMQ, MariaDB)),
    reason="RabbitMQ or MariaDB is not installed",
)


class Region:
    """The commands of ``deploy.local`` on one folder, and HTTP."""

    def __init__(self, path: Path) -> None:
        self.folder = Folder(path)
        self.http = requests.Session()
        self.http.trust_env = False

    @property
    def notes(self) -> Notes:
        return self.folder.read_notes()

    @property
    def table(self) -> Table:
        return Table(self.folder)

    def command(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "deploy.local", name, str(self.folder.path), *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)

    def up(self, *words: str) -> str:
        done = self.command("up", "--patience", "300", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def down(self) -> None:
        done = self.command("down")
        assert done.returncode == 0, done.stdout + done.stderr

    def ask(self, method: str, path: str, **arguments: Any) -> Any:
        """The answer, asked for again while the connection fails: a worker may have been killed a moment ago."""
        url = f"{self.notes.api_endpoints()[0]}/{path}"
        answers: list[requests.Response] = []

        def answered() -> bool:
            with contextlib.suppress(requests.ConnectionError):
                answers.append(self.http.request(method, url, timeout=30, **arguments))
            return bool(answers)

        assert wait_until(answered, LONG, pause=0.2)
        assert answers[0].ok, answers[0].text
        return answers[0].json()

    def boot(self, name: str, count: int = COUNT) -> None:
        """Boot servers and wait until all of them are ACTIVE."""
        flavor = next(f["id"] for f in self.ask("GET", "flavors")["flavors"] if f["name"] == "m1.tiny")
        server = {"name": name, "flavorRef": flavor, "imageRef": IMAGE, "min_count": count, "max_count": count}
        self.ask("POST", "servers", json={"server": server}, headers={"Idempotency-Key": name})
        assert wait_until(lambda: self.states(name) == ["ACTIVE"] * count, LONG, pause=0.2), self.states(name)

    def states(self, name: str) -> list[str]:
        found = self.ask("GET", "servers/detail", params={"name": f"^{name}(-[0-9]+)?$"})
        return [server["status"] for server in found["servers"]]

    def worker_of(self, member: str) -> int:
        """A process of the member that is not its master."""
        assert wait_until(lambda: len(self.table.pids_by_member().get(member, ())) > 1, LONG)
        return next(pid for pid in self.table.pids_by_member()[member] if not is_master(pid))

    def left(self) -> list[str]:
        """Processes of the region and of its servers that run, and ports of its that are listened on."""
        ports = (self.notes.broker_port, self.notes.database_port, *self.notes.api_ports, *self.notes.console_ports)
        pids = [*processes.list_marked(REGION, str(self.folder.path))]
        for server in (RabbitMQ(self.folder.path / "rabbitmq"), MariaDB(self.folder.path / "database")):
            pids += server.leftover_processes()
        return [f"process {pid}" for pid in pids] + [f"port {port}" for port in ports if listens(port)]


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def small_region(path: Path) -> Iterator[Region]:
    """A region that runs at first, and not afterwards."""
    region = Region(path)
    try:
        region.up(*SMALL)
        yield region
    finally:
        region.down()
