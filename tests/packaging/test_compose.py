"""``compose.yaml``: its commands, the files that they read, its health checks, and what its images are made of."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.fleet import agent_files
from cli.install import units
from cli.install.quickstart_files import Access, QuickstartFolder
from service import config
from service.opts import list_opts
from service.release import DISTRIBUTION

CHECKOUT = Path(os.environ.get("SUPERCONDUCTOR_CHECKOUT", Path(__file__).parents[2]))
FOLDER = CHECKOUT / "deploy" / "compose"
REGION = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = REGION["services"]
PROCESSES = sorted(name for name, service in SERVICES.items() if service.get("command", [""])[0].startswith("superconductor-"))
VOLUME, SETTINGS = "/cloud", "/etc/superconductor/compose.conf"
HOSTS = ("cell1-host1", "cell1-host2", "cell1-host3")


@pytest.fixture
def cloud(tmp_path: Path) -> Path:
    """The files of a quick start, and those of its hosts as ``make-deployment`` names them."""
    made = QuickstartFolder(tmp_path / "cloud")
    made.make_folders()
    access = Access(bus="rabbit://sc:secret@rabbitmq/x", database="mysql://sc:secret@mariadb/x", keys="")
    made.write_api(access, 8774)
    made.write_cell("cell1", access)
    for host in HOSTS:
        login = agent_files.new_login("rabbit://sc:secret@rabbitmq/cell1", host)
        text = agent_files.agent_text(login, made.agent_file("cell1").read_text())
        agent_files.write_private(made.etc / f"{host}.conf", text)
    return made.path


def files_of(service: dict[str, Any]) -> list[str]:
    words: list[str] = service["command"][1:]
    assert words[::2] == ["--config-file"] * (len(words) // 2)
    return words[1::2]


def test_every_role_and_three_hosts_have_a_service() -> None:
    programs = {SERVICES[name]["command"][0] for name in PROCESSES}
    scripts = {entry.name for entry in metadata.distribution(DISTRIBUTION).entry_points if entry.group == "console_scripts"}
    assert programs == {name for name in scripts if name.startswith("superconductor-")}
    hosts = [name for name in PROCESSES if SERVICES[name]["command"][0] == "superconductor-compute"]
    assert hosts == [*HOSTS]
    assert all(f"{VOLUME}/etc/{name}.conf" in files_of(SERVICES[name]) for name in hosts)
    assert all(name in (FOLDER / "make-deployment").read_text() for name in hosts)


@pytest.mark.parametrize("name", PROCESSES)
def test_processes_read_their_files_health_checks_their_port(name: str, cloud: Path) -> None:
    service = SERVICES[name]
    first, second = files_of(service)
    assert second == SETTINGS
    files = [first.replace(VOLUME, str(cloud)), str(FOLDER / "compose.conf")]
    conf = config.load_options([f"--config-file={file}" for file in files], list_opts())
    assert service["healthcheck"]["test"][-1] == f"http://127.0.0.1:{conf.monitoring.port}/health"
    assert service["restart"] == "unless-stopped"
    assert service["stop_grace_period"] == f"{units.STOP_TIMEOUT_S}s"
    assert service["volumes"] == [f"cloud:{VOLUME}"]


def test_only_this_machine_reaches_what_has_no_passwords() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    settings = configparser.ConfigParser()
    settings.read(FOLDER / "compose.conf")
    assert published == {"api": ["127.0.0.1:8774:8774"], "console-proxy": ["127.0.0.1:6083:6083"]}
    assert "--port 8774" in (FOLDER / "make-deployment").read_text()
    assert settings["console"]["serial_url"] == "ws://127.0.0.1:6083/"


def test_services_wait_for_services_that_there_are() -> None:
    for service in SERVICES.values():
        for needed, how in dict(service["depends_on"] or {}).items():
            assert how["condition"] in ("service_healthy", "service_completed_successfully")
            ends = SERVICES[needed]["restart"] == "no"
            assert ends == (how["condition"] == "service_completed_successfully")
        for volume in service["volumes"]:
            assert volume.partition(":")[0] in REGION["volumes"]


def test_images_contain_exactly_the_wheels_sources() -> None:
    parser = configparser.ConfigParser()
    parser.read(CHECKOUT / "setup.cfg")
    packages = {name for name in parser["options"]["packages"].split() if "." not in name}
    lines = (CHECKOUT / ".dockerignore").read_text().splitlines()
    shipped = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert shipped == packages | {"setup.cfg", "pyproject.toml", "README.md", "LICENSE", "requirements.lock", "deploy/compose"}
    assert "*" in lines


def test_images_copy_existing_files_and_run_their_scripts() -> None:
    definition = (FOLDER / "Containerfile").read_text()
    named = set(re.findall(r"deploy/compose/([\w.-]+)", definition))
    assert named == {path.name for path in FOLDER.iterdir()} - {"Containerfile"}
    assert {service["build"]["target"] for service in SERVICES.values()} == set(re.findall(r"^FROM .* AS (\w+)$", definition, re.M))
    for script in (path for path in FOLDER.iterdir() if path.read_text().startswith("#!")):
        assert script.stat().st_mode & 0o777 == 0o755
        assert subprocess.run(["sh", "-n", script], check=False).returncode == 0
