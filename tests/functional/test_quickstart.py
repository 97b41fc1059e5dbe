"""``quickstart`` as its users have it: run it, start what it says, boot; add a cell, and boot into that."""

from __future__ import annotations

import configparser
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from cells import administration
from cli.app import main
from db import flavors
from db.engine import Database
from service.periodic import wait_until
from service.vault import Vault
from tests.support.bus import url_of
from tests.support.commands import Outcome, Shell
from tests.support.databases import closed_port

PATIENCE = 90.0
"""Seconds that a process may take until it serves."""


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


def start(shell: Shell, folder: Path, *options: str) -> Outcome:
    return shell.run("quickstart", str(folder), *options)


def values(file: Path) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(file)
    return {"DEFAULT": dict(parser.defaults())} | {
        name: {key: parser[name][key] for key in parser[name] if key not in parser.defaults()} for name in parser.sections()
    }


def commands(said: str) -> list[list[str]]:
    """The commands that were printed, as words."""
    return [shlex.split(line) for line in said.splitlines() if line.startswith("    superconductor")]


class Processes:
    """The roles that a user has started in terminals."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, words: list[str]) -> None:
        """The program of that name beside this Python, if it is installed, else its module."""
        program = Path(sys.executable).parent / words[0]
        module = [sys.executable, "-m", f"{words[0].removeprefix('superconductor-')}.process"]
        log = self._logs / f"{len(self._started)}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OS_", "SUPERCONDUCTOR_"))}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*([str(program)] if program.exists() else module), *words[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        self._started.append((process, log))

    def wait(self) -> None:
        """Until all of them say that they are ready."""
        for process, log in self._started:
            assert wait_until(partial(_is_ready, process, log), PATIENCE, 0.1), log.read_text()

    def stop(self) -> None:
        for process, _ in self._started:
            process.terminate()
        for process, _ in self._started:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_ready(process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    return b" is ready" in log.read_bytes()


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    made = Processes(folder)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def buses() -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(contextmanager(url_of)("rabbit")) for _ in range(2)]


def test_what_it_prints_starts_a_deployment_that_boots_and_takes_another_cell(
    shell: Shell, tmp_path: Path, buses: list[str]
) -> None:
    folder, endpoint_port = tmp_path / "my cloud", str(closed_port())
    began = start(shell, folder, "--transport-url", buses[0], "--port", endpoint_port)
    assert (began.status, began.err) == (0, "")
    *roles, discover, boot = commands(began.out)
    assert [words[0].removeprefix("superconductor-") for words in roles] == [
        "conductor",
        "compute",
        "scheduler",
        "conductor",
        "api",
    ]
    with processes(tmp_path) as running:
        for words in roles:
            running.start(words)
        running.wait()

        def discovered(host: str) -> bool:
            assert shell.run(*discover[1:]).status == 0
            listed = shell.run("host", "list", *discover[3:], "-f", "value", "-c", "Host", "-c", "Mapped").out
            return f"{host} yes" in listed

        assert wait_until(lambda: discovered("cell1-host1"), PATIENCE, 0.2)
        first = shell.run(*boot[1:])
        assert first.status == 0, first

        added = start(shell, folder, "--add-cell", "cell2", "--transport-url", buses[1])
        assert (added.status, added.err) == (0, "")
        *roles, _ = commands(added.out)
        for words in roles:
            running.start(words)
        running.wait()
        assert wait_until(lambda: discovered("cell2-host1"), PATIENCE, 0.2)
        assert shell.run("cell", "disable", "cell1", *discover[3:]).status == 0
        second = shell.run(*(word.replace("web", "db") for word in boot[1:]))
        assert second.status == 0, second
        assert shell.run("upgrade", "check", *discover[3:]).status == 0
        servers = shell.run("server", "list", "--long", "-f", "value", "-c", "Name", "-c", "Host", *boot[-2:])
        assert sorted(servers.out.splitlines()) == ["db cell2-host1", "web cell1-host1"], servers


EMBEDDED = "embedded://{}/{{name}}"


@pytest.fixture
def bus(tmp_path: Path) -> str:
    """Of buses that are always there, and that nobody else has."""
    return EMBEDDED.format(tmp_path.name)


def test_the_files_are_private_and_each_role_could_start_with_its_own(shell: Shell, tmp_path: Path, bus: str) -> None:
    assert start(shell, tmp_path / "cloud", "--transport-url", bus).status == 0
    etc = tmp_path / "cloud" / "etc"
    files = {file.name: file for file in etc.iterdir()}
    assert files.keys() == {"api.conf", "cell1.conf", "cell1-compute.conf"}
    assert {file.stat().st_mode & 0o077 for file in (etc, *files.values())} == {0}
    for name, role, refused in (("api", "api", "compute"), ("api", "conductor", "compute"), ("cell1", "conductor", "compute")):
        assert shell.run("config", "check", "--config-file", str(files[f"{name}.conf"]), "--role", role, "--strict").status == 0
        assert shell.run("config", "check", "--config-file", str(files[f"{name}.conf"]), "--role", refused).status == 1
    agent = str(files["cell1-compute.conf"])
    assert shell.run("config", "check", "--config-file", agent, "--role", "compute", "--strict").status == 0
    master, derived = (values(files[name])["secrets"]["keys"] for name in ("api.conf", "cell1.conf"))
    uuid = administration.find_cell(Database(values(files["api.conf"])["api_database"]["connection"]), "cell1").uuid
    assert [derived] == Vault([master]).keys_of(uuid)
    assert "keys" not in files["cell1-compute.conf"].read_text()


def test_files_are_not_overwritten_unless_forced_and_keys_are_kept(shell: Shell, tmp_path: Path, bus: str) -> None:
    folder = tmp_path / "cloud"
    assert start(shell, folder, "--transport-url", bus).status == 0
    before = {file: file.read_text() for file in (folder / "etc").iterdir()}
    again = start(shell, folder, "--transport-url", bus, "--port", "1234")
    assert (again.status, again.out) == (1, "")
    assert again.err.count("\n") == 1
    assert "api.conf" in again.err
    assert "exists already: give another folder, or --force to write it anew" in again.err
    assert {file: file.read_text() for file in before} == before

    forced = start(shell, folder, "--transport-url", EMBEDDED.format("else"), "--port", "1234", "--force")
    assert (forced.status, forced.err) == (0, "")
    after = {file: file.read_text() for file in before}
    assert all("embedded://else/" in text for text in after.values())
    assert values(folder / "etc" / "api.conf")["api"] == {"port": "1234"}
    for name in ("api.conf", "cell1.conf"):
        old = next(text for file, text in before.items() if file.name == name)
        assert f"keys = {values(folder / 'etc' / name)['secrets']['keys']}\n" in old
    listed = shell.run("-v", "cell", "list", "--config-file", str(folder / "etc" / "api.conf"), "-f", "value")
    assert "embedded://else/cell1" in listed.out


def test_an_interrupted_run_is_finished_by_the_next(shell: Shell, tmp_path: Path, bus: str) -> None:
    """Cells are registered before the files are written: what is there already is taken as it is."""
    folder = tmp_path / "cloud"
    assert start(shell, folder, "--transport-url", bus).status == 0
    for file in (folder / "etc").iterdir():
        file.unlink()
    assert start(shell, folder, "--transport-url", bus).status == 0
    database = Database(f"sqlite:///{folder}/db/api.db")
    assert [mapping.name for mapping in administration.list_cells(database)] == ["cell0", "cell1"]
    assert len(database.read(flavors.list_all)) == 3


def test_passwords_are_written_as_files_need_them_and_never_said(shell: Shell, tmp_path: Path, bus: str) -> None:
    databases = f"sqlite:///{tmp_path}/pa$$word_{{name}}.db"
    said = start(
        shell, tmp_path / "cloud", "--transport-url", bus.replace("//", "//sc:pass$word@"), "--database-connection", databases
    )
    assert (said.status, said.err) == (0, "")
    assert "pass$word" not in said.out
    file = tmp_path / "cloud" / "etc" / "api.conf"
    assert "sc:pass$$word@" in file.read_text()
    assert shell.run("cell", "list", "--config-file", str(file)).status == 0, "the database is found by that file"
    assert (tmp_path / "pa$$word_cell1.db").exists()


def test_what_cannot_work_is_refused_in_one_line_and_makes_nothing(shell: Shell, tmp_path: Path, bus: str) -> None:
    away = f"rabbit://sc:secret@127.0.0.1:{closed_port()}/x"
    folder = tmp_path / "cloud"
    for options, text in (
        (("--transport-url", away), "sc:***@127.0.0.1"),
        (("--transport-url", bus, "--database-connection", "mysql://sc:secret@db/one"), "write {name} where its name belongs"),
        (("--transport-url", "nonsense"), "must begin with rabbit:// or embedded://"),
        (("--add-cell", "cell2"), "'superconductor quickstart "),
        (("--port", "70000"), "is not a port"),
    ):
        outcome = start(shell, folder, *options)
        assert outcome.status in (1, 2)
        assert (outcome.out, outcome.err.count("\n")) == ("", 1), outcome
        assert text in outcome.err
        assert "secret" not in outcome.err
        assert not folder.exists(), options


def test_a_cell_needs_a_bus_and_a_name_of_its_own(shell: Shell, tmp_path: Path, bus: str) -> None:
    folder = tmp_path / "cloud"
    assert start(shell, folder, "--transport-url", bus).status == 0
    for options, text in (
        (("--add-cell", "cell2"), "give --transport-url URL, with another virtual host"),
        (("--add-cell", "cell2", "--transport-url", bus.format(name="cell1")), "'cell1'"),
        (("--add-cell", "api", "--transport-url", bus), "give it another name"),
        (("--add-cell", "cell1", "--transport-url", bus), "exists already"),
        (("--add-cell", "no/name", "--transport-url", bus), "must be letters, digits"),
    ):
        outcome = start(shell, folder, *options)
        assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1), outcome
        assert text in outcome.err
    assert start(shell, folder, "--add-cell", "cell2", "--transport-url", bus).status == 0
    assert sorted(file.name for file in (folder / "etc").iterdir() if "cell2" in file.name) == ["cell2-compute.conf", "cell2.conf"]


def test_quiet_says_nothing(tmp_path: Path, bus: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-q", "quickstart", str(tmp_path / "cloud"), "--transport-url", bus]) == 0
    assert capsys.readouterr() == ("", "")
