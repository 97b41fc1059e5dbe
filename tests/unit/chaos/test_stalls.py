"""A machine that stands still is noticed by who is on it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from chaos.stalls import STALL_S

WATCHED = """
import json, sys, time
from pathlib import Path
from chaos.stalls import StallWatch
watch = StallWatch(Path(sys.argv[1]))
watch.start()
print("started", flush=True)
sys.stdin.readline()
time.sleep(1)
watch.stop()
print(json.dumps(watch.stalls))
"""


def test_a_standstill_is_noted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WATCHED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watched:
        assert watched.stdin is not None
        assert watched.stdout is not None
        assert watched.stdout.readline() == "started\n"
        watched.send_signal(signal.SIGSTOP)
        try:
            watched.wait(STALL_S + 1)
        except subprocess.TimeoutExpired:
            watched.send_signal(signal.SIGCONT)
        told, _ = watched.communicate("go on\n")
    longest = max(ended - began for began, ended in json.loads(told))
    assert longest > STALL_S
