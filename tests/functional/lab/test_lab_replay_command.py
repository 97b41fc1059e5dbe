"""``superconductor lab replay`` as its user runs it: results that agree, interruptions, and refusals that leave nothing behind."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import psutil
import pytest

from lab.replay import CHECKPOINT_SERVERS
from tests.support.commands import Shell
from tests.support.traces import HEADER, made_fleet, made_trace, write_lines

PACK = "[scheduler]\nram_weight_multiplier = -1.0\ncpu_weight_multiplier = -1.0\n"
VOID = ("meta", "line", "path", "polyline", "rect")


class Page(HTMLParser):
    """Checks that tags are closed in order, and gathers the cells of the first table and what the page would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[list[str]] = []
        self.loads: list[str] = []
        self._open: list[str] = []
        self._tables = 0
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href")] + [tag] * (tag in ("link", "script"))
        if tag not in VOID:
            self._open.append(tag)
        self._tables += tag == "table"
        if tag == "tr" and self._tables == 1:
            self.cells.append([])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._tables == 1 and self._open and self._open[-1] in ("td", "th") and self.cells:
            self.cells[-1].append(data)


def timeless(path: Path) -> Any:
    """The results without the time that they took."""
    found = json.loads(path.read_text())
    for policy in found["policies"]:
        del policy["cpu_us"]
    return found


def test_all_forms_of_the_results_agree(tmp_path: Path, shell: Shell) -> None:
    trace, fleet = made_trace(tmp_path / "trace.csv", 600), made_fleet(tmp_path / "fleet.csv", 9)
    for name in ("spread", "pack"):
        (tmp_path / f"{name}.conf").write_text(PACK if name == "pack" else "[scheduler]\n")
    configs = f"--config {tmp_path / 'spread.conf'} --config {tmp_path / 'pack.conf'}"
    output = tmp_path / "results"

    outcome = shell(f"lab replay {trace} --fleet {fleet} {configs} --output {output} -f json")
    assert outcome.status == 0, outcome
    assert outcome.err.splitlines()[-1] == "1,200 of 1,200 servers"
    table = json.loads(outcome.out)
    assert [row["Policy"] for row in table] == ["(lower bound)", "spread", "pack"]
    written = json.loads((output / "results.json").read_text())
    for row, policy in zip(table[1:], written["policies"], strict=True):
        assert row["Policy"] == policy["policy"]
        assert row["Rejected"] == policy["rejected"] == sum(reason["servers"] for reason in policy["reasons"]) > 0
        assert row["Core-days lost %"] == round(policy["vcpu_days_lost"], 3) >= table[0]["Core-days lost %"]
        assert policy["rejected"] >= written["demand"]["bound"]["rejected"]
    assert written["policies"][1]["settings"] == {"ram_weight_multiplier": -1.0, "cpu_weight_multiplier": -1.0}

    page = Page((output / "report.html").read_text())
    assert page.loads == []
    assert page.cells == [list(table[0]), *([("-" if value is None else str(value)) for value in row.values()] for row in table)]
    with (output / "results.csv").open(newline="") as file:
        assert list(csv.reader(file))[1:] == [[("" if value is None else str(value)) for value in row.values()] for row in table]


def test_a_killed_replay_continues_to_the_same_end(tmp_path: Path, shell: Shell) -> None:
    trace, fleet = made_trace(tmp_path / "trace.csv", 2 * CHECKPOINT_SERVERS + 500), made_fleet(tmp_path / "fleet.csv", 6)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    words = ["lab", "replay", str(trace), "--fleet", str(fleet), "--seed", "5", "--output"]
    assert shell.run(*words, str(whole)).status == 0

    kept = killed / ".state" / "default.json"
    process = subprocess.Popen([sys.executable, "-m", "cli", *words, str(killed)], stderr=subprocess.PIPE)
    while not kept.exists():
        assert process.poll() is None
        time.sleep(0.01)
    children = psutil.Process(process.pid).children()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(children, timeout=120)  # nobody hears them any more
    assert not any(child.is_running() for child in children)
    assert not (killed / "results.json").exists()

    before = json.loads(kept.read_text())["checkpoint"]["servers"]
    assert before >= CHECKPOINT_SERVERS
    assert shell.run(*words, str(killed)).status == 0
    assert timeless(killed / "results.json") == timeless(whole / "results.json")
    assert shell.run(*words, str(killed)).status == 0  # what has ended is not done again
    assert (killed / "results.json").read_text() != (whole / "results.json").read_text()


