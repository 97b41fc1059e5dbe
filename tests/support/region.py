"""A whole deployment in this process, for tests: real databases and buses, simulated hosts, HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from api.console_opts import ProxySettings
from api.main import Middleware
from api.opts import ApiSettings
from cells.registry import CellRegistry
from cli import app
from cli.standalone.all_in_one import AllInOne, DeploymentTimes, SimulatedHost, StateFolder
from cli.standalone.bootstrap import Commands, bootstrap_databases
from cli.standalone.demo.evidence import Evidence, at_rest, gather_evidence, list_leftovers
from cli.standalone.demo.hosts import SimulatedFindings
from cli.standalone.discovery import discover_until
from objects import errors
from service.notifications import NotificationSettings as Notifications
from service.periodic import wait_until
from tests.support.ground import Ground, GroundFolder

IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
PACE = DeploymentTimes(
    spawn_timeout=2.0,
    build_timeout=60.0,
    lease_seconds=2.0,
    sweep_interval=0.2,
    feed_interval=0.1,
    idle_interval=0.5,
    report_interval=0.5,
    down_time=10.0,
)


def host(name: str, cell: str = "cell1", **changes: Any) -> SimulatedHost:
    return SimulatedHost(name=name, cell=cell, spawn_delay=(0.0, 0.05), **changes)


class GroundCommands(Commands):
    """Commands that find the API database in a configuration file, as an operator's do who has no state folder."""

    def __init__(self, folder: GroundFolder) -> None:
        super().__init__(folder, None)
        self._file = folder.path / "superconductor.conf"
        connection = folder.database_url("api").replace("$", "$$")  # a single one would stand for another option
        self._file.write_text(f"[api_database]\nconnection = {connection}\n")

    def run(self, *words: str) -> None:
        if app.main(["--quiet", "--config-file", str(self._file), *words]) != 0:
            raise errors.Invalid(f"{words} failed")


class Region:
    """A running deployment and what tests do with it. It stands on a folder as users' do, or on the ground given."""

    def __init__(
        self,
        path: Path | GroundFolder,
        hosts: Sequence[SimulatedHost],
        pace: DeploymentTimes = PACE,
        notify: Notifications | None = None,
        guard: Middleware | None = None,
        consoles: ProxySettings | None = None,
    ) -> None:
        self.hosts = hosts
        self.notify = notify
        self.guard = guard
        self.consoles = consoles
        self.pace = pace
        self.folder = path if isinstance(path, GroundFolder) else StateFolder(path)
        self.commands = GroundCommands(path) if isinstance(path, GroundFolder) else Commands(self.folder, None)
        bootstrap_databases(self.folder, sorted({host.cell for host in hosts}), self.commands)
        self.all = self._deployment()
        self.http = requests.Session()
        self.http.trust_env = False

    @property
    def registry(self) -> CellRegistry:
        return self.all.registry

    def start(self, discover: bool = True) -> None:
        self.all.start()
        if discover:
            discover_until(self.folder, self.all, {host.name for host in self.hosts}, self.commands, threading.Event())
        self.all.serve_api()

    def restart(self) -> None:
        """As another process would go on, with everything but what was in memory."""
        self.all.stop()
        self.folder = GroundFolder(self.folder.ground) if isinstance(self.folder, GroundFolder) else StateFolder(self.folder.path)
        self.all = self._deployment()
        self.start(discover=False)

    def _deployment(self) -> AllInOne:
        return AllInOne(
            self.folder,
            self.hosts,
            api=ApiSettings(port=0),
            pace=self.pace,
            notify=self.notify,
            guard=self.guard,
            consoles=self.consoles,
        )

    def flavor(self, name: str = "tiny", vcpus: int = 1, ram: int = 512, disk: int = 1) -> None:
        amounts = ("--vcpus", str(vcpus), "--ram", str(ram), "--disk", str(disk))
        self.commands.run("flavor", "create", name, "--id", name, *amounts)

    def post(
        self, name: str = "web", flavor: str = "tiny", count: int = 1, hints: dict[str, str] | None = None, **server: Any
    ) -> requests.Response:
        body: dict[str, Any] = {"name": name, "flavorRef": flavor, "imageRef": IMAGE}
        body |= {"min_count": count, "max_count": count} | server
        document = {"server": body} | ({"os:scheduler_hints": hints} if hints else {})
        return self.http.post(f"{self.all.api_endpoint}/servers", json=document, timeout=30)

    def boot(self, name: str = "web", **options: Any) -> str:
        answer = self.post(name, **options)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["server"]["id"])

    def show(self, uuid: str) -> dict[str, Any] | None:
        answer = self.http.get(f"{self.all.api_endpoint}/servers/{uuid}", timeout=30)
        if answer.status_code == 404:
            return None
        assert answer.status_code == 200, answer.text
        server: dict[str, Any] = answer.json()["server"]
        return server

    def named(self, pattern: str) -> list[dict[str, Any]]:
        answer = self.http.get(f"{self.all.api_endpoint}/servers/detail", params={"name": pattern}, timeout=30)
        assert answer.status_code == 200, answer.text
        servers: list[dict[str, Any]] = answer.json()["servers"]
        return servers

    def delete(self, uuid: str) -> int:
        return self.http.delete(f"{self.all.api_endpoint}/servers/{uuid}", timeout=30).status_code

    def wait_for(self, uuid: str, status: str, timeout: float = 90.0) -> dict[str, Any]:
        def reached() -> bool:
            server = self.show(uuid)
            return server is not None and server["status"] == status

        assert wait_until(reached, timeout), f"{uuid} is {self.show(uuid)}, {status} expected"
        server = self.show(uuid)
        assert server is not None
        return server

    def evidence(self) -> Evidence:
        return gather_evidence(self.folder, SimulatedFindings(self.folder.path / "hosts", [host.name for host in self.hosts]))

    def settle(self, timeout: float = 90.0, condition: Callable[[Evidence], bool] = at_rest) -> Evidence:
        """Wait until nothing is on its way any more, and check that claims, guests and rows agree."""
        assert wait_until(lambda: condition(self.evidence()), timeout, pause=0.1), self.evidence()
        assert wait_until(lambda: not list_leftovers(self.evidence()), 90.0, pause=0.1), list_leftovers(self.evidence())
        return self.evidence()

    def stop(self) -> None:
        self.all.stop()
        self.http.close()


@contextmanager
def region(
    path: Path, hosts: Sequence[SimulatedHost], *, discover: bool = True, pace: DeploymentTimes = PACE, on: str = "lite"
) -> Iterator[Region]:
    """A started region with a flavor ``tiny`` (1 vCPU, 512 MiB, 1 GiB), stopped at the end."""
    place = Ground(on, path)
    try:
        with running(GroundFolder(place) if place.real else path, hosts, discover=discover, pace=pace) as deployment:
            yield deployment
    finally:
        place.release()


@contextmanager
def running(
    path: Path | GroundFolder,
    hosts: Sequence[SimulatedHost],
    *,
    discover: bool = True,
    pace: DeploymentTimes = PACE,
    notify: Notifications | None = None,
) -> Iterator[Region]:
    """The same on a folder that is the caller's. ``notify``: whether and where notifications go."""
    deployment = Region(path, hosts, pace, notify)
    try:
        deployment.flavor()
        deployment.start(discover)
        yield deployment
    finally:
        deployment.stop()


def agrees(cloud: Region) -> bool:
    """Whether ``verify`` finds nothing."""
    try:
        cloud.commands.run("verify", "--settle", "0")
    except errors.Invalid:
        return False
    return True
