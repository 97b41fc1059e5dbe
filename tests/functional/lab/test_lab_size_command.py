"""``superconductor lab size``: how many hosts a trace needs, so that nothing is rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Outcome, Shell
from tests.support.traces import HEADER, write_lines


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path / "none", capsys)


def sized(tmp_path: Path, shell: Shell, servers: list[str], fleet: str, *policies: str) -> tuple[Outcome, list[dict[str, Any]]]:
    """The rows for these servers, under policies that spread (``spread``) or pack (``pack``)."""
    trace = write_lines(tmp_path / "trace.csv", HEADER, servers)
    hosts = write_lines(tmp_path / "fleet.csv", "count,vcpus,memory_mb", [fleet])
    words = ""
    for name in policies:
        sign = "-1" if name == "pack" else "1"
        file = tmp_path / f"{name}.conf"
        file.write_text(f"[scheduler]\nram_weight_multiplier = {sign}\ncpu_weight_multiplier = {sign}\n")
        words += f" --config {file}"
    outcome = shell(f"lab size {trace} --fleet {hosts}{words} --processes 1 -f json")
    return outcome, json.loads(outcome.out)


@pytest.mark.parametrize("hosts", [1, 4, 40])
def test_a_policy_that_spreads_needs_more_hosts(tmp_path: Path, shell: Shell, hosts: int) -> None:
    """Four small servers come before two that fill a host: they share one host, or each has one."""
    servers = [f"s{n},{n},99,2,2" for n in range(4)] + [f"l{n},{n + 10},99,8,8" for n in range(2)]
    outcome, [bound, spread, pack] = sized(tmp_path, shell, servers, f"{hosts},8,8", "spread", "pack")
    assert outcome.status == 0, outcome
    assert bound == {"Policy": "lower bound", "Hosts": 3, "Above bound %": 0.0, "Rejected with one less": None}
    assert pack == {"Policy": "pack", "Hosts": 3, "Above bound %": 0.0, "Rejected with one less": None}
    assert (spread["Policy"], spread["Hosts"], spread["Above bound %"]) == ("spread", 6, 100.0)
    assert spread["Rejected with one less"] == 1


def test_a_server_that_no_host_takes_is_told(tmp_path: Path, shell: Shell) -> None:
    outcome, rows = sized(tmp_path, shell, ["s,0,9,2,2", "huge,1,9,64,64"], "2,8,8")
    assert outcome.status == 1
    assert rows[1] == {"Policy": "default", "Hosts": None, "Above bound %": None, "Rejected with one less": 1}
    assert "default: rejects 1 servers on any fleet that was tried" in outcome.err
