"""The Linux guest of the tests boots under plain QEMU: its disk, its config drive, its networks and the power button."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compute.config_drive import network_data, write_config_drive
from deploy.unavailable import Unavailable
from objects import stored
from objects.port import FixedAddress, Port
from service.periodic import wait_until
from tests.support.linux_guest import MEMORY_MB, READY, LinuxGuest, linux_guest

PATIENCE_S = 120.0
MACS = ("52:54:00:00:00:01", "52:54:00:00:00:02")


@pytest.fixture(scope="module")
def guest() -> LinuxGuest:
    try:
        return linux_guest()
    except Unavailable as why:
        pytest.skip(str(why))


@contextmanager
def booted(folder: Path, disk: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Its process, whose input is QEMU's monitor, and its console."""
    console = folder / "console"
    console.unlink(missing_ok=True)
    words = ["qemu-system-x86_64", "-accel", "tcg", "-m", str(MEMORY_MB), "-nodefaults", "-display", "none", "-monitor", "stdio"]
    words += ["-serial", f"file:{console}", "-drive", f"file={disk},if=virtio,format=qcow2", *options]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        yield process, console
    finally:
        process.kill()
        process.communicate()


def lines(console: Path) -> list[str]:
    return [line.rstrip() for line in console.read_text(errors="replace").splitlines() if line.startswith("tiny:")]


def wait_for_line(console: Path, line: str) -> list[str]:
    assert wait_until(lambda: console.exists() and line in lines(console), PATIENCE_S, pause=0.1), console.read_text()
    return lines(console)


def test_it_tells_its_configuration_and_obeys_power_buttons(guest: LinuxGuest, tmp_path: Path) -> None:
    disk = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", guest.disk, "-F", "qcow2", disk, "1G"], check=True)
    fixed = FixedAddress(address="192.0.2.7", prefix=24, gateway="192.0.2.1")
    ports = [
        Port(network_id="n1", network="lan", physical_network="p", mac=MACS[0], mtu=1400, addresses=(fixed,)),
        Port(network_id="n2", network="wan", physical_network="p", mac=MACS[1]),
    ]
    user_data = b"#!/bin/sh\necho hello\n"
    metadata = stored.dump_value({"uuid": "u1", "name": "web"})
    files = {
        "meta_data.json": metadata.encode(),
        "user_data": user_data,
        "network_data.json": stored.dump_value(network_data(ports)).encode(),
    }
    write_config_drive(tmp_path / "config.iso", files)
    cards = [
        part
        for n, mac in enumerate(MACS)
        for part in ("-netdev", f"user,id=n{n}", "-device", f"virtio-net-pci,netdev=n{n},mac={mac}")
    ]
    drive = ["-drive", f"file={tmp_path / 'config.iso'},media=cdrom,format=raw,readonly=on"]

    with booted(tmp_path, disk, *cards, *drive) as (process, console):
        told = wait_for_line(console, READY)
        assert "tiny: boot 1" in told
        assert f"tiny: meta_data {metadata}" in told
        assert f"tiny: user_data sha256 {hashlib.sha256(user_data).hexdigest()}" in told
        assert any(line.startswith("tiny: disk vda 2097152 sectors") for line in told)
        assert f"tiny: eth0 mac {MACS[0]} static 192.0.2.7/24 mtu 1400" in told
        assert f"tiny: eth1 mac {MACS[1]} dhcp 10.0.2.15/24 mtu 1500" in told
        assert process.stdin is not None
        process.stdin.write("system_powerdown\n")
        process.stdin.flush()
        assert process.wait(PATIENCE_S) == 0
        assert "tiny: power button" in lines(console)
