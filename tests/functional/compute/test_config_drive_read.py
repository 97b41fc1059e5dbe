"""cloud-init's own reader finds on a config drive what was asked of the guest."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pycdlib
import pytest

from compute.config_drive import config_drive_files, write_config_drive
from compute.driver import GuestSpec
from objects.spec import BootSecrets, InjectedFile
from tests.support.drives import KEY, NASTY, PORTS, SECRETS, USER_DATA, a_guest, a_spec

PACKAGES = ("cloud-init", "python3-configobj", "python3-six")
"""Debian's packages, of which only the Python modules are used. Further modules that they need are ours too."""
LIMIT_S = 120

READER = """
import base64, json, sys
from cloudinit.net import network_state
from cloudinit.sources import DataSourceConfigDrive as source
from cloudinit.sources.helpers import openstack

class Reader(openstack.SourceMixin):
    version = 2

macs = dict(zip(sys.argv[2:], ("eth0", "eth1", "eth2")))
found = source.read_config_drive(sys.argv[1])
reader = Reader()
reader.metadata = found["metadata"]
found["metadata"]["random_seed"] = len(found["metadata"]["random_seed"])
network = found.get("networkdata") and openstack.convert_net_json(found["networkdata"], known_macs=macs)
state = network and network_state.parse_net_config_data(network)
json.dump({
    "metadata": found["metadata"],
    "user_data": base64.b64encode(found["userdata"] or b"").decode(),
    "files": {path: base64.b64encode(content).decode() for path, content in (found.get("files") or {}).items()},
    "keys": reader.get_public_ssh_keys(),
    "interfaces": state and [each for each in state.iter_interfaces()],
    "name_servers": state and state.dns_nameservers,
}, sys.stdout)
"""


@pytest.fixture(scope="module")
def cloud_init(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its modules."""
    folder = tmp_path_factory.mktemp("cloud-init")
    missing = [program for program in ("apt-get", "dpkg") if shutil.which(program) is None]
    why = f"this machine has no {missing[0]}" if missing else _call(["apt-get", "download", *PACKAGES], folder)
    for package in folder.glob("*.deb"):
        why = why or _call(["dpkg", "-x", package.name, "."], folder)
    if why:
        pytest.skip(f"Debian's cloud-init cannot be had: {why}")
    return folder / "usr/lib/python3/dist-packages"


def test_it_reads_everything(cloud_init: Path, tmp_path: Path) -> None:
    read = _read(cloud_init, tmp_path, a_spec(), SECRETS)
    metadata = read["metadata"]
    assert metadata["instance-id"] == a_guest().uuid
    assert metadata["local-hostname"] == "a-b"
    assert metadata["meta"] == {NASTY: NASTY}
    assert metadata["admin_pass"] == SECRETS.admin_pass
    assert metadata["random_seed"] == 512
    assert base64.b64decode(read["user_data"]) == USER_DATA
    assert read["keys"] == [KEY]


def test_it_finds_injected_files(cloud_init: Path, tmp_path: Path) -> None:
    contents = [base64.b64encode(text).decode() for text in (b"welcome", bytes(range(256)))]
    files = [InjectedFile(path=path, contents=content) for path, content in zip(("/etc/motd", "/opt/a b"), contents, strict=True)]
    read = _read(cloud_init, tmp_path, a_spec(), BootSecrets(files=tuple(files)))
    assert read["files"] == dict(zip(("/etc/motd", "/opt/a b"), contents, strict=True))


def test_it_configures_all_ports(cloud_init: Path, tmp_path: Path) -> None:
    read = _read(cloud_init, tmp_path, a_spec(), None)
    first, second, third = read["interfaces"]
    assert [each["name"] for each in (first, second, third)] == ["eth0", "eth1", "eth2"]
    assert first["mtu"] == 1450
    four, six = first["subnets"]
    assert (four["type"], four["address"], four["prefix"]) == ("static", "192.0.2.5", 24)
    assert [(route["gateway"], route["network"], route["prefix"]) for route in four["routes"]] == [("192.0.2.1", "0.0.0.0", 0)]
    assert (six["type"], six["address"], six["prefix"]) == ("static6", "2001:db8::5", 64)
    assert [(route["gateway"], route["network"], route["prefix"]) for route in six["routes"]] == [("2001:db8::1", "::", 0)]
    assert [(each["address"], each["prefix"], each["routes"]) for each in second["subnets"]] == [("198.51.100.7", 25, [])]
    assert [each["type"] for each in third["subnets"]] == ["dhcp4"]
    assert read["name_servers"] == ["192.0.2.2", "192.0.2.3", "2001:db8::2"]


def test_the_config_drive_falls_back_to_dhcp(cloud_init: Path, tmp_path: Path) -> None:
    read = _read(cloud_init, tmp_path, a_spec(ports=(), public_key=None), None)
    assert (read["interfaces"], read["user_data"], read["keys"]) == (None, "", [])


def _read(cloud_init: Path, folder: Path, spec: GuestSpec, secrets: BootSecrets | None) -> dict[str, Any]:
    """What cloud-init reads from the drive. Its files are copied to a folder, because only root may mount an image."""
    write_config_drive(folder / "config.iso", config_drive_files(a_guest(), spec, secrets))
    disc = pycdlib.PyCdlib()
    disc.open(str(folder / "config.iso"))
    for where, _, names in disc.walk(rr_path="/"):
        to = folder / "drive" / where.lstrip("/")
        to.mkdir(parents=True, exist_ok=True)
        for name in names:
            disc.get_file_from_iso(str(to / name), rr_path=f"{where.rstrip('/')}/{name}")
    disc.close()
    command = [sys.executable, "-c", READER, str(folder / "drive"), *(port.mac for port in PORTS)]
    variables = {**os.environ, "PYTHONPATH": str(cloud_init)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _call(command: Sequence[str], folder: Path) -> str:
    """The last thing that it said when it failed; empty if it succeeded."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not end within {LIMIT_S} s"
    said = done.stderr.strip().splitlines() or [f"{command[0]} ended with status {done.returncode}"]
    return said[-1] if done.returncode else ""
