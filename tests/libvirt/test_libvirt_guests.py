"""The life of a guest: spawned once, brought to every power, rebuilt, copied, and gone without a trace."""

from __future__ import annotations

import base64
import os
import stat
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from compute.libvirt import binding
from compute.libvirt.driver import LibvirtDriver
from compute.libvirt.guest_files import BASE_NAME
from compute.libvirt.opts import LibvirtSettings
from compute.libvirt.private_daemon import PrivateDaemon
from images.store import FolderStore
from objects import errors
from objects.build import Origin
from objects.diagnostics import CpuDiagnostics, NicDiagnostics
from objects.port import FixedAddress, Port
from objects.spec import BootSecrets
from objects.task import DriveChanges, Power
from service.periodic import wait_until
from tests.support.libvirt_driver import (
    FLAVOR,
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
    spec,
)


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


def test_a_guest_runs_and_leaves_nothing(driver: LibvirtDriver, daemon: PrivateDaemon, settings: LibvirtSettings) -> None:
    secrets = BootSecrets(user_data=base64.b64encode(b"the-secret").decode(), admin_pass="a-password")
    one = guest(metadata={"key": "tenant's"})
    asked = spec(config_drive=True)
    driver.spawn(one, asked, secrets, threading.Event())
    folder = Path(settings.instances_path) / one.uuid
    drive = Path(settings.config_drive_path) / f"{one.uuid}.iso"

    assert says(driver, one.uuid, "spark: boot 0001")
    [listed] = driver.guests()
    owner = {"project_id": asked.project_id, "user_id": asked.user_id, "ports": asked.ports}
    assert listed == msgspec.structs.replace(one, metadata={}, **owner)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o711
    private = [file for file in (*folder.iterdir(), drive) if not BASE_NAME.fullmatch(file.name)]
    assert {stat.S_IMODE(file.stat().st_mode) for file in private} == {0o600}
    assert b"the-secret" in drive.read_bytes()
    definition = binding.load_libvirt().open(daemon.connection_uri).lookupByUUIDString(one.uuid).XMLDesc()
    assert "the-secret" not in definition
    assert "a-password" not in definition
    assert "tenant's" not in definition

    driver.destroy(one.uuid)
    driver.destroy(one.uuid)
    assert driver.guests() == []
    assert daemon.guest_pids() == {}
    assert left_of(settings) == []


def test_a_domain_is_named_after_its_server(driver: LibvirtDriver, daemon: PrivateDaemon) -> None:
    """Also on the host that the server was moved to, unless another body of it is still there."""

    def name_of(uuid: str) -> str:
        return str(binding.load_libvirt().open(daemon.connection_uri).lookupByUUIDString(uuid).name())

    first = guest(server_uuid=str(uuid4()))
    spawn(driver, first)
    assert name_of(first.uuid) == f"sc-{first.server_uuid}"
    second = guest(server_uuid=first.server_uuid)
    spawn(driver, second)
    assert name_of(second.uuid) == f"sc-{second.uuid}"
    driver.destroy(first.uuid)
    driver.set_power(second.uuid, Power.OFF, hard=True)
    driver.set_power(second.uuid, Power.ON, hard=True)
    assert name_of(second.uuid) == f"sc-{second.uuid}", "it keeps its name"


def test_one_attempt_is_spawned_once(driver: LibvirtDriver) -> None:
    one = spawn(driver)
    spawn(driver, one)
    for other in (msgspec.structs.replace(one, attempt=2), msgspec.structs.replace(one, builder="host1:other")):
        with pytest.raises(errors.BuildFailed, match="Another guest of this uuid"):
            spawn(driver, other)
    assert [each.attempt for each in driver.guests()] == [1]


def test_every_power(driver: LibvirtDriver) -> None:
    one = spawn(driver)
    assert says(driver, one.uuid, "spark: tick 0001")
    for power in (Power.PAUSED, Power.ON, Power.SUSPENDED, Power.HELD, Power.SUSPENDED, Power.ON, Power.OFF, Power.OFF):
        driver.set_power(one.uuid, power, hard=False)
        assert power_of(driver, one.uuid) is power
    assert says(driver, one.uuid, "spark: power button")
    with pytest.raises(errors.TaskFailed, match="no memory to save"):
        driver.set_power(one.uuid, Power.SUSPENDED, hard=False)
    driver.set_power(one.uuid, Power.ON, hard=False)
    assert says(driver, one.uuid, "spark: boot 0002"), "its memory was kept while it was suspended, but not when it was stopped"
    driver.reboot(one.uuid, hard=True)
    assert says(driver, one.uuid, "spark: boot 0003")
    driver.set_power(one.uuid, Power.HELD, hard=True)
    assert power_of(driver, one.uuid) is Power.HELD


