"""What ``quickstart --install-files`` writes: secrets only where they belong, units that systemd accepts, nothing overwritten."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.install import units
from cli.install.folder import InstallFolder
from cli.install.quickstart_files import Access, QuickstartFolder
from service.opts import SHUTDOWN
from tests.support.commands import Shell, shell_fixture

SECRETS = ("bus-secret", "database-secret", "key-secret")
EXPOSURE_LIMIT = 20
"""Tenths of what 'systemd-analyze security' calls the exposure of a service: below 2 it says OK."""
SERVERS = ("--database-connection", "mysql://sc:secret@db/sc_{name}", "--transport-url", "rabbit://sc:secret@mq/{name}")


@pytest.fixture
def folder(tmp_path: Path) -> QuickstartFolder:
    made = QuickstartFolder(tmp_path / "cloud", install=True)
    made.make_folders()
    access = Access(bus="rabbit://sc:bus-secret@mq/x", database="mysql://sc:database-secret@db/x", keys="key-secret")
    made.write_api(access, 9774)
    made.write_cell("cell1", access)
    return made


shell = shell_fixture()


@pytest.fixture
def install(folder: QuickstartFolder) -> InstallFolder:
    assert folder.install is not None
    return folder.install


def service(text: str) -> dict[str, list[str]]:
    """The settings of a unit, each with its values in order."""
    found: dict[str, list[str]] = {}
    for line in text.replace("\\\n", "").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(" ".join(value.split()))
    return found


def test_secrets_are_in_private_files_only(install: InstallFolder) -> None:
    holders = {file for file in install.path.rglob("*") if file.is_file() and any(text in file.read_text() for text in SECRETS)}
    assert holders == {install.values_file("api"), install.values_file("cell1")}
    assert {file.stat().st_mode & 0o777 for file in holders} == {0o600}


def test_processes_find_their_state_in_units_and_images(folder: QuickstartFolder) -> None:
    for file in (folder.api, folder.agent_file("cell1")):
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(file)
        assert parser["images"]["folder"] == f"{units.STATE}/images"
    assert parser["simulated"]["state_path"] == f"{units.STATE}/hosts"
    assert not (folder.path / "db").exists()


def test_scripts_can_be_run_and_are_shell(install: InstallFolder) -> None:
    scripts = {file for file in install.path.rglob("*") if file.is_file() and file.read_text().startswith("#!")}
    assert {str(file.relative_to(install.path)) for file in scripts} == {
        *("debian/build", "debian/postinst", "debian/postrm", "debian/prerm", "image/build")
    }
    for script in scripts:
        assert script.stat().st_mode & 0o777 == 0o755
        assert subprocess.run(["sh", "-n", script], check=False).returncode == 0


@pytest.mark.parametrize("unit", units.UNITS, ids=lambda unit: unit.name)
def test_services_read_secrets_as_credentials_and_stop_gracefully(unit: units.Unit) -> None:
    found = service(unit.unit_text())
    (command,), (credential,) = found["ExecStart"], found["LoadCredential"]
    name, _, source = credential.partition(":")
    assert command.startswith(
        f"/opt/superconductor/bin/superconductor-{unit.role} --config-file ${{CREDENTIALS_DIRECTORY}}/{name} "
    )
    assert source == f"/etc/superconductor/{unit.file}"
    assert not {"Environment", "EnvironmentFile", "PassEnvironment"} & found.keys()
    assert int(found["TimeoutStopSec"][0]) > SHUTDOWN.default
    assert (found["Type"], found["TimeoutStartSec"], found["Restart"]) == (["notify"], ["infinity"], ["on-failure"])
    assert found["WantedBy"] == found["PartOf"] == ["superconductor.target"]


def test_every_role_has_a_unit_cells_a_template() -> None:
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[2] / "setup.cfg")
    programs = set(re.findall(r"^superconductor-(\S+) =", config["options.entry_points"]["console_scripts"], re.MULTILINE))
    assert {unit.role for unit in units.UNITS} == programs
    assert [unit.name for unit in units.UNITS if "%i" in unit.unit_text()] == ["superconductor-conductor@.service"]


@pytest.fixture
def verifiable(install: InstallFolder, tmp_path: Path) -> list[Path]:
    """Copies of the units that start a program which exists."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    place = tmp_path / "units"
    place.mkdir()
    for file in (install.path / "systemd").glob("superconductor*"):
        if file.suffix in (".service", ".target"):
            (place / file.name).write_text(re.sub(r"/opt/superconductor/bin/\S+", "/bin/true", file.read_text()))
    return sorted(place.iterdir())


