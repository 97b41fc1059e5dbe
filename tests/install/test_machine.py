"""The page of the installation does what it says, on a machine with systemd."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.periodic import wait_until
from tests.support import guide, machine
from tests.support.guide import Block
from tests.support.install_site import Image, InstallSite
from tests.support.machine import Machine

FORMS = ("from-wheel", "from-package")
"""What the page offers: the wheel with the units, or a Debian package of both."""
PROCESSES = ("api", "scheduler", "conductor", "conductor@cell1", "compute")


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(form: str, image: Image, site: InstallSite) -> Iterator[Machine]:
    """It has the image's root file system, and no user of ours. With ``from-wheel`` the wheel is installed in it already."""
    folder = Path(tempfile.mkdtemp(prefix="sc-machine-"))
    try:
        root = folder / "root"
        image.unpack(root)
        machine.add_systemd(root)
        shutil.copytree(site.cloud, root / "root" / "cloud")
        shutil.copy(image.wheel, root / "root")
        if form == "from-package":
            shutil.rmtree(root / "opt" / "superconductor")
            build_package(site.install / "debian" / "build", image.wheel, root / "root")
        with machine.booted(root, folder) as booted:
            assert booted.run("userdel --remove superconductor").returncode == 0
            yield booted
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(2400)
def test_the_page_installs_services_that_boot_a_server(place: Machine, form: str, site: InstallSite) -> None:
    *blocks, last = [block for block in guide.blocks(site.page) if block.info in ("machine", f"machine {form}")]
    for block in blocks:
        follow(place, block)
    reloaded = "journalctl --unit superconductor-api | grep 'superconductor-api has reloaded its configuration'"
    assert wait_until(lambda: place.run(reloaded).returncode == 0, machine.PATIENCE_S, 0.5), journal(place)

    secret = (site.folder / "bus.url").read_text().partition("@")[0]
    worker = "/proc/$(systemctl show -P MainPID superconductor-api)"
    shown = place.run(f"systemctl show 'superconductor*'\ncat {worker}/environ {worker}/cmdline | tr '\\0' '\\n'").stdout
    assert "CREDENTIALS_DIRECTORY=" in shown, "the environment of a process is looked at"
    assert secret not in shown
    for user in ("nobody", "superconductor"):
        assert "Permission denied" in place.run(f"runuser -u {user} -- cat /etc/superconductor/api.conf").stdout

    follow(place, last)
    for name in PROCESSES:
        told = place.run(f"systemctl show -p Result -p ExecMainStatus superconductor-{name}").stdout
        assert sorted(told.split()) == ["ExecMainStatus=0", "Result=success"], f"{name}: it was not killed"
    if form == "from-package":
        removed_package_stops_services_and_keeps_what_is_the_operators(place)


def removed_package_stops_services_and_keeps_what_is_the_operators(place: Machine) -> None:
    assert place.run("systemctl start superconductor-compute").returncode == 0, journal(place)
    told = place.run("apt-get purge -qq --yes superconductor")
    assert told.returncode == 0, told.stdout
    assert place.run("systemctl is-active superconductor-compute").stdout.strip() == "inactive"
    assert place.run("ls /opt/superconductor /usr/bin/superconductor").returncode != 0
    assert place.run("ls /etc/superconductor/compute.conf /var/lib/superconductor/hosts").returncode == 0


def build_package(script: Path, wheel: Path, folder: Path) -> None:
    """By the script that the command has written."""
    done = subprocess.run([script, wheel, folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


def follow(place: Machine, block: Block) -> None:
    done = place.run(block.text)
    assert done.returncode == block.status, f"{block.text}: {done.stdout}\n{journal(place)}"
    if block.promise is not None:
        assert guide.is_like(done.stdout, block.promise), f"{block.text}: {done.stdout}\n{journal(place)}"


def journal(place: Machine) -> str:
    return place.run("journalctl --no-pager --unit 'superconductor*'").stdout[-8000:]
