"""``superconductor demo --driver libvirt``: a few real guests go through their life on two hosts of this machine."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import requests
from rich.console import Console
from rich.table import Table

from api.opts import ApiSettings
from cli.standalone.all_in_one import AllInOne, DeploymentTimes, StateFolder, log_to
from cli.standalone.bootstrap import Commands, bootstrap_databases, starter_image
from cli.standalone.discovery import discover_until
from cli.standalone.libvirt_hosts import DRIVER, LibvirtHosts
from db.api.projects import flavors
from db.sql.engine import ApiDatabase
from images import spark
from objects import errors

CELL, HOSTS, SERVERS = "cell1", 2, 6
FLAVOR = "spark"
NO_IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
"""An image that the store does not have."""
STEP_TIMEOUT_S = 120.0
"""Seconds until a step counts as failed: emulated guests boot slowly on a busy machine."""
REQUEST_TIMEOUT_S = 30.0
SETTLED = ("ACTIVE", "SHUTOFF", "ERROR")


class Step(NamedTuple):
    """What was done, and whether it came as it must: ``fault`` empty."""

    name: str
    fault: str
    seconds: float


class Machines:
    """The servers of a deployment, through its API. Waits end when ``stopped`` is set."""

    def __init__(self, endpoint: str, stopped: threading.Event) -> None:
        self._endpoint = endpoint
        self._stopped = stopped
        self._http = requests.Session()
        self._http.trust_env = False  # a proxy of the user's must not stand between the demo and its own API

    def boot_servers(self, name: str, image: str, count: int, flavor: str = FLAVOR) -> None:
        server = {"name": name, "flavorRef": flavor, "imageRef": image, "min_count": count, "max_count": count}
        self._send_request("POST", "/servers", {"server": server})

    def flavor_id(self, name: str) -> str:
        """The id of the flavor of this name. Raises ``errors.NotFound``."""
        ids = [str(flavor["id"]) for flavor in self._send_request("GET", "/flavors")["flavors"] if flavor["name"] == name]
        if not ids:
            raise errors.NotFound(f"There is no flavor {name}.")
        return ids[0]

    def servers_by_name(self) -> dict[str, dict[str, Any]]:
        """All servers by name."""
        return {server["name"]: server for server in self._send_request("GET", "/servers/detail")["servers"]}

    def run_action(self, uuid: str, action: str) -> None:
        self._send_request("POST", f"/servers/{uuid}/action", {action: None})

    def delete(self, uuid: str) -> None:
        self._send_request("DELETE", f"/servers/{uuid}")

    def console_lines(self, uuid: str) -> list[str]:
        """The lines of its console."""
        return str(self._send_request("POST", f"/servers/{uuid}/action", {"os-getConsoleOutput": {}})["output"]).splitlines()

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Whether it comes true in time."""
        end = time.monotonic() + STEP_TIMEOUT_S
        while not condition():
            if time.monotonic() > end or self._stopped.wait(0.2):
                return False
        return True

    def _send_request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = self._http.request(method, f"{self._endpoint}{path}", json=body, timeout=REQUEST_TIMEOUT_S)
        if not answer.ok:
            raise errors.Invalid(f"{method} {path} was refused: {answer.status_code} {answer.text}")
        return dict(answer.json()) if answer.content else {}


@contextmanager
def run_region(
    path: Path, commands: Callable[[StateFolder], Commands], stopped: threading.Event
) -> Iterator[tuple[str, LibvirtHosts]]:
    """A deployment whose hosts have a libvirtd each: its endpoint and its hosts. At the end its guests are off.

    Raises Misconfigured if this machine has no libvirt or QEMU.
    """
    folder = StateFolder(path)
    folder.claim_driver(DRIVER)
    commander = commands(folder)
    bootstrap_databases(folder, [CELL], commander)
    _define_flavor(folder, commander)
    starter_image(folder, commander)
    hosts = LibvirtHosts(folder, [])
    try:
        members = [hosts.start_host(f"{CELL}-host{number + 1}", CELL) for number in range(HOSTS)]
        log_to(folder)
        deployment = AllInOne(folder, members, api=ApiSettings(port=0), pace=DeploymentTimes())
        deployment.start()
        try:
            discover_until(folder, deployment, {host.name for host in members}, commander, stopped)
            deployment.serve_api()
            yield deployment.api_endpoint, hosts
        finally:
            deployment.stop()
    finally:
        hosts.stop(guests=True)


def run(endpoint: str, hosts: LibvirtHosts, console: Console, stopped: threading.Event) -> int:
    """The exit status: 0 if every step came as it must, else 1."""
    machines = Machines(endpoint, stopped)
    steps: list[Step] = []
    for name, act in SCRIPT:
        began = time.monotonic()
        fault = act(machines)
        steps.append(Step(name, fault, time.monotonic() - began))
        console.print(
            f"{'[red]failed[/red]' if fault else '[green]ok[/green]'} {name}, {steps[-1].seconds:.1f} s {fault}", highlight=False
        )
    began = time.monotonic()
    fault = _processes_fault(machines, hosts)
    steps.append(Step("one QEMU for each running server, none for others", fault, time.monotonic() - began))
    _show_servers(machines, console)
    failed = [step for step in steps if step.fault]
    if failed:
        console.print(*(f"[red]{step.name}: {step.fault}[/red]" for step in failed), sep="\n", highlight=False)
        return 1
    console.print(f"[bold green]All {len(steps)} steps came as they must; the guests are turned off now.[/bold green]")
    return 0