def test_a_replay_killed_by_the_kernel_suggests_remedies(tmp_path: Path) -> None:
    trace, fleet = made_trace(tmp_path / "trace.csv", 2 * CHECKPOINT_SERVERS), made_fleet(tmp_path / "fleet.csv", 6)
    words = ["lab", "replay", str(trace), "--fleet", str(fleet), "--output", str(tmp_path / "results")]
    with subprocess.Popen([sys.executable, "-m", "cli", *words], stderr=subprocess.PIPE, text=True) as process:
        while not (replays := [child for child in psutil.Process(process.pid).children() if "spawn_main" in str(child.cmdline())]):
            assert process.poll() is None
            time.sleep(0.01)  # until its replays are there
        replays[0].kill()
        _, told = process.communicate()
    assert process.returncode == 1
    assert "killed (status -9), probably by the kernel for want of memory. Use fewer --processes" in told
    assert not (tmp_path / "results" / "results.json").exists()


def test_a_folder_holds_one_replay(tmp_path: Path, shell: Shell) -> None:
    trace, fleet = made_trace(tmp_path / "trace.csv", 20), made_fleet(tmp_path / "fleet.csv", 3)
    line = f"lab replay {trace} --fleet {fleet} --output {tmp_path / 'results'}"
    assert shell(line).status == 0
    before = (tmp_path / "results" / "results.json").read_text()
    assert "holds a replay of another trace, fleet, seed or configuration" in shell.refused(f"{line} --seed 2")
    (tmp_path / "results" / ".state" / "default.json").write_text("{")
    assert "is no checkpoint of this release" in shell.refused(line)
    assert (tmp_path / "results" / "results.json").read_text() == before


def test_refusals_leave_no_results(tmp_path: Path, shell: Shell) -> None:
    fleet, output = made_fleet(tmp_path / "fleet.csv", 3), tmp_path / "results"
    late = write_lines(tmp_path / "late.csv", HEADER, [*(f"{n},{n},,1,1" for n in range(50)), "z,3,,1,1"])
    assert f"{late}, line 52: begins before" in shell.refused(f"lab replay {late} --fleet {fleet} --output {output}")
    assert "line 1: the column 'id' is unknown" in shell.refused(f"lab replay {late} --fleet {late} --output {output}")
    assert not output.exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[scheduler]\nenabled_weighers = NoWeigher\n", "NoWeigher"),
        ("[scheduler]\nrams_weight_multiplier = 1\n", "has no option rams_weight_multiplier; perhaps ram_weight_multiplier"),
        ("[scheduler]\nram_weight_multiplier = heavy\n", "ram_weight_multiplier"),
    ],
)
def test_a_configuration_no_scheduler_accepts_is_refused(tmp_path: Path, shell: Shell, text: str, why: str) -> None:
    trace, fleet = made_trace(tmp_path / "trace.csv", 20), made_fleet(tmp_path / "fleet.csv", 3)
    config = tmp_path / "a.conf"
    config.write_text(text)
    assert why in shell.refused(f"lab replay {trace} --fleet {fleet} --config {config}")


def test_two_policies_of_one_name_are_refused(tmp_path: Path, shell: Shell) -> None:
    trace, fleet = made_trace(tmp_path / "trace.csv", 20), made_fleet(tmp_path / "fleet.csv", 3)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.conf").write_text("[scheduler]\n")
    configs = f"--config {tmp_path / 'one' / 'a.conf'} --config {tmp_path / 'two' / 'a.conf'}"
    assert "two configurations are called a" in shell.refused(f"lab replay {trace} --fleet {fleet} {configs}")
