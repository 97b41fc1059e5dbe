"""Disks of simulated guests: who wrote them, and copies that are complete or torn."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compute.disks import Disk, disks_path, read_disk, write_to_disk
from compute.driver import Guest
from compute.opts import ComputeSettings, SimulatedSettings
from compute.simulated import SimulatedDriver, cut_power
from images.store import FolderStore
from objects import errors
from objects.build import Origin
from objects.task import DriveChanges, Power, SendTarget
from service.periodic import wait_until
from tests.support.agents import A_SPEC

ORIGIN = Origin(instance_uuid="a", host="h1")


def a_guest(uuid: str = "a", *, power: Power = Power.ON, server_uuid: str = "") -> Guest:
    return Guest(
        uuid=uuid,
        name=uuid,
        node="h1",
        fence=1,
        attempt=1,
        builder="h1:a",
        vcpus=1,
        memory_mb=512,
        disk_gb=1,
        image_id="image",
        power=power,
        server_uuid=server_uuid,
        project_id=A_SPEC.project_id,
        user_id=A_SPEC.user_id,
    )


def a_driver(path: Path, host: str = "h1", **simulated: float) -> SimulatedDriver:
    made = SimulatedSettings(state_path=str(path), shared_folder=True, **simulated)  # type: ignore[arg-type]  # a test's shorthand
    return SimulatedDriver(ComputeSettings(host=host, simulated=made))


def a_driver_with_store(path: Path, host: str = "h1") -> SimulatedDriver:
    made = SimulatedSettings(state_path=str(path), shared_folder=True)
    return SimulatedDriver(ComputeSettings(host=host, simulated=made, images_folder=str(path / "images")))


def spawn(driver: SimulatedDriver, guest: Guest, origin: Origin | None = None, cancel: threading.Event | None = None) -> None:
    driver.spawn(guest, A_SPEC, None, cancel or threading.Event(), origin)


def disk(path: Path, host: str, uuid: str) -> Disk | None:
    return read_disk(str(path), host, uuid)


def test_a_guest_writes_at_its_start_and_stop(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    spawn(driver, a_guest())
    assert disk(tmp_path, "h1", "a") == Disk(server_uuid="a", image_id="image", writes=1)
    writes = []
    for power in (Power.OFF, Power.OFF, Power.HELD, Power.ON, Power.PAUSED, Power.ON, Power.SUSPENDED):
        driver.set_power("a", power, hard=False)
        assert driver.guests() == [a_guest(power=power)]
        found = disk(tmp_path, "h1", "a")
        writes.append(found and found.writes)
    assert writes == [2, 2, 2, 3, 3, 3, 4]
    driver.destroy("a")
    driver.destroy("a")
    assert list(disks_path(str(tmp_path), "h1").iterdir()) == []


def test_power_outlives_the_driver(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    spawn(driver, a_guest())
    spawn(driver, a_guest("b", power=Power.OFF))
    driver.set_power("a", Power.HELD, hard=False)
    for _ in range(2):
        driver.close()
        driver = a_driver(tmp_path)
        assert [(guest.uuid, guest.power) for guest in driver.guests()] == [("a", Power.HELD), ("b", Power.OFF)]


def test_a_guest_that_is_spawned_off_writes_nothing(tmp_path: Path) -> None:
    spawn(a_driver(tmp_path), a_guest("b", power=Power.OFF, server_uuid="a"))
    assert disk(tmp_path, "h1", "b") == Disk(server_uuid="a", image_id="image", writes=0)


def test_a_rebuild_renews_the_disk_of_its_server(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    spawn(driver, a_guest("b", server_uuid="a"))
    write_to_disk(str(tmp_path), "h1", "b")
    driver.rebuild(a_guest("b", server_uuid="a"), DriveChanges(), None)
    assert disk(tmp_path, "h1", "b") == Disk(server_uuid="a", image_id="image", writes=1)


def test_a_task_of_a_missing_guest_fails(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    with pytest.raises(errors.TaskFailed, match="no guest"):
        driver.set_power("a", Power.OFF, hard=True)


def test_some_guests_only_react_to_hard_tasks(tmp_path: Path) -> None:
    driver = a_driver(tmp_path, task_failure_rate=1.0)
    spawn(driver, a_guest())
    with pytest.raises(errors.TaskFailed, match="told to fail"):
        driver.set_power("a", Power.OFF, hard=False)
    with pytest.raises(errors.TaskFailed, match="told to fail"):
        driver.reboot("a", hard=False)
    with pytest.raises(errors.TaskFailed, match="told to fail"):
        driver.rebuild(a_guest(), DriveChanges(), None)
    driver.reboot("a", hard=True)
    driver.set_power("a", Power.OFF, hard=True)
    assert driver.guests() == [a_guest(power=Power.OFF)]


@pytest.mark.parametrize("power", [Power.ON, Power.OFF])
def test_a_copy_has_what_the_origin_has(tmp_path: Path, power: Power) -> None:
    first, second = a_driver(tmp_path), a_driver(tmp_path, "h2", copy_delay=0.05)
    spawn(first, a_guest())
    first.set_power("a", Power.HELD, hard=False)
    spawn(second, a_guest("b", power=power, server_uuid="a"), ORIGIN)
    assert disk(tmp_path, "h2", "b") == Disk(server_uuid="a", image_id="image", writes=3 if power is Power.ON else 2)
    assert disk(tmp_path, "h1", "a") == Disk(server_uuid="a", image_id="image", writes=2)


def copying(driver: SimulatedDriver, path: Path, cancel: threading.Event) -> threading.Thread:
    """A spawn in a thread, at its copy."""

    def copy() -> None:
        try:
            spawn(driver, a_guest("b", power=Power.OFF, server_uuid="a"), ORIGIN, cancel)
        except errors.BuildFailed:
            cancel.set()

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    assert wait_until((disks_path(str(path), "h2") / "b.part").exists, 90.0)
    return thread


def test_a_copy_of_a_writing_guest_is_torn(tmp_path: Path) -> None:
    spawn(a_driver(tmp_path), a_guest())
    thread = copying(a_driver(tmp_path, "h2", copy_delay=0.3), tmp_path, threading.Event())
    assert disk(tmp_path, "h2", "b") is None, "a copy under way has not its name"
    write_to_disk(str(tmp_path), "h1", "a")
    thread.join()
    assert disk(tmp_path, "h2", "b") == Disk(server_uuid="a", image_id="image", writes=1, torn=True)


def test_copy_remnants_go_with_a_destroy(tmp_path: Path) -> None:
    spawn(a_driver(tmp_path), a_guest())
    driver, cancel = a_driver(tmp_path, "h2", copy_delay=60.0), threading.Event()
    thread = copying(driver, tmp_path, cancel)
    cancel.set()
    thread.join()
    assert driver.guests() == []
    part = disks_path(str(tmp_path), "h2") / "b.part"
    assert part.exists()
    driver.destroy("b")
    assert not part.exists()


def test_copy_remnants_go_at_the_agent_start(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    spawn(driver, a_guest())
    driver.close()
    folder = disks_path(str(tmp_path), "h1")
    (folder / "b.part").write_text("{")
    (folder / "a.1.new").write_text("{")
    a_driver(tmp_path)
    assert [file.name for file in folder.iterdir()] == ["a"]


@pytest.mark.parametrize("content", [None, "", '{"server_uuid": "a", "wri'])
def test_an_unreadable_origin_fails_the_build(tmp_path: Path, content: str | None) -> None:
    first, second = a_driver(tmp_path), a_driver(tmp_path, "h2")
    spawn(first, a_guest())
    file = disks_path(str(tmp_path), "h1") / "a"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(errors.BuildFailed, match="cannot be copied"):
        spawn(second, a_guest("b", server_uuid="a"), ORIGIN)
    assert second.guests() == []


@pytest.mark.parametrize("uuid", ["../../x", "..", "", "a/b", "x" * 300, "\udcff", "a\0"])
def test_an_odd_uuid_names_no_other_file(tmp_path: Path, uuid: str) -> None:
    driver = a_driver(tmp_path)
    driver.destroy(uuid)
    write_to_disk(str(tmp_path), "h1", uuid)
    driver._disks.create(uuid, Disk(server_uuid="a"))
    assert [
        file.parent for file in tmp_path.rglob("*") if file.is_file() and ".guests" not in file.name and ".lock" not in file.name
    ] == [disks_path(str(tmp_path), "h1")]
    driver.destroy(uuid)
    assert list(disks_path(str(tmp_path), "h1").iterdir()) == []


SNAPSHOT = Origin(instance_uuid="a", host="", image_id="s")


def test_a_snapshot_becomes_the_disk_of_another_guest(tmp_path: Path) -> None:
    """On a host that shares the store, after the first guest has gone."""
    driver = a_driver_with_store(tmp_path)
    spawn(driver, a_guest())
    driver.set_power("a", Power.HELD, hard=False)
    driver.snapshot("a", "s")
    driver.destroy("a")
    spawn(a_driver_with_store(tmp_path, "h2"), a_guest("b", server_uuid="a"), SNAPSHOT)
    assert disk(tmp_path, "h2", "b") == Disk(server_uuid="a", image_id="image", writes=3)


def test_a_snapshot_of_a_running_guest_is_useless(tmp_path: Path) -> None:
    driver = a_driver_with_store(tmp_path)
    spawn(driver, a_guest())
    driver.snapshot("a", "s")
    with pytest.raises(errors.BuildFailed, match="a guest that wrote meanwhile"):
        spawn(driver, a_guest("b"), SNAPSHOT)


def test_an_invalid_or_missing_snapshot_fails_the_build(tmp_path: Path) -> None:
    driver = a_driver_with_store(tmp_path)
    store = FolderStore(tmp_path / "images")
    with pytest.raises(errors.ServiceUnavailable):
        spawn(driver, a_guest("b"), SNAPSHOT)
    store.save_snapshot("s", b"half a sna")
    with pytest.raises(errors.BuildFailed, match="The snapshot cannot be copied"):
        spawn(driver, a_guest("b"), SNAPSHOT)
    store.remove_snapshot("s")
    with pytest.raises(errors.BuildAborted, match="is not in the image store"):
        spawn(driver, a_guest("b"), SNAPSHOT)


def test_without_an_image_store_there_are_no_snapshots(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    spawn(driver, a_guest())
    with pytest.raises(errors.TaskFailed, match="no image store is configured"):
        driver.snapshot("a", "s")
    with pytest.raises(errors.BuildFailed, match="no image store is configured"):
        spawn(driver, a_guest("b"), SNAPSHOT)


@pytest.mark.parametrize("came", [True, False])
def test_a_power_cut_ends_live_and_listening_guests(tmp_path: Path, came: bool) -> None:
    """Neither runs afterwards. The one has its disk; the other never gets it."""
    source, target = a_driver(tmp_path), a_driver(tmp_path, "h2")
    spawn(source, a_guest("a"))
    spawn(target, a_guest("b", power=Power.INCOMING))
    to = SendTarget(instance_uuid="b", host="h2")
    if came:
        source.send("a", to, threading.Event())
        assert [guest.power for guest in target.guests()] == [Power.ON]
    target.close()
    cut_power(str(tmp_path), "h2")
    again = a_driver(tmp_path, "h2")
    assert [guest.power for guest in again.guests()] == [Power.OFF if came else Power.INCOMING]
    if came:
        again.set_power("b", Power.ON, hard=False)
        assert [guest.power for guest in (*source.guests(), *again.guests())] == [Power.HELD, Power.ON]
    else:
        with pytest.raises(errors.TaskFailed, match="does not listen"):
            source.send("a", to, threading.Event())
        assert [guest.power for guest in source.guests()] == [Power.ON]
    for driver in (source, again):
        driver.close()


def test_a_guest_migrated_live_has_no_boot_console(tmp_path: Path) -> None:
    source, target = a_driver(tmp_path), a_driver(tmp_path, "h2")
    spawn(source, a_guest("a"))
    spawn(target, a_guest("b", power=Power.INCOMING))
    source.send("a", SendTarget(instance_uuid="b", host="h2"), threading.Event())
    target.set_power("b", Power.ON, hard=False)
    assert target.console_output("b", 1000) == b"b: has come live\n"
    for driver in (source, target):
        driver.close()


@contextmanager
def full_file_system() -> Iterator[None]:
    """No file can grow: the kernel refuses each write with an error, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_host_leaves_nothing_beside_a_disk(tmp_path: Path) -> None:
    source, target = a_driver(tmp_path), a_driver(tmp_path, "h2")
    spawn(source, a_guest())
    spawn(target, a_guest("b", power=Power.INCOMING, server_uuid="a"))
    before = disk(tmp_path, "h1", "a")
    with full_file_system(), pytest.raises(OSError, match="File too large"):
        source.send("a", SendTarget(instance_uuid="b", host="h2"), threading.Event())
    with full_file_system(), pytest.raises(OSError, match="File too large"):
        write_to_disk(str(tmp_path), "h1", "a")
    assert [file.name for file in disks_path(str(tmp_path), "h1").iterdir()] == ["a"]
    assert disk(tmp_path, "h1", "a") == before
    source.send("a", SendTarget(instance_uuid="b", host="h2"), threading.Event())
    assert disk(tmp_path, "h2", "b") is not None


