"""``superconductor lab tune``: the values that are best on one part of a trace, and what they give on the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Shell
from tests.support.traces import HEADER, made_fleet, made_trace, write_lines

HUAWEI = "flavor_vcpus,flavor_ram,numa,strategy,group,domain"


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path / "none", capsys)


def test_the_best_values_of_the_first_part_are_tried_on_the_rest(tmp_path: Path, shell: Shell) -> None:
    """Small servers fill both hosts evenly or one of them. Only in the second case the large ones fit, in both parts."""
    hours = [part * 3600 for part in range(10)]
    lines = [
        line
        for at in hours
        for line in (f"a{at},{at},{at + 1800},2,2", f"b{at},{at},{at + 1800},2,2", f"c{at},{at},{at + 1800},8,8")
    ]
    trace = write_lines(tmp_path / "trace.csv", HEADER, lines)
    fleet = write_lines(tmp_path / "fleet.csv", "count,vcpus,memory_mb", ["2,8,8"])
    words = "--try ram_weight_multiplier=-1,1 --try cpu_weight_multiplier=0 --seeds 2 --processes 1 -f json"
    outcome = shell(f"lab tune {trace} --fleet {fleet} {words}")
    assert outcome.status == 0, outcome
    best, *others = json.loads(outcome.out)
    assert best["Settings"] == "ram_weight_multiplier=-1 cpu_weight_multiplier=0"
    assert (best["Seen lost %"], best["Seen most"], best["Seen rejected"], best["Unseen lost %"]) == (0.0, 0.0, 0.0, 0.0)
    found = {each["Settings"]: each for each in others}
    assert found["as it is"]["Seen lost %"] == found["as it is"]["Unseen lost %"] == pytest.approx(100 * 8 / 12, abs=0.001)
    assert found["ram_weight_multiplier=1 cpu_weight_multiplier=0"]["Unseen lost %"] is None


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ("--try colour=1", 2, "'colour' is not one of"),
        ("--try leftover_shape=", 2, "the values are numbers"),
        ("--try leftover_shape=-1", 2, "the values are numbers"),
        ("--try leftover_shape=nan", 2, "the values are numbers"),
        ("--try leftover_from=-1", 2, "the values are numbers"),
        ("--try balance_weight_multiplier=1", 1, "--try: no enabled weigher uses balance_weight_multiplier; name its weigher"),
        ("--try io_ops_weight_multiplier=-1", 1, "--try: no enabled weigher uses io_ops_weight_multiplier"),
        ("--try leftover_shape=1 --part 100", 1, "--part: nothing is left"),
        ("--try leftover_shape=1 --try leftover_shape=2", 1, "--try: an option is named twice"),
        (f"--try ram_weight_multiplier={','.join(map(str, range(300)))}", 1, "more than 200 combinations"),
    ],
)
def test_what_cannot_be_tried_is_refused(tmp_path: Path, shell: Shell, words: str, status: int, text: str) -> None:
    trace, fleet = made_trace(tmp_path / "trace.csv", 20), made_fleet(tmp_path / "fleet.csv", 3)
    outcome = shell(f"lab tune {trace} --fleet {fleet} {words}")
    assert (outcome.status, outcome.out) == (status, "")
    assert text in outcome.err


def test_what_a_configuration_enables_can_be_tried(tmp_path: Path, shell: Shell) -> None:
    config = tmp_path / "pack.conf"
    config.write_text("[scheduler]\nenabled_weighers = LeftoverWeigher\n")
    trace, fleet = made_trace(tmp_path / "trace.csv", 20), made_fleet(tmp_path / "fleet.csv", 3)
    words = "--try leftover_from=0,0.5 --try leftover_shape=1 --seeds 1 --processes 1 -f json"
    outcome = shell(f"lab tune {trace} --fleet {fleet} --config {config} {words}")
    assert outcome.status == 0, outcome
    names = {each["Settings"] for each in json.loads(outcome.out)}
    assert names == {"as it is", "leftover_from=0 leftover_shape=1", "leftover_from=0.5 leftover_shape=1"}


def test_a_trace_without_times_is_refused(tmp_path: Path, shell: Shell) -> None:
    trace = write_lines(tmp_path / "trace.csv", HUAWEI, ["8,16,1,,,"])
    line = f"lab tune {trace} --fleet {made_fleet(tmp_path / 'fleet.csv', 3)} --ignore numa --try ram_weight_multiplier=1"
    assert "cannot be divided into two parts" in shell.refused(line)