def test_systemd_accepts_the_units_as_well_confined(verifiable: list[Path]) -> None:
    done = subprocess.run(["systemd-analyze", "verify", *verifiable], capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "superconductor" in line]
    assert (done.returncode, ours) == (0, [])
    for file in verifiable:
        if file.suffix == ".service":
            command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_LIMIT}", "--no-pager", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout


def test_answers_are_in_the_values(install: InstallFolder) -> None:
    values: dict[str, Any] = yaml.safe_load((install.path / "chart" / "values.yaml").read_text())
    assert values["api"]["port"] == 9774
    assert values["stopSeconds"] > units.STOP_TIMEOUT_S
    cell = yaml.safe_load(install.values_file("cell1").read_text())
    assert (list(cell["cells"]), list(cell["agents"]), list(cell["secrets"])) == (
        ["cell1"],
        ["cell1-host1"],
        ["cell1", "cell1-host1"],
    )
    etc = install.path.parent / "etc"
    assert cell["secrets"]["cell1"] == (etc / "cell1.conf").read_text()
    assert yaml.safe_load(install.values_file("api").read_text())["secrets"]["api"] == (etc / "api.conf").read_text()


def test_no_placeholder_is_left(install: InstallFolder) -> None:
    assert [file for file in install.path.rglob("*") if file.is_file() and re.search(r"@[A-Z]+@", file.read_text())] == []


def test_files_that_were_edited_are_not_overwritten(shell: Shell, install: InstallFolder) -> None:
    edited = install.path / "systemd" / "superconductor-api.service"
    edited.write_text("# mine\n")
    for file in (install.path.parent / "etc").iterdir():
        file.unlink()
    again = shell.run("quickstart", str(install.path.parent), "--install-files", *SERVERS)
    assert (again.status, again.out) == (1, "")
    assert f"{install.values_file('api')} exists already: give another folder, or --force" in again.err
    assert edited.read_text() == "# mine\n"


def test_unusable_answers_are_refused_and_create_nothing(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    database, bus = SERVERS[:2], SERVERS[2:]
    for options, text in (
        ((), "services and pods share no files: give --database-connection URL of a server"),
        (("--database-connection", "sqlite:///{name}.db", *bus), "services and pods share no files"),
        (database, "services and pods need a broker: give --transport-url URL"),
        ((*database, "--transport-url", "embedded://x/"), "services and pods need a broker"),
    ):
        outcome = shell.run("quickstart", str(folder), "--install-files", *options)
        assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1), outcome
        assert text in outcome.err
        assert "secret" not in outcome.err
        assert not folder.exists(), options


def test_a_cell_is_not_added_to_missing_files(shell: Shell, tmp_path: Path) -> None:
    plain = QuickstartFolder(tmp_path / "plain")
    plain.make_folders()
    plain.write_api(Access(bus="rabbit://mq/x", database="sqlite:///x", keys=""), 8774)
    outcome = shell.run("quickstart", str(plain.path), "--install-files", "--add-cell=cell2", *SERVERS)
    assert (outcome.status, outcome.err.count("\n")) == (1, 1), outcome
    assert "'superconductor quickstart --install-files --force' makes it" in outcome.err


def test_a_cell_that_kubernetes_cannot_name_is_refused(shell: Shell, folder: QuickstartFolder) -> None:
    for name in ("Cell_2", "-cell", "c" * 40):
        outcome = shell.run("quickstart", str(folder.path), f"--add-cell={name}", *SERVERS)
        assert (outcome.status, outcome.err.count("\n")) == (1, 1), outcome
        assert "names objects in Kubernetes" in outcome.err
