"""kill -9 of the whole all-in-one at several moments: the next run on the same folder comes to the same strict verdict."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from service.periodic import wait_until

ROOT = Path(__file__).resolve().parents[2]


def demo(state: Path, log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "cli", "demo", "--state", str(state)],
        cwd=ROOT,
        stdout=log.open("ab"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@pytest.mark.parametrize("signals", [(signal.SIGKILL, signal.SIGKILL, signal.SIGKILL), (signal.SIGINT,)], ids=["kill-9", "ctrl-c"])
def test_a_killed_demo_reaches_the_same_verdict(tmp_path: Path, signals: tuple[signal.Signals, ...]) -> None:
    log = tmp_path / "log"
    for round_, number in enumerate(signals):
        process = demo(tmp_path / "state", log)
        start = log.stat().st_size if log.exists() and round_ else 0
        wait_until(partial(_boots_or_has_ended, process, log, start), 60.0)
        # each round gets further: while accepting, while building, while the last ones end
        time.sleep((0.3, 1.5, 3.5)[round_])
        os.killpg(process.pid, number)
        process.wait(timeout=60)
    last = demo(tmp_path / "state", log)
    assert last.wait(timeout=240) == 0, log.read_text(errors="replace")[-6000:]


def _boots_or_has_ended(process: subprocess.Popen[bytes], log: Path, start: int) -> bool:
    return b"servers over HTTP" in log.read_bytes()[start:] or process.poll() is not None
