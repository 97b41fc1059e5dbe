"""What the operator of the region does meanwhile, with the commands, and again where they could not reach what they need."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from deploy.local.folder import Folder
from deploy.local.processes import clean_environment, program_path
from objects import errors

CLI = "superconductor"
PAUSE_S = 3.0
"""Seconds between two tries."""
LAST_TRY_S = 120.0
"""Seconds within which a command must work that undoes something."""
COMMAND_TIMEOUT_S = 60.0
"""Seconds that a command may take longer than it was told to."""
USUAL_STATUSES = (0, 1)
"""Done; or servers are left, or a database did not answer."""


class OperatorCommands:
    """Each command is a process of its own, so that a database that does not answer holds up nothing here.

    ``over``: set at the end of the load. What was begun to empty a host ends then.
    """

    def __init__(self, folder: Folder, over: threading.Event, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._over = over
        self._say = say
        self._lock = threading.Lock()
        self.ends: Counter[str] = Counter()
        """How often which command ended with which status."""
        self.complaints: list[str] = []
        """Ends that must never come."""

    def attempt_command(self, seconds: float, *words: str) -> None:
        """Run a command that empties a host until it has left nothing there. Return after ``seconds``, however it went."""
        end = time.monotonic() + seconds
        while not self._over.is_set() and (remaining := round(end - time.monotonic())) > 0:
            if self._run(*words, "--timeout", str(remaining), ends_early=True) == 0:
                break
            self._over.wait(PAUSE_S)
        self._over.wait(max(0.0, end - time.monotonic()))

    def repeat_until_done(self, *words: str) -> None:
        """Run a command until it works. Raises ``errors.Conflict`` if it does not within ``LAST_TRY_S``."""
        end = time.monotonic() + LAST_TRY_S
        while self._run(*words) != 0:
            if time.monotonic() > end:
                raise errors.Conflict(f"'{' '.join(words)}' did not work for {LAST_TRY_S:g} s")
            time.sleep(PAUSE_S)

    def _run(self, *words: str, ends_early: bool = False) -> int:
        command = [program_path(CLI), "--config-file", str(self._folder.etc / "api.conf"), *words]
        end = time.monotonic() + COMMAND_TIMEOUT_S
        with subprocess.Popen(  # noqa: S603 - a command of ours
            command, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            while (said := _output_of(process)) is None:
                if ends_early and self._over.is_set():
                    process.kill()
                    return -1
                if time.monotonic() > end:
                    process.kill()
        self._count_end(words, process.returncode, said)
        return process.returncode

    def _count_end(self, words: Sequence[str], status: int, said: str) -> None:
        if status:
            lines = [line for line in said.splitlines() if not line.startswith("+")]  # without the borders of a table
            self._say(f"'{' '.join(words)}' ended with {status}: {lines[-1] if lines else ''}")
        with self._lock:
            self.ends[f"{' '.join(words[:2])}: {status}"] += 1
            if status not in USUAL_STATUSES or "Traceback" in said:
                self.complaints.append(f"'{' '.join(words)}' ended with {status}: {said.strip()}")


def _output_of(process: subprocess.Popen[str]) -> str | None:
    """What it has said; None: it runs."""
    try:
        return process.communicate(timeout=0.2)[0]
    except subprocess.TimeoutExpired:
        return None
