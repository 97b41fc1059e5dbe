"""Commands that are given time to clean up when whoever runs them is told to end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

CLEAN_UP_TIMEOUT_S = 60
"""Seconds that an interrupted command has to clean up behind itself."""


def run(command: Sequence[str], cwd: Path, variables: Mapping[str, str], output: IO[str] | None = None) -> int:
    """The status of the command. When this process is told to end, the command is too, and is given time to clean up.

    What it says goes into ``output``, or to where this process says it.
    """
    with subprocess.Popen(command, cwd=cwd, env=variables, stdout=output, stderr=output) as child:
        try:
            return child.wait()
        except BaseException as why:
            if not isinstance(why, KeyboardInterrupt):  # Ctrl-C was for the whole group of processes, SIGTERM for this one only
                child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(CLEAN_UP_TIMEOUT_S)
            child.kill()
            raise
