"""Completion as shells do it, and help with an example for every command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from api.opts import ApiSettings
from cli.app import COMMANDS
from service.vault import Vault, new_key
from tests.support.api import Front, endpoint_of, serve_http
from tests.support.commands import Shell, shell_fixture

ROOT = Path(__file__).parents[3]

Completer = Callable[..., list[str]]
"""From the words of a line, the last of which is completed, to what is offered."""


shell = shell_fixture()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """``superconductor`` of this checkout."""
    program = tmp_path / "superconductor"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m cli "$@"\n')
    program.chmod(0o700)
    return program


@pytest.fixture
def front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """An API with a server, at the usual endpoint."""
    vault = Vault([new_key()])
    (tmp_path / "images").mkdir()
    front = Front(tmp_path, ApiSettings(images_folder=str(tmp_path / "images")), vault)
    with serve_http(front, vault=vault) as service:
        monkeypatch.setenv("SUPERCONDUCTOR_ENDPOINT", endpoint_of(service))
        front.boot("web one")
        yield front
    front.close()


def run(words: list[str], folder: Path) -> str:
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True, cwd=folder, env=environment)
    assert done.stderr == ""
    return done.stdout


BASH_LINE = 'COMP_WORDS=({typed}); COMP_CWORD={last}; _superconductor; for one in "${{COMPREPLY[@]}}"; do echo "$one"; done'


def typed(program: Path, words: tuple[str, ...]) -> str:
    quoted = " ".join(f"'{word}'" for word in (str(program), *words))
    return BASH_LINE.format(typed=quoted, last=len(words))


@pytest.fixture(params=["bash", "zsh"])
def completed(request: pytest.FixtureRequest, shell: Shell, program: Path, tmp_path: Path) -> Completer:
    """As the shell does it: zsh runs the functions of bash."""
    kind: str = request.param
    if shutil.which(kind) is None:
        pytest.skip(f"{kind} is not installed")
    script = tmp_path / "completion"
    script.write_text(shell.run("completion", kind).out)
    source = f"source {script}"
    if kind == "zsh":
        source = f"autoload -Uz compinit; compinit -u -d {tmp_path}/dump; source {script}; emulate -L sh -o ksharrays"

    def complete(*words: str) -> list[str]:
        if kind == "zsh":
            code = f"try() {{ {source}; {typed(program, words)}; }}; try"
            return run(["zsh", "-f", "-c", code], tmp_path).split("\n")[:-1]
        return run(["bash", "--norc", "-c", f"{source}; {typed(program, words)}"], tmp_path).split("\n")[:-1]

    return complete


def test_commands_options_and_values_are_completed(completed: Completer, tmp_path: Path) -> None:
    assert {"cell", "db", "quickstart", "upgrade"} <= set(completed(""))
    assert completed("db", "on") == ["online-migrations"]
    assert completed("help", "cell", "cr") == ["create"]
    assert "--max-count" in completed("db", "online-migrations", "--max")
    assert completed("aggregate", "add", "") == ["host"]
    assert completed("cell", "show", "--conf") == ["--config-dir", "--config-file"], "what every command has"
    assert completed("--state", "cell", "cell", "show", "--conf") == ["--config-dir", "--config-file"], "before it, too"
    assert completed("server", "list", "-f", "") == ["csv", "json", "table", "value", "yaml"]
    assert completed("server", "list", "--format", "=", "j") == ["json"]
    assert completed("server", "group", "create", "g", "--policy", "anti") == ["anti-affinity"]
    (tmp_path / "debian.raw").touch()
    (tmp_path / "images").mkdir()
    assert completed("image", "add", "deb") == ["debian.raw"]
    assert completed("quickstart", "im") == ["images/"], "a folder"
    assert completed("server", "boot", "") == [], "a new name"


def test_names_are_asked_for(completed: Completer, front: Front) -> None:
    assert completed("server", "show", "w") == ["web\\ one"]
    assert completed("server", "stop", "one", "") == ["web\\ one"]
    assert completed("server", "boot", "two", "--flavor", "m1.s") == ["m1.small"]
    assert "cell1" in completed("cell", "show", "")
    assert completed("server", "boot", "two", "--image", "") == []


def test_nobody_is_told_that_no_api_answers(completed: Completer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERCONDUCTOR_ENDPOINT", "http://127.0.0.1:9/v2.1")
    assert completed("server", "show", "") == []


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(shell: Shell, program: Path, front: Front, tmp_path: Path) -> None:
    script = tmp_path / "completion.fish"
    script.write_text(shell.run("completion", "fish").out)

    def completed(line: str) -> list[str]:
        offered = run(["fish", "--no-config", "-c", f"source {script}; complete -C 'superconductor {line}'"], tmp_path)
        return [each.partition("\t")[0] for each in offered.splitlines()]

    assert {"cell", "db", "quickstart"} <= set(completed(""))
    assert completed("db on") == ["online-migrations"]
    assert completed("server list --st") == ["--state", "--status"]
    assert completed("server group create g --policy anti") == ["anti-affinity"]
    assert "web one" in completed("server show ")


def test_names_of_what_only_the_database_lists(shell: Shell) -> None:
    shell.done("-q db sync --api")
    shell.done("-q network create lan --physical-network lan")
    assert shell.done("completion names network") == "lan\n"
    assert shell.done("completion names group") == ""
    assert shell.done("completion names aggregate") == ""


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS] + ["help"])
def test_help_of_every_command_has_its_example(shell: Shell, name: str) -> None:
    outcome = shell.run("help", *name.split())
    assert (outcome.status, outcome.err) == (0, "")
    assert f"usage: superconductor {name}" in outcome.out
    example = outcome.out.partition("Example")[2]
    assert "superconductor" in example
    assert f" {name}" in example