def test_a_link_on_another_host_is_not_followed(tmp_path: Path) -> None:
    """Neither to read a disk nor to hand one over."""
    here, other = a_driver(tmp_path), a_driver(tmp_path, "h2")
    spawn(here, a_guest())
    victim = tmp_path / "file-of-h1"
    victim.write_bytes((disks_path(str(tmp_path), "h1") / "a").read_bytes())
    (disks_path(str(tmp_path), "h2") / "b").symlink_to(victim)
    with pytest.raises(errors.BuildFailed, match="symbolic link"):
        spawn(here, a_guest("c"), Origin(instance_uuid="b", host="h2"))
    before = victim.read_bytes()
    (disks_path(str(tmp_path), "h2") / "d.incoming").symlink_to(victim)
    with pytest.raises(errors.TaskFailed, match="does not listen"):
        here.send("a", SendTarget(instance_uuid="d", host="h2"), threading.Event())
    assert victim.read_bytes() == before
    other.close()


@pytest.mark.parametrize("host", ["../elsewhere", "/tmp/elsewhere", ""])
def test_the_name_of_another_host_is_no_path(tmp_path: Path, host: str) -> None:
    driver = a_driver(tmp_path)
    with pytest.raises(errors.SuperconductorError, match="host"):
        spawn(driver, a_guest("c"), Origin(instance_uuid="b", host=host))
