"""A libvirtd of its own: its guests outlive it, several are several hosts, and it ends only what is its own."""

from __future__ import annotations

import os
from pathlib import Path

from compute.libvirt import binding
from compute.libvirt.private_daemon import PrivateDaemon
from service.periodic import wait_until
from tests.support import libvirt_host
from tests.support.libvirt_host import private_daemon, spark_domain

PATIENCE_S = 90.0


def run_spark(daemon: PrivateDaemon, folder: Path, name: str = "spark") -> Path:
    """Start the guest there; its console."""
    connection = binding.load_libvirt().open(daemon.connection_uri)
    try:
        connection.defineXML(spark_domain(name, folder)).create()
    finally:
        connection.close()
    console = folder / f"{name}.log"
    assert wait_until(lambda: "spark: boot 0001" in console.read_text(), PATIENCE_S)
    return console


def states(daemon: PrivateDaemon) -> dict[str, bool]:
    """Whether each of its domains runs."""
    connection = binding.load_libvirt().open(daemon.connection_uri)
    try:
        return {found.name(): bool(found.isActive()) for found in connection.listAllDomains()}
    finally:
        connection.close()


def test_a_guest_outlives_its_daemon(daemon: PrivateDaemon, tmp_path: Path) -> None:
    console = run_spark(daemon, tmp_path)
    guests = daemon.guest_pids()

    daemon.stop()

    assert daemon.daemon_pid is None
    assert daemon.guest_pids() == guests
    lines = len(console.read_text().splitlines())
    assert wait_until(lambda: len(console.read_text().splitlines()) > lines, PATIENCE_S)
    daemon.start()
    assert states(daemon) == {"spark": True}


def test_a_guest_outlives_a_killed_daemon(daemon: PrivateDaemon, tmp_path: Path) -> None:
    run_spark(daemon, tmp_path)
    before = daemon.daemon_pid

    daemon.kill_daemon()
    daemon.start()

    assert daemon.daemon_pid not in (None, before)
    assert states(daemon) == {"spark": True}


def test_the_power_button_reaches_the_guest(daemon: PrivateDaemon, tmp_path: Path) -> None:
    console = run_spark(daemon, tmp_path)
    connection = binding.load_libvirt().open(daemon.connection_uri)

    connection.lookupByName("spark").shutdown()

    assert wait_until(lambda: not connection.lookupByName("spark").isActive(), PATIENCE_S)
    assert console.read_text().endswith("spark: power button\n")
    connection.lookupByName("spark").create()
    assert wait_until(lambda: "spark: boot 0002" in console.read_text(), PATIENCE_S)
    connection.close()


def test_two_daemons_are_two_hosts(daemon: PrivateDaemon, tmp_path: Path) -> None:
    run_spark(daemon, tmp_path, "one")
    with private_daemon(tmp_path / "other") as other:
        run_spark(other, tmp_path, "two")

        assert states(daemon) == {"one": True}
        assert states(other) == {"two": True}
        assert daemon.host_uuid != other.host_uuid
        assert not set(daemon.migration_ports) & set(other.migration_ports)
        other.stop(guests=True)
        assert other.guest_pids() == {}
        assert list(daemon.guest_pids()) == ["one"]


def test_a_daemon_that_runs_is_used(daemon: PrivateDaemon) -> None:
    same = PrivateDaemon(daemon.folder)

    assert same.start() == daemon.connection_uri
    assert same.daemon_pid == daemon.daemon_pid is not None


def test_another_process_with_its_number_is_not_touched(tmp_path: Path) -> None:
    daemon = PrivateDaemon(tmp_path / "host")
    (tmp_path / "host/run").mkdir(parents=True)
    (tmp_path / "host/run/libvirtd.pid").write_text(str(os.getpid()))

    daemon.stop(guests=True)

    assert daemon.daemon_pid is None


def test_a_deep_folder_will_do(tmp_path: Path) -> None:
    deep = tmp_path / "/".join(["a-folder-with-a-long-name"] * 5)
    with private_daemon(deep) as daemon:
        run_spark(daemon, tmp_path, "a-name-that-is-longer-than-what-libvirt-puts-into-a-path")

        assert len(daemon.guest_pids()) == 1


def test_what_a_killed_test_has_left_is_ended(daemon: PrivateDaemon, tmp_path: Path) -> None:
    run_spark(daemon, tmp_path)
    assert daemon.folder not in libvirt_host.sweep()

    (daemon.folder / libvirt_host.OWNER).write_text("1\nbefore")

    assert daemon.folder in libvirt_host.sweep()
    assert daemon.daemon_pid is None
    assert daemon.guest_pids() == {}
