"""``superconductor top``: a frame of a region at work, of one that does not answer, and a live view that ends cleanly."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console

from cli.app import main
from cli.shared.scrape import Scrape, scrape_metrics
from cli.watch.frame import Look, draw_frame
from service.monitor import Monitor, MonitorSettings
from service.periodic import wait_until
from tests.support.databases import closed_port
from tests.support.region import Region, host, region

PATIENCE = 60.0


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    """One that has built a server, so that its metrics have something to tell."""
    with region(tmp_path_factory.mktemp("region"), [host("h1"), host("h2", "cell2")]) as running:
        running.wait_for(running.boot("top"), "ACTIVE")
        yield running


@pytest.fixture(scope="module")
def metrics_at() -> Iterator[str]:
    address = f"http://127.0.0.1:{closed_port()}"
    monitor = Monitor(MonitorSettings(port=int(address.rpartition(":")[2]))).start()
    assert wait_until(lambda: not scrape_metrics([address]).silent, PATIENCE)
    yield address
    monitor.stop()


def test_one_frame_shows_cells_queue_and_stages(deployment: Region, metrics_at: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--endpoint", deployment.all.api_endpoint, "--metrics", metrics_at]) == 0
    shown = capsys.readouterr().out
    for expected in ("cell1", "cell2", "Waiting for a host: 0", "Since the processes began", "hand_over", "slowest"):
        assert expected in shown, shown


def test_a_silent_part_is_named_beside_the_rest(deployment: Region, metrics_at: str, capsys: pytest.CaptureFixture[str]) -> None:
    nobody = f"http://127.0.0.1:{closed_port()}"
    assert main(["top", "--once", "--endpoint", f"{nobody}/v2.1", "--metrics", metrics_at]) == 1
    shown = capsys.readouterr().out
    assert f"No API can be reached at {nobody}" in shown
    assert "Stages" in shown
    endpoint = deployment.all.api_endpoint
    assert main(["top", "--once", "--endpoint", endpoint, "--metrics", nobody, "--metrics", endpoint]) == 0
    shown = capsys.readouterr().out
    assert f"{nobody} does not answer" in shown
    assert f"{endpoint} answers 404" in shown
    assert "cell1" in shown


@contextmanager
def live(deployment: Region, **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """The command on a terminal: the process, our end and its end."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "cli", "top", "--endpoint", deployment.all.api_endpoint, "--interval", "0.2"]
    usual = {"TERM": "xterm", "COLUMNS": "150", "LINES": "50"}
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | usual | environment)
    try:
        yield process, ours, theirs
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_a_key_ends_the_view_and_restores_terminals(deployment: Region) -> None:
    with live(deployment) as (process, ours, theirs):
        before = termios.tcgetattr(theirs)
        assert "cell2" in read_until(ours, b"cell2")
        type_keys(ours, b"q", until=b"\x1b[?1049l")  # back from the other screen
        assert process.wait(PATIENCE) == 0
        assert termios.tcgetattr(theirs) == before


def test_what_is_chosen_is_explained(deployment: Region) -> None:
    """A server, found by a filter, and a host."""
    with live(deployment) as (process, ours, _):
        read_until(ours, b"decisions ")
        read_until(ours, b"q quit")
        type_keys(ours, b"/nobody\r", until=b"'nobody' in their names: none")
        type_keys(ours, b"/to", until=b"/to_")
        type_keys(ours, b"\r", until=b">   top")
        type_keys(ours, b"\r", until=b"Decision 1 of 1")
        type_keys(ours, b"\x1b[B\r\t", until=b">   h1")
        type_keys(ours, b"\x1b[B\r", until=b"binary: nova-compute")
        read_until(ours, b"Servers (")
        type_keys(ours, b"q", until=b"\x1b[?1049l")
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(("columns", "lines"), [("12", "3"), ("1", "1")])
def test_a_small_terminal_shows_what_fits(deployment: Region, columns: str, lines: str) -> None:
    with live(deployment, COLUMNS=columns, LINES=lines) as (process, ours, _):
        read_until(ours, b"\x1b[?1049h")
        os.write(ours, b"\x1b[B\r")
        os.write(ours, b"q")
        left = read_until(ours, b"\x1b[?1049l")
        assert "Traceback" not in left
        assert process.wait(PATIENCE) == 0


