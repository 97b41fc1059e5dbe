"""``superconductor standalone --driver libvirt``: real guests, which outlive it and are found again."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from compute.libvirt.private_daemon import PrivateDaemon
from images import spark
from service.periodic import wait_until

PATIENCE_S = 60.0


class Machines:
    """A running ``standalone``, and what a test asks of it."""

    def __init__(self, process: subprocess.Popen[str], endpoint: str) -> None:
        self.process, self.endpoint = process, endpoint
        self.http = requests.Session()
        self.http.trust_env = False

    def boot(self, name: str, image: str = spark.IMAGE_ID) -> str:
        """Its id."""
        flavor = self.http.get(f"{self.endpoint}/flavors").json()["flavors"][0]["id"]
        body = {"server": {"name": name, "flavorRef": flavor, "imageRef": image}}
        return str(self.http.post(f"{self.endpoint}/servers", json=body).json()["server"]["id"])

    def server(self, uuid: str) -> dict[str, Any]:
        answer = self.http.get(f"{self.endpoint}/servers/{uuid}").json()
        return dict(answer.get("server", {"status": "gone"}))

    def wait_status(self, uuid: str, status: str) -> None:
        assert wait_until(lambda: self.server(uuid)["status"] == status, PATIENCE_S, pause=0.2), self.server(uuid)

    def act(self, uuid: str, action: str) -> None:
        assert self.http.post(f"{self.endpoint}/servers/{uuid}/action", json={action: None}).status_code == 202

    def wait_console(self, uuid: str, text: str) -> None:
        assert wait_until(lambda: text in self.console(uuid), PATIENCE_S, pause=0.2), self.console(uuid)

    def console(self, uuid: str) -> str:
        answer = self.http.post(f"{self.endpoint}/servers/{uuid}/action", json={"os-getConsoleOutput": {}})
        return str(answer.json().get("output", ""))


@contextmanager
def standalone(state: Path, *words: str) -> Iterator[Machines]:
    command = [sys.executable, "-m", "cli", "standalone", "--state", str(state), "--port", "0", "--driver", "libvirt", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"serving at (\S+),", line):
                break
        else:
            raise AssertionError("".join(said))
        yield Machines(process, found[1])
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def daemon_of(state: Path) -> PrivateDaemon:
    return PrivateDaemon(state / "hosts/cell1-host1/libvirt")


def test_a_machine_boots_and_shows_its_console(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with standalone(state, "--stop-guests", "--boot", "first") as machines:
        assert machines.process.stdout is not None
        shown = list(itertools.takewhile(lambda line: "spark: tick 0001" not in line, machines.process.stdout))
        assert "server first is ACTIVE" in shown[0]
        assert "spark: boot 0001" in shown[-1]
        uuid = machines.boot("one")
        machines.wait_status(uuid, "ACTIVE")
        machines.wait_console(uuid, "spark: boot 0001")
        unknown = machines.boot("two", "70a599e0-31e7-49b7-b260-868f441e862b")
        machines.wait_status(unknown, "ERROR")
        assert "does not exist" in machines.server(unknown)["fault"]["message"]
        machines.act(uuid, "os-stop")
        machines.wait_status(uuid, "SHUTOFF")
        machines.wait_console(uuid, "spark: power button")
        machines.act(uuid, "os-start")
        machines.wait_console(uuid, "spark: boot 0002")

    assert daemon_of(state).daemon_pid is None
    assert daemon_of(state).guest_pids() == {}


def test_guests_outlive_a_killed_standalone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    try:
        with standalone(state) as machines:
            uuid = machines.boot("one")
            machines.wait_status(uuid, "ACTIVE")
            guests = daemon_of(state).guest_pids()
            machines.process.send_signal(signal.SIGKILL)
            machines.process.wait()
        assert list(daemon_of(state).guest_pids()) == list(guests) != []

        with standalone(state) as machines:
            machines.wait_status(uuid, "ACTIVE")
            assert daemon_of(state).guest_pids() == guests
            assert machines.http.delete(f"{machines.endpoint}/servers/{uuid}").status_code == 204
            machines.wait_status(uuid, "gone")
            assert wait_until(lambda: daemon_of(state).guest_pids() == {}, PATIENCE_S)
    finally:
        daemon_of(state).stop(guests=True)