@pytest.mark.parametrize("power", [Power.OFF, Power.PAUSED, Power.SUSPENDED, Power.HELD])
def test_a_guest_is_spawned_with_its_power(driver: LibvirtDriver, power: Power) -> None:
    one = spawn(driver, guest(power=power))
    assert power_of(driver, one.uuid) is power
    driver.set_power(one.uuid, Power.ON, hard=False)
    assert says(driver, one.uuid, "spark: boot 0001")


def test_a_guest_stopping_itself_is_off_with_reason(driver: LibvirtDriver, daemon: PrivateDaemon) -> None:
    rung = threading.Event()
    first, second = spawn(driver), spawn(driver)
    assert says(driver, first.uuid, "spark: tick 0001")
    driver.watch(rung.set)
    os.kill(daemon.guest_pids()[f"sc-{second.uuid}"], 9)
    assert rung.wait(PATIENCE_S)
    assert wait_until(lambda: power_of(driver, second.uuid) is Power.OFF, PATIENCE_S)
    rung.clear()
    binding.load_libvirt().open(daemon.connection_uri).lookupByUUIDString(first.uuid).shutdown()
    assert wait_until(lambda: power_of(driver, first.uuid) is Power.OFF, PATIENCE_S)
    assert rung.wait(PATIENCE_S)
    reasons = {each.uuid: each.off_reason for each in driver.guests()}
    assert "crashed" in reasons[second.uuid]
    assert "shut down" in reasons[first.uuid]


def test_a_guest_is_rebuilt_on_a_new_disk(driver: LibvirtDriver, settings: LibvirtSettings) -> None:
    one = spawn(driver)
    assert says(driver, one.uuid, "spark: boot 0001")
    driver.reboot(one.uuid, hard=True)
    assert says(driver, one.uuid, "spark: boot 0002")
    driver.rebuild(one, DriveChanges(), None)
    assert wait_until(lambda: driver.console_output(one.uuid, 1 << 20).count(b"spark: boot 0001") == 2, PATIENCE_S)
    with pytest.raises(errors.NotFound):
        driver.rebuild(msgspec.structs.replace(one, image_id="b3a8dbf2-6f0b-4f9f-9f2f-0c0f4f6f2b11"), DriveChanges(), None)
    assert power_of(driver, one.uuid) is Power.ON, "an image that does not exist has changed nothing"
    driver.rebuild(msgspec.structs.replace(one, power=Power.OFF), DriveChanges(), None)
    assert power_of(driver, one.uuid) is Power.OFF


def test_a_snapshot_carries_the_disk(driver: LibvirtDriver, store: FolderStore) -> None:
    one = spawn(driver)
    assert says(driver, one.uuid, "spark: boot 0001")
    with pytest.raises(errors.TaskFailed, match="torn"):
        driver.snapshot(one.uuid, "snap")
    driver.set_power(one.uuid, Power.HELD, hard=False)
    driver.snapshot(one.uuid, "snap")
    driver.destroy(one.uuid)
    other = guest()
    driver.spawn(other, spec(), None, threading.Event(), Origin(instance_uuid=one.uuid, host="host1", image_id="snap"))
    assert says(driver, other.uuid, "spark: boot 0002")
    with pytest.raises(errors.BuildAborted, match="not in the image store"):
        driver.spawn(guest(), spec(), None, threading.Event(), Origin(instance_uuid=one.uuid, host="host1", image_id="none"))


@pytest.mark.parametrize("by", ["libvirt", "folder"])
def test_a_disk_comes_from_another_host(daemon: PrivateDaemon, store: FolderStore, tmp_path: Path, by: str) -> None:
    """Each host has a cache of its own, so the base of the disk is taken from there. The ephemeral disk comes along."""
    flavor = msgspec.structs.replace(FLAVOR, ephemeral_gb=1, swap_mb=16)
    bigger = msgspec.structs.replace(flavor, root_gb=2)
    peer = (
        {"peer_uri": daemon.connection_uri + "&host={host}"}
        if by == "libvirt"
        else {"peer_instances_path": str(tmp_path / "{host}/instances")}
    )
    first, second = (settings_of(daemon, tmp_path / host, **peer) for host in ("a", "b"))
    with opened(first, store, "a") as here, opened(second, store, "b") as there:
        one = spawn(here, guest("a"), spec(flavor=flavor))
        assert says(here, one.uuid, "spark: boot 0001")
        origin = Origin(instance_uuid=one.uuid, host="a")
        with pytest.raises(errors.BuildFailed):
            there.spawn(guest("b"), spec(flavor=bigger), None, threading.Event(), origin)
        here.set_power(one.uuid, Power.HELD, hard=True)
        two = guest("b")
        there.spawn(two, spec(flavor=bigger), None, threading.Event(), origin)
        assert says(there, two.uuid, "spark: boot 0002")
        assert [each.uuid for each in there.guests()] == [two.uuid]
        assert [each.uuid for each in here.guests()] == [one.uuid]
        here.destroy(one.uuid)
        there.set_power(two.uuid, Power.HELD, hard=True)
        with pytest.raises(errors.BuildAborted, match="cannot shrink"):
            here.spawn(guest("a"), spec(flavor=flavor), None, threading.Event(), Origin(instance_uuid=two.uuid, host="b"))