def test_a_dumb_terminal_gets_one_frame(deployment: Region) -> None:
    with live(deployment, TERM="dumb") as (process, ours, _):
        shown = read_until(ours, b"messages ")
        assert "\x1b" not in shown
        assert "cell1" in shown
        assert process.wait(PATIENCE) == 0


def test_rates_are_those_of_the_process_that_answers(deployment: Region, capsys: pytest.CaptureFixture[str]) -> None:
    """Of all roles here, without an address of metrics."""
    assert main(["top", "--once", "--endpoint", deployment.all.api_endpoint]) == 0
    shown = capsys.readouterr().out
    for expected in ("Since the processes began", "decisions ", " ms, messages ", "hand_over"):
        assert expected in shown, shown
    assert "Counted by the process" not in shown


def read_until(file: int, text: bytes) -> str:
    """What was written up to there, which must come: a terminal that nobody reads holds up its writer."""
    found, end = b"", time.monotonic() + PATIENCE
    while text not in found and time.monotonic() < end:
        if select.select([file], [], [], 1.0)[0]:
            found += os.read(file, 65536)
    assert text in found, found[-4000:].decode(errors="replace")
    return found.decode(errors="replace")


def type_keys(ours: int, keys: bytes, until: bytes) -> None:
    """Press these, and wait for what is shown then."""
    os.write(ours, keys)
    read_until(ours, until)


def test_rates_are_computed_and_silent_cells_reported() -> None:
    def at(second: float, active: float, told: float, spent: float) -> Look:
        reached = {"reachable": False, "since": "2026-01-01T00:00:00Z", "reason": "cell '[east]': refused"}
        cell = {
            "uuid": "1",
            "name": "[east]",
            "state": "enabled",
            "view": "cell '[east]': refused",
            "hosts": {},
            "database": reached,
            "bus": {"reachable": True, "since": None, "reason": None},
            "feed": None,
        }
        queue = {"depth": 7, "oldest_seconds": 2.5, "servers": {}}
        status = {"cells": [cell | {"servers": {"active": active}}], "broken_cells": [], "buried": {}, "queue": queue}
        counts = {
            ("stage_seconds_count", "plan"): told,
            ("stage_seconds_sum", "plan"): spent,
            ("builds_ended_total", "active"): told,
        }
        return Look(at=second, status=status, trouble="", counts=Scrape(told={"a": counts, "b": counts}, silent={}))

    def shown(now: Look, before: Look | None) -> str:
        out = io.StringIO()
        Console(file=out, width=150).print(draw_frame("http://api", now, before))
        return out.getvalue()

    text = shown(at(12.0, 30, 60.0, 1.0), at(10.0, 10, 50.0, 0.5))
    assert "[east]" in text
    assert "+10.0" in text  # net of 20 in 2 s
    assert "ACTIVE 10.0/s" in text  # 10 at each of two processes in 2 s
    assert "50.0" in text  # ms
    assert "Cell [east]: its database is silent since 2026-01-01T00:00:00Z: refused\n" in text
    [row] = [line.split() for line in text.splitlines() if line.lstrip().startswith("[east]")]
    assert row == ["[east]", "enabled", "silent", "?", "?", "0", "30", "0", "+10.0", "?"], "none that is known is not none"
    assert "Waiting for a host: 7, the oldest for 2.5 s" in text
    assert "ACTIVE 10.0/s" in shown(at(12.0, 30, 10.0, 1.0), at(10.0, 10, 50.0, 0.5))  # both began anew in between
