"""Images of guests: made while they run, complete or not there, and servers are built from them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from compute.libvirt import binding
from compute.libvirt.driver import LibvirtDriver
from compute.libvirt.opts import LibvirtSettings
from compute.libvirt.private_daemon import PrivateDaemon
from images.store import FolderStore
from objects import errors
from objects.task import NewImage, Power
from tests.support.libvirt_driver import add_spark, guest, opened, power_of, says, settings_of, spawn, spec

ONE, TWO = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
ASKED = NewImage(name="snap", owner="p1", min_disk=1, min_ram=8, properties={"image_type": "snapshot"})


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return add_spark(tmp_path / "images")


@pytest.fixture
def settings(daemon: PrivateDaemon, tmp_path: Path) -> LibvirtSettings:
    return settings_of(daemon, tmp_path)


@pytest.fixture
def driver(settings: LibvirtSettings, store: FolderStore) -> Iterator[LibvirtDriver]:
    with opened(settings, store) as driver:
        driver.guests()
        yield driver


@pytest.mark.parametrize("power", [Power.ON, Power.PAUSED, Power.SUSPENDED, Power.OFF])
def test_an_image_has_the_disk_without_changing_guests(driver: LibvirtDriver, store: FolderStore, power: Power) -> None:
    one = spawn(driver)
    assert says(driver, one.uuid, "spark: boot 0001")
    driver.set_power(one.uuid, power, hard=True)
    driver.make_image(one.uuid, ONE, ASKED, threading.Event())

    assert power_of(driver, one.uuid) is power
    record = store.get_record(ONE)
    assert (record.owner, record.disk_format, record.min_disk, record.min_ram) == ("p1", "qcow2", 1, 8)
    assert record.properties["image_type"] == "snapshot"
    other = guest(image_id=ONE)
    driver.spawn(other, msgspec.structs.replace(spec(), project_id="p1"), None, threading.Event())
    assert says(driver, other.uuid, "spark: boot 0002"), "it goes on where the first one was"
    with pytest.raises(errors.NotFound, match="for this project"):
        driver.spawn(guest(image_id=ONE), msgspec.structs.replace(spec(), project_id="p2"), None, threading.Event())


def test_an_image_completes_once_cancelled_ones_leave_nothing(
    driver: LibvirtDriver, store: FolderStore, settings: LibvirtSettings
) -> None:
    one = spawn(driver)
    assert says(driver, one.uuid, "spark: boot 0001")
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(errors.TaskFailed, match="cancelled"):
        driver.make_image(one.uuid, ONE, ASKED, cancelled)
    assert ONE not in [record.id for record in store.list_images()]
    assert not (Path(settings.instances_path) / one.uuid / "image.new").exists()
    for _ in range(2):
        driver.make_image(one.uuid, TWO, ASKED, threading.Event())
    assert store.get_record(TWO)
    assert power_of(driver, one.uuid) is Power.ON


def test_a_dead_agents_copy_is_ended_first(
    driver: LibvirtDriver, daemon: PrivateDaemon, store: FolderStore, tmp_path: Path
) -> None:
    libvirt = binding.load_libvirt()
    one = spawn(driver)
    assert says(driver, one.uuid, "spark: boot 0001")
    domain = libvirt.open(daemon.connection_uri).lookupByUUIDString(one.uuid)
    disk = f"<disk name='vda' type='file'><scratch file='{tmp_path / 'earlier'}'/></disk>"
    domain.backupBegin(
        f"<domainbackup mode='pull'><server transport='unix' socket='{tmp_path / 's'}'/><disks>{disk}</disks></domainbackup>", None
    )
    driver.make_image(one.uuid, ONE, ASKED, threading.Event())
    assert store.get_record(ONE)