@pytest.mark.parametrize("by", ["libvirt", "folder"])
def test_a_disk_of_a_deleted_image_moves(daemon: PrivateDaemon, store: FolderStore, tmp_path: Path, by: str) -> None:
    """Its base is beside the disk, on each host that it comes to."""
    peer = (
        {"peer_uri": daemon.connection_uri + "&host={host}"}
        if by == "libvirt"
        else {"peer_instances_path": str(tmp_path / "{host}/instances")}
    )
    hosts = [settings_of(daemon, tmp_path / host, **peer) for host in ("a", "b", "c")]
    with opened(hosts[0], store, "a") as a, opened(hosts[1], store, "b") as b, opened(hosts[2], store, "c") as c:
        bodies = [spawn(a, guest("a"))]
        assert says(a, bodies[0].uuid, "spark: boot 0001")
        store.delete(SPARK)
        for boot, (source, target) in enumerate(((a, b), (b, c)), 2):
            source.set_power(bodies[-1].uuid, Power.HELD, hard=True)
            origin = Origin(instance_uuid=bodies[-1].uuid, host=bodies[-1].node)
            bodies.append(guest("b" if target is b else "c"))
            target.spawn(bodies[-1], spec(), None, threading.Event(), origin)
            assert says(target, bodies[-1].uuid, f"spark: boot {boot:04d}")


def test_an_unreachable_hosts_disk_is_the_hosts_failure(daemon: PrivateDaemon, store: FolderStore, tmp_path: Path) -> None:
    origin = Origin(instance_uuid=guest().uuid, host="elsewhere")
    for peer in ({}, {"peer_uri": f"qemu+unix:///session?socket={tmp_path}/{{host}}"}, {"peer_instances_path": "/nowhere/{host}"}):
        with opened(settings_of(daemon, tmp_path, **peer), store) as driver, pytest.raises(errors.BuildFailed, match="elsewhere"):
            driver.spawn(guest(), spec(), None, threading.Event(), origin)


def test_addresses_reach_dhcp_and_the_config_drive(
    settings: LibvirtSettings, store: FolderStore, daemon: PrivateDaemon, tmp_path: Path
) -> None:
    (tmp_path / "dhcp").mkdir()
    port = Port(
        network_id="n1",
        network="net",
        mac="fa:16:3e:00:00:01",
        physical_network="lab",
        addresses=(FixedAddress(address="10.0.2.17", prefix=24), FixedAddress(address="fd00::7", prefix=64)),
    )
    more = {"networks": {"lab": "user", "br": "bridge:br-none"}, "dhcp_hosts_path": str(tmp_path / "dhcp")}
    with opened(msgspec.structs.replace(settings, **more), store) as driver:
        one = spawn(driver, None, spec(ports=(port,), config_drive=True))
        [file] = (tmp_path / "dhcp").iterdir()
        assert file.read_text() == "fa:16:3e:00:00:01,10.0.2.17,[fd00::7],one\n"
        assert b"10.0.2.17" in (Path(settings.config_drive_path) / f"{one.uuid}.iso").read_bytes()
        assert "fa:16:3e:00:00:01" in binding.load_libvirt().open(daemon.connection_uri).lookupByUUIDString(one.uuid).XMLDesc()
        driver.destroy(one.uuid)
        assert list((tmp_path / "dhcp").iterdir()) == []
        for physical, text in (("other", "not attached"), ("br", "'br-none'.* does not exist")):
            with pytest.raises(errors.BuildFailed, match=text):
                spawn(driver, guest(), spec(ports=(msgspec.structs.replace(port, physical_network=physical),)))


