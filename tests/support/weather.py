"""Work that goes on while brokers and databases come and go, and what may be said of it: by the API, and in the log."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests

from compute.journal import read_entries
from compute.simulated import journal_path
from deploy.server import Server
from deploy.unavailable import Unavailable
from objects import errors
from objects.base import Object
from service.periodic import wait_until
from tests.support.region import IMAGE, Region

ROOM = {"vcpus": 4000, "memory_mb": 2**22, "disk_gb": 10**5}
"""Of each host: for all that a user boots while weather lasts."""
LONG_FORM = "SC_TEST_WEATHER"
"""Variable that, set to anything, asks for every kind of weather rather than for those that nothing else brings."""
_DIFFERENT = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\(and \d+ more like it\)")
OURS = ("api", "cells", "cli", "compute", "conductor", "db", "rpc", "scheduler", "service")


class Answer(Object, frozen=True, kw_only=True):
    """What the API said, and after how many seconds."""

    what: str
    status: int
    seconds: float
    retry_after: str | None
    text: str

    def is_right(self, deadline: float) -> bool:
        """Soon, and what was asked for or "not now". Whoever repeats a delete finds nothing where the first one was carried out."""
        usual = self.status in (200, 202, 204) or (self.status == 404 and self.what.startswith("DELETE"))
        return self.seconds <= deadline and (usual or (self.status == 503 and self.retry_after is not None))


class Traffic:
    """A user who boots, lists and deletes all the time. What was refused is asked for again, under the same key, until taken."""

    def __init__(self, cloud: Region, pause: float = 0.1) -> None:
        self._cloud = cloud
        self._pause = pause
        self._stopping = threading.Event()
        self._http = requests.Session()
        self._http.trust_env = False
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self.answers: list[Answer] = []
        self.booted: dict[str, str] = {}
        """Name -> uuid."""
        self.deleted: set[str] = set()
        self._thread.start()

    def stop(self) -> None:
        """Ends when what was begun is taken."""
        self._stopping.set()
        self._thread.join(120.0)
        assert not self._thread.is_alive(), self.answers[-3:]

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            name = f"weather-{id(self)}-{number}"
            self.booted[name] = str(self._insist("POST", "/servers", 202, name)["server"]["id"])
            self._ask("GET", "/servers/detail")
            if number % 5 == 4:
                uuid = self.booted[f"weather-{id(self)}-{number - 4}"]
                self._insist("DELETE", f"/servers/{uuid}", 204)
                self.deleted.add(uuid)
            number += 1
            self._stopping.wait(self._pause)

    def _insist(self, method: str, path: str, wanted: int, name: str = "") -> dict[str, dict[str, str]]:
        """The body of the answer wanted. A delete that was carried out although its answer was lost finds nothing the next time."""
        enough = (wanted, 404) if method == "DELETE" else (wanted,)
        while (answer := self._ask(method, path, name)).status_code not in enough:
            time.sleep(0.2)  # the weather lasts
        found: dict[str, dict[str, str]] = answer.json() if answer.content else {}
        return found

    def _ask(self, method: str, path: str, name: str = "") -> requests.Response:
        began = time.monotonic()
        body = {"server": {"name": name, "flavorRef": "tiny", "imageRef": IMAGE}} if name else None
        headers = {"Idempotency-Key": name} if name else {}
        answer = self._http.request(method, f"{self._cloud.all.api_endpoint}{path}", json=body, headers=headers, timeout=60)
        self.answers.append(
            Answer(
                what=f"{method} {path}",
                status=answer.status_code,
                seconds=time.monotonic() - began,
                retry_after=answer.headers.get("Retry-After"),
                text=answer.text,
            )
        )
        return answer

    def refusals(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.status >= 400]

    def judge_answers(self, deadline: float) -> None:
        """Taken, or refused for now; soon, and with a word on when to come again."""
        wrong = [answer for answer in self.answers if not answer.is_right(deadline)]
        assert not wrong, wrong


class Log(logging.Handler):
    """All that our own code says at WARNING or above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.split(".")[0] in OURS:
            self.lines.append(record)

    def judge(self, *, most: int) -> None:
        """No stack traces; nothing is said more than ``most`` times for each of the hosts, cells and sweeps that may say it."""
        traces = [record for record in self.lines if record.exc_info and record.exc_info[0]]
        assert not traces, [(record.name, record.getMessage(), record.exc_info) for record in traces]
        said = Counter(_kind(record) for record in self.lines)
        assert not {line: count for line, count in said.items() if count > most}, said


def _kind(record: logging.LogRecord) -> str:
    """The line without what differs from one server or request to the next."""
    return _DIFFERENT.sub("*", record.getMessage())


def all_weather() -> bool:
    return bool(os.environ.get(LONG_FORM))


@contextmanager
def watched_log() -> Iterator[Log]:
    log = Log()
    logging.getLogger().addHandler(log)
    try:
        yield log
    finally:
        logging.getLogger().removeHandler(log)


def judge(cloud: Region, traffic: Traffic, patience: float) -> None:
    """At rest each accepted boot is one ACTIVE server, spawned once for each attempt at most, or was deleted; all else agrees."""
    evidence = cloud.settle(patience)
    states = {server.uuid: server.state for server in evidence.servers if server.uuid in traffic.booted.values()}
    wanted = {uuid: "deleted" if uuid in traffic.deleted else "active" for uuid in traffic.booted.values()}
    wrong = [server for server in evidence.servers if wanted.get(server.uuid, server.state) != server.state]
    assert states == wanted, [(server.uuid, server.state, server.fault) for server in wrong]
    spawned: Counter[str] = Counter()
    for host in cloud.hosts:
        entries = read_entries(journal_path(str(cloud.folder.path / "hosts"), host.name))
        spawned.update(entry.spawned.uuid for entry in entries if entry.spawned is not None)
    active = [uuid for uuid, state in wanted.items() if state == "active"]
    attempts = {row.instance.uuid: row.instance.attempt for row in evidence.rows}
    assert [uuid for uuid in active if not 1 <= spawned[uuid] <= attempts[uuid]] == []
    assert wait_until(lambda: _verified(cloud), patience, pause=0.5), "verify has found something: see its output"


def _verified(cloud: Region) -> bool:
    """Hosts tell how many guests they hold a little later than they have them."""
    try:
        cloud.commands.run("verify", "--settle", "0")
    except errors.Invalid:
        return False
    return True


@contextmanager
def own_server(made: Server) -> Iterator[None]:
    """A server that the tests of a module may break, or stop. Skips, and says why, where it cannot be had."""
    try:
        made.install_missing()
        made.start()
    except Unavailable as why:
        pytest.skip(str(why))
    yield
    made.stop()