def _define_flavor(folder: StateFolder, commands: Commands) -> None:
    database = ApiDatabase(folder.database_url("api"), name="api")
    try:
        known = {flavor.name for flavor in database.read(flavors.list_all)}
    finally:
        database.dispose_connections()
    if FLAVOR not in known:
        commands.run("flavor", "create", FLAVOR, "--id", FLAVOR, "--vcpus", "1", "--ram", "16", "--disk", "1")


def _boot_all(machines: Machines) -> str:
    machines.boot_servers("spark", spark.IMAGE_ID, SERVERS)
    machines.wait_until(lambda: _count_sparks(machines, SETTLED) == SERVERS)
    return (
        "" if _count_sparks(machines, ("ACTIVE",)) == SERVERS else f"{_count_sparks(machines, ('ACTIVE',))} of {SERVERS} are ACTIVE"
    )


def _boot_unknown(machines: Machines) -> str:
    machines.boot_servers("no-image", NO_IMAGE, 1)
    machines.wait_until(lambda: machines.servers_by_name()["no-image"]["status"] in SETTLED)
    server = machines.servers_by_name()["no-image"]
    reason = server.get("fault", {}).get("message", "")
    return "" if server["status"] == "ERROR" and NO_IMAGE in reason else f"it is {server['status']}: {reason}"


def _read_consoles(machines: Machines) -> str:
    running = {name: server["id"] for name, server in machines.servers_by_name().items() if server["status"] == "ACTIVE"}
    silent = [name for name, uuid in running.items() if not _console_says(machines, uuid, "spark: boot 0001")]
    return f"nothing on the console of {', '.join(silent)}" if silent else ""


def _stop(machines: Machines) -> str:
    uuid = machines.servers_by_name()["spark-1"]["id"]
    machines.run_action(uuid, "os-stop")
    if not machines.wait_until(lambda: machines.servers_by_name()["spark-1"]["status"] == "SHUTOFF"):
        return f"it is {machines.servers_by_name()['spark-1']['status']}"
    return "" if "spark: power button" in machines.console_lines(uuid) else "it did not see its power button"


def _start(machines: Machines) -> str:
    uuid = machines.servers_by_name()["spark-1"]["id"]
    machines.run_action(uuid, "os-start")
    if not machines.wait_until(lambda: machines.servers_by_name()["spark-1"]["status"] == "ACTIVE"):
        return f"it is {machines.servers_by_name()['spark-1']['status']}"
    return "" if _console_says(machines, uuid, "spark: boot 0002") else "its disk does not say that this is its second start"


def _delete(machines: Machines) -> str:
    machines.delete(machines.servers_by_name()["spark-2"]["id"])
    return "" if machines.wait_until(lambda: "spark-2" not in machines.servers_by_name()) else "it is still there"


SCRIPT: tuple[tuple[str, Callable[[Machines], str]], ...] = (
    (f"boot {SERVERS} servers", _boot_all),
    ("boot a server from an unknown image: ERROR with the reason", _boot_unknown),
    ("every guest writes to its console", _read_consoles),
    ("stop spark-1: the guest powers off", _stop),
    ("start spark-1: from the same disk", _start),
    ("delete spark-2", _delete),
)


def _console_says(machines: Machines, uuid: str, line: str) -> bool:
    return machines.wait_until(lambda: line in machines.console_lines(uuid))


def _count_sparks(machines: Machines, statuses: tuple[str, ...]) -> int:
    return sum(
        1 for name, server in machines.servers_by_name().items() if name.startswith("spark-") and server["status"] in statuses
    )


def _processes_fault(machines: Machines, hosts: LibvirtHosts) -> str:
    expected = sorted(server["id"] for server in machines.servers_by_name().values() if server["status"] == "ACTIVE")

    def running_names() -> list[str]:
        return sorted(re.sub("^sc-", "", name) for name in hosts.running_guests())

    return "" if machines.wait_until(lambda: running_names() == expected) else f"QEMU runs {running_names()}, ACTIVE are {expected}"


def _show_servers(machines: Machines, console: Console) -> None:
    table = Table(title="Servers", title_justify="left")
    for heading in ("name", "status", "host", "last line of the console, or the fault"):
        table.add_column(heading)
    for name, server in sorted(machines.servers_by_name().items()):
        fault = server.get("fault", {}).get("message", "")
        last = fault or (machines.console_lines(server["id"]) or [""])[-1]
        table.add_row(name, server["status"], server.get("OS-EXT-SRV-ATTR:host") or "", last[:90])
    console.print(table)
