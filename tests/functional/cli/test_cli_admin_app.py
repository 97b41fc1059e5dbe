"""The command itself: help, errors in one line, exit statuses, configuration, start-up."""

from __future__ import annotations

import inspect
import logging
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from cliff.command import Command

from cli import app
from cli.app import COMMANDS, FORMER_COMMANDS, GROUPS, Superconductor, commands_by_word
from tests.support.commands import Shell, shell_fixture

ROOT = Path(__file__).parents[3]
ROOMS = ("db", "cell", "host", "flavor", "aggregate", "group")
MINE = [name for name, path, _ in COMMANDS if path.partition(":")[0].removeprefix("cli.") in ROOMS]


shell = shell_fixture()


def _process(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=whole, capture_output=True, text=True, timeout=60, check=False)


CLI = (sys.executable, "-m", "cli")


def test_help_shows_first_words_once_under_headings(shell: Shell) -> None:
    words = [word for _, entries in GROUPS for word, _ in entries]
    assert sorted(words) == sorted(commands_by_word())
    for arguments in (["--help"], ["help"]):
        outcome = shell.run(*arguments)
        assert outcome.status == 0
        for heading, entries in GROUPS:
            assert f"\n{heading}:\n" in outcome.out
            for word, summary in entries:
                assert len(re.findall(rf"^  {word}  .*{summary}", outcome.out, re.MULTILINE)) == 1


@pytest.mark.parametrize(("former", "name"), FORMER_COMMANDS.items())
def test_former_names_of_commands_still_work(former: str, name: str) -> None:
    application = Superconductor()
    assert application.command_manager.find_command(former.split())[0] is application.command_manager.find_command(name.split())[0]
    assert former not in application.command_names()


@pytest.mark.parametrize("arguments", [["cell"], ["cell", "--help"], ["help", "cell"]])
def test_word_lists_its_commands(shell: Shell, arguments: list[str]) -> None:
    outcome = shell.run(*arguments)
    for name, _, summary in COMMANDS:
        assert (f"  {name} " in outcome.out and summary in outcome.out) is name.startswith("cell ")


def test_no_command_is_a_usage_error(shell: Shell) -> None:
    outcome = shell.run()
    assert outcome.status == 2
    assert "register cells" in outcome.out


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, path, _ in COMMANDS])
def test_the_table_names_classes_that_are_there(name: str, path: str) -> None:
    found = metadata.EntryPoint(name, path, "superconductor").load()
    assert issubclass(found, Command)
    assert "Example" in (inspect.getdoc(found) or "")


@pytest.mark.parametrize("name", MINE)
def test_help_of_a_command_includes_an_example(shell: Shell, name: str) -> None:
    outcome = shell.run(*name.split(), "--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert f"usage: superconductor {name}" in outcome.out
    assert f"superconductor {name}" in outcome.out.partition("Example")[2] or f" {name} " in outcome.out.partition("Example")[2]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("cell lst", "'cell lst' is not a command; perhaps: cell list"),
        ("cell nonsense", "'cell nonsense' is not a command; perhaps: cell create, cell update, cell list"),
        ("frobnicate", "'frobnicate' is not a command; 'superconductor --help' lists them all"),
        (
            "cell list --frobnicate",
            "superconductor cell list: unrecognized arguments: --frobnicate; see ",
        ),
        ("cell list extra", "superconductor cell list: unrecognized arguments: extra"),
        ("cell create", "superconductor cell create: the following arguments are required: NAME"),
        ("cell show", "the following arguments are required: CELL"),
        ("cell list -f xml", "invalid choice: 'xml'"),
        ("flavor create f --vcpus 0 --ram 1", "argument --vcpus: '0' is not a whole number from 1 to 2147483647"),
        ("flavor create f --vcpus 1.5 --ram 1", "argument --vcpus: '1.5' is not a whole number"),
        ("flavor create f --vcpus 1 --ram 9999999999", "argument --ram: '9999999999' is not a whole number"),
        ("flavor create f --vcpus 1 --ram 1 --disk -1", "argument --disk: '-1' is not a whole number from 0"),
        ("flavor create f --vcpus 1", "the following arguments are required: --ram"),
        ("flavor create '' --vcpus 1 --ram 1", "argument NAME: '' is not a name"),
        ("flavor create ' f' --vcpus 1 --ram 1", "argument NAME: ' f' is not a name"),
        ("flavor create f --vcpus 1 --ram 1 --property novalue", "argument --property: 'novalue' is not KEY=VALUE"),
        ("flavor create f --vcpus 1 --ram 1 --property =v", "argument --property: '=v' is not KEY=VALUE"),
        ("flavor set f --enable --disable", "not allowed with argument"),
        ("aggregate create a --zone x:y", "argument --zone: 'x:y': the name of a zone holds no ':'"),
        ("aggregate set a --zone z --no-zone", "not allowed with argument"),
        ("aggregate add host a", "the following arguments are required: HOST"),
        ("server group create g --policy sometimes --project p", "argument --policy: invalid choice: 'sometimes'"),
        ("server group create g --policy affinity", "the following arguments are required: --project"),
        ("server group create g --policy anti-affinity --project p --max-server-per-host 0", "argument --max-server-per-host: '0'"),
        ("host list --down-after soon", "argument --down-after: 'soon'"),
        ("db sync --cell", "argument --cell: expected one argument"),
        ("cell list --config-file", "argument --config-file: expected one argument"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(shell: Shell, line: str, text: str) -> None:
    assert text in shell.refused(line, status=2)


def test_the_missing_database_line_names_the_option(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.delenv("SUPERCONDUCTOR_CONFIG", raising=False)
    outcome = shell.run("cell", "list")
    assert outcome.status == 1
    assert outcome.err.startswith("superconductor: No API database is named: give --state DIR, or a --config-file")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        *(
            "db version",
            "cell list",
            "cell show x",
            "cell create x",
            "host list",
            "host discover",
            "flavor list",
            "flavor delete x",
        ),
        *("aggregate list", "aggregate set x --name y", "server group list", "flavor create f --vcpus 1 --ram 1"),
    ],
)
def test_a_state_folder_without_database_is_refused(shell: Shell, line: str) -> None:
    if line == "db version":  # has a result for each database, and this is the API database's
        outcome = shell(line)
        assert outcome.status == 1
        assert "does not exist" in outcome.err
    else:
        assert "does not exist; create it and apply the schema with 'superconductor db sync'" in shell.refused(line)
    assert list(shell.state.iterdir()) == [], "looking at it must not make it"


def test_a_database_without_schema_is_refused(shell: Shell) -> None:
    (shell.state / "api.db").touch()
    assert "has no schema, or an old one; apply it with 'superconductor db sync'" in shell.refused("cell list")


@pytest.mark.parametrize("content", ["[api_database\n", "[api_database]\nconnection = nonsense\n", "[DEFAULT]\n"])
def test_bad_configuration_is_refused_in_one_line(shell: Shell, tmp_path: Path, content: str) -> None:
    file = tmp_path / "bad.conf"
    file.write_text(content)
    outcome = shell.run("--config-file", str(file), "cell", "list")
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1)


