"""Run commands of the ``openstack`` client, each in a fork of one process that has loaded it: to load it takes two seconds of CPU.

Reads a line of JSON per command (words, environment, files for its outputs) and answers with a line: its exit status.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MODULES = ("openstackclient.shell", "openstackclient.compute.v2.server", "openstackclient.compute.v2.flavor", "openstack.config")
SECONDS = 180
"""A command that takes longer is killed."""


class Forks:
    """The other end: a child process that runs commands one after the other."""

    def __init__(self, python: Path = Path(sys.executable)) -> None:
        """``python``: of the environment with the client."""
        command = [str(python), "-m", __name__]
        root = Path(__file__).parents[2]
        self._child = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, words: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        assert self._child.stdin
        assert self._child.stdout
        with TemporaryDirectory() as folder:
            outputs = [Path(folder) / name for name in ("stdout", "stderr")]
            request = {"words": list(words), "environment": dict(environment), "outputs": [str(path) for path in outputs]}
            self._child.stdin.write(f"{json.dumps(request)}\n")
            self._child.stdin.flush()
            status = int(self._child.stdout.readline())
            return subprocess.CompletedProcess(list(words), status, *(path.read_text() for path in outputs))

    def close(self) -> None:
        assert self._child.stdin
        self._child.stdin.close()
        self._child.wait(SECONDS)


def _serve() -> None:
    for name in MODULES:
        import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            _become(request)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _become(request: dict[str, Any]) -> None:
    """Run the command as its program does, and end this process with its status."""
    status = 1
    try:
        signal.alarm(SECONDS)
        os.environ.clear()
        os.environ.update(request["environment"])
        for number, path in zip((1, 2), request["outputs"], strict=True):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
        status = import_module("openstackclient.shell").main(request["words"]) or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - as an interpreter would show it, in the command's own output
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
