"""Completion as bash does it, and help with an example for every command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cli.app import COMMANDS
from tests.support.commands import Shell


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


def test_bash_completes_commands_and_options(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(shell.run("complete").out)

    def completed(*words: str) -> list[str]:
        typed = " ".join(f"'{word}'" for word in ("superconductor", *words))
        line = f'source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _superconductor; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "--norc", "-c", line], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
        assert done.stderr == ""
        return done.stdout.split()

    assert {"cell", "db", "quickstart", "upgrade"} <= set(completed(""))
    assert completed("db", "on") == ["online-migrations"]
    assert completed("cell", "cr") == ["create"]
    assert "--max-count" in completed("db", "online-migrations", "--max")
    assert completed("aggregate", "add", "") == ["host"]
    assert completed("cell", "show", "--conf") == ["--config-file", "--config-dir"], "what every command has"


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS] + ["help"])
def test_help_of_every_command_has_an_example_of_it(shell: Shell, name: str) -> None:
    outcome = shell.run("help", *name.split())
    assert (outcome.status, outcome.err) == (0, "")
    assert f"usage: superconductor {name}" in outcome.out
    example = outcome.out.partition("Example")[2]
    assert "superconductor" in example
    assert f" {name}" in example
