"""A libvirt that is away, comes late, never answers, or goes in the middle of a call."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compute.libvirt.driver import LibvirtDriver
from compute.libvirt.private_daemon import PrivateDaemon
from images.store import FolderStore
from objects import errors
from objects.build import Origin
from objects.task import Power, SendTarget
from service.periodic import wait_until
from tests.support.libvirt_driver import PATIENCE_S, add_spark, guest, left_of, opened, power_of, settings_of, spawn, spec


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return add_spark(tmp_path / "images")


def is_down(driver: LibvirtDriver) -> bool:
    return driver.trouble() is not None


def test_a_libvirt_that_goes_and_comes_back(daemon: PrivateDaemon, store: FolderStore, tmp_path: Path) -> None:
    rung = threading.Event()
    daemon.stop()
    with opened(settings_of(daemon, tmp_path), store) as driver:
        driver.watch(rung.set)
        with pytest.raises(errors.HypervisorDown, match="cannot be used") as raised:
            spawn(driver)
        assert raised.value.untouched
        daemon.start()
        assert wait_until(lambda: not is_down(driver), PATIENCE_S)
        assert rung.is_set(), "guests may have changed meanwhile"
        one = spawn(driver)
        pids = daemon.guest_pids()
        daemon.kill_daemon()
        assert wait_until(lambda: is_down(driver), PATIENCE_S)
        for call in (driver.guests, driver.nodes, lambda: driver.destroy(one.uuid)):
            with pytest.raises(errors.HypervisorDown):
                call()
        daemon.start()
        assert wait_until(lambda: not is_down(driver), PATIENCE_S)
        assert power_of(driver, one.uuid) is Power.ON
        assert daemon.guest_pids() == pids, "the guest ran on"


def test_a_libvirt_that_never_answers(daemon: PrivateDaemon, store: FolderStore, tmp_path: Path) -> None:
    """``libvirt.open`` hangs as long as that. Nothing else does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        settings = msgspec.structs.replace(
            settings_of(daemon, tmp_path), connection_uri=f"qemu+unix:///session?socket={tmp_path / 's'}", open_timeout=0.5
        )
        with opened(settings, store) as driver:
            with pytest.raises(errors.HypervisorDown, match="does not answer"):
                driver.guests()
            assert "does not answer" in (driver.trouble() or "")


def test_a_spawn_losing_libvirt_has_touched_the_host(
    daemon: PrivateDaemon, store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(daemon, tmp_path)
    with opened(settings, store) as driver:
        make_disks = driver._make_disks

        def then_kill(*arguments: Any) -> dict[str, str]:
            made = make_disks(*arguments)
            daemon.kill_daemon()
            return made

        monkeypatch.setattr(driver, "_make_disks", then_kill)
        one = guest()
        with pytest.raises(errors.HypervisorDown) as raised:
            spawn(driver, one)
        assert not raised.value.untouched
        daemon.start()
        assert wait_until(lambda: not is_down(driver), PATIENCE_S)
        assert driver.guests() == []
        assert left_of(settings) == [], "no thread works on it, so it is removed before the agent asks for that"


def test_what_this_driver_cannot_do(daemon: PrivateDaemon, store: FolderStore, tmp_path: Path) -> None:
    with opened(settings_of(daemon, tmp_path), store) as driver:
        with pytest.raises(errors.BuildAborted, match="live"):
            spawn(driver, guest(power=Power.INCOMING))
        with pytest.raises(errors.TaskFailed, match="live"):
            driver.send(guest().uuid, SendTarget(instance_uuid=guest().uuid, host="b"), threading.Event())
        cancel = threading.Event()
        cancel.set()
        for origin in (None, Origin(instance_uuid=guest().uuid, host="b")):
            with pytest.raises(errors.BuildFailed):
                driver.spawn(guest(), spec(), None, cancel, origin)