def test_a_missing_configuration_file_is_named(shell: Shell) -> None:
    outcome = shell.run("--config-file", "/no/such/file.conf", "cell", "list")
    assert outcome.status == 1
    assert "/no/such/file.conf" in outcome.err
    assert outcome.err.count("\n") == 1


def test_configuration_comes_from_files_folders_and_the_environment(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.done("-q db sync")
    folder = tmp_path / "conf.d"
    folder.mkdir()
    file = folder / "superconductor.conf"
    file.write_text(f"[api_database]\nconnection = sqlite:///{tmp_path}/api.db\n")
    assert shell.run("--config-file", str(file), "cell", "list").status == 0
    assert shell.run("cell", "list", "--config-file", str(file)).status == 0, "global options may stand after the command"
    assert shell.run("--config-dir", str(folder), "cell", "list").status == 0
    for value in (file, folder):
        monkeypatch.setenv("SUPERCONDUCTOR_CONFIG", str(value))
        assert shell.run("cell", "list").status == 0


def test_passwords_are_masked_in_errors(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "down.conf"
    file.write_text("[api_database]\nconnection = mysql+pymysql://sc:secret@127.0.0.1:1/api\n")
    outcome = shell.run("--config-file", str(file), "cell", "list")
    assert outcome.status == 1
    assert "secret" not in outcome.err
    assert "sc:***@127.0.0.1" in outcome.err


def test_debug_shows_the_trace(shell: Shell) -> None:
    outcome = shell("--debug cell list")
    assert outcome.status == 1
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("superconductor: Database")


def test_a_command_leaves_logging_as_it_was(shell: Shell) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    shell("-v db sync")
    assert (root.level, list(root.handlers)) == before


def test_quiet_actions_say_nothing_when_they_succeed(shell: Shell) -> None:
    assert shell.done("-q db sync") == ""
    assert shell.done("-q flavor create tiny --vcpus 1 --ram 64") == ""
    assert "tiny" in shell.done("-q flavor list"), "a list was asked for"


def test_as_a_process(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path))
    synced = _process(*CLI, *state, "db", "sync", "-f", "value", "-c", "Database", "-c", "Result")
    assert (synced.returncode, synced.stdout, synced.stderr) == (0, "api up to date\n", "")
    usage = _process(*CLI, *state, "cell", "show")
    assert (usage.returncode, usage.stdout) == (2, "")
    assert usage.stderr.count("\n") == 1
    refused = _process(*CLI, "cell", "show", "east", SUPERCONDUCTOR_CONFIG="/no/such.conf")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.count("\n") == 1
    assert _process(*CLI, "--version").stdout.startswith("superconductor ")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    piped = _process("bash", "-c", f"{sys.executable} -m cli --help | head -1; exit ${{PIPESTATUS[0]}}")
    assert piped.stderr == ""
    assert piped.returncode in (0, 141)


def test_help_and_usage_errors_wait_for_no_library() -> None:
    """What makes starting slow is imports: the help of all commands needs none of ours but the table."""
    code = """
import sys
from cli.app import main
main(["--help"])
main(["cell", "nonsense"])
slow = {"sqlalchemy", "oslo_config", "oslo_messaging", "numpy", "alembic", "cells", "falcon"}
sys.exit(", ".join(slow & set(sys.modules)) or 0)
"""
    done = _process(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr


def test_main_takes_its_arguments_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["superconductor", "nonsense"])
    assert app.main() == 2
    assert "nonsense" in capsys.readouterr().err
