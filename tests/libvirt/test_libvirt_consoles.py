"""Users at the serial port and at the screen of a guest: neither listens anywhere."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from compute.libvirt.driver import LibvirtDriver
from compute.libvirt.guest_options import GuestSettings
from compute.libvirt.opts import LibvirtSettings
from compute.libvirt.private_daemon import PrivateDaemon
from deploy.unavailable import Unavailable
from images.store import FolderStore
from objects import errors
from objects.console import ConsoleKind
from objects.flavor import Flavor
from objects.spec import Image
from objects.task import Power
from tests.support.libvirt_driver import PATIENCE_S, add_spark, guest, opened, says, settings_of, spawn, spec
from tests.support.linux_guest import MEMORY_MB, READY, linux_guest

LINUX = "5f4e9b52-0000-4000-8000-000000000001"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return add_spark(tmp_path / "images")


@pytest.fixture
def settings(daemon: PrivateDaemon, tmp_path: Path) -> LibvirtSettings:
    return settings_of(daemon, tmp_path, guests=GuestSettings(virt_type="qemu", vnc_enabled=True))


@pytest.fixture
def driver(settings: LibvirtSettings, store: FolderStore) -> Iterator[LibvirtDriver]:
    with opened(settings, store) as driver:
        driver.guests()
        yield driver


def read_until(connection: socket.socket, text: bytes) -> bytes:
    connection.settimeout(PATIENCE_S)
    seen = b""
    while text not in seen:
        seen += (received := connection.recv(4096))
        assert received, seen
    return seen


def ends(connection: socket.socket) -> bool:
    connection.settimeout(PATIENCE_S)
    while connection.recv(4096):
        pass
    return True


def test_the_serial_port_is_read_and_logged(driver: LibvirtDriver) -> None:
    one = spawn(driver)
    driver.check_console(one.uuid, ConsoleKind.SERIAL)
    with driver.connect_console(one.uuid, ConsoleKind.SERIAL) as console:
        read_until(console, b"spark: tick")
    with driver.connect_console(one.uuid, ConsoleKind.SERIAL) as again:
        tick = read_until(again, b"spark: tick").decode()[-4:]
        assert says(driver, one.uuid, tick), "what users see is in the log too"
        driver.set_power(one.uuid, Power.OFF, hard=True)
        assert ends(again)
    with pytest.raises(errors.Conflict, match="does not run"):
        driver.connect_console(one.uuid, ConsoleKind.SERIAL)
    driver.set_power(one.uuid, Power.ON, hard=True)
    with driver.connect_console(one.uuid, ConsoleKind.SERIAL) as console:
        read_until(console, b"spark: tick")


def test_a_user_types_at_the_serial_port(settings: LibvirtSettings, store: FolderStore) -> None:
    try:
        disk = linux_guest().disk
    except Unavailable as why:
        pytest.skip(str(why))
    store.add_image(disk, name="linux", image_id=LINUX, disk_format="qcow2")
    flavor = Flavor(flavor_id="2", name="small", vcpus=1, memory_mb=MEMORY_MB, root_gb=1)
    with opened(settings, store) as driver:
        driver.guests()
        one = guest(image_id=LINUX, memory_mb=MEMORY_MB)
        spawn(driver, one, spec(flavor=flavor, image=Image(id=LINUX)))
        with driver.connect_console(one.uuid, ConsoleKind.SERIAL) as console:
            read_until(console, READY.encode())
            console.sendall(b"typed here")
            read_until(console, b"typed here")  # its terminal echoes
        driver.destroy(one.uuid)


def test_the_screen_is_had_from_libvirt_alone(driver: LibvirtDriver, daemon: PrivateDaemon) -> None:
    one = spawn(driver)
    with driver.connect_console(one.uuid, ConsoleKind.VNC) as first, driver.connect_console(one.uuid, ConsoleKind.VNC) as second:
        for screen in (first, second):
            assert read_until(screen, b"\n").startswith(b"RFB 003.008")
            screen.sendall(b"RFB 003.008\n")
            assert read_until(screen, b"\x01")[:2] == b"\x01\x01"  # one kind of security: none
        [qemu] = daemon.guest_pids().values()
        assert [each for each in psutil.Process(qemu).net_connections("tcp") if each.status == psutil.CONN_LISTEN] == []
        driver.destroy(one.uuid)
        assert ends(first)
    with pytest.raises(errors.NotFound):
        driver.check_console(one.uuid, ConsoleKind.VNC)


def test_a_guest_without_a_screen(settings: LibvirtSettings, store: FolderStore) -> None:
    with opened(msgspec.structs.replace(settings, guests=GuestSettings(virt_type="qemu")), store) as driver:
        driver.guests()
        one = spawn(driver)
        with pytest.raises(errors.NotOffered, match="has no screen"):
            driver.check_console(one.uuid, ConsoleKind.VNC)
        driver.destroy(one.uuid)
