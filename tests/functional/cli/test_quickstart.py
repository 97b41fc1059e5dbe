"""What ``quickstart`` writes and refuses. That a deployment starts with it is in the guide, which ``test_guide.py`` follows."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from cells import administration
from cli.app import main
from db.api.projects import flavors
from db.sql.engine import Database
from service.vault import Vault
from tests.support.commands import Outcome, Shell, shell_fixture
from tests.support.databases import closed_port

shell = shell_fixture()


def start(shell: Shell, folder: Path, *options: str) -> Outcome:
    return shell.run("quickstart", str(folder), *options)


def values(file: Path) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(file)
    return {"DEFAULT": dict(parser.defaults())} | {
        name: {key: parser[name][key] for key in parser[name] if key not in parser.defaults()} for name in parser.sections()
    }


EMBEDDED = "embedded://{}/{{name}}"


@pytest.fixture
def bus(tmp_path: Path) -> str:
    """Of buses that are always there, and that nobody else has."""
    return EMBEDDED.format(tmp_path.name)


def test_the_files_are_private_and_sufficient_by_role(shell: Shell, tmp_path: Path, bus: str) -> None:
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


def test_files_and_keys_survive_unless_forced(shell: Shell, tmp_path: Path, bus: str) -> None:
    folder = tmp_path / "cloud"
    assert start(shell, folder, "--transport-url", bus).status == 0
    before = {file: file.read_text() for file in (folder / "etc").iterdir()}
    again = start(shell, folder, "--transport-url", bus, "--port", "1234")
    assert (again.status, again.out) == (1, "")
    assert again.err.count("\n") == 1
    assert "api.conf" in again.err
    assert "exists already: give another folder, or --force to overwrite it" in again.err
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


def test_passwords_are_written_escaped_and_never_shown(shell: Shell, tmp_path: Path, bus: str) -> None:
    databases = f"sqlite:///{tmp_path}/pa$$word_{{name}}.db"
    (tmp_path / "bus.url").write_text(bus.replace("//", "//sc:pass$word@"))
    urls = ("--transport-url", f"@{tmp_path}/bus.url", "--database-connection", databases)
    said = start(shell, tmp_path / "cloud", *urls)
    assert (said.status, said.err) == (0, "")
    assert "pass$word" not in said.out
    file = tmp_path / "cloud" / "etc" / "api.conf"
    assert "sc:pass$$word@" in file.read_text()
    assert shell.run("cell", "list", "--config-file", str(file)).status == 0, "the database is found by that file"
    assert (tmp_path / "pa$$word_cell1.db").exists()


def test_impossible_options_are_refused_without_any_file(shell: Shell, tmp_path: Path, bus: str) -> None:
    away, one = tmp_path / "away.url", tmp_path / "one.url"
    away.write_text(f"rabbit://sc:secret@127.0.0.1:{closed_port()}/x")
    one.write_text("mysql://sc:secret@db/one")
    folder = tmp_path / "cloud"
    for options, text in (
        (("--transport-url", f"@{away}"), "sc:***@127.0.0.1"),
        (("--transport-url", bus, "--database-connection", f"@{one}"), "write {name} where its name belongs"),
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


def test_a_cell_needs_a_bus_and_a_name(shell: Shell, tmp_path: Path, bus: str) -> None:
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


def test_urls_from_files_hide_passwords_from_command_lines(shell: Shell, tmp_path: Path, bus: str) -> None:
    file = tmp_path / "bus.url"
    file.write_text(f"{bus}\n")
    assert start(shell, tmp_path / "cloud", "--transport-url", f"@{file}").status == 0
    assert values(tmp_path / "cloud" / "etc" / "cell1.conf")["DEFAULT"]["transport_url"] == bus.format(name="cell1")
    missing = start(shell, tmp_path / "other", "--transport-url", f"@{tmp_path}/none")
    assert (missing.status, "none cannot be read: No such file" in missing.err) == (2, True)
