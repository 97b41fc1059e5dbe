"""The roles as the processes that operators run, on databases and buses of a test's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import requests

from cells.administration import NewCell, create_cell
from db.api.projects import flavors
from db.sql.engine import Database
from db.sql.sync import sync_schema
from objects.flavor import Flavor
from service.periodic import wait_until
from tests.support.bus import url_of
from tests.support.databases import closed_port, url_on

ROLES = ("api", "conductor", "scheduler", "compute")
MODULES = {"console-proxy": "api.consoles.process"}
"""Of roles that share a room with another one."""
IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
PATIENCE = 60.0
"""Seconds that a process may take to do what it must."""

Configuration = Mapping[str, Mapping[str, object]]


def write_configuration(file: Path, groups: Configuration) -> Path:
    """An ini file of these groups, as an operator would write it."""
    lines = [line for group, options in groups.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in options.items()), "")]
    file.write_text("\n".join(lines))
    return file


def run_role(role: str, *files: Path, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a role that is to end by itself: its configuration cannot work."""
    return subprocess.run(_command(role, files), capture_output=True, text=True, timeout=timeout, check=False, env=_environment())


class RoleProcess:
    """A running role: a master and its workers."""

    def __init__(self, role: str, folder: Path, *files: Path, name: str = "") -> None:
        self.role = role
        self.log_file = folder / f"{name or role}.log"
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                _command(role, files), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(), start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def workers(self) -> list[int]:
        """The pids of its workers, in the order they were forked."""
        try:
            children = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []
        return [child.pid for child in sorted(children, key=psutil.Process.create_time) if child.status() != psutil.STATUS_ZOMBIE]

    def says(self, text: str, times: int = 1, timeout: float = PATIENCE) -> bool:
        """Wait until its log holds ``text`` so many times."""
        return wait_until(lambda: self.log.count(text) >= times or self._process.poll() is not None, timeout, 0.1) and (
            self.log.count(text) >= times
        )

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Its exit status."""
        return self._process.wait(timeout)

    def kill(self) -> None:
        """Leave nothing of it behind."""
        workers = self.workers()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Deployment:
    """One cell and the API level on a MariaDB server and a virtual host of their own: what ``single-cell.conf`` describes."""

    def __init__(self, folder: Path, urls: Mapping[str, str], bus: str) -> None:
        self.folder = folder
        self.port = closed_port()
        self.database = Database(urls["api"], name="api")
        self.processes: list[RoleProcess] = []
        self.groups: dict[str, dict[str, object]] = {
            "DEFAULT": {"transport_url": bus, "graceful_shutdown_timeout": 20, "idle_interval": 0.5},
            "api_database": {"connection": urls["api"]},
            "cell_database": {"connection": urls["cell1"]},
            "api": {"port": self.port, "workers": 2},
            "conductor": {
                "sweep_interval": 0.5,
                "lease_seconds": 3,
                "resend_age": 1,
                "feed_interval": 0.1,
            }
            | {"map_hosts": "true"},  # the agents share the broker user of this run
            "scheduler": {"feed_poll_interval": 0.1},
        }
        self.conf = write_configuration(folder / "single-cell.conf", self.groups)
        self._bus = bus
        sync_schema(urls["api"], "api")
        for name in ("cell0", "cell1"):
            sync_schema(urls[name], "cell")
            transport = "" if name == "cell0" else bus
            create_cell(self.database, NewCell(name=name, database_url=urls[name], transport_url=transport, cell0=name == "cell0"))
        self.database.write(flavors.create, Flavor(flavor_id="tiny", name="tiny", vcpus=1, memory_mb=64, root_gb=1))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v2.1"

    def start(self, role: str, *, name: str = "", **changes: Mapping[str, object]) -> RoleProcess:
        """Start a role that reads the deployment's file, and after it one of its own with these groups."""
        own = [write_configuration(self.folder / f"{name}.conf", changes)] if changes else []
        return self._started(RoleProcess(role, self.folder, self.conf, *own, name=name))

    def start_agent(self, host: str, *, drain_timeout: float = 5.0, **simulated: object) -> RoleProcess:
        """Start an agent, with a file of its own."""
        groups: dict[str, dict[str, object]] = {
            "DEFAULT": {"transport_url": self._bus},
            "compute": {
                "host": host,
                "report_interval": 0.5,
                "stats_interval": 0.5,
                "audit_interval": 1,
                "drain_timeout": drain_timeout,
            },
            "simulated": {"state_path": self.folder / "hosts", "shared_folder": True, **simulated},
        }
        return self._started(
            RoleProcess("compute", self.folder, write_configuration(self.folder / f"{host}.conf", groups), name=host)
        )

    def _started(self, process: RoleProcess) -> RoleProcess:
        self.processes.append(process)
        return process

    def operate(self, *words: str) -> str:
        """Run an operator's command; return what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "cli", "--config-file", str(self.conf), *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def post(self, name: str, count: int = 1) -> str:
        server: dict[str, Any] = {"name": name, "flavorRef": "tiny", "imageRef": IMAGE, "min_count": count, "max_count": count}
        answer = requests.post(f"{self.endpoint}/servers", json={"server": server}, timeout=30)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["server"]["id"])

    def statuses(self, name: str) -> list[str]:
        """The states of the servers whose names begin so."""
        answer = requests.get(f"{self.endpoint}/servers/detail", params={"name": f"^{name}"}, timeout=30)
        assert answer.status_code == 200, answer.text
        return [server["status"] for server in answer.json()["servers"]]

    def boots(self, name: str, count: int = 1) -> bool:
        """Boot servers and wait until all are ACTIVE."""
        self.post(name, count)
        return wait_until(lambda: self.statuses(name) == ["ACTIVE"] * count, PATIENCE, 0.1)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        self.database.dispose_connections()


@contextmanager
def deployment(folder: Path, server: str = "mariadb") -> Iterator[Deployment]:
    """A deployment of one cell whose databases are made and of which no process runs yet."""
    with ExitStack() as stack:
        urls = {name: stack.enter_context(url_on(server, folder)) for name in ("api", "cell0", "cell1")}
        bus = stack.enter_context(contextmanager(url_of)("rabbit"))
        made = Deployment(folder, urls, bus)
        stack.callback(made.close)
        yield made


def _command(role: str, files: Sequence[Path]) -> list[str]:
    return [sys.executable, "-m", MODULES.get(role, f"{role}.process"), *(f"--config-file={file}" for file in files)]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
