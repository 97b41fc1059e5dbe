"""Interfaces that guests get and lose after their boot: in the definition, and in a guest that runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from compute.libvirt import binding
from compute.libvirt.domain_xml import SPARE_SLOTS
from compute.libvirt.driver import LibvirtDriver
from compute.libvirt.interfaces import interfaces_of
from compute.libvirt.opts import LibvirtSettings
from compute.libvirt.private_daemon import PrivateDaemon
from deploy.unavailable import Unavailable
from images.store import FolderStore
from objects import errors
from objects.port import FixedAddress, Port
from objects.spec import Image
from objects.task import DriveChanges, Power
from service.periodic import wait_until
from tests.support.libvirt_driver import FLAVOR, SPARK, add_spark, guest, opened, power_of, says, settings_of, spawn, spec
from tests.support.linux_guest import MEMORY_MB, READY, linux_guest

BOOT_PATIENCE_S = 180.0

FIRST, SECOND, THIRD = (
    Port(
        network_id="n1",
        network="net",
        mac=f"fa:16:3e:00:00:0{n}",
        physical_network="lab",
        addresses=(FixedAddress(address=f"10.0.2.1{n}", prefix=24),),
    )
    for n in (1, 2, 3)
)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return add_spark(tmp_path / "images")


@pytest.fixture
def settings(daemon: PrivateDaemon, tmp_path: Path) -> LibvirtSettings:
    (tmp_path / "dhcp").mkdir()
    return settings_of(daemon, tmp_path, networks={"lab": "user"}, dhcp_hosts_path=str(tmp_path / "dhcp"))


@pytest.fixture
def driver(settings: LibvirtSettings, store: FolderStore) -> Iterator[LibvirtDriver]:
    with opened(settings, store) as driver:
        driver.guests()
        yield driver


def macs(daemon: PrivateDaemon, uuid: str, *, defined: bool = False) -> set[str]:
    flags = binding.load_libvirt().VIR_DOMAIN_XML_INACTIVE if defined else 0
    return set(interfaces_of(binding.load_libvirt().open(daemon.connection_uri).lookupByUUIDString(uuid).XMLDesc(flags)))


def has(daemon: PrivateDaemon, driver: LibvirtDriver, settings: LibvirtSettings, uuid: str, *ports: Port) -> None:
    """The guest has these interfaces and no others, now and after its next start, and DHCP knows them."""
    wanted = {port.mac for port in ports}
    assert macs(daemon, uuid) == macs(daemon, uuid, defined=True) == wanted
    assert {file.name for file in Path(settings.dhcp_hosts_path).iterdir()} == {mac.replace(":", "") for mac in wanted}
    assert [nic.mac_address for nic in driver.diagnostics(uuid).nics or ()] == [port.mac for port in ports]


@pytest.mark.parametrize("power", [Power.OFF, Power.ON, Power.PAUSED])
def test_a_guest_gets_interfaces_and_goes_on(
    driver: LibvirtDriver, daemon: PrivateDaemon, settings: LibvirtSettings, power: Power
) -> None:
    one = spawn(driver, None, spec(ports=(FIRST,)))
    assert says(driver, one.uuid, "spark: tick 0001")
    driver.set_power(one.uuid, power, hard=True)
    driver.set_interfaces(one.uuid, (FIRST, SECOND))
    driver.set_interfaces(one.uuid, (FIRST, SECOND, THIRD))
    assert power_of(driver, one.uuid) is power
    has(daemon, driver, settings, one.uuid, FIRST, SECOND, THIRD)
    assert driver.console_output(one.uuid, 1 << 20).count(b"spark: boot") == 1
    driver.set_power(one.uuid, Power.OFF, hard=True)
    driver.set_power(one.uuid, Power.ON, hard=True)
    assert says(driver, one.uuid, "spark: boot 0002")
    has(daemon, driver, settings, one.uuid, FIRST, SECOND, THIRD)


def test_a_pci_express_guest_has_room_for_interfaces(
    driver: LibvirtDriver, daemon: PrivateDaemon, settings: LibvirtSettings
) -> None:
    q35 = Image(id=SPARK, properties={"hw_machine_type": "q35"})
    one = spawn(driver, None, spec(image=q35, ports=(FIRST,)))
    assert says(driver, one.uuid, "spark: tick 0001")
    more = [msgspec.structs.replace(FIRST, mac=f"fa:16:3e:00:01:0{n}") for n in range(SPARE_SLOTS)]
    driver.set_interfaces(one.uuid, (FIRST, *more))
    has(daemon, driver, settings, one.uuid, FIRST, *more)


def test_a_guest_that_is_off_loses_interfaces(driver: LibvirtDriver, daemon: PrivateDaemon, settings: LibvirtSettings) -> None:
    one = spawn(driver, None, spec(ports=(FIRST, SECOND)))
    driver.set_power(one.uuid, Power.OFF, hard=True)
    driver.set_interfaces(one.uuid, (SECOND,))
    has(daemon, driver, settings, one.uuid, SECOND)
    driver.rebuild(msgspec.structs.replace(one, power=Power.ON), DriveChanges(), None)
    has(daemon, driver, settings, one.uuid, SECOND)
    driver.set_power(one.uuid, Power.OFF, hard=True)
    driver.set_interfaces(one.uuid, ())
    has(daemon, driver, settings, one.uuid)
    driver.destroy(one.uuid)


def test_a_system_that_releases_nothing_keeps_its_interfaces(
    driver: LibvirtDriver, daemon: PrivateDaemon, settings: LibvirtSettings
) -> None:
    """``spark`` knows no PCI. What it keeps is taken from it while it is off."""
    one = spawn(driver, None, spec(ports=(FIRST, SECOND)))
    assert says(driver, one.uuid, "spark: tick 0001")
    with pytest.raises(errors.TaskFailed, match=f"does not release the interface {SECOND.mac}: stop the server first"):
        driver.set_interfaces(one.uuid, (FIRST,))
    has(daemon, driver, settings, one.uuid, FIRST, SECOND)
    driver.set_power(one.uuid, Power.OFF, hard=True)
    driver.set_interfaces(one.uuid, (FIRST,))
    has(daemon, driver, settings, one.uuid, FIRST)


@pytest.mark.parametrize("left", ["defined", "running"])
def test_a_change_killed_half_way_is_completed(
    driver: LibvirtDriver, daemon: PrivateDaemon, settings: LibvirtSettings, left: str
) -> None:
    """The interface is only in the definition, or only in the guest that runs, and the record does not have it."""
    one = spawn(driver, None, spec(ports=(FIRST,)))
    libvirt = binding.load_libvirt()
    domain = libvirt.open(daemon.connection_uri).lookupByUUIDString(one.uuid)
    xml = interfaces_of(domain.XMLDesc())[FIRST.mac].replace(FIRST.mac, SECOND.mac)
    xml = "".join(part for part in xml.splitlines() if "<address" not in part and "<alias" not in part and "<target" not in part)
    flags = libvirt.VIR_DOMAIN_AFFECT_CONFIG if left == "defined" else libvirt.VIR_DOMAIN_AFFECT_LIVE
    domain.attachDeviceFlags(xml, flags)
    driver.set_interfaces(one.uuid, (FIRST, SECOND))
    has(daemon, driver, settings, one.uuid, FIRST, SECOND)


def test_a_network_the_host_lacks_changes_nothing(driver: LibvirtDriver, daemon: PrivateDaemon, settings: LibvirtSettings) -> None:
    one = spawn(driver, None, spec(ports=(FIRST,)))
    with pytest.raises(errors.TaskFailed, match="not attached to the physical network"):
        driver.set_interfaces(one.uuid, (FIRST, msgspec.structs.replace(SECOND, physical_network="other")))
    has(daemon, driver, settings, one.uuid, FIRST)


def test_a_system_that_releases_an_interface_loses_it(
    settings: LibvirtSettings, store: FolderStore, daemon: PrivateDaemon, tmp_path: Path
) -> None:
    try:
        disk = linux_guest().disk
    except Unavailable as why:
        pytest.skip(str(why))
    image = str(uuid.uuid4())
    store.add_image(disk, name="tiny", image_id=image, disk_format="qcow2")
    flavor = msgspec.structs.replace(FLAVOR, memory_mb=MEMORY_MB)
    with opened(settings, store) as driver:
        asked = spec(flavor=flavor, image=Image(id=image), ports=(FIRST, SECOND))
        one = spawn(driver, guest(memory_mb=MEMORY_MB, image_id=image), asked)
        assert wait_until(lambda: READY in driver.console_output(one.uuid, 1 << 20).decode(errors="replace"), BOOT_PATIENCE_S)
        driver.set_interfaces(one.uuid, (FIRST,))
        has(daemon, driver, settings, one.uuid, FIRST)
        driver.set_interfaces(one.uuid, (FIRST, THIRD))
        has(daemon, driver, settings, one.uuid, FIRST, THIRD)
        driver.set_interfaces(one.uuid, ())
        has(daemon, driver, settings, one.uuid)
