"""The driver ``libvirt`` on a daemon of its own, with the guest ``spark`` in an image store."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from compute.driver import Guest, GuestSpec
from compute.libvirt.driver import LibvirtDriver
from compute.libvirt.guest_options import GuestSettings
from compute.libvirt.opts import LibvirtSettings
from compute.libvirt.private_daemon import PrivateDaemon
from images import spark
from images.store import FolderStore
from objects.flavor import Flavor
from objects.spec import Image
from objects.task import Power
from service.periodic import wait_until

HOST = "host1"
SPARK = str(uuid.uuid5(uuid.NAMESPACE_DNS, "spark.image"))
FLAVOR = Flavor(flavor_id="1", name="nano", vcpus=1, memory_mb=16, root_gb=1)
PATIENCE_S = 60.0


def add_spark(folder: Path) -> FolderStore:
    """An image store with the guest ``spark``."""
    store = FolderStore(folder)
    file = folder.with_name(f"{folder.name}.raw")
    spark.write_disk(file)
    store.add_image(file, name="spark", image_id=SPARK, disk_format="raw")
    return store


def settings_of(daemon: PrivateDaemon, place: Path, **more: object) -> LibvirtSettings:
    """The settings of an agent on this daemon, with its files in ``place``."""
    settings = LibvirtSettings(
        connection_uri=daemon.connection_uri,
        open_timeout=5.0,
        guests=GuestSettings(virt_type="qemu"),
        instances_path=str(place / "instances"),
        config_drive_path=str(place / "drives"),
        cache_path=str(place / "cache"),
        shutdown_timeout=20.0,
    )
    return msgspec.structs.replace(settings, **more)


@contextlib.contextmanager
def opened(settings: LibvirtSettings, store: FolderStore, host: str = HOST) -> Iterator[LibvirtDriver]:
    """An open driver."""
    driver = LibvirtDriver(host, settings, store, store)
    try:
        yield driver
    finally:
        driver.close()


def guest(host: str = HOST, **more: object) -> Guest:
    """A guest of the flavor ``FLAVOR``."""
    one = Guest(
        uuid=str(uuid.uuid4()),
        name="one",
        node=host,
        fence=1,
        attempt=1,
        builder=f"{host}:start",
        vcpus=FLAVOR.vcpus,
        memory_mb=FLAVOR.memory_mb,
        disk_gb=FLAVOR.disk_gb,
        image_id=SPARK,
    )
    return msgspec.structs.replace(one, **more)


def spec(**more: object) -> GuestSpec:
    """What is asked of such a guest."""
    asked = GuestSpec(project_id="p1", user_id="u1", flavor=FLAVOR, hostname="one", image=Image(id=SPARK))
    return msgspec.structs.replace(asked, **more)


def spawn(driver: LibvirtDriver, one: Guest | None = None, asked: GuestSpec | None = None) -> Guest:
    """A guest that runs there."""
    one = one or guest()
    driver.spawn(one, asked or spec(), None, threading.Event())
    return one


def says(driver: LibvirtDriver, uuid: str, text: str) -> bool:
    """Whether the guest writes this to its console in time."""
    return wait_until(lambda: text in driver.console_output(uuid, 1 << 20).decode(errors="replace"), PATIENCE_S)


def power_of(driver: LibvirtDriver, uuid: str) -> Power | None:
    """The power of this guest; None: there is none."""
    return next((one.power for one in driver.guests() if one.uuid == uuid), None)


def left_of(settings: LibvirtSettings) -> list[str]:
    """The names of everything that guests have on the host, without domains."""
    folders = (Path(settings.instances_path), Path(settings.config_drive_path))
    return sorted(path.name for folder in folders if folder.exists() for path in folder.iterdir() if path.name != ".lock")
