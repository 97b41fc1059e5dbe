"""``superconductor standalone`` on a disk that fills up: it refuses what it cannot keep, shows what it has, and goes on with space.

The disk is a file system without room, where the test may mount one. Elsewhere, and with SC_TEST_WEATHER set besides, files may not
grow, as with a quota: SQLite calls that another error.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from cli.standalone.demo.evidence import gather_evidence, list_leftovers
from cli.standalone.demo.hosts import SimulatedFindings
from service.periodic import wait_until
from tests.support.databases import sqlite_url
from tests.support.weather import all_weather

IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
PATIENCE = 60.0
DEADLINE = 10.0
SIZE = 48
"""MiB of the file system."""


class Records:
    """Where the databases of a state folder are, without taking the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def database_url(self, name: str) -> str:
        return sqlite_url(self.path, name)


class Standalone:
    """The process, and HTTP."""

    def __init__(self, state: Path, words: Path) -> None:
        self.state = state
        self._words = words
        self.http = requests.Session()
        self.http.trust_env = False
        command = [sys.executable, "-m", "cli", "standalone", "--state", str(state), "--port", "0", "--hosts", "2"]
        with words.open("wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        assert wait_until(lambda: self._endpoint() is not None, PATIENCE, 0.1), self.said
        self.endpoint = str(self._endpoint())

    @property
    def said(self) -> str:
        """On its terminal."""
        return self._words.read_text()

    @property
    def log(self) -> str:
        return (self.state / "superconductor.log").read_text(errors="replace")

    def _endpoint(self) -> str | None:
        assert self.process.poll() is None, self.said
        found = re.search(r"http://[\d.]+:\d+/v2\.1", self.said)
        return found and found[0]

    def boot(self, name: str, count: int = 1) -> requests.Response:
        server: dict[str, Any] = {"name": name, "flavorRef": "m1.tiny", "imageRef": IMAGE, "min_count": count, "max_count": count}
        headers = {"Idempotency-Key": name}
        return self.http.post(f"{self.endpoint}/servers", json={"server": server}, headers=headers, timeout=DEADLINE)

    def states(self, name: str = "") -> list[str]:
        answer = self.http.get(f"{self.endpoint}/servers/detail", params={"name": f"^{name}"}, timeout=DEADLINE)
        assert answer.status_code == 200, answer.text
        return [server["status"] for server in answer.json()["servers"]]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.http.close()


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """``folder`` as a file system of its own; whether that could be had."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}m", "superconductor-test", str(folder)]
    mounted = os.geteuid() == 0 and shutil.which("mount") is not None and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, bool]]:
    folder = tmp_path_factory.mktemp("disk") / "disk"
    with small_disk(folder) as mounted:
        yield folder, mounted


@pytest.fixture(scope="module")
def running(disk: tuple[Path, bool], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    made = Standalone(disk[0] / "state", tmp_path_factory.mktemp("words") / "terminal")
    yield made
    made.end()


@contextmanager
def filled(running: Standalone) -> Iterator[None]:
    """No byte is left on the file system."""
    ballast = running.state.parent / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (2**20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def limited(running: Standalone) -> Iterator[None]:
    """No file of the process may be written behind its first byte."""
    unlimited = resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, unlimited)


def test_work_pauses_while_the_disk_is_full(running: Standalone, disk: tuple[Path, bool]) -> None:
    _, mounted = disk
    if mounted:
        check("full", filled, running)
    if not mounted or all_weather():
        check("limit", limited, running)


def check(kind: str, without_room: Callable[[Standalone], AbstractContextManager[None]], running: Standalone) -> None:
    assert running.boot(f"{kind}-before", 4).status_code == 202
    assert wait_until(lambda: running.states(f"{kind}-before") == ["ACTIVE"] * 4, PATIENCE, 0.1)
    assert [running.boot(f"{kind}-begun-{number}", 5).status_code for number in range(6)] == [202] * 6
    words = len(running.said)
    with without_room(running):
        answers = [running.boot(f"{kind}-refused") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [503] * 5, answers[-1].text
        assert "no room left" in answers[0].json()["serviceUnavailable"]["message"]
        assert int(answers[0].headers["Retry-After"]) > 0
        assert sorted(running.states(f"{kind}-before")) == ["ACTIVE"] * 4, "what is there can be read"
        assert set(running.states(f"{kind}-begun")) <= {"ACTIVE", "BUILD"}
        assert not wait_until(lambda: "Traceback" in running.said[words:], 1.5, 0.5), running.said[words:]
        assert running.process.poll() is None
    assert wait_until(lambda: running.boot(f"{kind}-refused").status_code == 202, PATIENCE, 0.2)
    assert wait_until(lambda: set(running.states(kind)) == {"ACTIVE"}, PATIENCE, 0.2), running.states(kind)
    assert len(running.states(kind)) == 4 + 30 + 1
    assert "Traceback" not in running.log
    assert len(running.said[words:].splitlines()) <= 3, running.said[words:]


def test_nothing_is_left_that_does_not_agree(running: Standalone) -> None:
    hosts = [f"cell{cell}-host{number}" for cell in (1, 2) for number in (1, 2)]
    assert list_leftovers(gather_evidence(Records(running.state), SimulatedFindings(running.state / "hosts", hosts))) == []
