"""Run ``superconductor`` commands in this process, as an operator would type them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli import app
from tests.support.closing import LATER


class Outcome(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


class Shell:
    """Runs commands against one deployment: ``--state`` of its folder is put before each."""

    def __init__(self, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.state = state
        self._capsys = capsys

    def __call__(self, line: str) -> Outcome:
        """``shell("cell list -f json")``: the exit status and both outputs."""
        return self.run("--state", str(self.state), *shlex.split(line))

    def run(self, *words: str) -> Outcome:
        """The same without ``--state``."""
        LATER.wait()
        self._capsys.readouterr()
        status = app.main(words)
        captured = self._capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    def done(self, line: str) -> str:
        """Run a command that must succeed and say nothing on standard error; return its output."""
        outcome = self(line)
        assert (outcome.status, outcome.err) == (0, ""), f"{line}: {outcome}"
        return outcome.out

    def json(self, line: str) -> Any:
        """The result of a command that must succeed."""
        return json.loads(self.done(f"{line} -f json"))

    def refused(self, line: str, status: int = 1) -> str:
        """Run a command that must fail with one line on standard error and nothing else; return the line."""
        outcome = self(line)
        assert outcome.status == status, f"{line}: {outcome}"
        assert outcome.out == "", f"{line}: {outcome}"
        assert outcome.err.count("\n") == 1, f"{line}: {outcome}"
        assert outcome.err.startswith("superconductor"), f"{line}: {outcome}"
        return outcome.err.rstrip("\n")


class Operator:
    """Types commands for one endpoint."""

    def __init__(self, shell: Shell, endpoint: str) -> None:
        self._shell = shell
        self.endpoint = endpoint

    def __call__(self, line: str) -> Outcome:
        return self._shell.run(*shlex.split(line), "--endpoint", self.endpoint)

    def done(self, line: str) -> str:
        outcome = self(line)
        assert (outcome.status, outcome.err) == (0, ""), f"{line}: {outcome}"
        return outcome.out

    def json(self, line: str) -> Any:
        return json.loads(self.done(f"{line} -f json"))

    def refused(self, line: str, status: int = 1) -> str:
        outcome = self(line)
        assert (outcome.status, outcome.out, outcome.err.count("\n")) == (status, "", 1), f"{line}: {outcome}"
        return outcome.err


@contextmanager
def standalone(state: Path, file: str) -> Iterator[str]:
    """An all-in-one as a process of its own; its endpoint."""
    words = ["--config-file", file, "standalone", "--state", str(state), "--port", "0", "--cells", "1", "--hosts", "2"]
    process = subprocess.Popen([sys.executable, "-m", "cli", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        yield next(found[1] for line in process.stdout if (found := re.search(r"serving at (\S+),", line)))
    finally:
        process.terminate()
        process.communicate(timeout=120)


def shell_fixture(*lines: str) -> object:
    """A fixture: a shell on a new folder, after these commands."""

    @pytest.fixture
    def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
        made = Shell(tmp_path, capsys)
        for line in lines:
            made.done(line)
        return made

    return shell
