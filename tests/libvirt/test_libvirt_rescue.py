"""Guests that are rescued: another disk before their own, and back to what they were; passwords and crash dumps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from compute.libvirt import binding
from compute.libvirt.driver import LibvirtDriver
from compute.libvirt.opts import LibvirtSettings
from compute.libvirt.private_daemon import PrivateDaemon
from images.store import FolderStore
from objects import errors
from objects.spec import BootSecrets
from objects.task import Power
from service.periodic import wait_until
from tests.support.libvirt_driver import (
    PATIENCE_S,
    SPARK,
    add_spark,
    guest,
    left_of,
    opened,
    power_of,
    says,
    settings_of,
    spawn,
)

PASSWORD = BootSecrets(admin_pass="rescue-secret")


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


def disks(daemon: PrivateDaemon, uuid: str) -> list[str]:
    """The files of the guest's disks, in the order in which it boots from them, and of its config drive."""
    xml = binding.load_libvirt().open(daemon.connection_uri).lookupByUUIDString(uuid).XMLDesc()
    return [Path(source.get("file", "")).name for source in ElementTree.fromstring(xml).iterfind("devices/disk/source")]


def has_booted(driver: LibvirtDriver, uuid: str, count: int) -> bool:
    """Whether that many systems have begun on new disks."""
    return driver.console_output(uuid, 1 << 20).count(b"spark: boot 0001") == count


@pytest.mark.parametrize("before", [Power.ON, Power.OFF])
def test_a_rescued_guests_disk_comes_second(
    driver: LibvirtDriver, daemon: PrivateDaemon, settings: LibvirtSettings, before: Power
) -> None:
    one = spawn(driver)
    assert says(driver, one.uuid, "spark: boot 0001")
    driver.set_power(one.uuid, before, hard=True)
    for count in (2, 3):  # the rescue disk is made anew each time
        driver.rescue(one.uuid, SPARK, PASSWORD)
        assert wait_until(partial(has_booted, driver, one.uuid, count), PATIENCE_S)
    assert power_of(driver, one.uuid) is Power.RESCUED
    assert disks(daemon, one.uuid) == ["disk.rescue", "disk", f"{one.uuid}.iso.rescue"]
    drive = Path(settings.config_drive_path) / f"{one.uuid}.iso.rescue"
    assert b"rescue-secret" in drive.read_bytes()
    assert drive.stat().st_mode & 0o777 == 0o600
    drive.unlink()
    driver.nodes()  # what a rescue disk is made of stays in the cache
    driver.set_power(one.uuid, Power.RESCUED, hard=True)
    assert power_of(driver, one.uuid) is Power.RESCUED

    driver.set_power(one.uuid, Power.ON, hard=True)
    assert power_of(driver, one.uuid) is Power.ON
    assert says(driver, one.uuid, "spark: boot 0002"), "its own disk knows that it booted before"
    assert disks(daemon, one.uuid) == ["disk", f"{one.uuid}.iso"]
    assert not (Path(settings.instances_path) / one.uuid / "disk.rescue").exists()
    with pytest.raises(errors.TaskFailed, match="not rescued any more"):
        driver.set_power(one.uuid, Power.RESCUED, hard=True)


def test_a_rescued_guest_stays_rescued_after_power_cuts(
    driver: LibvirtDriver, daemon: PrivateDaemon, settings: LibvirtSettings
) -> None:
    one = spawn(driver)
    driver.rescue(one.uuid, SPARK, None)
    binding.load_libvirt().open(daemon.connection_uri).lookupByUUIDString(one.uuid).destroy()
    (Path(settings.config_drive_path) / f"{one.uuid}.iso.rescue").unlink()
    assert power_of(driver, one.uuid) is Power.OFF
    driver.set_power(one.uuid, Power.RESCUED, hard=True)
    assert power_of(driver, one.uuid) is Power.RESCUED
    assert (Path(settings.config_drive_path) / f"{one.uuid}.iso.rescue").exists()
    driver.set_power(one.uuid, Power.OFF, hard=True)
    assert disks(daemon, one.uuid) == ["disk", f"{one.uuid}.iso"]
    driver.rescue(one.uuid, SPARK, None)
    driver.destroy(one.uuid)
    assert left_of(settings) == []


def test_an_image_that_does_not_exist_changes_nothing(driver: LibvirtDriver, daemon: PrivateDaemon) -> None:
    one = spawn(driver)
    with pytest.raises(errors.NotFound):
        driver.rescue(one.uuid, "b3a8dbf2-6f0b-4f9f-9f2f-0c0f4f6f2b11", None)
    assert power_of(driver, one.uuid) is Power.ON
    assert disks(daemon, one.uuid) == ["disk", f"{one.uuid}.iso"]


def test_a_guest_without_agent_gets_no_password(driver: LibvirtDriver) -> None:
    one = spawn(driver)
    with pytest.raises(errors.TaskFailed, match="agent") as told:
        driver.set_password(one.uuid, "a-secret")
    assert "a-secret" not in str(told.value)


def test_a_crash_dump_interrupts_a_guest_that_runs(driver: LibvirtDriver) -> None:
    one, other = spawn(driver), spawn(driver, guest(power=Power.OFF))
    assert says(driver, one.uuid, "spark: boot 0001")
    driver.crash_dump(one.uuid)
    with pytest.raises(errors.TaskFailed, match="NMI"):
        driver.crash_dump(other.uuid)
