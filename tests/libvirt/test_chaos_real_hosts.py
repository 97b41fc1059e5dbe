"""What ``make chaos DRIVER=libvirt`` counts: QEMU processes by uuid, whatever libvirt says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from chaos.real_hosts import RealHosts
from cli.standalone.demo.hosts import DiskWrites
from deploy.local.options import CONFIG_DRIVES, INSTANCES, LIBVIRT
from objects.task import Power
from service.periodic import wait_until
from tests.support import libvirt_host
from tests.support.libvirt_driver import HOST, SPARK, add_spark, opened, says, settings_of, spawn


def test_processes_are_counted_by_uuid(tmp_path: Path) -> None:
    place = tmp_path / HOST
    hosts = RealHosts(tmp_path, [HOST], libvirt_host.capability_cache())
    with libvirt_host.private_daemon(place / LIBVIRT) as daemon:
        settings = settings_of(daemon, place, config_drive_path=str(place / CONFIG_DRIVES))
        with opened(settings, add_spark(tmp_path / "images")) as driver:
            one, other = spawn(driver), spawn(driver)
            assert all(says(driver, each.uuid, "spark: boot 0001") for each in (one, other))
            assert {guest.uuid: guest.power for guest in hosts.guests_by_host()[HOST]} == {one.uuid: Power.ON, other.uuid: Power.ON}
            assert hosts.disks_by_host()[HOST] == sorted((one.uuid, other.uuid))
            assert hosts.disk_fault(HOST, one) == ""
            assert hosts.written_disk(HOST, one.uuid) == DiskWrites(HOST, one.uuid, SPARK, 1)
            assert {written.uuid for written in hosts.sample_written()} == {one.uuid, other.uuid}

        daemon.kill_daemon()
        assert len(hosts.guests_by_host()[HOST]) == 2, "a libvirt that is down hides nothing"
        disk = place / INSTANCES / one.uuid / "disk"
        with _process(one.uuid, disk), _process("11111111-1111-4111-8111-111111111111", disk):
            assert wait_until(lambda: len(hosts.guests_by_host()[HOST]) == 4, 90.0)
            found = [guest.uuid for guest in hosts.guests_by_host()[HOST]]
            assert found.count(one.uuid) == 2, "a second process of one uuid"

            hosts.cut_power(HOST)
            assert not hosts.running_guests()[HOST]
        assert [guest.power for guest in hosts.guests_by_host()[HOST]] == [Power.OFF, Power.OFF]
        assert not list((place / CONFIG_DRIVES).iterdir())

        hosts.restore_power(HOST)
        with opened(settings, add_spark(tmp_path / "images2")) as driver:
            assert {guest.power for guest in driver.guests()} == {Power.OFF}


def _process(uuid: str, disk: Path) -> subprocess.Popen[bytes]:
    """A process that looks like the QEMU of a guest."""
    command = ["qemu-system-x86_64", "-c", "import time; time.sleep(600)", "-uuid", uuid, f"file={disk}"]
    return subprocess.Popen(command, executable=sys.executable)