def test_diagnostics_count_what_the_guest_did(settings: LibvirtSettings, store: FolderStore, tmp_path: Path) -> None:
    mac = "fa:16:3e:00:00:01"
    port = Port(network_id="n1", network="net", mac=mac, physical_network="lab")
    with opened(msgspec.structs.replace(settings, networks={"lab": "user"}), store) as driver:
        one = spawn(driver, None, spec(ports=(port,), config_drive=True))
        assert says(driver, one.uuid, "spark: boot 0001")
        found = driver.diagnostics(one.uuid)
        assert (found.state, found.hypervisor, found.config_drive) == ("running", "qemu", True)
        assert (found.memory_mb, found.memory_used_mb) == (FLAVOR.memory_mb, FLAVOR.memory_mb)
        [cpu], [nic], [disk, drive] = found.cpus or (), found.nics or (), found.disks or ()
        assert (cpu.id, bool(cpu.time), nic.mac_address) == (0, True, mac)
        assert disk.read_bytes
        assert disk.device != drive.device
        driver.set_power(one.uuid, Power.PAUSED, hard=True)
        assert driver.diagnostics(one.uuid).state == "paused"
        driver.set_power(one.uuid, Power.OFF, hard=True)
        off = driver.diagnostics(one.uuid)
        assert (off.state, off.cpus, off.nics) == ("shutdown", (CpuDiagnostics(id=0),), (NicDiagnostics(mac_address=mac),))
        with pytest.raises(errors.NotFound, match="has no guest"):
            driver.diagnostics(guest().uuid)


def test_a_config_drive_is_made_again_without_secrets(driver: LibvirtDriver, settings: LibvirtSettings) -> None:
    one = guest()
    driver.spawn(one, spec(config_drive=True), BootSecrets(user_data=base64.b64encode(b"the-secret").decode()), threading.Event())
    drive = Path(settings.config_drive_path) / f"{one.uuid}.iso"
    assert says(driver, one.uuid, "spark: boot 0001")
    driver.set_power(one.uuid, Power.OFF, hard=True)
    drive.unlink()  # as by a restart of the host
    driver.set_power(one.uuid, Power.ON, hard=True)
    assert says(driver, one.uuid, "spark: boot 0002")
    assert b"the-secret" not in drive.read_bytes()
    assert b"remade_without_secrets" in drive.read_bytes()


def test_a_console_is_cut_to_its_end(settings: LibvirtSettings, store: FolderStore) -> None:
    with opened(msgspec.structs.replace(settings, console_log_kb=16), store) as driver:
        one = spawn(driver)
        console = Path(settings.instances_path) / one.uuid / "console.log"
        with console.open("ab") as file:
            file.write(b"x" * 20_000 + b"the end of it\n")
        driver.guests()
        assert console.stat().st_size < 1000
        assert says(driver, one.uuid, "the end of it")
        ticks = console.stat().st_size
        assert wait_until(lambda: console.stat().st_size > ticks, PATIENCE_S), "the guest goes on writing to it"
        assert len(driver.console_output(one.uuid, 100)) == 100
        with pytest.raises(errors.NotFound):
            driver.console_output(guest().uuid, 100)


def test_nodes_tell_what_the_host_has(driver: LibvirtDriver) -> None:
    [node] = driver.nodes()
    assert (node.host, node.vcpus, node.hypervisor_type) == ("host1", os.cpu_count(), "QEMU")
    meminfo = Path("/proc/meminfo").read_text().split()
    assert node.memory_mb == int(meminfo[1]) // 1024
    assert node.reserved_memory_mb >= 512


def test_a_guest_is_tied_to_its_numa_node(settings: LibvirtSettings, store: FolderStore, daemon: PrivateDaemon) -> None:
    """The machine has one at least. A rebuild and a restart of the agent keep it."""
    guests = msgspec.structs.replace(settings.guests, report_numa_nodes=True)
    one = guest(numa_nodes=(0,))

    def tied() -> tuple[str | None, set[str | None]]:
        root = ET.fromstring(binding.load_libvirt().open(daemon.connection_uri).lookupByUUIDString(one.uuid).XMLDesc())
        memory = root.find("numatune/memory")
        return (memory.get("nodeset") if memory is not None else None), {
            pin.get("cpuset") for pin in root.iterfind("cputune/vcpupin")
        }

    with opened(msgspec.structs.replace(settings, guests=guests), store) as driver:
        [node] = driver.nodes()
        assert sum(each.vcpus for each in node.numa_nodes) == node.vcpus
        driver.spawn(one, spec(), None, threading.Event())
        assert says(driver, one.uuid, "spark: boot 0001")
        before = tied()
        assert before[0] == "0"
        driver.rebuild(one, DriveChanges(), None)
        assert tied() == before
    with opened(msgspec.structs.replace(settings, guests=guests), store) as driver:
        assert [each.numa_nodes for each in driver.guests()] == [(0,)]
        driver.destroy(one.uuid)
