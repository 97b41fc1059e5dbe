"""An agent that is killed during a spawn: the next start finds a whole guest, or leaves nothing."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from compute.libvirt import binding
from compute.libvirt.driver import LibvirtDriver
from compute.libvirt.private_daemon import PrivateDaemon
from images.store import FolderStore
from objects import errors
from objects.task import Power
from service.periodic import wait_until
from tests.support import libvirt_child
from tests.support.libvirt_driver import PATIENCE_S, add_spark, guest, left_of, opened, power_of, says, settings_of, spawn

KILLS = 25
LONGEST_SPAWN_S = 1.0


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return add_spark(tmp_path / "images")


def child(place: Path, daemon: PrivateDaemon, uuid: str, *step: str) -> subprocess.Popen[str]:
    """A process that begins to spawn."""
    command = [sys.executable, "-m", "tests.support.libvirt_child", str(place), daemon.connection_uri, uuid, *step]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "spawning\n"
    return process


def traces(daemon: PrivateDaemon, driver: LibvirtDriver, uuid: str) -> tuple[bool, bool, bool, bool]:
    """Whether there is a guest, a domain, a QEMU process, a file of this uuid."""
    connection = binding.load_libvirt().open(daemon.connection_uri)
    try:
        domains = [found.UUIDString() for found in connection.listAllDomains()]
    finally:
        connection.close()
    files = [
        name
        for name in left_of(libvirt_child.settings_in(driver._files.instances_path.parent, daemon.connection_uri))
        if uuid in name
    ]
    return power_of(driver, uuid) is not None, uuid in domains, f"sc-{uuid}" in daemon.guest_pids(), bool(files)


WHOLE, NOTHING = (True,) * 4, (False,) * 4


@pytest.mark.parametrize("step", libvirt_child.STEPS)
def test_a_death_after_each_step(daemon: PrivateDaemon, store: FolderStore, tmp_path: Path, step: str) -> None:
    one = guest()
    with child(tmp_path, daemon, one.uuid, step) as dying:
        assert dying.wait(PATIENCE_S) == -9
    with opened(libvirt_child.settings_in(tmp_path, daemon.connection_uri), store) as driver:
        driver.guests()
        assert traces(daemon, driver, one.uuid) == (WHOLE if step in ("mark", "finish") else NOTHING)
        if step not in ("mark", "finish"):
            spawn(driver, one)
        assert says(driver, one.uuid, "spark: boot 0001")
        driver.destroy(one.uuid)
        assert traces(daemon, driver, one.uuid) == NOTHING


def test_random_kills_with_an_immediate_restart(daemon: PrivateDaemon, store: FolderStore, tmp_path: Path) -> None:
    """libvirt may still carry out a call of the killed agent, so everything is looked at twice, the second time later."""
    settings = libvirt_child.settings_in(tmp_path, daemon.connection_uri)
    chance = random.Random(7)
    outcomes = Counter[str]()
    for _ in range(KILLS):
        one = guest()
        with child(tmp_path, daemon, one.uuid) as dying:
            threading.Event().wait(chance.uniform(0.0, LONGEST_SPAWN_S))
            dying.kill()
        with opened(settings, store) as driver:
            driver.guests()
            is_guest = power_of(driver, one.uuid) is Power.ON
            assert wait_until(lambda: traces(daemon, driver, one.uuid) in (WHOLE, NOTHING), PATIENCE_S), left_of(settings)  # noqa: B023 - it is called before the next round
            threading.Event().wait(0.5)
            assert traces(daemon, driver, one.uuid) == (WHOLE if is_guest else NOTHING)
            driver.destroy(one.uuid)
            outcomes["whole" if is_guest else "nothing"] += 1
    assert outcomes["nothing"], outcomes
    assert daemon.guest_pids() == {}


def test_a_death_while_the_config_drive_is_written(daemon: PrivateDaemon, store: FolderStore, tmp_path: Path) -> None:
    settings = settings_of(daemon, tmp_path)
    one = guest()
    with opened(settings, store) as driver:
        driver._files.make_folder(one.uuid)
        driver._files.config_drive(one.uuid).with_suffix(".iso.part").write_bytes(b"secret")
    with opened(settings, store) as driver:
        driver.guests()
        assert left_of(settings) == []


def test_a_death_during_a_removal(daemon: PrivateDaemon, store: FolderStore, tmp_path: Path) -> None:
    settings = settings_of(daemon, tmp_path)
    with opened(settings, store) as driver:
        one = spawn(driver)
        driver._files.begin_removal(one.uuid)
        driver._domains.remove_domain(one.uuid)
    with opened(settings, store) as driver:
        assert driver.guests() == []
        assert left_of(settings) == []


def test_a_libvirt_without_its_domains_costs_no_disk(daemon: PrivateDaemon, store: FolderStore, tmp_path: Path) -> None:
    """As when an agent is pointed at another libvirt: the folders of its guests stay."""
    settings = settings_of(daemon, tmp_path)
    with opened(settings, store) as driver:
        one = spawn(driver)
        found = binding.load_libvirt().open(daemon.connection_uri).lookupByUUIDString(one.uuid)
        found.destroy()
        found.undefine()
    with opened(settings, store) as driver:
        assert driver.guests() == []
        assert left_of(settings) == [one.uuid, f"{one.uuid}.iso"]


def test_two_agents_with_one_folder(daemon: PrivateDaemon, store: FolderStore, tmp_path: Path) -> None:
    settings = settings_of(daemon, tmp_path)
    with opened(settings, store), pytest.raises(errors.Misconfigured, match="Another agent uses"), opened(settings, store):
        pass


def test_two_agents_on_one_hypervisor_do_not_interfere(daemon: PrivateDaemon, store: FolderStore, tmp_path: Path) -> None:
    """Nor do they touch a domain that is nobody's."""
    libvirt = binding.load_libvirt()
    foreign = libvirt.open(daemon.connection_uri).defineXML(
        "<domain type='qemu'><name>sc-theirs</name><memory>16384</memory><os><type>hvm</type></os></domain>"
    )
    with opened(settings_of(daemon, tmp_path / "a"), store, "a") as first:
        mine = spawn(first, guest("a"))
        with opened(settings_of(daemon, tmp_path / "b"), store, "b") as second:
            yours = spawn(second, guest("b"))
            assert [one.uuid for one in second.guests()] == [yours.uuid]
            second.destroy(mine.uuid)
            second.destroy(foreign.UUIDString())
            with pytest.raises(errors.TaskFailed, match="has no guest"):
                second.set_power(mine.uuid, Power.OFF, hard=True)
        assert [(one.uuid, one.power) for one in first.guests()] == [(mine.uuid, Power.ON)]
    assert foreign.name() == "sc-theirs"
    assert sorted(daemon.guest_pids()) == sorted(f"sc-{one.uuid}" for one in (mine, yours))
